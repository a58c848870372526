"""What holds of any corpus: counts add up, sides do not move, masks align, shards depend on their own file alone."""

import json
import random
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kimi_adapters.tokenizer import Tokenizer
from tests.tasks.corpus_reading import read_file, tokenizer_of, write_rows
from tests.tasks.corpus_stage import run_stage
from tests.tokens import encode_with_starts

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30) | st.sampled_from(
    ["Yes.", "  yes ", "\n", "言葉 and words"]
)
TURN = st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant"]), "content": TEXT})
NAME = st.none() | st.integers(0, 40) | st.text("abc", max_size=3)
TALK = st.fixed_dictionaries({"id": NAME, "messages": st.lists(TURN, min_size=1, max_size=6)})
IDS = st.lists(st.integers(0, 49151), max_size=30)
SERVED = st.fixed_dictionaries({"id": NAME, "prompt_ids": IDS, "answer_ids": IDS})
BROKEN = st.sampled_from(["", "   ", "{", "[]", '{"messages": []}', '{"messages": [{"role": "x", "content": "y"}]}', "NaN"])
CORPUS = st.lists(TALK | SERVED | BROKEN, max_size=25)
CHEAP = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
DEAR = settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def by_hand(talk: dict[str, Any], tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """SmolLM2's format written turn by turn, every offset looked at."""
    turns = [(turn["role"], turn["content"]) for turn in talk["messages"]]
    if turns[0][0] != "system":
        turns.insert(0, ("system", "You are a helpful AI assistant named SmolLM, trained by Hugging Face"))
    ids: list[int] = []
    mask: list[int] = []
    for role, content in turns:
        header = f"{role}\n"
        body, starts = encode_with_starts(tokenizer, header + content)
        said = int(role == "assistant")
        after = tokenizer.encode("\n")
        ids += [tokenizer.token_id("<|im_start|>"), *body, tokenizer.token_id("<|im_end|>"), *after]
        mask += [0, *(said * int(start >= len(header)) for start in starts), said, *(0 for _ in after)]
    return ids, mask


@CHEAP
@given(rows=CORPUS, max_length=st.integers(20, 120))
def test_counts_add_up_and_masks_are_where_the_assistant_speaks(cut_verifier: Path, rows: list[Any], max_length: int) -> None:
    tokenizer = tokenizer_of(cut_verifier)
    with TemporaryDirectory() as folder:
        found = read_file(write_rows(Path(folder) / "a", rows), cut_verifier, max_length=max_length)
    facts = found.counts.facts()
    assert facts["rows"] == sum(not isinstance(row, str) or bool(row.strip()) for row in rows)
    assert facts["rows"] == facts["conversations"] + facts["duplicates"] + facts["rejects"] + facts["forgotten"]
    assert facts["rejects"] == sum(facts["reasons"].values())
    kept = sum(sample.line["supervised"] for sample in found.samples)
    assert facts["supervised"] == kept + facts["lost_supervised"]
    expected = [by_hand(row, tokenizer) for row in rows if isinstance(row, dict) and "messages" in row]
    expected += [
        ([*row["prompt_ids"], *row["answer_ids"]], [0] * len(row["prompt_ids"]) + [1] * len(row["answer_ids"]))
        for row in rows
        if isinstance(row, dict) and "prompt_ids" in row
    ]
    for sample in found.samples:
        ids, mask = sample.ids.tolist(), sample.mask.tolist()
        assert len(ids) == len(mask) <= max_length and sum(mask) == sample.line["supervised"] and any(mask[1:])
        whole = [(i, m) for i, m in expected if len(i) <= max_length]
        if sample.line["window"] == 0 and (ids, mask) not in whole:
            assert any(ids == i[: len(ids)] or ids == i[s : s + len(ids)] for i, _ in expected for s in range(len(i)))
    for line in [sample.line for sample in found.samples]:
        assert set(line) == {"id", "window", "side", "supervised", "hash", "first", "greedy", "slices"}
        json.dumps(line)


@CHEAP
@given(rows=st.lists(TALK, min_size=1, max_size=15), seed=st.integers(), grown=TURN)
def test_sides_are_stable_under_order_and_growth(cut_verifier: Path, rows: list[Any], seed: int, grown: dict[str, str]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "a"

        def sides(corpus: list[Any]) -> dict[str, set[str]]:
            found: dict[str, set[str]] = {}
            for sample in read_file(write_rows(path, corpus), cut_verifier, max_length=5000).samples:
                known = sample.line["id"] if not sample.line["id"].startswith("row-") else sample.line["first"]
                found.setdefault(known, set()).add(sample.line["side"])
            return found

        before = sides(rows)
        assert all(len(both) == 1 for both in before.values()), "one id, or one first turn without an id, one side"
        mixed = random.Random(seed).sample(rows, len(rows))
        # Of two that say the same under two names, the first in the file stays: so a name may be gone, but never move.
        now = sides(mixed)
        assert all(now[known] == side for known, side in before.items() if known in now)
        longer = [{**row, "messages": [*row["messages"], grown]} for row in rows]
        after = sides([*longer, *mixed])
        assert all(after[known] == side for known, side in before.items() if known in after)


@DEAR
@given(rows=st.lists(TALK, min_size=8, max_size=25), more=st.lists(TALK, min_size=1, max_size=5), shard=st.integers(60, 300))
def test_shards_depend_on_their_own_rows(cut_verifier: Path, rows: list[Any], more: list[Any], shard: int) -> None:
    rows = [{"id": "first", "messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": "!"}]}, *rows]
    with TemporaryDirectory() as name:
        folder = Path(name)
        one = run_stage(write_rows(folder / "a", rows), cut_verifier, folder, shard_tokens=shard)
        two = run_stage(write_rows(folder / "b", rows), cut_verifier, folder, shard_tokens=shard)
        assert {n: sealed.ref for n, sealed in one.outputs.items()} == {n: sealed.ref for n, sealed in two.outputs.items()}
        longer = run_stage(write_rows(folder / "c", rows + more), cut_verifier, folder, shard_tokens=shard)
        for kind in ("ids", "masks"):
            assert longer.digests(kind)[: len(one.digests(kind)) - 1] == one.digests(kind)[:-1]
        sizes = [one.outputs[f"ids.{number}"].ref.facts["tokens"] for number in range(len(one.digests("ids")))]
        assert all(shard <= size < shard + 200 for size in sizes[:-1])
        other = run_stage(folder / "a", cut_verifier, folder, shard_tokens=shard, held_out=0.9)
        assert other.digests("ids") == one.digests("ids"), "token ids do not depend on sides"
