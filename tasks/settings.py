"""Every setting of the pipeline: the form in Prefect, the YAML file and the keys come from here. Data only.

A stage's own section is in its key. ``running``, ``budget``, ``window``, ``store``, ``report``, ``gates`` and ``limit``'s
effect on gates are in none. Paths are relative to the working directory.
"""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from tasks.engine_settings import EndpointSettings, EngineAcceptance, EngineSettings, EngineStates
from tasks.operation_settings import BudgetSettings, WindowSettings
from tasks.promotion_settings import PromotionSettings
from tasks.section import Section
from tasks.training_settings import TrainingSettings


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
    max_new_tokens: int = Field(96, gt=0, description="Longest answer in tokens")
    temperature: float = Field(0.0, ge=0, description="0 is greedy")
    seed: int = Field(0, description="Of the sampling, where the temperature is above 0")
    prompts_per_task: int = Field(128, gt=0, description="Prompts that one task answers")


class CorpusSettings(Section):
    """How conversations become tokens."""

    max_length: int = Field(2048, gt=1, description="Longest sample in tokens; longer conversations are cut into windows")
    shard_tokens: int = Field(8192, gt=1, description="A token shard is cut when it has reached this many tokens")
    held_out: float = Field(0.1, ge=0, lt=1, description="Share of conversations kept for evaluation")


class HiddenStatesSettings(EngineStates):
    """What is stored of the verifier's forward, and who computes it."""

    layer_ids: list[int] | None = Field(None, description="Auxiliary layers: states that ENTER them; empty: 2, L//2, L-3")
    state_dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", description="As they are stored; float32 takes twice the disk"
    )
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


class AdoptionSettings(Section):
    """How near states made again must be for `eyas adopt` to take the others over although their bytes differ."""

    max_relative_error: float = Field(0.01, ge=0, description="Largest |after - before| / |before| of a state over a shard")
    min_agreement: float = Field(0.999, ge=0, le=1, description="Lowest share of rows whose likeliest token is the same")


class VocabularySettings(Section):
    """The draft's vocabulary."""

    size: int = Field(8192, gt=0, description="Tokens the draft can propose; special tokens are always among them")
    mapping: str | None = Field(
        None,
        min_length=1,
        description="Folder of a vocabulary that was chosen elsewhere, d2t.npy and t2d.npy as speculators takes them; its size "
        "is then its own",
    )


class AcceptanceSettings(EngineAcceptance):
    """How the draft is judged."""

    prompts: str | None = Field(None, description="JSONL file of evaluation prompts; empty: replay on held-out text only")
    max_prompts: int = Field(16, gt=0, description="Prompts of that file that are taken, from its beginning")
    k: int = Field(3, gt=0, description="Tokens drafted a verifier step")
    max_new_tokens: int = Field(64, gt=0, description="Longest answer in tokens")
    compare: list[str] = Field(
        [], description="Directories of published drafts, of vLLM's or SGLang's format, judged beside ours"
    )


class ExportSettings(Section):
    """What the checkpoint is for."""

    engines: list[Literal["vllm", "sglang"]] = Field(
        ["vllm"], min_length=1, description="Engines that shall load it; each gets a directory of its own format"
    )
    dtype: Literal["bfloat16", "float32"] = Field("bfloat16", description="Of the checkpoint's weights")

    @model_validator(mode="before")
    @classmethod
    def _one_engine(cls, values: Any) -> Any:
        if isinstance(values, dict) and "engine" in values and "engines" not in values:
            return {"engines": [values["engine"]], **{name: value for name, value in values.items() if name != "engine"}}
        return values


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

    path: str = Field(".eyas/store", description="Folder of the artifacts; hidden states take most of it")
    state: str = Field(".eyas/state", description="Folder of locks, aliases, logs and training checkpoints, on a local disk")
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
    shards_per_pass: int | None = Field(
        None,
        gt=0,
        description="Shards taken through the layers together; empty: as many as fit and hide the reading of the weights, by "
        "what earlier runs measured; one while nothing is",
    )
    generation_batch: int = Field(64, gt=0, description="Rows that the verifier decodes at once")
    training_devices: int = Field(
        1, gt=0, description="GPUs that a training shares a step's packs out to; without GPUs, shares of the processor"
    )
    loggers: list[Literal["tensorboard", "wandb"]] = Field(
        [],
        description="Where a training's curves go while it runs; tensorboard writes into the run's folder; wandb takes its "
        "key from the environment",
    )
    training_sharding: Literal["none", "fsdp"] = Field(
        "none", description="What each of them holds: a replica of the draft, or with fsdp a share of its trained tensors"
    )


class Settings(Section):
    """Everything a run is told."""

    name: str = Field("draft", description="What the run is called in listings and in its report")
    limit: int | None = Field(None, gt=0, description="A smoke run: so many prompts and conversations a file; gates only warn")
    verifier: VerifierSettings = VerifierSettings()
    data: DataSettings = DataSettings()
    synthesis: SynthesisSettings = SynthesisSettings()
    corpus: CorpusSettings = CorpusSettings()
    hidden_states: HiddenStatesSettings = HiddenStatesSettings()
    validation: ValidationSettings = ValidationSettings()
    adoption: AdoptionSettings = AdoptionSettings()
    vocabulary: VocabularySettings = VocabularySettings()
    training: TrainingSettings = TrainingSettings()
    acceptance: AcceptanceSettings = AcceptanceSettings()
    export: ExportSettings = ExportSettings()
    gates: GateSettings = GateSettings()
    endpoint: EndpointSettings = EndpointSettings()
    engine: EngineSettings = EngineSettings()
    promotion: PromotionSettings = PromotionSettings()
    store: StoreSettings = StoreSettings()
    report: ReportSettings = ReportSettings()
    running: RunningSettings = RunningSettings()
    budget: BudgetSettings = BudgetSettings()
    window: WindowSettings = WindowSettings()

    @property
    def devices(self) -> list[int] | None:
        """The GPUs that may be leased: those of the window, else of the run; None: all of the host."""
        return self.running.devices if self.window.devices is None else self.window.devices

    @model_validator(mode="after")
    def _agree(self) -> Self:
        recipe = self.training
        if self.running.training_devices > recipe.packs_per_step:
            raise ValueError(
                f"running.training_devices is {self.running.training_devices}, and a step has {recipe.packs_per_step} packs to "
                "share out: raise training.packs_per_step or lower training_devices"
            )
        if self.running.training_sharding == "fsdp" and self.running.training_devices == 1:
            raise ValueError(
                "running.training_sharding: fsdp shares a draft among devices, and running.training_devices is 1: raise it"
            )
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
        if self.vocabulary.mapping and recipe.parent:
            raise ValueError(
                "vocabulary.mapping and training.parent both bring a vocabulary: leave one of them empty (a parent's stays "
                "while it covers training.min_parent_coverage)"
            )
        if self.corpus.held_out == 0 and (recipe.patience is not None or recipe.replay_every_steps):
            raise ValueError(
                "training.patience and training.replay_every_steps need held-out samples, and corpus.held_out is 0: raise it, "
                "or leave them empty"
            )
        return self
