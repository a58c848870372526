"""Our Llama in the shapes that the small verifier does not have, against transformers, on CPU and on a GPU."""

from collections import defaultdict
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from errors import UserError
from kimi_adapters.generation import generate
from kimi_adapters.layer_stream import LayerCache, ShardTokens, stream_states
from kimi_adapters.tensor_names import role_of
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import Checkpoint, text_entries
from tests.kimi_adapters.llama_fixtures import SIZES, write_tiny_llama

IDS = torch.randint(0, SIZES["vocab_size"], (90,), generator=torch.Generator().manual_seed(2))
LAYERS = [1, 3]
DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")],
    ),
]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, write_tiny_llama(folder)


def theirs(model: LlamaForCausalLM, ids: Tensor) -> dict[str, Tensor]:
    caught: list[Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0][0]))
    with torch.no_grad():
        out = model(ids[None], output_hidden_states=True)
    hook.remove()
    states = {f"layer.{k}": out.hidden_states[k][0] for k in LAYERS}
    return {**states, "last": caught[0], "logits": out.logits[0]}


def close(ours: Tensor, wanted: Tensor, tolerance: float = 1e-5) -> bool:
    return bool((ours.float().cpu() - wanted).norm() <= tolerance * wanted.norm())


def stream(
    folder: Path, shards: list[ShardTokens], device: str, dtype: torch.dtype, cache: LayerCache | None = None
) -> list[dict[str, Tensor]]:
    chunks: dict[tuple[int, str], list[Tensor]] = defaultdict(list)
    stream_states(
        shards, Checkpoint(folder), LAYERS, lambda shard, name, chunk: chunks[shard, name].append(chunk.clone()), device,
        compute_dtype=dtype, state_dtype=dtype, resident=cache,
    )  # fmt: skip
    names = [f"layer.{k}" for k in LAYERS] + ["last"]
    return [{name: torch.cat(chunks[shard, name]) for name in names} for shard in range(len(shards))]


@pytest.mark.parametrize("device", DEVICES)
def test_states_with_biases_and_stretched_positions(tiny: tuple[Path, LlamaForCausalLM], device: str) -> None:
    folder, model = tiny
    cuts = [0, 30, 30, 31, 90]
    (ours,) = stream(folder, [ShardTokens(IDS, torch.tensor(cuts))], device, torch.float32)
    samples = [theirs(model, IDS[a:b]) for a, b in zip(cuts, cuts[1:], strict=False) if b > a]
    for name, value in ours.items():
        assert close(value, torch.cat([sample[name] for sample in samples])), name


@pytest.mark.parametrize("device", DEVICES)
def test_bfloat16_states_do_not_depend_on_company(tiny: tuple[Path, LlamaForCausalLM], device: str) -> None:
    folder, model = tiny
    shards = [ShardTokens(IDS[:n], torch.tensor([0, n // 2, n])) for n in (90, 7, 40)]
    cache = LayerCache()
    passes = [
        [stream(folder, [shard], device, torch.bfloat16)[0] for shard in shards],
        stream(folder, shards, device, torch.bfloat16, cache),
        stream(folder, shards, device, torch.bfloat16, cache),
    ]
    for alone, together, again in zip(*passes, strict=True):
        assert all(torch.equal(alone[name], together[name]) for name in alone)
        assert all(torch.equal(alone[name], again[name]) for name in alone)
    assert close(passes[0][0]["last"][:45], theirs(model, IDS[:45])["last"], 0.03)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_of_unequal_length_give_what_each_gives_alone(tiny: tuple[Path, LlamaForCausalLM], device: str) -> None:
    """Prefill, roll back, go on, drop and add rows: the cache of draft-and-verify and of batched generation."""
    folder, model = tiny
    verifier = Verifier(Checkpoint(folder), device)
    wanted = theirs(model, IDS)
    cache = verifier.new_cache(3, 90)
    verifier.forward(IDS[:60].repeat(3, 1), cache)
    cache.truncate([60, 37, 5])
    step = verifier.forward(torch.stack([IDS[n : n + 4] for n in (60, 37, 5)]), cache, LAYERS)
    for row, start in enumerate((60, 37, 5)):
        states = torch.cat([wanted[f"layer.{k}"] for k in LAYERS], dim=-1)
        assert close(step.aux[row], states[start : start + 4])
        assert close(step.last[row], wanted["last"][start : start + 4])
        assert close(verifier.logits(step.last[row]), wanted["logits"][start : start + 4])
    cache.truncate([62, 41, 6])
    cache.keep([2, 1])
    prefix = verifier.new_cache(1, 20)
    verifier.forward(IDS[None, :20], prefix)
    cache.extend(prefix)
    assert cache.lengths.tolist() == [6, 41, 20]
    last = verifier.forward(IDS[[6, 41, 20]][:, None], cache).last[:, 0]
    assert close(last, wanted["last"][[6, 41, 20]])


@pytest.mark.parametrize("device", DEVICES)
def test_generation_equals_one_by_one(tiny: tuple[Path, LlamaForCausalLM], device: str) -> None:
    """With a shared beginning, refills and stops in mid-batch."""
    folder, model = tiny
    prompts = [[*IDS[:12].tolist(), *IDS[20 : 20 + n].tolist()] for n in (1, 9, 4, 30, 2, 17, 5)]
    freely = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(25):
            ids.append(int(theirs(model, torch.tensor(ids))["logits"][-1].argmax()))
        freely.append(ids[len(prompt) :])
    stops = [freely[0][6], freely[3][15]]
    ends = [next((i + 1 for i, token in enumerate(answer) if token in stops), 25) for answer in freely]
    wanted = [answer[:end] for answer, end in zip(freely, ends, strict=True)]
    assert len({len(answer) for answer in wanted}) > 1
    verifier = Verifier(Checkpoint(folder), device)
    told: list[tuple[int, int]] = []
    assert generate(verifier, prompts, 25, stops, batch_size=3, progress=lambda *now: told.append(now)) == wanted
    assert told[-1] == (7, 7) and told == sorted(told)
    draws = [generate(verifier, prompts, 25, stops, temperature=0.8, seed=4, batch_size=n) for n in (1, 4)]
    assert draws[0] == draws[1] != wanted


def test_a_prompt_past_the_context_is_refused(tiny: tuple[Path, LlamaForCausalLM]) -> None:
    verifier = Verifier(Checkpoint(tiny[0]))
    with pytest.raises(UserError, match="context of 512"):
        generate(verifier, [[1] * 500], 13, [3])


def test_only_text_tensors_have_a_role(tiny: tuple[Path, LlamaForCausalLM]) -> None:
    entries = text_entries(tiny[0])
    roles = [role for role, _, _, _ in entries]
    assert roles[:3] == ["embed", "norm", "lm_head"] and set(roles[3:]) == {"layer"} and len(roles) == 3 + 4 * 16
    assert not any("vision" in name for _, name, _, _ in entries)
    assert role_of("language_model.model.layers.60.mlp.experts.383.up_proj.weight_packed") == "layer"
    assert role_of("model.language_model.norm.weight") == "norm"
    assert role_of("mm_projector.proj.0.weight") is role_of("model.visual.norm.weight") is None


def test_a_missing_tensor_is_named(tiny: tuple[Path, LlamaForCausalLM]) -> None:
    with pytest.raises(UserError, match="no tensor 'layers.9.mlp.up_proj.weight'"):
        Checkpoint(tiny[0]).read("layers.9.mlp.up_proj.weight")
