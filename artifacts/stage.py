"""What a stage, a node and an input are: the vocabulary that flows, tasks and executors share."""

from dataclasses import dataclass, field
from typing import Any, Literal

from artifacts.manifest import Ref


@dataclass(frozen=True)
class Stage:
    """A kind of work.

    ``module`` holds its code; ``libraries`` are the distributions that compute it (their versions are in the key;
    of ``optional`` ones, that they are absent);
    ``reproducible`` says whether the same inputs give the same bytes again; ``device`` what it leases;
    ``gathers`` whether one child takes several waiting nodes in one pass;
    ``resumes`` whether a child that is told to stop leaves what the next one goes on from.
    """

    name: str
    module: str
    libraries: tuple[str, ...]
    optional: tuple[str, ...] = ()
    reproducible: bool = True
    retries: int = 0
    device: Literal["accelerator", "cpu", "endpoint"] = "cpu"
    gathers: bool = False
    resumes: bool = False

    @property
    def title(self) -> str:
        """The name as people read it."""
        return self.name.replace("_", " ")


@dataclass(frozen=True)
class Input:
    """Something a node reads. ``digest`` enters the key; ``ref`` (in the store) or ``path`` (outside) says where it lies.

    The digest may be of a part of the blob: a reader of the tokenizer does not depend on the weights beside it.
    """

    digest: str
    ref: Ref | None = None
    path: str | None = None

    @classmethod
    def of(cls, ref: Ref) -> "Input":
        """The whole of an artifact."""
        return cls(digest=ref.digest, ref=ref)


@dataclass(frozen=True)
class Pending:
    """Stands for an output that a plan cannot know yet; ``because`` names the node that would make it."""

    because: str


@dataclass(frozen=True)
class Node:
    """One unit of work: a stage with its settings and inputs.

    ``name`` is for people and is not in the key. ``tokens`` and ``output_bytes`` (0 = unknown) feed the estimates.
    ``devices``: how many it leases, with a rank of its child on each; in no key.
    """

    stage: Stage
    name: str
    settings: dict[str, Any]
    inputs: dict[str, Input | Pending]
    entry: str = "compute"
    tokens: int = 0
    output_bytes: int = 0
    knobs: dict[str, Any] = field(default_factory=dict)
    devices: int = 1

    @property
    def label(self) -> str:
        """``hidden states · shard 3/8``"""
        return f"{self.stage.title} · {self.name}" if self.name else self.stage.title


Outputs = dict[str, Ref]


@dataclass(frozen=True)
class Made:
    """What an executor gives back for a node: its outputs, or in a plan None where they cannot be known yet."""

    node: Node
    outputs: Outputs | None

    def ref(self, name: str) -> Ref | None:
        """An output's reference; None where it cannot be known yet."""
        return None if self.outputs is None else self.outputs[name]

    def input(self, name: str) -> Input | Pending:
        """An output as another node's input."""
        return Pending(self.node.label) if self.outputs is None else Input.of(self.outputs[name])
