"""A tiny Kimi-K2.5 in a real vLLM: its multi-head latent attention and experts give our states.

The copy is unpacked, since vLLM has no INT4 experts on a CPU, and its latents are 512 + 64 wide, as its kernel wants them; ours
are computed from the packed checkpoint. vLLM norms the latents with `rms_norm_eps`, 1e-5 in Kimi-K2.5, where the published code
and transformers have 1e-6, as we do: a relative 1.5e-5 at the last state, and nothing else is between the two.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kimi_adapters import mla
from kimi_adapters.engine_client import EngineClient
from kimi_adapters.engine_command import hidden_states_arguments
from kimi_adapters.engine_probe import examine
from kimi_adapters.engine_states import Source
from kimi_adapters.layer_proof import Proof, Prover, Reference
from kimi_adapters.own_streams import own_streams, proof_ids
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.tiny_config import Options
from kimi_adapters.weights import Checkpoint
from tests.engine.unpacked import unpacked_copy
from tests.engine.vllm import vllm

EVERY = [1, 2, 3, 4, 5, 6]  # vLLM cannot give the embeddings of this family: there is no residual to add yet
ARGUMENTS = ["--skip-tokenizer-init", "--trust-remote-code", "--attention-backend", "CPU_MLA"]


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"), Options(wide_latents=True))


@pytest.fixture(scope="module")
def source(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Source]:
    folder = tmp_path_factory.mktemp("states")
    directory = unpacked_copy(packed, tmp_path_factory.mktemp("unpacked"))
    media = ["--limit-mm-per-prompt", '{"image": 0, "video": 0, "vision_chunk": 0}']
    arguments = hidden_states_arguments(EVERY, 7, folder, without_cuda=True)
    with vllm(directory, folder / "server.log", *arguments, *ARGUMENTS, *media) as url:
        yield Source(url, directory.name, folder)


def proved(source: Source, checkpoint: Checkpoint, reference: Reference) -> Proof:
    """What the engine's states are beside a reference of ours."""
    prover = Prover(reference, checkpoint, EVERY, "float32")
    with EngineClient(source.url, source.model) as client:
        proof = examine(client, source, reference.token_ids.tolist(), prover)
    print("\n".join(f"{one.asked}: {one.found}, relative error {one.error:.1e}" for one in proof.findings))
    assert prover.fault(proof) is None
    assert [one.found for one in proof.findings] == prover.asked and proof.agreed == proof.generated
    return proof


def test_states_equal_ours_at_every_id(packed: Path, source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the engine's epsilon within 1e-5; with the published code's, as far as the two epsilons are from one another."""
    checkpoint, ids = Checkpoint(packed), proof_ids(packed)
    published = own_streams(checkpoint, ids)
    monkeypatch.setattr(mla, "LATENT_NORM_EPS", checkpoint.config.rms_norm_eps)
    engines = own_streams(checkpoint, ids)
    assert all(one.error < 1e-5 for one in proved(source, checkpoint, engines).findings)
    between = Prover(published, checkpoint, EVERY, "float32").prove(engines.streams[EVERY + [-1]].transpose(0, 1), [])
    for found, own in zip(proved(source, checkpoint, published).findings, between.findings, strict=True):
        assert found.error == pytest.approx(own.error, rel=0.1) and found.error < 5e-5
