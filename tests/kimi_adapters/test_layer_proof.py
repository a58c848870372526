"""The proof says which residual stream a state is, and names what is wrong with it."""

import pytest
import torch
from torch import Tensor

from kimi_adapters.layer_proof import LAST, NORMED, Prover, Reference
from kimi_adapters.own_streams import own_streams
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.llama_fixtures import write_tiny_llama

IDS = [1, 2]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    folder = tmp_path_factory.mktemp("llama")
    write_tiny_llama(folder)
    return Checkpoint(folder)


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> Reference:
    return own_streams(checkpoint, range(30))


def states(reference: Reference, *streams: int) -> Tensor:
    """As an engine gives them: [T, S, H]."""
    return torch.stack([reference.streams[k] for k in streams], 1)


def next_id(checkpoint: Checkpoint, last: Tensor) -> int:
    scaled = last * torch.rsqrt(last.square().mean() + checkpoint.config.rms_norm_eps)
    return int((checkpoint.lm_head() @ (scaled * checkpoint.norm())).argmax())


def test_what_is_right_is_found_and_has_no_fault(checkpoint: Checkpoint, reference: Reference) -> None:
    prover = Prover(reference, checkpoint, IDS, "float32")
    proof = prover.prove(states(reference, 1, 2, 4) * (1 + 1e-5), [next_id(checkpoint, reference.streams[-1][-1])])
    assert [one.found for one in proof.findings] == ["layer.1", "layer.2", LAST] == prover.asked
    assert (proof.agreed, proof.generated) == (1, 1) and prover.fault(proof) is None


def test_a_head_that_chose_otherwise_is_told(checkpoint: Checkpoint, reference: Reference) -> None:
    prover = Prover(reference, checkpoint, IDS, "float32")
    other = (next_id(checkpoint, reference.streams[-1][-1]) + 1) % 97
    assert "0 of 1 agree" in str(prover.fault(prover.prove(states(reference, 1, 2, 4), [other])))


def test_states_swapped_or_of_another_text_are_told(checkpoint: Checkpoint, reference: Reference) -> None:
    prover = Prover(reference, checkpoint, IDS, "float32")
    assert "gives as layer.1 what is nearest to layer.2" in str(prover.fault(prover.prove(states(reference, 2, 1, 4), [0])))
    assert "none of this verifier's" in str(prover.fault(prover.prove(states(reference, 1, 2, 4).flip(0), [0])))


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_third_of_the_rows_from_elsewhere_is_a_fault(checkpoint: Checkpoint, reference: Reference, place: int) -> None:
    prover, given = Prover(reference, checkpoint, IDS, "float32"), states(reference, 1, 2, 4)
    given[10:19, place] = reference.streams[0][10:19]
    fault = prover.fault(prover.prove(given, []))
    assert f"gives as {prover.asked[place]} what is nearest to" in str(fault)


def test_an_error_of_a_thousandth_is_not_float32s(checkpoint: Checkpoint, reference: Reference) -> None:
    prover = Prover(reference, checkpoint, IDS, "float32")
    given = states(reference, 1, 2, 4)
    noise = torch.randn(given.shape, generator=torch.Generator().manual_seed(0))
    near, far = (
        given + share * noise * given.norm(dim=-1, keepdim=True) / noise.norm(dim=-1, keepdim=True) for share in (5e-5, 5e-4)
    )
    assert prover.fault(prover.prove(near, [])) is None
    assert "none of this verifier's" in str(prover.fault(prover.prove(far, [])))


def test_the_tolerance_is_the_dtypes(checkpoint: Checkpoint, reference: Reference) -> None:
    rounded = states(reference, 1, 2, 4).bfloat16()
    provers = [Prover(reference, checkpoint, IDS, dtype) for dtype in ("float32", "bfloat16")]
    faults = [prover.fault(prover.prove(rounded, [])) for prover in provers]
    assert "none of this verifier's" in str(faults[0]) and faults[1] is None


def test_a_normed_last_state_is_told_whatever_its_noise(checkpoint: Checkpoint, reference: Reference) -> None:
    prover, last = Prover(reference, checkpoint, IDS, "bfloat16"), reference.streams[-1]
    normed = last * torch.rsqrt(last.square().mean(-1, keepdim=True) + checkpoint.config.rms_norm_eps) * checkpoint.norm()
    given = torch.cat([states(reference, 1, 2), normed[:, None]], 1).bfloat16()
    proof = prover.prove(given, [])
    assert proof.findings[-1].found == NORMED and "AFTER the final norm" in str(prover.fault(proof))
