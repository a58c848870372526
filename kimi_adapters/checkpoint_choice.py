"""Which step's weights become the draft: the one whose replay over held-out answers accepts the most.

In training's key, with the `walk` that it counts by. The replay draws no random number and changes no weight, so the
steps of a run are the same with and without it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from torch import Tensor

from kimi_adapters.acceptance_length import Acceptance, total
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.packing import PackedShards, Shard
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import REPLAYS, Recipe
from kimi_adapters.walk import answers_of, walk_sample

BEST = "best."


class HeldOut:
    """A bounded number of held-out samples, spread evenly over all that are not left out and have something to propose."""

    def __init__(self, shards: Sequence[Shard], left_out: Mapping[int, Collection[int]], samples: int, k: int):
        self.k = k
        usable = [
            (shard, sample)
            for number, shard in enumerate(shards)
            for sample, side in enumerate(shard.sides)
            if side == "held_out" and sample not in left_out.get(number, ()) and _proposes(shard, sample)
        ]
        count = min(samples, len(usable))
        self.samples = [usable[i * len(usable) // count] for i in range(count)]

    @classmethod
    def beside(cls, data: PackedShards, samples: int, k: int) -> Self:
        """Those of the shards that are trained on."""
        return cls(data.shards, data.left_out, samples, k)

    def length(self, config: Mapping[str, Any], tensors: Mapping[str, Tensor], ranks: Ranks | None = None) -> float:
        """The acceptance length, by chains of `k`, of the draft of these weights (on their own device, in float32).

        Several ranks walk over a share of the samples each, and count together: none waits for another's replay.
        """
        device = next(iter(tensors.values())).device
        ranks = ranks or Ranks(device)
        runner = DraftRunner(config, tensors, device)
        found = total([walk_sample(runner, shard, sample, self.k) for shard, sample in ranks.share(self.samples)], self.k)
        tokens, steps, *accepted = map(int, ranks.sums([found.tokens, found.steps, *found.accepted]))
        return Acceptance(tokens, steps, tuple(accepted)).length


@dataclass
class BestSoFar:
    """The best evaluation of a run. `waited`: evaluations since then. `tensors`: the trained ones at `step`, on CPU."""

    step: int = 0
    length: float = 0.0
    waited: int = 0
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def take(self, step: int, length: float, trainable: Mapping[str, Tensor]) -> None:
        """Count an evaluation in; of equal ones the earlier stays."""
        if length <= self.length:
            self.waited += 1
            return
        self.step, self.length, self.waited = step, length, 0
        self.tensors = {name: value.detach().to("cpu", copy=True) for name, value in trainable.items()}

    def state(self) -> dict[str, Any]:
        """What a training checkpoint keeps of it beside `stored`."""
        return {"step": self.step, "length": self.length, "waited": self.waited}

    def stored(self) -> dict[str, Tensor]:
        """Its tensors under the names that a training checkpoint gives them."""
        return {f"{BEST}{name}": value for name, value in self.tensors.items()}

    @classmethod
    def restored(cls, state: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Self:
        """As it stood in a training checkpoint."""
        return cls(**state, tensors={n.removeprefix(BEST): value for n, value in tensors.items() if n.startswith(BEST)})


class CheckpointChoice:
    """When a run of `total_steps` is replayed, what came out best, and whether it has waited long enough for better."""

    def __init__(self, recipe: Recipe, data: PackedShards, total_steps: int, config: Mapping[str, Any], ranks: Ranks):
        self.config, self.ranks = config, ranks
        every = recipe.replay_every_steps
        self.every = -(-total_steps // REPLAYS) if every is None else every
        self.total_steps, self.patience = total_steps, recipe.patience
        self.held_out = HeldOut.beside(data, recipe.replay_samples, recipe.ttt_steps)
        self.best = BestSoFar()

    def due(self, step: int) -> bool:
        """Whether a replay follows a step: every so many, and the last; never where nothing is held out."""
        wanted = self.every > 0 and (step % self.every == 0 or step == self.total_steps)
        return wanted and bool(self.held_out.samples)

    def judge(self, step: int, tensors: Mapping[str, Tensor], trained: Collection[str]) -> float:
        """The acceptance length of the draft as it is; the first rank keeps its trained tensors where none accepted more."""
        length = self.held_out.length(self.config, tensors, self.ranks)
        self.best.take(step, length, {name: tensors[name] for name in trained} if self.ranks.first else {})
        return length

    def judge_again(self, best: BestSoFar, tensors: Mapping[str, Tensor], curves: list[dict[str, float]]) -> None:
        """Takes over what another training had found best, by its replay here; replays made elsewhere leave `curves`."""
        for entry in curves:
            entry.pop("replayed_length", None)
        if best.step and self.held_out.samples:
            length = self.held_out.length(self.config, {**tensors, **best.tensors}, self.ranks)
            self.best = BestSoFar(best.step, length, 0, best.tensors)
            curves[best.step - 1]["replayed_length"] = length

    @property
    def over(self) -> bool:
        """Whether as many replays as the recipe waits for have brought nothing better."""
        return self.patience is not None and self.best.waited >= self.patience


def _proposes(shard: Shard, sample: int) -> bool:
    """Whether an answer of the sample has a token after its first: the walk starts there."""
    mask = shard.loss_mask[int(shard.offsets[sample]) : int(shard.offsets[sample + 1])]
    return any(end - first > 1 for first, end in answers_of(mask.tolist()))
