"""The prompts that ship: well formed, all different, and the held-out ones far from the ones trained on."""

import json
import re
from pathlib import Path

import pytest

from tasks.prompts import read_prompts

FOLDER = Path(__file__).parents[2] / "deployments" / "prompts"
NAMES = ("train", "held_out")
FRAME = 3

# Words of a request rather than of its topic: of the longer words, only these may occur on both sides.
COMMON = """afraid answer between convert describe does finish from guide have into language learn line long make message
morning name order plain point python sentence should show someone that them this what where which without word would"""


def texts(name: str) -> list[str]:
    """The one user turn of each prompt."""
    return [prompt["messages"][0]["content"] for prompt in read_prompts(str(FOLDER / f"{name}.jsonl"))]


def words(text: str) -> list[str]:
    """Lower-case words; a plural counts as its singular."""
    found = re.findall(r"[^\W\d_]+", text.lower())
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in found]


def frames(prompts: list[str]) -> set[tuple[str, ...]]:
    """The words that each prompt opens with."""
    return {tuple(words(text)[:FRAME]) for text in prompts}


@pytest.mark.parametrize("name", NAMES)
def test_each_line_is_an_id_and_one_user_turn(name: str) -> None:
    for line in (FOLDER / f"{name}.jsonl").read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        assert set(row) == {"id", "messages"} and isinstance(row["id"], str)
        (turn,) = row["messages"]
        assert set(turn) == {"role", "content"} and turn["role"] == "user"
        assert turn["content"] == turn["content"].strip() and 3 <= len(turn["content"].split()) <= 40


def test_ids_and_texts_are_unique() -> None:
    prompts = [prompt for name in NAMES for prompt in read_prompts(str(FOLDER / f"{name}.jsonl"))]
    assert len({prompt["id"] for prompt in prompts}) == len(prompts)
    assert len({" ".join(words(prompt["messages"][0]["content"])) for prompt in prompts}) == len(prompts)


def test_held_out_topics_are_not_trained_on() -> None:
    trained, asked = ({word for text in texts(name) for word in words(text)} for name in NAMES)
    assert not {word for word in trained & asked if len(word) > 3} - set(words(COMMON))
    assert all(set(words(text)) - trained for text in texts("held_out")), "each has a word that training never saw"


def test_held_out_templates_are_not_trained_on() -> None:
    assert not frames(texts("train")) & frames(texts("held_out"))
