"""Every setting of the pipeline: the form in Prefect, the YAML file and the keys come from here. Data only.

A stage's own section is in its key. ``running``, ``store``, ``report``, ``gates`` and ``limit``'s effect on gates are in none.
Paths are relative to the working directory.
"""

from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.engine_settings import EndpointSettings, EngineAcceptance, EngineSettings, EngineStates
from tasks.section import Section


class VerifierSettings(Section):
    """The model that the draft is for."""

    embedded: Literal["smollm2-135m-instruct"] | None = Field(
        None, description="A verifier that a Python package ships; leave empty to give a directory"
    )
    directory: str | None = Field(None, description="A Hugging Face directory: config.json, tokenizer.json, safetensors")
    name: str | None = Field(None, description="The name under which it is served, written into the exported draft")
    chat_format: Literal["chatml", "smollm2", "llama3", "qwen3", "kimi_k2"] | None = Field(
        None, description="Empty: found from the chat template"
    )


class DataSettings(Section):
    """What the draft learns from."""

    conversations: list[str] = Field(
        [], description="Files of conversations, or folders of them: JSONL (also in gzip or zstd) and Parquet"
    )
    prompts: list[str] = Field([], description="JSONL files of prompts that the verifier answers first")
    legacy_states: list[str] = Field(
        [], description="Folders of samples with their states in speculators' v1 format, one .pt file each; no verifier runs"
    )


class SynthesisSettings(Section):
    """How the verifier answers prompts."""

    source: Literal["verifier", "endpoint"] = Field("verifier", description="Here, or by the engine that serves it (endpoint)")
    max_new_tokens: int = Field(96, gt=0)
    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    seed: int = 0
    prompts_per_task: int = Field(128, gt=0, description="Prompts that one task answers")


class CorpusSettings(Section):
    """How conversations become tokens."""

    max_length: int = Field(2048, gt=1, description="Longest sample in tokens; longer conversations are cut into windows")
    shard_tokens: int = Field(8192, gt=1, description="A token shard is cut when it has reached this many tokens")
    held_out: float = Field(0.1, ge=0, lt=1, description="Share of conversations kept for evaluation")


class HiddenStatesSettings(EngineStates):
    """What is stored of the verifier's forward, and who computes it."""

    layer_ids: list[int] | None = Field(None, description="Auxiliary layers: states that ENTER them; empty: 2, L//2, L-3")
    state_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    compute_dtype: Literal["bfloat16", "float32"] = Field("float32", description="An engine's own --dtype must be the same")


class ValidationSettings(Section):
    """What makes a sample unfit for training. Only ``read_share`` makes shards be checked again; the rest is the merge's."""

    read_share: float = Field(
        0.1, gt=0, le=1, description="Share of samples whose stored states are read again; 1 reads all, digests included"
    )
    norm_deviations: float = Field(
        10.0, gt=0, description="A state norm is outlying past so many robust deviations from the corpus's median …"
    )
    norm_ratio: float = Field(1.5, gt=1, description="… and past this factor")
    max_repeated_rows: float = Field(0.05, ge=0, le=1, description="Share of state rows that may equal the row before")
    min_supervised: int = Field(2, ge=1, description="Fewest supervised tokens of a sample")
    max_repetition: float = Field(0.6, gt=0, le=1, description="Share of an answer's tokens in 8-grams that came before in it")
    max_loop: int = Field(256, gt=8, description="Longest run of tokens that repeats itself with a period of at most 64")
    min_score: float = Field(
        -2.5, le=0, description="Lowest mean log-probability of an answer that this verifier gave greedily"
    )
    min_agreement: float = Field(0.8, ge=0, le=1, description="Lowest share of such an answer's tokens that are its likeliest")


class VocabularySettings(Section):
    """The draft's vocabulary."""

    size: int = Field(8192, gt=0, description="Tokens the draft can propose; special tokens are always among them")


class TrainingSettings(Section):
    """The recipe. Draft shapes left empty follow the verifier."""

    lr: float = Field(1e-3, gt=0)
    epochs: int = Field(5, gt=0)
    scheduler: Literal["cosine", "linear", "none"] = "cosine"
    warmup_ratio: float | None = Field(
        None, ge=0, le=1, description="Share of the steps in which the rate rises; empty: 0.02, none without a scheduler"
    )
    weight_decay: float = Field(0.01, ge=0)
    grad_clip: float = Field(1.0, gt=0)
    pack_tokens: int = Field(256, gt=8, description="Tokens of one packed sequence")
    packs_per_step: int = Field(1, gt=0, description="Packs of one optimizer step, whatever the number of devices")
    ttt_steps: int = Field(3, gt=0, description="Length of the chain that is trained")
    ttt_decay: float = Field(1.0, gt=0)
    loss: Literal["kl_div", "rkl", "jsd", "ce", "tv", "nla", "lk_hybrid"] = "kl_div"
    noise: float = Field(0.0, ge=0, description="Half-width of uniform noise on the auxiliary states; train split only")
    seed: int = 0
    checkpoint_every_steps: int = Field(50, gt=0)
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
        "one goes on from its newest checkpoint, whatever has changed since",
    )
    num_layers: int = Field(1, gt=0)
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int | None = None
    max_position_embeddings: int | None = Field(None, description="At least the serving length")
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.scheduler == "none" and self.warmup_ratio:
            raise ValueError("training.warmup_ratio needs a scheduler, and training.scheduler is none: leave one of them empty")
        if self.norm_before_fc and self.fc_norm:
            raise ValueError("training.norm_before_fc and training.fc_norm exclude each other: choose one")
        if self.pack_tokens <= 2 * self.ttt_steps:
            raise ValueError(f"training.pack_tokens is too short for {self.ttt_steps} training.ttt_steps: raise it")
        if self.replay_every_steps == 0 and self.patience is not None:
            raise ValueError("training.patience counts replays, and training.replay_every_steps is 0: leave one of them empty")
        if self.num_heads and self.num_kv_heads and self.num_heads % self.num_kv_heads:
            raise ValueError("training.num_kv_heads does not divide training.num_heads: choose one that does")
        if self.head_dim and self.head_dim % 2:
            raise ValueError("training.head_dim is odd, and rotary positions turn halves of it: give an even one")
        return self


