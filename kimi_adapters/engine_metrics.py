"""What an engine's counters say of one run of ours: by difference, since they count over the life of the server."""

from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from errors import UserError
from kimi_adapters.acceptance_length import Acceptance

_DRAFTS = "vllm:spec_decode_num_drafts_total"
_DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
_ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
_GENERATED = "vllm:generation_tokens_total"


@dataclass(frozen=True)
class Counters:
    """Counters of an engine at one time, or their difference, over all its processes.

    ``drafts``: verifier steps with a draft; ``drafted`` and ``accepted``: tokens; ``by_position[i]``: steps whose i-th proposal
    was accepted; ``generated``: tokens of all answers.
    """

    drafts: int
    drafted: int
    accepted: int
    by_position: tuple[int, ...]
    generated: int

    @classmethod
    def read(cls, text: str) -> "Counters":
        """From Prometheus' text format. ``UserError`` where there is none, or the engine does not speculate."""
        counts: dict[str, float] = {}
        positions: dict[int, float] = {}
        try:
            for sample in (one for family in text_string_to_metric_families(text) for one in family.samples):
                if sample.name == _BY_POSITION:
                    place = int(sample.labels["position"])
                    positions[place] = positions.get(place, 0.0) + sample.value
                else:  # ``…_created`` is a date and no count
                    counts[sample.name] = counts.get(sample.name, 0.0) + sample.value
        except (ValueError, KeyError):
            raise UserError(
                "the endpoint's /metrics are not Prometheus' text format: acceptance reads vLLM's counters"
            ) from None
        if _GENERATED not in counts:
            raise UserError("the endpoint's /metrics are not those of vLLM: acceptance in an engine reads vLLM's counters")
        drafts, drafted, accepted = (round(counts.get(name, 0.0)) for name in (_DRAFTS, _DRAFTED, _ACCEPTED))
        by_position = tuple(round(positions[place]) for place in sorted(positions))
        return cls(drafts, drafted, accepted, by_position, round(counts[_GENERATED]))

    @property
    def speculates(self) -> bool:
        """Whether the engine has a draft: it counts by position from its start."""
        return bool(self.by_position)

    def since(self, before: "Counters") -> "Counters":
        """The difference. ``UserError`` where a counter ran backwards: the engine was started again meanwhile."""
        old = before.by_position or (0,) * len(self.by_position)
        if len(old) != len(self.by_position) or self.generated < before.generated or self.drafts < before.drafts:
            raise UserError("the engine was started again while its counters were read: run the measurement again")
        return Counters(
            self.drafts - before.drafts,
            self.drafted - before.drafted,
            self.accepted - before.accepted,
            tuple(now - then for now, then in zip(self.by_position, old, strict=True)),
            self.generated - before.generated,
        )

    def acceptance(self) -> Acceptance:
        """Acceptance as it is counted here: each step emits its accepted tokens and the bonus token."""
        return Acceptance(self.drafts + self.accepted, self.drafts, self.by_position)
