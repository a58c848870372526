"""Files of rows as people have them: JSONL, plain or in gzip or zstd, and Parquet; told apart by their first bytes.

Names do not count: a source is its bytes. Files are opened by Python, which the guard of a child sees.
"""

import io
import os
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from blake3 import blake3

from errors import UserError
from kimi_adapters.chat_reasons import Reason, Rejected
from tasks.json_rows import loads

MAX_LINE = 32 << 20  # bytes; a conversation of 8M tokens
SUFFIXES = (".jsonl", ".ndjson", ".jsonl.gz", ".jsonl.zst", ".ndjson.gz", ".ndjson.zst", ".parquet")
_MAGIC = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"PAR1": "parquet"}
_BLOCK, _BOM = 1 << 20, b"\xef\xbb\xbf"
_PARQUET_ROWS = 256


class Row(NamedTuple):
    """A row and its number, from 1; or why it cannot be read."""

    number: int
    values: Any
    reason: Reason | None = None


def kind_of(head: bytes) -> str:
    """``jsonl``, ``gzip``, ``zstd`` or ``parquet``, by a file's first bytes."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "jsonl")


def check_file(path: Path) -> None:
    """Refuse what is not the kind of file that its name says: one sentence, before work starts."""
    wanted = {".gz": "gzip", ".zst": "zstd", ".parquet": "parquet"}.get(path.suffix)
    with open(path, "rb") as file:
        found = kind_of(file.read(4))
        whole = True
        if found == "parquet":
            file.seek(-4, os.SEEK_END)
            whole = file.read(4) == b"PAR1"
    if wanted is not None and found != wanted:
        raise UserError(f"corpus file {path} is no {wanted} file: correct its name or write it again")
    if not whole:
        raise UserError(f"corpus file {path} is a Parquet file that was cut: write it again")


def rows(
    path: Path, digest: str | None, columns: tuple[str, ...], limit: int | None, progress: Callable[[int], None]
) -> Iterator[Row]:
    """The rows of a file in order, at most ``limit``; blank lines are none.

    ``columns`` are read of a Parquet file, where it has them; ``progress`` hears the bytes read so far. ``UserError`` when the
    file is damaged, or its bytes are not those of ``digest``.
    """
    with open(path, "rb") as file:
        kind = kind_of(file.read(4))
        file.seek(0)
        if kind == "parquet":
            yield from _parquet(path, file, digest, columns, limit, progress)
            return
        raw = _Hashed(file, progress)
        try:
            yield from islice(_lines(io.BufferedReader(_opened(raw, kind), _BLOCK)), limit)
        except OSError as error:
            raise UserError(f"corpus file {path} is damaged ({error}): write it again") from None
        raw.drain()
        _require(path, digest, raw.hasher.hexdigest())


class _Hashed(io.RawIOBase):
    """A file whose bytes are hashed while they are read."""

    def __init__(self, file: BinaryIO, progress: Callable[[int], None]) -> None:
        self._file, self._progress = file, progress
        self.hasher, self._done = blake3(), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._file.read(len(memoryview(buffer)))
        self.hasher.update(data)
        self._done += len(data)
        self._progress(self._done)
        memoryview(buffer)[: len(data)] = data
        return len(data)

    def drain(self) -> None:
        """Hash what nobody read."""
        while self.read(_BLOCK):
            pass


def _opened(raw: _Hashed, kind: str) -> Any:
    if kind == "jsonl":
        return raw
    import pyarrow

    return pyarrow.CompressedInputStream(pyarrow.PythonFile(raw, mode="r"), kind)


def _require(path: Path, expected: str | None, found: str) -> None:
    if expected is not None and found != expected:
        raise UserError(f"{path} changed while the run was going on: start the run again")


def _lines(file: io.BufferedReader) -> Iterator[Row]:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        if len(line) > MAX_LINE:
            while line and not line.endswith(b"\n"):
                line = file.readline(_BLOCK)
            yield Row(number, None, Reason.LINE_TOO_LONG)
            continue
        if number == 1:
            line = line.removeprefix(_BOM)
        if not line.isspace() and line:
            yield _row(number, line)


def _row(number: int, line: bytes) -> Row:
    try:
        return Row(number, loads(line.decode()))
    except UnicodeDecodeError:
        return Row(number, None, Reason.NOT_UTF8)
    except Rejected as rejected:
        return Row(number, None, rejected.reason)
    except ValueError:
        return Row(number, None, Reason.NOT_JSON)


def _parquet(
    path: Path,
    file: BinaryIO,
    digest: str | None,
    columns: tuple[str, ...],
    limit: int | None,
    progress: Callable[[int], None],
) -> Iterator[Row]:
    """Rows of a table. It is read where its footer says, so it is hashed first and must not change until the end."""
    import pyarrow
    from pyarrow import parquet

    before = os.fstat(file.fileno())
    raw = _Hashed(file, progress)
    raw.drain()
    _require(path, digest, raw.hasher.hexdigest())
    try:
        yield from islice(_records(parquet.ParquetFile(file), columns), limit)
    except (pyarrow.ArrowException, OSError) as error:
        raise UserError(f"corpus file {path} is no whole Parquet file ({str(error).splitlines()[0]}): write it again") from None
    after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise UserError(f"{path} changed while the run was going on: start the run again")


def _records(table: Any, columns: tuple[str, ...]) -> Iterator[Row]:
    wanted = [name for name in table.schema_arrow.names if name in columns]
    if not wanted:
        yield from (Row(number, {}) for number in range(1, table.metadata.num_rows + 1))
        return
    before = 0
    for batch in table.iter_batches(_PARQUET_ROWS, columns=wanted):
        for place, value in enumerate(_values(batch), 1):
            yield Row(before + place, None, Reason.NOT_UTF8) if value is None else Row(before + place, _without_nulls(value))
        before += batch.num_rows


def _values(batch: Any) -> list[Any]:
    """The batch's rows; None for one whose text is not UTF-8."""
    try:
        found: list[Any] = batch.to_pylist()
        return found
    except UnicodeDecodeError:
        return [None] if batch.num_rows == 1 else [_values(batch.slice(place, 1))[0] for place in range(batch.num_rows)]


def _without_nulls(value: Any) -> Any:
    """A record without keys whose value is null: a column of structs has every key in every row."""
    if isinstance(value, dict):
        return {name: _without_nulls(one) for name, one in value.items() if one is not None}
    return [_without_nulls(one) for one in value] if isinstance(value, list) else value
