"""A store as a run leaves it, made by the real writers and records: small files, the whole lineage."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from artifacts.key import key_of
from artifacts.manifest import Ref, digest_bytes
from artifacts.records import Record, Records
from artifacts.runs import Run, RunNode, Runs
from artifacts.store import Store
from artifacts.writer import ArtifactWriter

FIRST = datetime(2026, 11, 1, tzinfo=UTC)


@dataclass
class Pipeline:
    """Commits outputs and records nodes; each node is an hour younger than the one before."""

    store: Store
    records: Records
    refs: dict[str, Ref] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    hours: int = 0

    def blob(self, kind: str, files: Mapping[str, bytes], **facts: Any) -> Ref:
        """An artifact without a record."""
        with self.store.workspace() as workspace:
            writer = ArtifactWriter(kind, workspace)
            for name, data in files.items():
                writer.write(name, data)
            return self.store.commit(writer.seal(**facts))

    def node(self, stage: str, name: str, inputs: Mapping[str, Ref | str], outputs: Mapping[str, Ref], **more: Any) -> None:
        """The record of a node; a text among the inputs is a file outside the store."""
        read = {
            key: {"digest": one.digest, "blob": one.digest, "path": None}
            if isinstance(one, Ref)
            else {"digest": digest_bytes(one.encode()), "blob": None, "path": one}
            for key, one in inputs.items()
        }
        parts = {"stage": stage, "name": name} | {f"input {key}": one["digest"] or "" for key, one in read.items()}
        self.hours += 1
        finished = (FIRST + timedelta(hours=self.hours)).isoformat(timespec="seconds")
        lineage = {"inputs": read, "seconds": 2.0, "finished": finished, "device": "cpu:0", "tokens": 8, "git_commit": "c0ffee"}
        lineage |= more
        record = Record(key=key_of(parts), stage=stage, node=name, parts=parts, outputs=dict(outputs), lineage=lineage)
        self.records.put(record)
        self.keys[f"{stage} {name}"] = record.key
        self.refs |= {f"{stage} {name} {key}": ref for key, ref in outputs.items()}

    def run(self, name: str, nodes: list[str], state: Any = "completed", smoke: bool = False) -> Run:
        """The manifest of a run that had these nodes."""
        self.hours += 1
        when = (FIRST + timedelta(hours=self.hours)).isoformat(timespec="seconds")
        noted = [RunNode(stage=n.split()[0], node=n, key=self.keys[n], status="run", digest=None) for n in nodes]
        run = Run(run=name, name="test", began=when, ended=when, state=state, nodes=noted, smoke=smoke)
        Runs(self.store.root).put(run)
        return run


def samples(rows: list[tuple[str, str]]) -> bytes:
    """``samples.jsonl`` of (id, text) pairs."""
    lines = [
        {"id": name, "window": 0, "side": "train", "supervised": 2, "hash": digest_bytes(text.encode())[:32]}
        for name, text in rows
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def add_shard(made: Pipeline, source: str, given: Ref | str, shards: list[list[tuple[str, str]]]) -> None:
    """The corpus of a source cut into shards, the states and the check of each."""
    outputs: dict[str, Ref] = {}
    for n, rows in enumerate(shards):
        text = json.dumps(rows).encode()
        outputs[f"ids.{n}"] = made.blob("token_shard", {"tokens.safetensors": b"ids" + text}, tokens=8, samples=len(rows))
        outputs[f"masks.{n}"] = made.blob("loss_masks", {"masks.safetensors": b"m", "samples.jsonl": samples(rows)}, tokens=8)
    rejects = b'{"line": 9, "reason": "not JSON"}\n' + source.encode()
    count = sum(map(len, shards))
    facts = {"rows": count + 1, "samples": count, "rejects": 1, "reasons": {"not JSON": 1}}
    outputs["rejects"] = made.blob("rejects", {"rejects.jsonl": rejects}, **facts)
    made.node("corpus", source, {"source": given}, outputs)
    for n, rows in enumerate(shards):
        ids, masks, name = outputs[f"ids.{n}"], outputs[f"masks.{n}"], f"shard {n} of {source}"
        states = made.blob("hidden_states", {"states.safetensors": b"states of " + ids.digest.encode()}, tokens=8)
        made.node("hidden_states", name, {"ids": ids, "verifier": "/models/verifier"}, {"states": states})
        check = made.blob("shard_check", {"check.json": json.dumps({"ids": ids.digest, "of": len(rows)}).encode()}, samples=1)
        made.node("validation", name, {"ids": ids, "masks": masks, "states": states}, {"check": check})


def add_training(made: Pipeline, name: str, sources: list[str], parent: Ref | None = None) -> Ref:
    """Merge, vocabulary, training and export over the shards of some sources."""
    shards = {key: ref for key, ref in made.refs.items() if any(f" {source} " in f" {key}" for source in sources)}
    of = {kind: [ref for ref in shards.values() if ref.kind == kind] for kind in {r.kind for r in shards.values()}}
    checks = {f"check.{i}": ref for i, ref in enumerate(of["shard_check"])}
    report = made.blob("validation_report", {"report.json": b"report " + name.encode()}, samples=4, quarantined=1, rate=0.25)
    quarantine = made.blob("quarantine", {"quarantine.json": b"{} " + name.encode()}, samples=1)
    made.node("validation", f"report {name}", checks, {"report": report, "quarantine": quarantine})
    inputs = {
        f"{short}.{i}": ref
        for short, kind in (("ids", "token_shard"), ("masks", "loss_masks"), ("states", "hidden_states"))
        for i, ref in enumerate(of[kind])
    }
    inputs |= {"quarantine": quarantine} | ({"parent": parent} if parent else {})
    draft = made.blob("draft", {"model.safetensors": b"draft " + name.encode()}, steps=4, loss=1.5)
    made.node("training", name, inputs, {"draft": draft})
    export = made.blob("export", {"model.safetensors": b"export " + name.encode(), "config.json": b"{}"}, engine="vllm")
    made.node("export", name, {"draft": draft}, {"export": export})
    return draft


def make_pipeline(root: Path) -> Pipeline:
    """Two sources, a user's file and answers of the verifier, two shards each, and a draft trained on all of it."""
    made = Pipeline(Store(root), Records(root))
    rows = [
        {
            "id": f"s{i}",
            "messages": [{"role": "user", "content": f"secret {i}"}],
            "prompt_ids": [1, 2],
            "answer_ids": [3] * (i + 1),
        }
        for i in range(4)
    ]
    answers = made.blob(
        "conversations",
        {"conversations.jsonl": "".join(json.dumps(r) + "\n" for r in rows).encode()},
        conversations=4,
        tokens=10,
    )
    made.node("synthesis", "chunk", {"prompts": "/data/prompts.jsonl"}, {"conversations": answers})
    add_shard(made, "a", "/data/a.jsonl", [[("a0", "x"), ("a1", "y")], [("a2", "z"), ("a3", "w")]])
    add_shard(made, "chunk", answers, [[("s0", "p"), ("s1", "q")], [("s2", "r"), ("s3", "y")]])
    add_training(made, "first", ["a", "chunk"])
    return made
