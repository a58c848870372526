"""Projects: copies of the code with a store and data of their own, run as a user runs them."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PACKAGES = ("artifacts", "flows", "kimi_adapters", "running", "tasks")
CANARY = "Quetzalverdin"  # in every text of every project: it must not leave the store
_WORDS = """bread tea maps snow clocks rivers trees lamps glass shoes music rain bridges kites ants wool
salt mirrors ropes candles boats paper honey stones wheels bells seeds ink nets drums sand doors"""
TOPICS = _WORDS.split()


def copy_checkout(folder: Path) -> None:
    """Copy the project's code."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(ROOT / "errors.py", folder)


def conversation(topic: str, number: int) -> tuple[str, str]:
    """A question and an answer about a topic."""
    question = f"{CANARY}, what should I know about {topic} before I start, and what comes after step {number}?"
    answer = f"{CANARY}, people have used {topic} for a long time. First look at the {topic}, then try {number} small steps."
    return question, answer


def write_corpus(path: Path, topics: list[str], spelling: str = "messages", start: int = 0) -> None:
    """Append conversations to a JSONL file, in one of the two spellings."""
    with open(path, "a") as file:
        for number, topic in enumerate(topics, start):
            question, answer = conversation(topic, number)
            if spelling == "messages":
                row = {
                    "id": f"{path.stem}-{number}",
                    "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
                }
            else:
                row = {
                    "id": f"{path.stem}-{number}",
                    "conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}],
                }
            file.write(json.dumps(row) + "\n")


@dataclass
class Project:
    """A checkout with a store, data and settings, and the commands of a user."""

    folder: Path
    environment: dict[str, str]

    @classmethod
    def at(cls, folder: Path, api: str) -> "Project":
        """The project in ``folder``, whose runs go to the Prefect server at ``api``."""
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("PREFECT")},
            "PYTHONPATH": str(folder),
            "PREFECT_API_URL": api,
            "PREFECT_HOME": str(folder / "prefect-home"),
            "DO_NOT_TRACK": "1",
        }
        return cls(folder, environment)

    @property
    def settings(self) -> Path:
        return self.folder / "settings.yaml"

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def take_store_of(self, other: "Project") -> None:
        """Have what another project's store holds, by hard links: unlink, do not overwrite; without locks and reports."""
        own = shutil.ignore_patterns(".in_use", ".lock", "locks", "reports")
        shutil.copytree(other.store, self.store, ignore=own, copy_function=os.link)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-P", "-m", "running.cli", *arguments]

    def eyas(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run ``eyas`` to its end."""
        return self._to_its_end(self.command(*arguments))

    def python(self, program: str) -> "subprocess.CompletedProcess[str]":
        """Run a program on the project's code to its end."""
        return self._to_its_end([sys.executable, "-P", "-c", program])

    def _to_its_end(self, command: list[str]) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=500, check=False
        )

    def nodes(self, command: str, *arguments: str) -> list[dict[str, Any]]:
        """The nodes that ``eyas run`` or ``eyas plan`` names."""
        done = self.eyas(command, str(self.settings), "--json", *arguments)
        assert done.returncode == 0, done.stderr[-3000:]
        nodes: list[dict[str, Any]] = json.loads(done.stdout)
        return nodes

    def start(self) -> "subprocess.Popen[str]":
        """Start ``eyas run`` in the background; its output goes to pipes."""
        command = self.command("run", str(self.settings), "--json")
        return subprocess.Popen(
            command, cwd=self.folder, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run_until_training(self) -> None:
        """Start ``eyas run`` and kill it when training begins: what comes before has been made and recorded by then."""
        run = self.start()
        wait_for(lambda: any(b"training" in line for line in self._lines()), process=run)
        os.kill(run.pid, signal.SIGKILL)
        run.wait()
        no_orphans(self)

    def _lines(self) -> Iterator[bytes]:
        for child in self.children():
            with suppress(OSError):  # it has ended meanwhile
                yield (Path("/proc") / str(child) / "cmdline").read_bytes()

    def edit(self, file: str, old: str, new: str) -> None:
        """Change the project's code."""
        path = self.folder / file
        source = path.read_text()
        assert source.count(old) >= 1, f"{file} does not hold {old!r}"
        path.write_text(source.replace(old, new, 1))

    def records(self, stage: str) -> list[Path]:
        """The record files of a stage."""
        return list((self.store / "records" / stage).glob("*.json"))

    def blob_of(self, stage: str, output: str, node: str = "") -> Path:
        """The blob folder of a stage's output."""
        for path in self.records(stage):
            record = json.loads(path.read_text())
            if node in record["node"] and output in record["outputs"]:
                digest = record["outputs"][output]["digest"]
                return self.store / "blobs" / digest[:2] / digest
        raise AssertionError(f"no {output} of {stage}")

    def children(self) -> list[int]:
        """Process ids of the children of this project's runs."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if b"running.child" in line and str(self.folder).encode() in line[-2] and state != "Z":
                found.append(int(entry.name))
        return found


def ran(nodes: list[dict[str, Any]]) -> set[str]:
    """The stages of which a node ran."""
    return {node["stage"] for node in nodes if node["status"] == "run"}


def wait_for(what: Callable[[], Any], seconds: float = 240.0, process: "subprocess.Popen[str] | None" = None) -> Any:
    """Poll until ``what()`` is true; fail when the time is over or the process has ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = what()
        if value:
            return value
        if process is not None and process.poll() is not None:
            raise AssertionError(f"the run ended first: {process.stderr.read()[-3000:] if process.stderr else ''}")
        time.sleep(0.01)
    raise AssertionError("it did not happen in time")


def no_orphans(project: Project, seconds: float = 5.0) -> None:
    """No child of a killed flow may live longer than this."""
    wait_for(lambda: not project.children(), seconds)


def make_project(folder: Path, checkout: Path, verifier: Path, api: str) -> Project:
    """A fresh project with an empty store."""
    shutil.copytree(checkout, folder)
    write_corpus(folder / "a.jsonl", TOPICS[:24])
    write_corpus(folder / "b.jsonl", TOPICS[24:], "conversations")
    with open(folder / "b.jsonl", "a") as file:
        file.write(json.dumps({"messages": [{"role": "wizard", "content": f"{CANARY}!"}]}) + "\n")
    prompts = [
        {"id": f"p{i}", "messages": [{"role": "user", "content": f"{CANARY}, tell me about {t}."}]}
        for i, t in enumerate(("moss", "owls"))
    ]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(prompt) + "\n" for prompt in prompts))
    settings = {
        "name": "test",
        "verifier": {"directory": str(verifier)},
        "data": {"conversations": ["a.jsonl", "b.jsonl"]},
        "corpus": {"max_length": 256, "shard_tokens": 512, "held_out": 0.2},
        "hidden_states": {"layer_ids": [1, 2, 3], "state_dtype": "float32"},
        "vocabulary": {"size": 1024},
        "training": {
            "epochs": 2,
            "pack_tokens": 128,
            "checkpoint_every_steps": 4,
            "max_position_embeddings": 512,
            "num_heads": 3,
            "num_kv_heads": 1,
            "intermediate_size": 64,  # a third of the numbers that the verifier's own sizes give
        },
        "acceptance": {"prompts": "prompts.jsonl", "max_new_tokens": 12},
        "export": {"dtype": "float32"},
        "store": {"path": "store", "state": "state"},
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    return Project.at(folder, api)
