"""Rows become samples or rejects, shards depend on their own file alone, and the vocabulary keeps special tokens."""

import json
from pathlib import Path

import numpy as np
import pytest

from artifacts.store import ArtifactWriter
from errors import UserError
from kimi_adapters.chat import FORMATS
from kimi_adapters.tokenizer import Tokenizer
from tasks.conversations import Reader, Reason, Sample, side_of
from tasks.formats import read_masks, read_tokens
from tasks.shard_writer import write_shard
from tasks.vocabulary import choose


def reader(verifier: Path, max_length: int = 200, held_out: float = 0.25) -> Reader:
    return Reader(Tokenizer(verifier), FORMATS["smollm2"], max_length, held_out)


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


TALK = {"id": "x", "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello there."}]}


def test_both_spellings_give_the_same_tokens(cut_verifier: Path, tmp_path: Path) -> None:
    other = {"id": "x", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello there."}]}
    one, two = reader(cut_verifier).samples(write(tmp_path / "a", [TALK, other]), None, None)
    assert one == two and sum(one.mask) == len(Tokenizer(cut_verifier).encode("Hello there.")) + 1


def test_every_row_is_a_sample_or_a_reject_with_its_reason(cut_verifier: Path, tmp_path: Path) -> None:
    turns = TALK["messages"]
    rows: list[object] = [
        TALK,
        "{not json",
        {"text": "x"},
        {"messages": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user", "content": ["x"]}]},
        {"messages": turns[:1]},
        {"messages": [{"role": "user", "content": "word " * 300}, {"role": "assistant", "content": "x"}]},
        {"prompt_ids": [1, 2], "answer_ids": [], "messages": turns},
        "",
    ]
    found = reader(cut_verifier)
    samples = list(found.samples(write(tmp_path / "a", rows), None, None))
    reasons = [reject["reason"] for reject in found.rejects]
    expected = [
        Reason.NOT_JSON,
        Reason.NO_CONVERSATION,
        Reason.UNKNOWN_ROLE,
        Reason.NOT_TEXT,
        Reason.NO_ASSISTANT,
        Reason.TOO_LONG,
        Reason.NOTHING_SUPERVISED,
    ]
    assert reasons == [reason.value for reason in expected]
    assert len(samples) == 1 and found.rows == len(samples) + len(found.rejects) == 8
    assert found.rejects[0] == {"line": 2, "reason": "not JSON"}


def test_served_token_ids_win_over_the_text(cut_verifier: Path, tmp_path: Path) -> None:
    row = {**TALK, "prompt_ids": [5, 6, 7], "answer_ids": [8, 9]}
    (sample,) = reader(cut_verifier).samples(write(tmp_path / "a", [row]), None, None)
    assert sample.ids == [5, 6, 7, 8, 9] and sample.mask == [0, 0, 0, 1, 1]


def test_a_file_that_changed_meanwhile_is_refused(cut_verifier: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="changed while the run was going on"):
        list(reader(cut_verifier).samples(write(tmp_path / "a", [TALK]), "00", None))


def test_a_conversation_that_grows_keeps_its_side() -> None:
    for number in range(50):
        turns = [{"role": "user", "content": f"question {number}"}, {"role": "assistant", "content": "yes"}]
        longer = [*turns, {"role": "user", "content": "and then?"}]
        assert side_of({}, turns, 0.3) == side_of({}, longer, 0.3)
        assert side_of({"id": number}, turns, 0.3) == side_of({"id": number}, longer[2:], 0.3)
    sides = [side_of({"id": number}, [], 0.3) for number in range(2000)]
    assert 0.25 < sides.count("held_out") / 2000 < 0.35


def test_token_ids_are_apart_from_masks_and_sides(tmp_path: Path) -> None:
    def shard(side: str, mask: list[int]) -> tuple[str, str]:
        samples = [Sample("a", side, [1, 2, 3], mask), Sample("b", "train", [4, 5], [0, 1])]
        tokens, masks = write_shard(lambda kind: ArtifactWriter(kind, tmp_path), samples)
        ids, offsets = read_tokens(tokens.folder)
        assert ids.tolist() == [1, 2, 3, 4, 5] and offsets.tolist() == [0, 3, 5]
        stored, rows = read_masks(masks.folder)
        assert stored.tolist() == [*mask, 0, 1] and [row["side"] for row in rows] == [side, "train"]
        return tokens.ref.digest, masks.ref.digest

    one, two = shard("train", [0, 1, 1]), shard("held_out", [0, 0, 1])
    assert one[0] == two[0] and one[1] != two[1]


def test_special_tokens_are_forced_into_the_vocabulary() -> None:
    counts = np.array([9, 0, 5, 7, 0, 8, 0, 0])
    assert choose(counts, [6, 7], 5).tolist() == [0, 3, 5, 6, 7]
    assert choose(counts, [6], 7).tolist() == [0, 1, 2, 3, 4, 5, 6], "unused ones fill up by id"
    assert choose(counts, [], 8).tolist() == list(range(8))
