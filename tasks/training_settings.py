"""The settings of training. Data only."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from kimi_adapters.recipe import REPLAYS
from tasks.section import Section


class TrainingSettings(Section):
    """The recipe. Draft shapes left empty follow the parent draft, else the verifier."""

    lr: float = Field(1e-3, gt=0, description="Highest learning rate of AdamW")
    epochs: int = Field(5, gt=0, description="Times that each sample is seen")
    scheduler: Literal["cosine", "linear", "none"] = Field("cosine", description="How the learning rate falls to 0")
    warmup_ratio: float | None = Field(
        None, ge=0, le=1, description="Share of the steps in which the rate rises; empty: 0.02, none without a scheduler"
    )
    optimizer: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: for the weight matrices, AdamW for the rest; worth its time with several packs a step"
    )
    weight_decay: float = Field(0.01, ge=0, description="Of AdamW, on every tensor that it trains")
    muon_lr: float | None = Field(None, gt=0, description="Highest learning rate of Muon; empty: lr")
    muon_weight_decay: float = Field(0.1, ge=0, description="Of Muon, on the weight matrices")
    grad_clip: float = Field(1.0, gt=0, description="Largest norm of a step's gradient; what is longer is scaled down")
    pack_tokens: int = Field(256, gt=8, description="Tokens of one packed sequence")
    packs_per_step: int = Field(1, gt=0, description="Packs of one optimizer step, whatever the number of devices")
    ttt_steps: int = Field(3, gt=0, description="Length of the chain that is trained")
    ttt_decay: float = Field(1.0, gt=0, description="Weight of each further link of that chain in the loss, as a power")
    loss: Literal["kl_div", "rkl", "jsd", "ce", "tv", "nla", "lk_hybrid"] = Field(
        "kl_div", description="Between the verifier's next tokens and the draft's, as speculators names it; kl_div: forward KL"
    )
    supervised: Literal["answers", "all"] = Field(
        "answers",
        description="all: on every token of a sample, at so much longer a step; helps where data are few, and costs acceptance "
        "on prompts of other kinds where they are many",
    )
    noise: float = Field(0.0, ge=0, description="Half-width of uniform noise on the auxiliary states; train split only")
    seed: int = Field(0, description="Of the first weights, the order of samples and the noise")
    checkpoint_every_steps: int = Field(50, gt=0, description="Steps after which a run that is cut off can go on")
    replay_every_steps: int | None = Field(
        None,
        ge=0,
        description="Steps between replays on held-out samples, by which the draft is chosen; empty: a quarter "
        "of the run; 0: the last step's draft is taken",
    )
    replay_samples: int = Field(16, gt=0, description="Held-out samples of such a replay")
    patience: int | None = Field(None, gt=0, description="Replays without a better one after which training ends; empty: never")
    continue_from: str | None = Field(
        None,
        min_length=8,
        pattern="^[0-9a-f]+$",
        description="Key (or its beginning) of a training that was cut short; this "
        "one goes on from its newest checkpoint, whatever has changed since; leave training.parent as that one had it",
    )
    parent: str | None = Field(
        None,
        min_length=1,
        description="A draft to start from: an alias (champion), a digest (or its beginning) in the store, or the folder of a "
        "published draft; shapes left empty are its own",
    )
    min_parent_coverage: float = Field(
        0.98,
        ge=0,
        le=1,
        description="The parent's vocabulary is kept while it covers this share of what a new one of vocabulary.size would",
    )
    layer: Literal["llama", "qwen3"] = Field("llama", description="qwen3: with norms over each head's queries and keys")
    num_layers: int = Field(1, gt=0, description="Decoder layers of the draft; EAGLE-3 has one")
    num_heads: int | None = Field(None, description="Attention heads")
    num_kv_heads: int | None = Field(None, description="Heads of keys and values; must divide num_heads")
    head_dim: int | None = Field(None, description="Width of a head; even")
    intermediate_size: int | None = Field(None, description="Width of the feed-forward layer")
    max_position_embeddings: int | None = Field(None, description="At least the serving length")
    rope: Literal["plain", "verifier"] = Field(
        "plain", description="verifier: positions stretched as the verifier's are (YaRN), which engines read differently"
    )
    rope_theta: float | None = Field(None, gt=0, description="Base of the rotary positions")
    fc_start: Literal["random", "last"] = Field(
        "random",
        description="last: the layer that fuses the auxiliary states begins by handing on the last of them; for short runs",
    )
    train_lm_head: bool = Field(False, description="Train the head, too, instead of keeping the verifier's rows")
    train_embeddings: bool = Field(False, description="Train the embeddings, too: 12 bytes a number more on every device")
    norm_before_residual: bool = Field(False, description="The first layer's residual is the state after its norm")
    norm_before_fc: bool = Field(False, description="One norm over the auxiliary states side by side, before they are fused")
    fc_norm: bool = Field(False, description="A norm for each auxiliary state, before they are fused")
    norm_output: bool = Field(False, description="The next link of the chain is fed the state after the last norm")

    def recipe(self) -> dict[str, Any]:
        """What the draft is shaped and trained by: not where it begins, nor how often it is saved, which no weight knows."""
        return self.model_dump(exclude={"continue_from", "parent", "min_parent_coverage", "checkpoint_every_steps"})

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.scheduler == "none" and self.warmup_ratio:
            raise ValueError("training.warmup_ratio needs a scheduler, and training.scheduler is none: leave one of them empty")
        if self.optimizer == "adamw" and self.muon_lr is not None:
            raise ValueError("training.muon_lr needs training.optimizer muon: leave it empty, or choose that")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("training.norm_before_fc and training.fc_norm exclude each other: choose one")
        if self.pack_tokens <= 2 * self.ttt_steps:
            raise ValueError(f"training.pack_tokens is too short for {self.ttt_steps} training.ttt_steps: raise it")
        if self.replay_every_steps == 0 and self.patience is not None:
            raise ValueError("training.patience counts replays, and training.replay_every_steps is 0: leave one of them empty")
        never = REPLAYS - 1  # the first replay is the best so far, and with the last the run ends
        if self.replay_every_steps is None and self.patience and self.patience >= never and not self.continue_from:
            raise ValueError(
                f"training.patience is {self.patience}, and the {REPLAYS} replays of a run with training.replay_every_steps "
                f"empty are too few for more than {never - 1} to end it: lower it or set replay_every_steps"
            )
        if self.num_heads and self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError("training.num_kv_heads does not divide training.num_heads: choose one that does")
        if self.head_dim and self.head_dim % 2:
            raise ValueError("training.head_dim is odd, and rotary positions turn halves of it: give an even one")
        return self
