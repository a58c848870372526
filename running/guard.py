"""What keeps a child honest: it dies with its parent, and it opens nothing that was not declared."""

import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

_SYSTEM = ("/usr", "/lib", "/lib32", "/lib64", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev", "/opt", "/run")


class UndeclaredRead(PermissionError):
    """A stage opened a file that it does not declare among its inputs."""


def die_with_parent(pipe: int = 0) -> None:
    """Kill this process group when ``pipe`` closes: the other end is held by the parent and by nobody else."""

    def watch() -> None:
        while os.read(pipe, 1):
            pass
        os.killpg(os.getpgrp(), signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()


def hide_other_checkouts(snapshot: Path) -> None:
    """Make the snapshot the only place that project modules come from."""
    sys.path[:] = [
        p for p in sys.path if Path(p or ".").resolve() == snapshot or not (Path(p or ".") / "kimi_adapters").is_dir()
    ]
    sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable__" not in getattr(finder, "__module__", "")]


def _within(path: str, folders: frozenset[str]) -> bool:
    """Whether ``path`` is one of ``folders`` or lies in one; the cost is the path's depth, however many inputs there are."""
    while path not in folders:
        parent = os.path.dirname(path)
        if parent == path:
            return False
        path = parent
    return True


def links_in(folder: Path, closed: list[Path]) -> list[Path]:
    """Where the links of a declared folder lead: Hugging Face's cache keeps a model's files elsewhere and links to them.

    A blob of the store (``closed``) has no links, so none is followed there.
    """
    shut = frozenset(str(path.resolve()) for path in closed)
    if not folder.is_dir() or _within(str(folder.resolve()), shut):
        return []
    return [Path(entry.path).resolve() for entry in os.scandir(folder) if entry.is_symlink()]


def only_declared(allowed: list[Path], closed: list[Path]) -> None:
    """Refuse to open files outside ``allowed``, the interpreter, its libraries and the system.

    ``closed`` (the store, the state) wins over the libraries: a virtual environment may lie above or beside them.
    Python's own opens are seen; libraries that open files in C or Rust are kept out of the stages' reading paths.
    """
    mine = frozenset(str(path.resolve()) for path in allowed)
    shut = frozenset(str(path.resolve()) for path in closed)
    libraries = {sys.prefix, sys.base_prefix, sys.exec_prefix, *(p for p in sys.path if p)}
    general = frozenset({*_SYSTEM, *(os.path.realpath(p) for p in libraries)})

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not isinstance(arguments[0], str | bytes | os.PathLike):
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if _within(path, mine) or (_within(path, general) and not _within(path, shut)):
            return
        raise UndeclaredRead(f"{path} is not among the inputs that this stage declares")

    sys.addaudithook(hook)
