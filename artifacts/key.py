"""The identity of a node: stage, code, settings, inputs, libraries. Its parts are kept, so that a miss can be explained."""

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Node, Pending, Stage

FORMAT = 1  # of files, manifests and records: raised when artifacts/ or running/ write something else than before


class KeyFailure(Exception):
    """A key that cannot be computed: nothing may run, and nothing may be cached, without it."""


Parts = dict[str, str]


def flatten(prefix: str, value: Any) -> dict[str, str]:
    """Nested settings as ``section.name -> canonical JSON``."""
    if isinstance(value, dict) and value:
        flat: dict[str, str] = {}
        for name, item in value.items():
            flat |= flatten(f"{prefix}.{name}", item)
        return flat
    return {prefix: canonical_json(value).decode()}


def library_versions(names: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, str]:
    """Installed versions; ``absent`` for an optional one that is not there, ``KeyFailure`` for another."""
    try:
        return {name: version(name) for name in names} | {name: _version_or_absent(name) for name in optional}
    except PackageNotFoundError as error:
        raise KeyFailure(f"library {error.name} is not installed, so no key can name its version: install it") from None


def _version_or_absent(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def stage_parts(stage: Stage, modules: dict[str, str]) -> Parts:
    """The parts that all nodes of a stage share; ``modules`` maps each module of its closure to its digest."""
    parts = {"format": str(FORMAT), "stage": stage.name}
    parts |= {f"module {name}": digest for name, digest in modules.items()}
    versions = library_versions(stage.libraries, stage.optional)
    return parts | {f"library {name}": found for name, found in versions.items()}


def node_parts(node: Node) -> Parts:
    """The parts that are a node's own: entry, settings, inputs."""
    parts = {"entry": node.entry}
    for name, value in node.settings.items():
        parts |= flatten(f"setting {node.stage.name}.{name}", value)
    for name, source in node.inputs.items():
        if isinstance(source, Pending):
            raise KeyFailure(f"{node.label} reads {name}, which {source.because} has not made yet")
        parts[f"input {name}"] = source.digest
    return parts


def key_parts(node: Node, modules: dict[str, str]) -> Parts:
    """All parts of a node's key."""
    return stage_parts(node.stage, modules) | node_parts(node)


def key_of(parts: Parts) -> str:
    """BLAKE3 over the canonical JSON of the parts."""
    return digest_bytes(canonical_json(parts))
