from pathlib import Path

import pytest
import torch

from errors import UserError
from kimi_adapters.draft_vocabulary import DraftVocabulary
from tests.kimi_adapters.draft_fixtures import save


def test_d2t_is_an_offset() -> None:
    vocabulary = DraftVocabulary.of_tokens([12, 5, 9, 5], 20)
    assert vocabulary.d2t is not None and vocabulary.t2d is not None
    assert vocabulary.d2t.tolist() == [5, 8, 10]
    assert vocabulary.targets().tolist() == [5, 9, 12]
    assert vocabulary.t2d.nonzero().flatten().tolist() == [5, 9, 12]


def test_equal_vocabularies_have_no_maps(tmp_path: Path) -> None:
    assert DraftVocabulary.of_tokens(range(20), 20) == DraftVocabulary(20, 20)
    save(tmp_path / "vocabulary.safetensors", {})
    assert DraftVocabulary.read(tmp_path / "vocabulary.safetensors", 20).targets().tolist() == list(range(20))


def test_read_gives_back_what_was_written(tmp_path: Path) -> None:
    made = DraftVocabulary.of_tokens([5, 9, 12], 20)
    assert made.d2t is not None and made.t2d is not None
    save(tmp_path / "vocabulary.safetensors", {"d2t": made.d2t, "t2d": made.t2d})
    assert DraftVocabulary.read(tmp_path / "vocabulary.safetensors", 20).targets().tolist() == [5, 9, 12]


@pytest.mark.parametrize(
    ("d2t", "t2d", "told"),
    [
        (torch.zeros(25, dtype=torch.int64), torch.ones(20, dtype=torch.bool), "no more tokens than it has"),
        (torch.tensor([5, 8]), torch.ones(19, dtype=torch.bool), "for this verifier"),
        (torch.tensor([5, 9, 12]), torch.arange(20) % 5 == 1, "contradicts"),
        (torch.tensor([5, 8, 10]), None, "where d2t and t2d belong"),
    ],
)
def test_bad_maps_are_refused(tmp_path: Path, d2t: torch.Tensor, t2d: torch.Tensor | None, told: str) -> None:
    save(tmp_path / "v.safetensors", {"d2t": d2t} | ({} if t2d is None else {"t2d": t2d}))
    with pytest.raises(UserError, match=told):
        DraftVocabulary.read(tmp_path / "v.safetensors", 20)


@pytest.mark.parametrize("ids", [[], [-1], [20]])
def test_ids_outside_the_target_vocabulary_are_refused(ids: list[int]) -> None:
    with pytest.raises(UserError, match="does not fit"):
        DraftVocabulary.of_tokens(ids, 20)
