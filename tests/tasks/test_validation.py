"""Each fault, injected into real states of the cut verifier, is found by its name; clean states have none."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from errors import UserError
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.weights import Checkpoint
from tasks.checks import Fault, chosen_samples
from tasks.formats import STATES, STATS, read_tokens
from tasks.sample_decisions import Reason
from tasks.validation_report import NORMS, REASONS, SLICES, SUPERVISED
from tests.tasks.conftest import ANSWER_TOKENS, FOREIGN, OWN
from tests.tasks.stage_jobs import STATE_NAMES, Bench, Made, Text

HURT = 4  # the sample that a fault is put into


def span(bench: Bench, shard: Made, number: int) -> slice:
    _, offsets = read_tokens(bench.store.folder(shard.ids))
    return slice(int(offsets[number]), int(offsets[number + 1]))


def test_clean_states_have_no_fault_and_greedy_answers_agree(bench: Bench, clean: Made) -> None:
    found = bench.merge(bench.check(clean))
    assert found.quarantine == found.drop == {} and found.aside == []
    assert found.report["faults"] == [] and found.report["read"] == found.report["samples"] == OWN + FOREIGN
    greedy = found.report["greedy"]
    assert greedy["scored"] == OWN * ANSWER_TOKENS and greedy["agreement"] >= 0.99 and greedy["score"] > -1
    rows = {row["slice"]: row for row in found.report["slices"]}
    assert rows["source=own"]["agreement"] == greedy["agreement"] and rows["source=foreign"]["agreement"] < 0.5
    assert sum(row["supervised"] for row in rows.values()) == found.report["supervised"]


def one_value(value: float) -> Callable[[dict[str, np.ndarray], slice], None]:
    def hurt(states: dict[str, np.ndarray], where: slice) -> None:
        states["layer.2"][where.start + 3, 17] = value

    return hurt


def doubled(states: dict[str, np.ndarray], where: slice) -> None:
    states["layer.3"][where] *= 2


def repeated(states: dict[str, np.ndarray], where: slice) -> None:
    states["last"][where.start + 5 : where.start + 12] = states["last"][where.start + 5]


IN_STATES = {
    "one NaN": (one_value(np.nan), Reason.NOT_FINITE),
    "one Inf": (one_value(-np.inf), Reason.NOT_FINITE),
    "a doubled norm": (doubled, Reason.OUTLYING_NORM),
    "repeated rows": (repeated, Reason.REPEATED_ROWS),
}


@pytest.mark.parametrize("case", IN_STATES)
def test_a_fault_in_one_samples_states_is_named(bench: Bench, clean: Made, case: str) -> None:
    """Though that sample's states are not read again: statistics were taken of all while they were written."""
    assert not chosen_samples(clean.ids, OWN + FOREIGN, 0.05)[HURT]
    hurt, reason = IN_STATES[case]
    states = bench.states(clean)
    hurt(states, span(bench, clean, HURT))
    found = bench.merge(bench.check(bench.with_states(clean, states), read_share=0.05))
    assert found.quarantine == {clean.ids: [HURT]}
    assert [(line["sample"], line["id"], line["reasons"]) for line in found.aside] == [(HURT, f"s{HURT}", [reason.value])]
    assert found.report["reasons"] == {reason.value: 1} and found.report["faults"] == []


def normed(states: dict[str, np.ndarray], verifier: Path) -> None:
    checkpoint = Checkpoint(verifier)
    last = states["last"].astype(np.float64)
    scale = np.sqrt((last**2).mean(axis=1, keepdims=True) + checkpoint.config.rms_norm_eps)
    states["last"][:] = last / scale * checkpoint.norm().double().numpy()


def late(states: dict[str, np.ndarray], verifier: Path) -> None:
    for array in states.values():
        array[:] = np.roll(array, 1, axis=0)


def early(states: dict[str, np.ndarray], verifier: Path) -> None:
    for array in states.values():
        array[:] = np.roll(array, -1, axis=0)


@pytest.mark.parametrize(("hurt", "fault"), [(normed, Fault.NORMED), (late, Fault.LATE), (early, Fault.EARLY)])
def test_a_fault_of_the_whole_shard_is_named(
    bench: Bench, clean: Made, hurt: Callable[[Any, Path], None], fault: Fault
) -> None:
    states = bench.states(clean)
    hurt(states, bench.verifier)
    checks = bench.check(bench.with_states(clean, states), clean, read_share=0.3)
    assert [bench.refs[check].facts["faults"] for check in checks] == [[fault.value], []]


def test_ids_that_moved_by_one_are_named_as_states_that_did(bench: Bench, texts: list[Text]) -> None:
    """The ids of a shard are shifted after its states were made."""
    straight = bench.shard(texts)
    bench.extract(straight)
    for shift, fault in ((1, Fault.EARLY), (-1, Fault.LATE)):
        moved = bench.shard([replace(text, ids=np.roll(text.ids, shift).tolist()) for text in texts])
        moved.states, moved.stats = straight.states, straight.stats
        (check,) = bench.check(moved, read_share=0.5)
        assert bench.refs[check].facts["faults"] == [fault.value]
        assert bench.merge([check]).report["faults"] == [fault.value]


def test_states_that_changed_since_they_were_written(bench: Bench, clean: Made) -> None:
    states = bench.states(clean)
    doubled(states, span(bench, clean, HURT))
    changed = bench.with_states(clean, states, stats_too=False)
    assert bench.refs[bench.check(changed)[0]].facts["faults"] == [Fault.STALE.value]


