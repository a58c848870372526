"""Stages run in the test's own process: real jobs over a real store, without a flow around them."""

import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from artifacts.manifest import Ref
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from kimi_adapters.tensor_file import TensorFile, TensorWriter
from running.job import Job, read_outputs
from tasks import engine_states, hidden_states, validation, validation_merge
from tasks.arrays import write_arrays
from tasks.formats import ASIDE, MASKS, QUARANTINE, REPORT, SAMPLES, STATES, STATS, TOKENS, state_rows
from tasks.settings import ValidationSettings
from tasks.state_stats import StateStats

LAYERS = [1, 2, 3]
STATE_NAMES = ["layer.1", "layer.2", "layer.3", "last"]


@dataclass(frozen=True)
class Text:
    """A sample: token ids, its mask, and what samples.jsonl says of it beside the side and the count."""

    ids: list[int]
    mask: list[int]
    side: str = "train"
    more: dict[str, Any] = field(default_factory=dict)


@dataclass
class Made:
    """Digests of one shard's artifacts."""

    ids: str
    masks: str
    states: str = ""
    stats: str = ""


@dataclass
class Bench:
    """A store and a verifier to run stages with."""

    folder: Path
    verifier: Path

    def __post_init__(self) -> None:
        self.store = Store(self.folder / "store")
        self.workspace = self.folder / "workspace"
        self.workspace.mkdir(parents=True, exist_ok=True)
        self.refs: dict[str, Ref] = {}

    def job(self, entry: Callable[..., None], settings: dict[str, Any], inputs: dict[str, Any], **knobs: Any) -> dict[str, str]:
        """Run an entry on one job; the digests of its committed outputs by name. Inputs are digests, or paths outside."""
        return self.jobs(entry, settings, [inputs], **knobs)[0]

    def jobs(
        self, entry: Callable[..., None], settings: dict[str, Any], each: Sequence[dict[str, Any]], **knobs: Any
    ) -> list[dict[str, str]]:
        """The same on several jobs, in one call where the stage gathers."""
        events: list[dict[str, Any]] = []
        made = [self.one_job(settings, inputs, knobs, events) for inputs in each]
        if entry in (hidden_states.compute_passes, engine_states.compute_shards, validation.compute_shards):
            entry(made)
        else:
            for job in made:
                entry(job)
        outputs = {e["key"]: read_outputs(json.loads(json.dumps(e))) for e in events if e["event"] == "outputs"}
        refs = [{name: self.store.commit(one) for name, one in outputs[job.key].items()} for job in made]
        self.refs |= {ref.digest: ref for one in refs for ref in one.values()}
        return [{name: ref.digest for name, ref in one.items()} for one in refs]

    def one_job(self, settings: dict[str, Any], inputs: dict[str, Any], knobs: dict[str, Any], events: list[Any]) -> Job:
        """A job on inputs; what it sends is appended to ``events``."""
        paths = {name: source if isinstance(source, Path) else self.store.open(source) for name, source in inputs.items()}
        return Job(
            key=uuid.uuid4().hex,
            label="the test's shard",
            settings=settings,
            knobs=knobs,
            paths=paths,
            digests={name: str(source) for name, source in inputs.items()},
            scratch=self.workspace,
            device="cpu",
            threads=1,
            workspace=self.workspace,
            send=events.append,
        )

    def shard(self, texts: Sequence[Text]) -> Made:
        """A token shard and its masks."""
        ids, masks = ArtifactWriter("token_shard", self.workspace), ArtifactWriter("loss_masks", self.workspace)
        offsets = np.cumsum([0, *(len(text.ids) for text in texts)])
        with ids.open(TOKENS) as file:
            joined = np.concatenate([np.array(text.ids, np.int32) for text in texts])
            write_arrays(file, {"input_ids": joined, "offsets": offsets})
        with masks.open(MASKS) as file:
            write_arrays(file, {"loss_mask": np.concatenate([np.array(text.mask, np.uint8) for text in texts])})
        with masks.open(SAMPLES) as file:
            for number, text in enumerate(texts):
                line = {"id": f"s{number}", "side": text.side, "supervised": sum(text.mask), **text.more}
                file.write(json.dumps(line).encode() + b"\n")
        return Made(*(self.store.commit(one.seal()).digest for one in (ids, masks)))

    def extract(self, *shards: Made, **knobs: Any) -> None:
        """Extract the states of shards by the stage itself, in one call."""
        settings = {"layer_ids": LAYERS, "state_dtype": "float32", "compute_dtype": "float32"}
        inputs = [{"ids": shard.ids, "verifier": self.verifier} for shard in shards]
        made = self.jobs(hidden_states.compute_passes, settings, inputs, **{"shards_per_pass": 1, **knobs})
        for shard, outputs in zip(shards, made, strict=True):
            shard.states, shard.stats = outputs["states"], outputs["stats"]

    def states(self, shard: Made) -> dict[str, np.ndarray]:
        """The stored states, copies that can be changed."""
        file = TensorFile(self.store.folder(shard.states) / STATES)
        return {name: state_rows(file, name, slice(None)) for name in file.entries}

    def with_states(self, shard: Made, states: dict[str, np.ndarray], stats_too: bool = True) -> Made:
        """The shard with other states, as if extraction had written them; without ``stats_too``, changed since."""
        offsets = TensorFile(self.store.folder(shard.ids) / TOKENS)
        taken = StateStats(np.frombuffer(offsets.bytes("offsets"), np.int64))
        stored, aside = ArtifactWriter("hidden_states", self.workspace), ArtifactWriter("state_stats", self.workspace)
        with stored.open(STATES) as file:
            writer = TensorWriter(file, [(name, "F32", array.shape) for name, array in states.items()])
            for name, array in states.items():
                writer.write(name, array)
                taken.add(name, torch.from_numpy(array))
            writer.close()
        with aside.open(STATS) as file:
            write_arrays(file, taken.arrays)
        digests = [self.store.commit(one.seal()).digest for one in (stored, aside)]
        return Made(shard.ids, shard.masks, digests[0], digests[1] if stats_too else shard.stats)

    def check(self, *shards: Made, read_share: float = 1.0) -> list[str]:
        """Check shards by the stage itself; the checks' digests."""
        inputs = [{**vars(shard), "verifier": self.verifier} for shard in shards]
        return [made["check"] for made in self.jobs(validation.compute_shards, {"read_share": read_share}, inputs)]

    def merge(self, checks: Sequence[str], **settings: Any) -> "Merged":
        """Merge checks by the stage itself."""
        chosen = ValidationSettings(**settings).model_dump(exclude={"read_share"})
        made = self.job(validation_merge.merge, chosen, {f"check.{i}": digest for i, digest in enumerate(checks)})
        report = self.store.open(made["report"])
        lines = [json.loads(line) for line in (report / ASIDE).read_text().splitlines()]
        lists = json.loads((self.store.open(made["quarantine"]) / QUARANTINE).read_text())
        return Merged(lists["quarantine"], lists["drop"], json.loads((report / REPORT).read_text()), lines, report, made)


@dataclass
class Merged:
    """What the merge gave: the two lists, report.json, aside.jsonl, the report's folder, digests by output."""

    quarantine: dict[str, list[int]]
    drop: dict[str, list[int]]
    report: dict[str, Any]
    aside: list[dict[str, Any]]
    folder: Path
    digests: dict[str, str]
