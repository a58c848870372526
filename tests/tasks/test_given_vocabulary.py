"""A mapping that was made elsewhere is the draft's vocabulary as it is, or is refused in one sentence."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from artifacts.stage import Input
from errors import UserError
from running.identity import FileMemo
from tasks import vocabulary
from tasks.formats import VOCABULARY
from tasks.given_vocabulary import find, read_ids
from tasks.handles import Verifier
from tasks.settings import Settings
from tests.tasks.stage_jobs import Bench, Text

TARGET = 49_152
END = 2  # <|im_end|> of the small verifier


def write(folder: Path, ids: list[int], target: int = TARGET) -> Path:
    folder.mkdir(exist_ok=True)
    t2d = np.zeros(target, bool)
    t2d[ids] = True
    np.save(folder / "d2t.npy", np.array(ids) - np.arange(len(ids)))
    np.save(folder / "t2d.npy", t2d)
    return folder


def test_its_tokens_are_the_drafts_own(bench: Bench, cut_verifier: Path, tmp_path: Path) -> None:
    from kimi_adapters.draft_vocabulary import DraftVocabulary

    shard = bench.shard([Text([7, 9, 30, END], [0, 1, 1, 1])])
    ids = [0, END, 9, 500, 49_151]
    inputs = {"ids.0": shard.ids, "masks.0": shard.masks, "tokenizer": cut_verifier, "mapping": write(tmp_path / "maps", ids)}
    made = bench.job(vocabulary.compute, {"target_size": TARGET}, inputs)["vocabulary"]
    assert DraftVocabulary.read(bench.store.open(made) / VOCABULARY, TARGET).targets().tolist() == ids
    assert bench.refs[made].facts["size"] == 5 and bench.refs[made].facts["coverage"] == pytest.approx(2 / 3, abs=1e-5)
    without = {**inputs, "mapping": write(tmp_path / "short", [0, 9, 500])}
    with pytest.raises(UserError, match=r"leaves out 1 special tokens that the answers hold \(the first is 2\)"):
        bench.job(vocabulary.compute, {"target_size": TARGET}, without)


def test_a_node_reads_it_by_content_and_no_size(tmp_path: Path) -> None:
    memo = FileMemo(tmp_path / "state")
    verifier = Verifier("v", {"vocab_size": 97, "roles": {"tokenizer": "00"}}, "", Input("00", path="/v"), "chatml")

    def node(folder: Path, **chosen: object) -> object:
        settings = Settings.model_validate({"vocabulary": {"mapping": str(folder), **chosen}})
        vocabulary.check(settings, verifier)
        made = vocabulary.node(settings, [], verifier, memo)
        return made.settings, made.inputs["mapping"].digest  # type: ignore[union-attr]

    one, same, other = (write(tmp_path / str(i), ids, 97) for i, ids in enumerate(([3, 5], [3, 5], [3, 6])))
    assert node(one) == node(same, size=500) != node(other)
    (one / "t2d.npy").unlink()
    with pytest.raises(UserError, match=r"which has no t2d\.npy"):
        find(str(one), memo)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "absolute ids": (lambda f: np.save(f / "d2t.npy", np.array([3, 5])), "contradicts its t2d"),
    "another verifier": (lambda f: np.save(f / "t2d.npy", np.ones(98, bool)), "a mapping into 97 tokens needs"),
    "floats": (lambda f: np.save(f / "d2t.npy", np.array([3.0, 4.0])), "needs integers"),
    "pickled": (lambda f: np.save(f / "d2t.npy", np.array([print], object), allow_pickle=True), "no whole array"),
    "cut": (lambda f: (f / "t2d.npy").write_bytes((f / "t2d.npy").read_bytes()[:-1]), "no whole array"),
    "empty": (lambda f: (f / "t2d.npy").write_bytes(b""), "no whole array"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_one_is_told_in_one_sentence(tmp_path: Path, case: str) -> None:
    folder = write(tmp_path / "maps", [3, 5], 97)
    assert read_ids(folder, 97, [5]).tolist() == [3, 5]
    change, told = BROKEN[case]
    change(folder)
    with pytest.raises(UserError, match=told) as error:
        read_ids(folder, 97, [])
    assert "\n" not in str(error.value)