def test_a_flipped_bit_is_found_where_all_is_read(bench: Bench, clean: Made) -> None:
    for digest, name in ((clean.states, STATES), (clean.stats, STATS)):
        path = bench.store.folder(digest) / name
        whole = path.read_bytes()
        try:
            path.write_bytes(bytes([*whole[:-100], whole[-100] ^ 1, *whole[-99:]]))
            with pytest.raises(UserError, match=f"{name} does not have the bytes that were written"):
                bench.check(clean)
        finally:
            path.write_bytes(whole)


def test_faults_of_masks_and_texts(bench: Bench, texts: list[Text]) -> None:
    rng = np.random.default_rng(3)
    own, foreign = texts[0], texts[-1]
    noise = rng.integers(200, 40_000, ANSWER_TOKENS).tolist()
    prompt = own.ids[: -len(noise)]
    loop = [*prompt, *rng.integers(200, 40_000, 20).tolist(), *rng.integers(200, 40_000, 16).tolist() * 5]
    cases = [
        *texts,
        replace(foreign, mask=[0] * len(foreign.ids)),
        replace(foreign, mask=[0] * (len(foreign.ids) - 1) + [1]),
        replace(foreign, ids=loop, mask=[0] * len(prompt) + [1] * (len(loop) - len(prompt))),
        replace(own, ids=[*prompt, *noise]),
        replace(own, ids=[*prompt, *noise], more={}),
    ]
    shard = bench.shard(cases)
    bench.extract(shard)
    found = bench.merge(bench.check(shard))
    n = len(texts)
    assert {line["sample"]: line["reasons"] for line in found.aside} == {
        n: [Reason.NOTHING_SUPERVISED.value],
        n + 1: [Reason.TOO_FEW_SUPERVISED.value],
        n + 2: [Reason.REPETITION.value],
        n + 3: [Reason.LOW_SCORE.value, Reason.LOW_AGREEMENT.value],
    }, "off-policy text is put aside only where it passes for a greedy answer of this verifier"
    assert found.report["faults"] == []


def test_ids_out_of_the_vocabulary(bench: Bench, clean: Made, texts: list[Text]) -> None:
    odd = [replace(text, ids=[*text.ids[:-1], 49_152]) if i == HURT else text for i, text in enumerate(texts)]
    shard = bench.shard(odd)
    shard.states, shard.stats = clean.states, clean.stats
    found = bench.merge(bench.check(shard))
    assert [line["reasons"] for line in found.aside] == [[Reason.OUT_OF_VOCABULARY.value]]


def test_of_the_states_only_the_chosen_samples_are_read(bench: Bench, clean: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not chosen could be anything: here it is overwritten, and nothing changes."""
    chosen = chosen_samples(clean.ids, OWN + FOREIGN, 0.3)
    assert 0 < chosen.sum() < OWN
    rubbish = bench.states(clean)
    for number in np.flatnonzero(~chosen):
        for array in rubbish.values():
            array[span(bench, clean, int(number))] = 1e30
    other = bench.with_states(clean, rubbish, stats_too=False)
    checks = bench.check(clean, other, read_share=0.3)
    assert checks[0] == checks[1]
    assert bench.refs[checks[0]].facts["read"] == chosen.sum()


def test_the_choice_depends_on_the_ids_and_never_is_empty() -> None:
    shares = [chosen_samples(f"{number:064x}", 1000, 0.1).mean() for number in range(20)]
    assert 0.08 < np.mean(shares) < 0.12 and len(set(shares)) > 10
    assert all(chosen_samples(f"{number:064x}", 3, 0.001).sum() == 1 for number in range(20))
    assert chosen_samples("ab", 50, 1.0).all()


def test_artifacts_that_do_not_belong_together_are_refused(bench: Bench, clean: Made, texts: list[Text]) -> None:
    other = bench.shard(texts[:5])
    bench.extract(other)
    for mixed, message in (
        (Made(clean.ids, other.masks, clean.states, clean.stats), "do not belong together"),
        (Made(clean.ids, clean.masks, other.states, clean.stats), "do not have"),
        (Made(clean.ids, clean.masks, clean.states, other.stats), "do not fit its states"),
    ):
        with pytest.raises(UserError, match=message):
            bench.check(mixed)


def test_the_same_shard_gives_the_same_bytes_whatever_its_pass(bench: Bench, clean: Made, texts: list[Text]) -> None:
    again, other = bench.shard(texts), bench.shard(texts[:3])
    bench.extract(other, again, shards_per_pass=2)
    assert (again.states, again.stats) == (clean.states, clean.stats)
    (check,) = bench.check(clean)
    assert bench.check(other, again)[1] == check
    merged = [bench.merge([check]).digests for _ in range(2)]
    assert merged[0] == merged[1], "plots too"


def test_the_report_is_for_people(bench: Bench, clean: Made) -> None:
    states = bench.states(clean)
    doubled(states, span(bench, clean, HURT))
    found = bench.merge(bench.check(bench.with_states(clean, states)))
    text = (found.folder / "report.md").read_text()
    for plot in (NORMS, REASONS, SLICES, SUPERVISED):
        assert f"]({plot})" in text and (found.folder / plot).read_bytes().startswith(b"\x89PNG")
    assert "| source=own |" in text and "1 in quarantine" in text
    assert all(name in found.report["norms"] for name in STATE_NAMES)
    with TensorFile(bench.store.folder(clean.states) / STATES) as file:
        assert list(file.entries) == STATE_NAMES
