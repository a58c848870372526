"""The curves of a training run as a Parquet table: a row a step, a column a quantity. Drawing them is `curve_plots`'s."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

WHOLE = ("step", "epoch", "tokens", "loader_bytes")  # int64; all else is float64


def curves_parquet(curves: Sequence[Mapping[str, float]]) -> bytes:
    """The file's bytes. What a step has no value of is null."""
    import pyarrow
    from pyarrow import parquet

    names = list(dict.fromkeys(name for entry in curves for name in entry))
    fields = [(name, pyarrow.int64() if name in WHOLE else pyarrow.float64()) for name in names]
    rows = [{name: int(value) if name in WHOLE else float(value) for name, value in entry.items()} for entry in curves]
    buffer = io.BytesIO()
    parquet.write_table(pyarrow.Table.from_pylist(rows, pyarrow.schema(fields)), buffer)
    return buffer.getvalue()


def loader_share(curves: Sequence[Mapping[str, float]]) -> float:
    """The share of the steps' time in which packs were waited for, by the rank that waited longest."""
    timed = [entry for entry in curves if "loader_wait" in entry]
    return sum(entry["loader_wait"] for entry in timed) / max(sum(entry["seconds"] for entry in timed), 1e-9)


def loader_rate(curves: Sequence[Mapping[str, float]]) -> float:
    """Bytes of states a second of those in which the first rank's threads read from the files."""
    timed = [entry for entry in curves if "loader_reading" in entry]
    return sum(entry["loader_bytes"] for entry in timed) / max(sum(entry["loader_reading"] for entry in timed), 1e-9)


def read_curves(file: Any) -> dict[str, list[float | None]]:
    """Column name -> a value a step, from an open file."""
    from pyarrow import parquet

    columns: dict[str, list[float | None]] = parquet.read_table(file).to_pydict()
    return columns
