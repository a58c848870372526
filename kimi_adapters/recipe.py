"""A training recipe: everything a draft's training is told, as plain data (no torch)."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from errors import UserError

OPTIMIZERS = ("adamw", "muon")
SCHEDULERS = ("cosine", "linear", "none")
WARMUP = 0.02
ROPES = ("plain", "verifier")
LAYERS = ("llama", "qwen3")
FC_STARTS = ("random", "last")
SUPERVISED = ("answers", "all")
LOSSES = ("kl_div", "rkl", "jsd", "ce", "tv", "nla", "lk_hybrid")

REPLAYS = 4  # in a run, where the recipe does not say
FLEX_BLOCK = 128  # speculators extends block masks assuming whole blocks


@dataclass(frozen=True)
class Recipe:
    """How a draft is shaped and trained. A shape that is None follows the verifier (`draft.draft_config`);
    where `num_heads` alone is given, there are as many key-value heads.

    One optimizer step takes `packs_per_step` packs of `pack_tokens` tokens, whatever the number of devices; each
    supervised token of the step weighs the same. The learning rate rises over the first `warmup_ratio` of the steps
    (None: 0.02; with the scheduler none it never moves).
    With the `optimizer` muon that is the rate of what AdamW keeps; Muon's is `muon_lr` (None: the same).
    `ttt_steps` is the length of the chain trained (training-time test); step s weighs `ttt_decay` ** s.
    `supervised` all trains on every token of a sample and not on its answers alone; what the draft is chosen by stays those.
    `noise` is the half-width of the uniform noise added to the auxiliary states, in the states' own unit.
    `max_position_embeddings` must reach the length at which the draft will serve. `rope_theta` is the base of the rotary
    positions, the verifier's where it is None; with `rope` verifier they are stretched as the verifier's are.
    The draft is that of the step whose replay on up to `replay_samples` held-out samples accepts most; a replay comes
    every `replay_every_steps` (None: four times in a run; 0: never, the last step's draft is taken) and at the end.
    After `patience` replays without a better one the run ends.
    `layer` qwen3 is a llama layer with an RMSNorm over each head's queries and keys.
    The four norm flags are speculators' own; what an engine makes of them stands in `engine_rules`.
    With `fc_start` last the fusing layer begins by handing on the last of the auxiliary states.
    `train_lm_head` and `train_embeddings` train copies of the verifier's rows that the draft keeps for itself; what it is
    trained against stays the verifier's. Beside the 4 B of a frozen number each takes 12 B (gradient, two moments): for
    Kimi-K2.5 the head's 32,000 x 7,168 rows 2.8 GB, the embeddings' 163,840 x 7,168 14.1 GB, on every device.
    """

    lr: float = 1e-3
    epochs: int = 5
    scheduler: str = "cosine"
    warmup_ratio: float | None = None
    optimizer: str = "adamw"
    weight_decay: float = 0.01
    muon_lr: float | None = None
    muon_weight_decay: float = 0.1
    grad_clip: float = 1.0
    pack_tokens: int = 256
    packs_per_step: int = 1
    ttt_steps: int = 3
    ttt_decay: float = 1.0
    loss: str = "kl_div"
    supervised: str = "answers"
    noise: float = 0.0
    seed: int = 0
    checkpoint_every_steps: int = 100
    replay_every_steps: int | None = None
    replay_samples: int = 16
    patience: int | None = None
    layer: str = "llama"
    num_layers: int = 1
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int | None = None
    rope: str = "plain"
    rope_theta: float | None = None
    fc_start: str = "random"
    train_lm_head: bool = False
    train_embeddings: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """UserError: an unknown key, a value of another type, a value out of range."""
        known = {field.name: field.type for field in fields(cls)}
        unknown = sorted(set(values) - set(known))
        if unknown:
            raise UserError(f"The training recipe has no setting {', '.join(unknown)}; it knows {', '.join(known)}.")
        return cls(**{name: _typed(name, known[name], value) for name, value in values.items()})

    def __post_init__(self) -> None:
        positive = (
            "lr", "muon_lr", "epochs", "grad_clip", "pack_tokens", "packs_per_step", "ttt_steps", "ttt_decay", "num_layers",
            "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "max_position_embeddings", "rope_theta",
            "checkpoint_every_steps", "replay_samples", "patience",
        )  # fmt: skip
        for name in positive:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UserError(f"training.{name} is {value}; give a number above 0.")
        for name in ("weight_decay", "muon_weight_decay", "noise"):
            if not getattr(self, name) >= 0:
                raise UserError(f"training.{name} is {getattr(self, name)}; give 0 or more.")
        if self.replay_every_steps is not None and not self.replay_every_steps >= 0:
            raise UserError(f"training.replay_every_steps is {self.replay_every_steps}; give 0 for never, or more.")
        if self.replay_every_steps == 0 and self.patience is not None:
            raise UserError("training.patience counts replays and training.replay_every_steps is 0; leave one of them empty.")
        if not 0 <= self.warmup <= 1:
            raise UserError(f"training.warmup_ratio is {self.warmup_ratio}; give a share between 0 and 1.")
        if self.scheduler not in SCHEDULERS:
            raise UserError(f"training.scheduler is {self.scheduler!r}; choose {', '.join(SCHEDULERS)}.")
        if self.optimizer not in OPTIMIZERS:
            raise UserError(f"training.optimizer is {self.optimizer!r}; choose {', '.join(OPTIMIZERS)}.")
        if self.optimizer == "adamw" and self.muon_lr is not None:
            raise UserError("training.muon_lr needs training.optimizer muon; leave it empty.")
        if self.rope not in ROPES:
            raise UserError(f"training.rope is {self.rope!r}; choose {', '.join(ROPES)}.")
        if self.layer not in LAYERS:
            raise UserError(f"training.layer is {self.layer!r}; choose {', '.join(LAYERS)}.")
        if self.loss not in LOSSES:
            raise UserError(f"training.loss is {self.loss!r}; choose {', '.join(LOSSES)}.")
        if self.fc_start not in FC_STARTS:
            raise UserError(f"training.fc_start is {self.fc_start!r}; choose {', '.join(FC_STARTS)}.")
        if self.supervised not in SUPERVISED:
            raise UserError(f"training.supervised is {self.supervised!r}; choose {', '.join(SUPERVISED)}.")
        if self.scheduler == "none" and self.warmup > 0:
            raise UserError("training.warmup_ratio needs a scheduler and training.scheduler is none; leave one of them empty.")
        if self.norm_before_fc and self.fc_norm:
            raise UserError("training.norm_before_fc and training.fc_norm exclude each other; choose one.")
        if self.pack_tokens <= 2 * self.ttt_steps:
            raise UserError(f"training.pack_tokens is {self.pack_tokens}, too short for {self.ttt_steps} TTT steps; raise it.")
        if self.num_heads and self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise UserError(f"training.num_heads is {self.num_heads}; give a multiple of num_kv_heads = {self.num_kv_heads}.")
        if self.head_dim is not None and self.head_dim % 2:
            raise UserError(f"training.head_dim is {self.head_dim}; give an even number: positions turn pairs.")

    def check_gpu(self) -> None:
        """UserError: a pack length that the attention masks of a GPU do not divide into blocks."""
        if self.pack_tokens % FLEX_BLOCK:
            raise UserError(
                f"training.pack_tokens is {self.pack_tokens}; on a GPU give a multiple of {FLEX_BLOCK}, the block of "
                "its attention masks."
            )

    @property
    def warmup(self) -> float:
        """The share of the steps over which the learning rate rises."""
        if self.warmup_ratio is None:
            return 0.0 if self.scheduler == "none" else WARMUP
        return self.warmup_ratio


def _typed(name: str, kind: Any, value: Any) -> Any:
    """`value` as the field's type; an int is taken where a float is wanted, a bool never for a number."""
    wanted = {int | None: int, float | None: float}.get(kind, kind)
    if value is None and wanted is not kind:
        return None
    accepted = (int, float) if wanted is float else wanted
    if not isinstance(value, accepted) or (isinstance(value, bool) and wanted is not bool):
        raise UserError(f"training.{name} is {value!r}; give {wanted.__name__}.")
    return wanted(value)