class AcceptanceSettings(EngineAcceptance):
    """How the draft is judged."""

    prompts: str | None = Field(None, description="JSONL file of evaluation prompts; empty: replay on held-out text only")
    max_prompts: int = Field(16, gt=0)
    k: int = Field(3, gt=0, description="Tokens drafted a verifier step")
    max_new_tokens: int = Field(64, gt=0)


class ExportSettings(Section):
    """What the checkpoint is for."""

    engine: Literal["vllm"] = Field("vllm", description="vLLM loads the speculators format")
    dtype: Literal["bfloat16", "float32"] = "bfloat16"


class GateSettings(Section):
    """Limits that stop a run; with ``limit`` set they only warn."""

    max_quarantined: float = Field(0.05, ge=0, le=1, description="Share of samples that validation may put aside")
    max_rejected: float = Field(0.2, ge=0, le=1, description="Share of rows that the corpus may reject")
    max_lost: float = Field(0.01, ge=0, le=1, description="Share of supervised tokens lost to corpus.max_length")
    min_coverage: float = Field(0.7, ge=0, le=1, description="Share of supervised tokens that the draft vocabulary holds")
    min_slice_coverage: float = Field(0.6, ge=0, le=1, description="The same of a slice of 1,000 tokens or more; a warning")
    max_engine_gap: float = Field(0.2, gt=0, description="Acceptance length in the engine may differ by so much from our own")


class StoreSettings(Section):
    """Where artifacts and the state of this host lie."""

    path: str = ".eyas/store"
    state: str = ".eyas/state"
    max_bytes: int | None = Field(None, gt=0, description="The store never grows past this")
    mirror: str | None = Field(
        None,
        description="URI of a copy that is kept and read: s3://bucket/prefix, file:///…; credentials come from the environment",
    )


class ReportSettings(Section):
    """What the report may show."""

    show_text: bool = Field(False, description="Show texts of conversations in reports")


class RunningSettings(Section):
    """How work is executed; results do not depend on it."""

    devices: list[int] | None = Field(None, description="GPUs that may be leased; empty: all that nobody uses")
    share_devices: bool = Field(False, description="Lease GPUs that other processes use, too")
    cpu_slots: int | None = Field(None, gt=0, description="Children at once on a host without GPUs; empty: one a core")
    shards_per_pass: int = Field(1, gt=0, description="Shards taken through the layers together")
    generation_batch: int = Field(64, gt=0, description="Rows that the verifier decodes at once")


class Settings(Section):
    """Everything a run is told."""

    name: str = "draft"
    limit: int | None = Field(None, gt=0, description="A smoke run: so many prompts and conversations a file; gates only warn")
    verifier: VerifierSettings = VerifierSettings()
    data: DataSettings = DataSettings()
    synthesis: SynthesisSettings = SynthesisSettings()
    corpus: CorpusSettings = CorpusSettings()
    hidden_states: HiddenStatesSettings = HiddenStatesSettings()
    validation: ValidationSettings = ValidationSettings()
    vocabulary: VocabularySettings = VocabularySettings()
    training: TrainingSettings = TrainingSettings()
    acceptance: AcceptanceSettings = AcceptanceSettings()
    export: ExportSettings = ExportSettings()
    gates: GateSettings = GateSettings()
    endpoint: EndpointSettings = EndpointSettings()
    engine: EngineSettings = EngineSettings()
    store: StoreSettings = StoreSettings()
    report: ReportSettings = ReportSettings()
    running: RunningSettings = RunningSettings()

    @model_validator(mode="after")
    def _agree(self) -> Self:
        recipe = self.training
        if self.acceptance.k > recipe.ttt_steps:
            raise ValueError(
                f"acceptance.k is {self.acceptance.k}, and training.ttt_steps trains chains of {recipe.ttt_steps}: raise "
                "ttt_steps or lower k"
            )
        if recipe.max_position_embeddings is not None and recipe.max_position_embeddings < self.corpus.max_length:
            raise ValueError(
                f"training.max_position_embeddings is {recipe.max_position_embeddings}, and corpus.max_length gives samples of "
                f"{self.corpus.max_length} tokens: raise the one or lower the other"
            )
        if self.corpus.held_out == 0 and (recipe.patience is not None or recipe.replay_every_steps):
            raise ValueError(
                "training.patience and training.replay_every_steps need held-out samples, and corpus.held_out is 0: raise it, "
                "or leave them empty"
            )
        return self
