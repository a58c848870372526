"""Our DeepSeek-V3 against transformers' on the unpacked weights of tiny checkpoints, on CPU and on a GPU."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from kimi_adapters import device_paths, plain_memory
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.layer_stream import LayerCache, ShardTokens
from kimi_adapters.layers import rms_norm
from kimi_adapters.moe import Router
from kimi_adapters.pass_memory import Need, PassMemory, layer_bytes
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.tiny_config import Options
from kimi_adapters.weights import Checkpoint
from tests.kimi_adapters.deepseek_fixtures import ours, samples_of, shard_of, theirs, transformers_model

LAYERS = [1, 2, 3, 4, 5, 6]
NAMES = [*(f"layer.{k}" for k in LAYERS), "last"]
VOCABULARY = 1280
SHARD = shard_of([1, 200, 0, 7, 340, 40], VOCABULARY, 1)
LAYOUTS = {
    "kimi": Options(),
    "kimi with wide latents": Options(wide_latents=True, shape_dtype=torch.int64, quantization_at="top", seed=2),
    "deepseek": Options(layout="deepseek_v3", seed=3),
    "without a query latent": Options(query_latent=False, seed=4),
}
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")],
    ),
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """As extraction has it on a CPU; products this small wait for one another otherwise."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("kimi"))


def wanted(folder: Path, shard: ShardTokens, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """transformers' states of a shard's samples, one after another."""
    model = transformers_model(folder, dtype)
    samples = [theirs(model, ids, LAYERS) for ids in samples_of(shard)]
    return {name: torch.cat([sample[name] for sample in samples]).float() for name in (*NAMES, "logits")}


def logits(folder: Path, last: Tensor) -> Tensor:
    checkpoint = Checkpoint(folder)
    normed = rms_norm(last.float(), checkpoint.norm(torch.float32), checkpoint.config.rms_norm_eps)
    return normed @ checkpoint.lm_head(torch.float32).t()


def config_of(folder: Path) -> DeepseekConfig:
    config = Checkpoint(folder).config
    assert isinstance(config, DeepseekConfig)
    return config


def passes_of(folder: Path, shards: list[ShardTokens]) -> PassMemory:
    """What a CPU's pass over shards needs, in float32."""
    config, longest = config_of(folder), max(int(shard.offsets.diff().max()) for shard in shards)

    def needs(tokens: Sequence[int], layers: int) -> Need:
        return plain_memory.need(config, device_paths.CPU, tokens, longest, layers, 0, 4)

    return PassMemory(needs, layer_bytes(config, 4), [len(shard.input_ids) for shard in shards])


def error(states: Tensor, reference: Tensor) -> float:
    return float((states.float() - reference).norm() / reference.norm())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("device", DEVICES)
def test_every_state_equals_transformers(tmp_path: Path, layout: str, device: str) -> None:
    make(tmp_path, LAYOUTS[layout])
    reference = wanted(tmp_path, SHARD)
    (states,) = ours([SHARD], tmp_path, LAYERS, device=device)
    assert list(states) == NAMES
    for name in NAMES:
        assert error(states[name], reference[name]) <= 1e-5, name
        assert ((states[name] - reference[name]).norm(dim=1) <= 1e-4 * reference[name].norm(dim=1)).all(), name
    agreement = logits(tmp_path, states["last"]).argmax(-1) == reference["logits"].argmax(-1)
    assert agreement.float().mean() >= 0.999


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_is_no_worse_than_transformers(folder: Path, device: str) -> None:
    shard = shard_of([150] * 12, VOCABULARY, 1)  # enough tokens that the experts chosen otherwise by rounding even out
    reference, peer = wanted(folder, shard), wanted(folder, shard, torch.bfloat16)
    (states,) = ours([shard], folder, LAYERS, device=device, compute_dtype=torch.bfloat16)
    for name in NAMES:
        assert error(states[name], reference[name]) <= 1.1 * error(peer[name], reference[name]), name
    best = reference["logits"].argmax(-1)
    wrong, peer_wrong = (int((logits(folder, last).argmax(-1) != best).sum()) for last in (states["last"], peer["last"]))
    assert wrong <= 1.1 * peer_wrong


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("device", DEVICES)
def test_the_bytes_of_a_shard_do_not_depend_on_its_company(folder: Path, device: str, dtype: torch.dtype) -> None:
    shards = [shard_of(lengths, VOCABULARY, len(lengths)) for lengths in ([530], [5, 60], [1, 9, 90])]
    options = {"device": device, "compute_dtype": dtype, "state_dtype": dtype}
    alone = [ours([shard], folder, LAYERS, **options)[0] for shard in shards]
    cache = LayerCache()
    passes = [
        ours(shards, folder, LAYERS, **options, resident=cache),
        [*ours(shards[:2], folder, LAYERS, **options, resident=cache), *ours(shards[2:], folder, LAYERS, **options)],
    ]
    for states in passes:
        assert all(torch.equal(one[name], other[name]) for one, other in zip(alone, states, strict=True) for name in NAMES)


def test_layers_stay_only_where_all_of_them_fit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LayerCache()
    memory, size = passes_of(folder, [SHARD]), 10**9
    least = next(free for free in range(0, size, 1000) if memory.stay(1, free))
    free = [least - 1000]
    monkeypatch.setattr("kimi_adapters.deepseek.free_bytes", lambda device: free[0])
    (streamed,) = ours([SHARD], folder, LAYERS, resident=cache)
    assert cache.layers == {}
    free[0] = least
    ours([SHARD], folder, LAYERS, resident=cache)
    assert sorted(cache.layers) == list(range(7))
    free[0] = least - layer_bytes(config_of(folder), 4).total  # they are there by now
    ours([SHARD], folder, LAYERS, resident=cache)
    assert sorted(cache.layers) == list(range(7))
    (states, _) = ours([SHARD, SHARD], folder, LAYERS, resident=cache)
    assert cache.layers == {}, "a larger pass does not fit beside them"
    assert all(torch.equal(states[name], streamed[name]) for name in NAMES)


def test_states_do_not_depend_on_where_chunks_are_cut(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of every kind that do not divide the shard, experts in groups that do not divide them."""
    (whole,) = ours([SHARD], folder, LAYERS)
    small = replace(device_paths.CPU, tokens=100, expert_tokens=333, span=64, experts=5)
    monkeypatch.setattr(device_paths, "CPU", small)
    (cut,) = ours([SHARD], folder, LAYERS)
    assert all(error(cut[name], whole[name]) < 1e-5 for name in NAMES)


def test_the_correction_of_the_router_keeps_its_digits(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blanket cast to bfloat16 makes the corrections equal, and other experts are chosen."""
    (states,) = ours([SHARD], folder, LAYERS)
    monkeypatch.setattr("kimi_adapters.deepseek.Router", lambda weight, bias: Router(weight, bias.bfloat16().float()))
    (cast,) = ours([SHARD], folder, LAYERS)
    assert torch.equal(cast["layer.1"], states["layer.1"]) and error(cast["layer.2"], states["layer.2"]) > 0.1
