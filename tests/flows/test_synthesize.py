"""Answers land as files of conversations that are named by their content and read with the ids that were served."""

import json
from pathlib import Path

import pytest

from artifacts.manifest import Ref
from artifacts.store import BlobMissing, Store
from artifacts.writer import ArtifactWriter
from errors import UserError
from flows.synthesize import check, land
from kimi_adapters.chat import FORMATS
from kimi_adapters.tokenizer import Tokenizer
from tasks.conversations import Choices, Reader
from tasks.formats import CONVERSATIONS
from tasks.samples import Sample
from tasks.settings import Settings

TURNS = [{"role": "user", "content": "say"}, {"role": "assistant", "content": "cheese"}]
ROW = {"id": "p-1", "messages": TURNS, "prompt_ids": [1, 7, 8], "answer_ids": [9, 10, 2], "greedy": True}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def answers(store: Store) -> Ref:
    with store.workspace() as workspace:
        writer = ArtifactWriter("conversations", workspace)
        writer.write(CONVERSATIONS, json.dumps(ROW).encode() + b"\n")
        return store.commit(writer.seal(conversations=1, tokens=3))


def test_answers_land_once_and_leave_nothing_beside_them(store: Store, answers: Ref, tmp_path: Path) -> None:
    path = tmp_path / "landed" / "p.jsonl"
    assert land(store, answers, path) and not land(store, answers, path)
    assert json.loads(path.read_text()) == ROW and list(path.parent.iterdir()) == [path]


def test_a_copy_that_fails_leaves_no_file(store: Store, answers: Ref, tmp_path: Path) -> None:
    (store.open(answers.digest) / CONVERSATIONS).unlink()
    with pytest.raises(BlobMissing):
        land(store, answers, tmp_path / "landed" / "p.jsonl")
    assert list((tmp_path / "landed").iterdir()) == []


def test_what_landed_is_read_with_the_ids_that_were_served(
    store: Store, answers: Ref, tmp_path: Path, whole_verifier: Path
) -> None:
    path = tmp_path / "landed" / "p.jsonl"
    land(store, answers, path)
    reader = Reader(Tokenizer(whole_verifier), FORMATS["smollm2"], Choices(max_length=64, held_out=0.1))
    (sample,) = reader.samples(path)
    assert isinstance(sample, Sample) and sample.ids.tolist() == [1, 7, 8, 9, 10, 2] and sample.line["id"] == "p-1"


def test_without_prompts_there_is_nothing_to_answer() -> None:
    with pytest.raises(UserError, match=r"data\.prompts is empty"):
        check(Settings.model_validate({"verifier": {"embedded": "smollm2-135m-instruct"}}))
