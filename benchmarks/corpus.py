"""How fast the corpus stage reads, and in how much memory: generated short conversations through the stage's own computation.

    python -m benchmarks.corpus [--rows 1000000] [--kind jsonl|gz|zst|parquet]

The stage runs in a process of its own, once over a tenth of the rows and once over all: what grows between the two is what a
row costs. Rates are of CPU time, since machines are shared; the floor beside them is parsing the same lines by ``json``.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from running.job import Job
from tasks import corpus
from tests.conftest import make_whole_verifier

_WORDS = ["water", "bread", "snow", "maps", "clocks", "river", "tree", "lamp", "glass", "shoe", "music", "rain", "bridge"]
_WORDS += ["kite", "wool", "salt", "rope", "boat", "paper", "stone"]


def generated(rows: int) -> Iterator[dict[str, Any]]:
    """Conversations of about 60 tokens; one row in fifty says what another says, one in a hundred has an unknown role."""
    chance = random.Random(1)
    for number in range(rows):
        said = number - number % 50 if number % 50 == 49 else number
        question = f"What should I know about {chance.choice(_WORDS)} {said} before I start?"
        answer = " ".join(chance.choices(_WORDS, k=20)) + f", then rest {said} minutes."
        if number % 50 == 49:
            question, answer = f"What is {said // 100}?", f"It is {said // 100}."
        role = "wizard" if number % 100 == 7 else "user"
        yield {"id": f"c{number}", "messages": [{"role": role, "content": question}, {"role": "assistant", "content": answer}]}


def write(path: Path, rows: int) -> None:
    """Write generated rows as the kind that the suffix says."""
    import pyarrow
    from pyarrow import parquet

    if path.suffix == ".parquet":
        writer = None
        batch: list[dict[str, Any]] = []
        for row in generated(rows):
            batch.append(row)
            if len(batch) == 20_000:
                table = pyarrow.Table.from_pylist(batch)
                writer = writer or parquet.ParquetWriter(path, table.schema)
                writer.write_table(table)
                batch = []
        assert writer is not None and not batch, "give a multiple of 20,000 rows"
        writer.close()
        return
    with open(path, "wb") as plain:
        kind = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
        file = pyarrow.CompressedOutputStream(pyarrow.PythonFile(plain, mode="w"), kind) if kind else plain
        for row in generated(rows):
            file.write(json.dumps(row).encode() + b"\n")
        if kind:
            file.close()


def read(path: Path, verifier: Path) -> None:
    """The stage's computation over one file, in this process; prints facts, seconds and the greatest memory in MB."""
    events: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        settings = {
            "chat_format": "smollm2",
            "max_length": 2048,
            "shard_tokens": 1 << 20,
            "held_out": 0.1,
            "limit": None,
            "source": "generated",
            "forgotten": [],
        }
        digests = {"source": _digest(path)}
        started, used = time.monotonic(), time.process_time()
        job = Job(
            "key", "corpus", settings, {}, {"source": path, "tokenizer": verifier}, digests, Path(folder), "cpu", 1,
            Path(folder), lambda event: events.append(event) if event["event"] == "outputs" else None,
        )  # fmt: skip
        corpus.compute(job)
        seconds, used = time.monotonic() - started, time.process_time() - used
    facts = events[-1]["outputs"]["rejects"]["ref"]["facts"]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({**facts, "seconds": seconds, "cpu": used, "memory": memory, "tokens": events[-1]["tokens"]}))


def _digest(path: Path) -> str:
    from artifacts.manifest import digest_file

    return digest_file(path)


def measured(path: Path, verifier: Path) -> dict[str, Any]:
    """``read`` in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.corpus", "--read", str(path), "--verifier", str(verifier)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def floor_seconds(path: Path) -> float:
    """Parsing every line, and nothing else."""
    started = time.process_time()
    with open(path, "rb") as file:
        for line in file:
            json.loads(line)
    return time.process_time() - started


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=["jsonl", "jsonl.gz", "jsonl.zst", "parquet"], default="jsonl")
    parser.add_argument("--read", type=Path)
    parser.add_argument("--verifier", type=Path)
    chosen = parser.parse_args()
    if chosen.read:
        read(chosen.read, chosen.verifier)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        verifier = make_whole_verifier(folder / "verifier")
        print("     rows  file MB  wall s   CPU s   rows/s  tokens/s  peak MB  json s  rejects duplicates")
        for rows in (chosen.rows // 10, chosen.rows):
            path = folder / f"rows.{chosen.kind}"
            write(path, rows)
            found = measured(path, verifier)
            floor = floor_seconds(path) if chosen.kind == "jsonl" else float("nan")
            seconds, used, tokens = found["seconds"], found["cpu"], found["tokens"]
            print(
                f"{rows:9,} {path.stat().st_size / 1e6:8.1f} {seconds:7.1f} {used:7.1f} {rows / used:8,.0f} "
                f"{tokens / used:9,.0f} {found['memory']:8.0f} {floor:7.1f} {found['rejects']:8,} {found['duplicates']:10,}",
                flush=True,
            )


if __name__ == "__main__":
    main()
