"""What a stage's computation sees inside its child: its settings, its declared inputs, where to write and whom to tell."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from artifacts.manifest import Manifest, Ref
from artifacts.writer import ArtifactWriter, Sealed
from running.pace import Pace

STOP = "stop"  # a file in a node's scratch folder: every rank of a child can see it


@dataclass
class Job:
    """One node in a child. ``device`` is torch's name; ``scratch`` outlives a killed child and is kept under the node's key.

    ``pace`` keeps the children of a gathering stage together that read the same layers.
    """

    key: str
    label: str
    settings: dict[str, Any]
    knobs: dict[str, Any]
    paths: dict[str, Path]
    digests: dict[str, str]
    scratch: Path
    device: str
    threads: int
    workspace: Path
    send: Callable[[dict[str, Any]], None]
    pace: Pace | None = None

    def input(self, name: str) -> Path:
        """Folder or file of a declared input."""
        return self.paths[name]

    def inputs(self, prefix: str) -> list[Path]:
        """The inputs named ``<prefix>.<n>``, in the order of n."""
        names = [name for name in self.paths if name.rpartition(".")[0] == prefix]
        return [self.paths[name] for name in sorted(names, key=lambda name: int(name.rpartition(".")[2]))]

    def writer(self, kind: str) -> ArtifactWriter:
        """A writer for an output artifact."""
        return ArtifactWriter(kind, self.workspace)

    def progress(self, done: float, total: float, unit: str, note: str = "") -> None:
        """Tell how far the node is."""
        self.send({"event": "progress", "key": self.key, "done": done, "total": total, "unit": unit, "note": note})

    def say(self, text: str) -> None:
        """Tell something once: a line of the run's log."""
        self.send({"event": "said", "key": self.key, "text": text})

    def stopping(self) -> bool:
        """Whether the run asks this node to leave a checkpoint and to raise ``ToldToStop``: its time is over."""
        return (self.scratch / STOP).exists()

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Tell what was measured at a step, for the loggers of the run."""
        self.send({"event": "metrics", "key": self.key, "step": step, "values": dict(values)})

    def finish(self, outputs: dict[str, Sealed], tokens: int = 0, measured: dict[str, float] | None = None) -> None:
        """Hand over the outputs; they are committed and recorded from here on, whatever happens to this child later.

        ``measured`` are figures of the pass for the record's lineage.
        """
        sealed = {
            name: {
                "ref": one.ref.model_dump(mode="json"),
                "manifest": one.manifest.model_dump(mode="json"),
                "folder": str(one.folder),
            }
            for name, one in outputs.items()
        }
        self.send({"event": "outputs", "key": self.key, "outputs": sealed, "tokens": tokens, "measured": measured})


def read_outputs(event: dict[str, Any]) -> dict[str, Sealed]:
    """The sealed artifacts of an ``outputs`` event."""
    return {
        name: Sealed(Ref.model_validate(one["ref"]), Manifest.model_validate(one["manifest"]), Path(one["folder"]))
        for name, one in event["outputs"].items()
    }


def json_line(event: dict[str, Any]) -> bytes:
    """An event as one line."""
    return json.dumps(event, separators=(",", ":")).encode() + b"\n"
