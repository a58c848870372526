"""The user's corpus files: what ``data.conversations`` names, checked before work starts."""

from pathlib import Path
from typing import Any

from artifacts.stage import Input
from errors import UserError
from tasks.handles import Source
from tasks.settings import Settings
from tasks.source_files import SUFFIXES, check_file

_BYTES_A_TOKEN = 8  # of a JSONL corpus; English takes 4 to 5, so the estimate is low on purpose
_PACKED_BYTES_A_TOKEN = 3  # of one that gzip, zstd or Parquet has packed


def sources(settings: Settings, memo: Any) -> list[Source]:
    """A source for each file, and for each known file of each folder, in order."""
    found: list[Source] = []
    known: set[Path] = set()
    for name, path in (pair for given in settings.data.conversations for pair in _files(Path(given))):
        if path.resolve() in known:
            raise UserError(f"corpus file {path} is named twice: remove one of the two from data.conversations")
        known.add(path.resolve())
        size = path.stat().st_size
        if size == 0:
            raise UserError(f"corpus file {path} is empty: remove it from data.conversations or fill it")
        check_file(path)
        tokens = size // (_PACKED_BYTES_A_TOKEN if path.suffix in (".gz", ".zst", ".parquet") else _BYTES_A_TOKEN)
        found.append(Source(name, Input(memo.digest(path), path=str(path.absolute())), tokens))
    if not found and not settings.data.prompts and not settings.data.legacy_states:
        raise UserError("data.conversations and data.prompts are both empty: give at least one file to learn from")
    return found


def _files(path: Path) -> list[tuple[str, Path]]:
    if path.is_file():
        return [(_bare(path.name), path)]
    if not path.is_dir():
        raise UserError(f"corpus file {path} does not exist: correct data.conversations")
    inside = sorted(
        file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES) and not _hidden(file, path)
    )
    if not inside:
        raise UserError(f"corpus folder {path} has no file of a known kind ({', '.join(SUFFIXES)}): correct data.conversations")
    return [(_bare(file.relative_to(path).as_posix()), file) for file in inside]


def _hidden(file: Path, folder: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(folder).parts)


def _bare(name: str) -> str:
    """A file's name without the suffixes of its kind."""
    suffix = max((suffix for suffix in SUFFIXES if name.endswith(suffix)), key=len, default="")
    return name.removesuffix(suffix or Path(name).suffix)
