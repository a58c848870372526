"""The corpus stage: what it writes, what it forgets, whom it trusts, and how its nodes are keyed."""

import json
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from artifacts.stage import Input, Made, Node
from errors import UserError
from tasks import corpus
from tasks.formats import CONVERSATIONS, REJECTS
from tasks.handles import Source, Verifier
from tasks.samples import side_of
from tasks.settings import Settings
from tests.tasks.corpus_reading import TALK, read_file, tokenizer_of, write_rows
from tests.tasks.corpus_stage import run_stage


def talk(number: int, **more: Any) -> dict[str, Any]:
    question, answer = f"What comes after {number}?", f"After {number} comes {number + 1}, and then we rest."
    return {
        "id": f"chat{number}",
        "messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}],
        **more,
    }


def id_digest(name: str) -> str:
    return blake3(name.encode()).hexdigest()


def test_what_is_said_of_a_sample(cut_verifier: Path, tmp_path: Path) -> None:
    unnamed = {"messages": [{"role": "user", "content": " ПРИВЕТ  мир"}, {"role": "assistant", "content": "Да."}]}
    again = {"messages": [{"role": "user", "content": "привет мир\n"}, {"role": "assistant", "content": "да."}]}
    code = [{"role": "user", "content": "Write it"}, {"role": "assistant", "content": "```python\nprint(1)\n```"}]
    made = run_stage(write_rows(tmp_path / "a", [TALK, unnamed, again, {"messages": code}]), cut_verifier, tmp_path)
    first, second, third = made.samples()
    assert first["id"] == "x" and second["id"] == "row-" + second["hash"] and len(second["hash"]) == 32
    assert first["first"] == blake3(b"hi").hexdigest()[:32]
    assert second["first"] == blake3("привет мир".encode()).hexdigest()[:32]
    assert first["greedy"] is False and first["window"] == 0 and first["supervised"] == sum(first["mask"])
    assert first["slices"] == {"script": "latin", "thinking": "off", "tools": "off", "source": "a", "length": "<512"}
    assert second["slices"]["script"] == "cyrillic" and third["slices"]["script"] == "code"
    assert made.facts["duplicates"] == 1 and made.facts["conversations"] == 3


def test_served_token_ids_win_over_the_text(cut_verifier: Path, tmp_path: Path) -> None:
    served = [
        {**TALK, "prompt_ids": [5, 6, 7], "answer_ids": [8, 9]},
        {"id": "b", "prompt_token_ids": [5, 6, 7], "token_ids": [8, 10], "messages": None},
        {"id": "c", "input_ids": [5, 6, 7, 11], "loss_mask": [0, 1, 0, 1]},
        {"prompt_ids": [5, 6], "answer_ids": [12], "messages": [{"role": "wizard", "content": "?"}]},
        {**talk(1), "prompt_token_ids": None, "token_ids": None},
    ]
    found = read_file(write_rows(tmp_path / "a", served), cut_verifier)
    assert [sample.ids.tolist() for sample in found.samples[:4]] == [
        [5, 6, 7, 8, 9],
        [5, 6, 7, 8, 10],
        [5, 6, 7, 11],
        [5, 6, 12],
    ]
    assert [sample.mask.tolist() for sample in found.samples[:4]] == [[0, 0, 0, 1, 1]] * 2 + [[0, 1, 0, 1], [0, 0, 1]]
    assert found.samples[0].line["first"] == blake3(b"hi").hexdigest()[:32], "what is known of the text stays known"
    first = {sample.line["first"] for sample in found.samples[1:3]}
    assert len(first) == 2, "without text, what was asked is decoded"
    used = {**TALK, "tools": [{"type": "function", "function": {"name": "look"}}], "prompt_ids": [5], "answer_ids": [9]}
    used["messages"] = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "reasoning_content": "hm"}]
    (sample,) = read_file(write_rows(tmp_path / "b", [used]), cut_verifier).samples
    assert (sample.line["slices"]["thinking"], sample.line["slices"]["tools"]) == ("on", "on")
    assert found.samples[4].ids.tolist()[:3] == tokenizer_of(cut_verifier).encode("<|im_start|>")[:0] + [1, 9690, 198]


def test_only_a_source_of_our_own_may_say_greedy(cut_verifier: Path, tmp_path: Path) -> None:
    rows = [{**talk(1), "prompt_ids": [5, 6], "answer_ids": [8, 9], "greedy": True}, {**talk(2), "greedy": True}]
    path = write_rows(tmp_path / CONVERSATIONS, rows)
    assert [one["greedy"] for one in run_stage(path, cut_verifier, tmp_path).samples()] == [False, False]
    own = tmp_path / "artifact"
    own.mkdir()
    write_rows(own / CONVERSATIONS, rows)
    assert [one["greedy"] for one in run_stage(own, cut_verifier, tmp_path).samples()] == [True, False]


