"""Scores under stored last states, held against transformers, whatever the block."""

from pathlib import Path

import pytest
import torch

from kimi_adapters import head_scores
from kimi_adapters.head_scores import Head
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.llama_fixtures import write_tiny_llama


@pytest.mark.parametrize("rows_a_block", [1, 5, 1000])
def test_scores_are_those_of_the_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_a_block: int) -> None:
    model = write_tiny_llama(tmp_path)
    monkeypatch.setattr(head_scores, "BLOCK_BYTES", 4 * 97 * rows_a_block)
    ids = torch.randint(0, 97, (1, 33))
    caught: list[torch.Tensor] = []
    model.model.norm.register_forward_hook(lambda module, inputs, output: caught.extend([inputs[0][0], output[0]]))
    with torch.no_grad():
        logits = model(ids).logits[0].double()
    expected = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
    head = Head(Checkpoint(tmp_path), "cpu")
    for states, normed in ((caught[0], False), (caught[1], True)):
        found = head.score(states[:-1], ids[0, 1:], normed)
        torch.testing.assert_close(found.log_probs.double(), expected, rtol=1e-4, atol=1e-4)
        assert torch.equal(found.choices, logits.argmax(-1)[:-1])


def test_only_the_norms_output_has_a_gain_free_rms_of_one(tmp_path: Path) -> None:
    model = write_tiny_llama(tmp_path)
    states = 7 * torch.randn(40, 48)
    head = Head(Checkpoint(tmp_path), "cpu")
    normed = model.model.norm(states).detach()
    assert (head.gain_free_rms(normed) - 1).abs().max() < 1e-4
    assert (head.gain_free_rms(normed.bfloat16()) - 1).abs().max() < 0.01
    assert ((head.gain_free_rms(states) - 1).abs() > 0.02).all()
