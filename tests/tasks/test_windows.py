"""Long conversations: windows start at turns, a token is supervised once, and what is lost is counted."""

from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tasks.windows import Window, cut, length_bucket
from tests.tasks.corpus_reading import read_file, tokenizer_of, write_rows

TURN = st.tuples(st.sampled_from(["user", "assistant", "tool"]), st.integers(1, 12), st.integers(1, 6))


def conversation(turns: list[tuple[str, int, int]]) -> tuple[np.ndarray, list[tuple[int, str]]]:
    """A mask and turn starts: each turn a header that nobody says, then what is said where the role is the assistant's."""
    mask: list[int] = []
    starts = []
    for role, header, body in turns:
        starts.append((len(mask), role))
        mask += [0] * header + [int(role == "assistant")] * body
    return np.array(mask, np.uint8), starts


@given(st.lists(TURN, min_size=1, max_size=12), st.integers(2, 40))
def test_windows_cover_each_supervised_token_at_most_once(turns: list[tuple[str, int, int]], max_length: int) -> None:
    mask, starts = conversation(turns)
    windows, lost = cut(mask, starts, max_length)
    counted = np.zeros(len(mask), int)
    for window in windows:
        assert 0 < window.end - window.start <= max_length
        assert window.start == 0 or (window.start, "user") in starts
        part = mask[window.start : window.end].copy()
        part[: max(0, window.covered - window.start)] = 0
        assert part.any() or len(mask) <= max_length
        counted[window.start : window.end] += part
    assert counted.max(initial=0) <= 1 and not counted[mask == 0].any()
    assert counted.sum() + lost == mask.sum()
    # Nothing is lost of an answer whose question and itself fit together.
    for number, (start, role) in enumerate(starts):
        end = starts[number + 1][0] if number + 1 < len(starts) else len(mask)
        question = next((at for at, who in reversed(starts[: number + 1]) if who == "user"), 0)
        if role == "assistant" and end - question <= max_length:
            assert counted[start:end].sum() == mask[start:end].sum()


def test_windows_by_hand() -> None:
    turns = [("user", 1, 1), ("assistant", 1, 3), ("user", 1, 1), ("assistant", 1, 9), ("user", 1, 1), ("assistant", 1, 1)]
    mask, starts = conversation(turns)
    assert [start for start, _ in starts] == [0, 2, 6, 8, 18, 20] and len(mask) == 22
    # The first window ends inside the second answer; the next starts at its question and reaches 16; three tokens more
    # (16, 17) would need a window that does not hold them, so they are lost; the third exchange fits.
    assert cut(mask, starts, 10) == ([Window(0, 10, 0), Window(6, 16, 10), Window(18, 22, 18)], 2)
    assert cut(mask, starts, 22) == ([Window(0, 22, 0)], 0)
    assert cut(mask, [(0, "")], 10) == ([Window(0, 10, 0)], 9), "token ids have one boundary, 0"


def test_lost_tokens_are_counted_by_length(cut_verifier: Path, tmp_path: Path) -> None:
    tokenizer = tokenizer_of(cut_verifier)
    long = "one two three four five six seven eight nine ten " * 60
    turns = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": long}]
    short = [{"role": "user", "content": "And?"}, {"role": "assistant", "content": "Done."}]
    path = write_rows(tmp_path / "a.jsonl", [{"id": "a", "messages": turns + short}])
    found = read_file(path, cut_verifier)
    # The second window leaves the system turn out and reaches so much further; the third is the second exchange.
    first, second, third = found.samples
    assert [sample.line["window"] for sample in found.samples] == [0, 1, 2] and len(first.ids) == len(second.ids) == 200
    assert first.line["hash"] == third.line["hash"] and first.line["id"] == third.line["id"] == "a"
    starts = [tokenizer.decode(sample.ids.tolist(), keep_special=True)[:24] for sample in found.samples]
    assert starts == ["<|im_start|>system\nYou a", "<|im_start|>user\nCount.<", "<|im_start|>user\nAnd?<|i"]
    assert second.mask.tolist() == [0] * (200 - second.line["supervised"]) + [1] * second.line["supervised"]
    lost = found.counts.supervised - sum(sample.line["supervised"] for sample in found.samples)
    assert lost > 300 and found.counts.facts()["lost_by_length"] == {"<2k": lost}
    assert found.counts.conversations == 1 and found.counts.samples == 3
    assert [length_bucket(n) for n in (511, 512, 2048, 8192, 32768)] == ["<512", "<2k", "<8k", "<32k", ">=32k"]
