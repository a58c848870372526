"""A month of traffic in four files, made so that each teaches a draft something that a test can foresee.

An answer walks along a fixed order of words from a word that its question names: what comes next follows from the word before.
The draft's vocabulary holds the words that are used most, so that a file which floods it with new words takes others out.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path

from flows.planning import open_host
from flows.retrain import Outcome, retrain
from running.host import Host
from tasks.settings import Settings
from tests.inprocess import InProcess

LATIN = "time year people way day man thing woman life child world school state family student group country problem hand part".split()
GREEK = "αβγ δεζ ηθι κλμ νξο πρσ".split()
FLOOD = (
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face others"
).split()


def _rows(name: str, words: list[str], count: int, length: int, seed: int) -> list[dict[str, object]]:
    """Conversations: the answer goes ``length`` words along the order from the place that the question names."""
    draw = random.Random(seed)
    rows = []
    for number in range(count):
        start = draw.randrange(len(words))
        said = " ".join(words[(start + step) % len(words)] for step in range(length))
        asked = f"{name} {number}: go on from {words[start - 1]}"
        rows.append({"role_pair": (asked, said)})
    return rows


def _land(folder: Path, name: str, rows: list[dict[str, object]], user: str = "user") -> None:
    folder.mkdir(exist_ok=True)
    with open(folder / f"{name}.jsonl", "w") as file:
        for number, row in enumerate(rows):
            asked, said = row["role_pair"]  # type: ignore[misc]
            turns = [{"role": user, "content": asked}, {"role": "assistant", "content": said}]
            file.write(json.dumps({"id": f"{name}-{number}", "messages": turns}) + "\n")


def good(folder: Path) -> None:
    _land(folder, "week1", _rows("one", LATIN, 40, 18, 1) + _rows("greek", GREEK, 40, 5, 2))


def wrong_template(folder: Path) -> None:
    _land(folder, "week2", _rows("two", LATIN, 20, 18, 3), "<|start_header_id|>user")


def flood(folder: Path) -> None:
    _land(folder, "week3", _rows("three", FLOOD, 80, 40, 4) + _rows("three-l", LATIN, 20, 18, 6))


def good_again(folder: Path) -> None:
    _land(folder, "week4", _rows("four", LATIN, 40, 18, 5) + _rows("greek4", GREEK, 60, 5, 7))


BATCHES: dict[str, Callable[[Path], None]] = {
    "good": good, "wrong template": wrong_template, "flood": flood, "good again": good_again
}


class Month:
    def __init__(self, root: Path, verifier: Path) -> None:
        self.root, self.folder = root, root / "landed"
        self.settings = Settings.model_validate(
            {
                "verifier": {"directory": str(verifier)},
                "data": {"conversations": [str(self.folder)]},
                "corpus": {"max_length": 256, "shard_tokens": 2048, "held_out": 0.25},
                "hidden_states": {"layer_ids": [1, 2, 3], "state_dtype": "float32"},
                "vocabulary": {"size": 96},
                "training": {
                    "epochs": 6, "lr": 2e-3, "pack_tokens": 512, "max_position_embeddings": 512, "replay_every_steps": 0,
                    "intermediate_size": 256, "num_heads": 4, "num_kv_heads": 4, "head_dim": 32,
                },
                "export": {"dtype": "float32"},
                "gates": {"min_coverage": 0.3},
                "promotion": {"ask": "never", "min_samples": 6},
                "store": {"path": str(root / "store"), "state": str(root / "state")},
            }
        )
        self.host: Host = open_host(self.settings)
        self.runs = 0

    def retrain(self) -> tuple[Outcome, InProcess]:
        walk = self.host.walk()
        self.runs += 1
        with self.host.noted_run(f"run-{self.runs:04}", "month", walk), self.host.store.workspace() as workspace:
            run = InProcess(walk, workspace)
            return retrain(self.settings, run, self.host), run