def test_a_forgotten_conversation_is_nowhere_and_moves_no_other_shard(cut_verifier: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.jsonl", [talk(number) for number in range(40)] + [{**talk(17), "id": "again"}])
    before = run_stage(path, cut_verifier, tmp_path)
    shards = [{sample["id"] for sample in Shard.of(before, number)} for number in range(len(before.digests("ids")))]
    holds = next(number for number, names in enumerate(shards) if "chat17" in names)
    after = run_stage(path, cut_verifier, tmp_path, forgotten=[id_digest("chat17"), id_digest("unknown")])
    changed = [number for number in range(len(shards)) if after.digests("ids")[number] != before.digests("ids")[number]]
    assert changed == [holds] and len(shards) > 3
    assert after.facts["forgotten"] == 1 and after.facts["duplicates"] == 1 and after.facts["conversations"] == 39
    assert not any(b"chat17" in data or b"again" in data for data in after.files())
    everything = [id_digest(name) for name in shards[holds]]
    gone = run_stage(path, cut_verifier, tmp_path, forgotten=everything)
    assert gone.digests("ids") == [d for number, d in enumerate(before.digests("ids")) if number != holds]
    assert set(gone.digests("masks")) < set(before.digests("masks"))


class Shard:
    """The samples of one shard."""

    @staticmethod
    def of(made: Any, number: int) -> list[dict[str, Any]]:
        text = (made.outputs[f"masks.{number}"].folder / "samples.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


def test_a_row_that_was_taken_out_of_our_own_source_keeps_its_place(cut_verifier: Path, tmp_path: Path) -> None:
    own = tmp_path / "artifact"
    own.mkdir()
    rows = [talk(number) for number in range(30)]
    write_rows(own / CONVERSATIONS, rows)
    before = run_stage(own, cut_verifier, tmp_path)
    tokens = len(next(sample for sample in before.samples() if sample["id"] == "chat9")["ids"])
    rows[9] = {"id_digest": id_digest("chat9"), "forgotten_tokens": tokens}
    write_rows(own / CONVERSATIONS, rows)
    after = run_stage(own, cut_verifier, tmp_path)
    assert sum(a != b for a, b in zip(before.digests("ids"), after.digests("ids"), strict=True)) == 1
    assert after.facts["forgotten"] == 1 and after.facts["rows"] == 30
    foreign = read_file(own / CONVERSATIONS, cut_verifier)
    assert foreign.rejects == [(10, "no conversation in it")], "another's file cannot say so"


def test_a_file_that_changed_meanwhile_is_refused(cut_verifier: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="changed while the run was going on"):
        read_file(write_rows(tmp_path / "a", [TALK]), cut_verifier, digest="00")


def test_a_limit_reads_so_many_rows_and_still_hashes_the_file(cut_verifier: Path, tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a", [*map(talk, range(9)), "not json"])
    made = run_stage(path, cut_verifier, tmp_path, limit=4)
    assert made.facts["rows"] == made.facts["conversations"] == 4
    with pytest.raises(UserError, match="changed while"):
        read_file(path, cut_verifier, digest="00", limit=4)


def test_rejects_hold_lines_and_reasons_and_no_text(cut_verifier: Path, tmp_path: Path) -> None:
    rows = [talk(1), '{"messages": "CANARY', {"id": "CANARY", "messages": [{"role": "CANARY", "content": "CANARY"}]}]
    made = run_stage(write_rows(tmp_path / "a", rows), cut_verifier, tmp_path)
    lines = (made.outputs["rejects"].folder / REJECTS).read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"line": 2, "reason": "not JSON"},
        {"line": 3, "reason": "unknown role"},
    ]
    assert not any(b"CANARY" in data for data in made.files()) and "CANARY" not in json.dumps(made.facts)
    with pytest.raises(UserError, match=r"gave no usable conversation in 2 rows \(most often: not JSON\)"):
        run_stage(write_rows(tmp_path / "b", rows[1:]), cut_verifier, tmp_path)


def test_the_round_trip_is_measured_on_text_and_not_on_ids(cut_verifier: Path, tmp_path: Path) -> None:
    found = read_file(write_rows(tmp_path / "a", [talk(number) for number in range(200)]), cut_verifier)
    assert 3 <= found.counts.tried <= 30 and found.counts.facts()["round_trip"] == 1.0
    served = [{"prompt_ids": [5], "answer_ids": [number]} for number in range(100, 200)]
    assert read_file(write_rows(tmp_path / "b", served), cut_verifier).counts.tried == 0


def test_a_conversation_that_grows_keeps_its_side() -> None:
    assert side_of(None, " Hello  THERE", 0.3) == side_of(None, "hello there", 0.3)
    sides = [side_of(str(number), "", 0.3) for number in range(2000)]
    assert 0.25 < sides.count("held_out") / 2000 < 0.35


def test_nodes_hold_what_they_depend_on(tmp_path: Path) -> None:
    verifier = Verifier("v", {"roles": {"tokenizer": "t"}}, "", Input("", path="/v"), "chatml")
    sources = [Source("a", Input("d1", path="/a")), Source("p, chunk 1/2", Input("d2", path="/p"))]
    one, two = corpus.nodes(Settings(), sources, verifier, lambda digest: ["b", "a"] if digest == "d1" else [])
    assert one.settings["forgotten"] == ["a", "b"] and two.settings["forgotten"] == []
    assert (one.settings["source"], two.settings["source"]) == ("a", "p")
    pending = Made(Node(corpus.STAGE, "a", {}, {}), None)
    assert corpus.shards([pending])[0].name == "every shard of a"
