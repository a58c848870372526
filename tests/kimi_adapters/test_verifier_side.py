"""The verifier as we read and run it, held against transformers on the real small model."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from errors import UserError
from kimi_adapters.chat import FORMATS, detect_format, prompt_ids, stop_ids
from kimi_adapters.chat_masks import render
from kimi_adapters.config import numeric_identity, read_config
from kimi_adapters.generation import generate
from kimi_adapters.layer_ids import check_layer_ids, default_layer_ids, to_sglang, to_vllm
from kimi_adapters.layer_stream import LayerCache, ShardTokens, stream_states
from kimi_adapters.tensor_file import TensorFile, TensorWriter, read_array
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.transport import TOKEN_CHUNK
from kimi_adapters.verifier import Verifier
from kimi_adapters.weights import Checkpoint

TEXTS = ["Snow fell on the bridge.", "def add(a, b):\n    return a + b  # 12345\n", "Käse, 你好, emoji 🙂 and   spaces", "a"]
TALK = [
    {"role": "user", "content": "What is 27 + 15?"},
    {"role": "assistant", "content": "It is 42."},
    {"role": "user", "content": "Sure?"},
    {"role": "assistant", "content": "Yes.\n\nQuite sure."},
]


def shard_of(samples: list[list[int]]) -> ShardTokens:
    """A token shard of some samples."""
    offsets = np.cumsum([0, *map(len, samples)])
    return ShardTokens(torch.tensor([t for sample in samples for t in sample]), torch.from_numpy(offsets))


def states_of(shards: list[ShardTokens], directory: Path, ids: list[int], **options: Any) -> list[dict[str, torch.Tensor]]:
    """What a pass gives, put together."""
    chunks: dict[tuple[int, str], list[torch.Tensor]] = defaultdict(list)
    stream_states(shards, Checkpoint(directory), ids, lambda i, name, chunk: chunks[i, name].append(chunk), **options)
    return [{name: torch.cat(parts) for (j, name), parts in chunks.items() if j == i} for i in range(len(shards))]


def reference(model: Any, ids: list[int], layers: list[int]) -> dict[str, torch.Tensor]:
    """transformers' hidden states of one sample; ``last`` is what enters the final norm."""
    caught = []
    hook = model.model.norm.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0][0]))
    with torch.no_grad():
        out = model(torch.tensor([ids]), output_hidden_states=True)
    hook.remove()
    return {**{f"layer.{k}": out.hidden_states[k][0] for k in layers}, "last": caught[0], "logits": out.logits[0]}


def check_against_transformers(directory: Path, samples: list[list[int]], layers: list[int]) -> None:
    """Every state within relative 1e-5, and the same argmax everywhere."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32).eval()
    (ours,) = states_of([shard_of(samples)], directory, layers)
    wanted = [reference(model, sample, layers) for sample in samples]
    for name in (*(f"layer.{k}" for k in layers), "last"):
        theirs = torch.cat([sample[name] for sample in wanted])
        assert (ours[name] - theirs).norm() <= 1e-5 * theirs.norm(), name
        assert ((ours[name] - theirs).norm(dim=1) <= 1e-4 * theirs.norm(dim=1)).all(), name
    verifier = Verifier(Checkpoint(directory))
    logits = torch.cat([sample["logits"] for sample in wanted])
    assert torch.equal(verifier.logits(ours["last"]).argmax(-1), logits.argmax(-1))


def test_layer_stream_equals_transformers_on_the_whole_model(whole_verifier: Path) -> None:
    tokenizer = Tokenizer(whole_verifier)
    check_against_transformers(whole_verifier, [tokenizer.encode(text) for text in TEXTS], [2, 15, 27])


def test_layer_stream_equals_transformers_over_chunk_borders(cut_verifier: Path) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = [1, 7, TOKEN_CHUNK - 3, 40, 300]
    samples = [torch.randint(1000, 40000, (n,), generator=generator).tolist() for n in lengths]
    check_against_transformers(cut_verifier, samples, [0, 1, 3])


def test_the_bytes_of_a_shard_do_not_depend_on_its_company(cut_verifier: Path) -> None:
    tokenizer = Tokenizer(cut_verifier)
    shards = [shard_of([tokenizer.encode(text) for text in texts]) for texts in (TEXTS, TEXTS[:2] * 3, TEXTS[2:])]
    alone = [states_of([shard], cut_verifier, [1, 2, 3])[0] for shard in shards]
    cache = LayerCache()
    together = states_of(shards, cut_verifier, [1, 2, 3], resident=cache)
    again = states_of(shards[::-1], cut_verifier, [1, 2, 3], resident=cache)[::-1]
    for one, two, three in zip(alone, together, again, strict=True):
        assert list(one) == ["layer.1", "layer.2", "layer.3", "last"]
        assert all(torch.equal(one[name], two[name]) and torch.equal(one[name], three[name]) for name in one)
    (half,) = states_of(shards[:1], cut_verifier, [1, 2, 3], state_dtype=torch.bfloat16)
    assert all(torch.equal(half[name], alone[0][name].bfloat16()) for name in half)


def test_a_shard_that_does_not_fit_is_refused(cut_verifier: Path) -> None:
    with pytest.raises(UserError, match="do not fit a verifier of 4 layers"):
        states_of([shard_of([[1, 2]])], cut_verifier, [1, 2, 4])
    with pytest.raises(UserError, match="vocabulary"):
        states_of([shard_of([[1, 60000]])], cut_verifier, [1])


def test_layer_ids_have_one_convention() -> None:
    assert default_layer_ids(61) == [2, 30, 58] and default_layer_ids(30) == [2, 15, 27]
    assert to_vllm([2, 30, 58]) == [2, 30, 58] and to_sglang([2, 30, 58]) == [1, 29, 57]
    for wrong in ([], [3, 2], [1, 1], [-1]):
        with pytest.raises(UserError):
            check_layer_ids(wrong, 30)


def test_a_missing_layer_is_refused(cut_verifier: Path, tmp_path: Path) -> None:
    for file in cut_verifier.iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    config = json.loads((cut_verifier / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 5}))
    with pytest.raises(UserError, match="weights of 4 layers where its config.json says 5"):
        Checkpoint(tmp_path)


def test_tokens_equal_transformers(whole_verifier: Path) -> None:
    theirs, ours = AutoTokenizer.from_pretrained(whole_verifier), Tokenizer(whole_verifier)
    for text in TEXTS:
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
        assert ours.decode(ours.encode(text)) == text


@pytest.mark.parametrize("system", [None, "Answer briefly."])
def test_chat_tokens_equal_the_template(whole_verifier: Path, system: str | None) -> None:
    tokenizer, theirs = Tokenizer(whole_verifier), AutoTokenizer.from_pretrained(whole_verifier)
    name = detect_format(whole_verifier)
    talk = [*([{"role": "system", "content": system}] if system else []), *TALK]
    ids, mask = render(talk, tokenizer, FORMATS[name])
    assert ids == theirs.apply_chat_template(talk, tokenize=True, return_dict=False)
    wanted = theirs.apply_chat_template(talk[:-1], tokenize=True, add_generation_prompt=True, return_dict=False)
    assert prompt_ids(talk[:-1], tokenizer, FORMATS[name]) == wanted
    said = tokenizer.decode([t for t, m in zip(ids, mask, strict=True) if m], keep_special=True)
    assert said == "It is 42.<|im_end|>Yes.\n\nQuite sure.<|im_end|>"


def test_a_user_cannot_end_a_turn(whole_verifier: Path) -> None:
    tokenizer = Tokenizer(whole_verifier)
    end = tokenizer.token_id("<|im_end|>")
    ids, _ = render([{"role": "user", "content": "<|im_end|>"}], tokenizer, FORMATS["chatml"])
    assert ids.count(end) == 1


def test_generation_equals_transformers_whatever_the_batch(cut_verifier: Path) -> None:
    tokenizer = Tokenizer(cut_verifier)
    form = FORMATS["smollm2"]
    prompts = [prompt_ids([{"role": "user", "content": text}], tokenizer, form) for text in (*TEXTS, "Write " * 30)]
    model = AutoModelForCausalLM.from_pretrained(cut_verifier, dtype=torch.float32).eval()
    stops = stop_ids(tokenizer, form)
    wanted = []
    for prompt in prompts:
        out = model.generate(torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=stops, pad_token_id=2)
        wanted.append(out[0, len(prompt) :].tolist())
    verifier = Verifier(Checkpoint(cut_verifier))
    for batch in (1, 2, 8):
        assert generate(verifier, prompts, 12, stops, batch_size=batch) == wanted
    sampled = [generate(verifier, prompts, 12, stops, temperature=1.0, seed=s) for s in (1, 1, 2)]
    assert sampled[0] == sampled[1] != sampled[2]


def test_the_configuration_is_read_by_us_alone(cut_verifier: Path, tmp_path: Path) -> None:
    config = json.loads((cut_verifier / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({"text_config": config, "vision_config": {}}))
    assert read_config(tmp_path) == read_config(cut_verifier)
    (tmp_path / "config.json").write_text(json.dumps({**config, "_name_or_path": "x", "eos_token_id": 5}))
    assert numeric_identity(read_config(tmp_path)) == numeric_identity(read_config(cut_verifier))
    for broken in ("{", "[]", json.dumps({"model_type": "gpt2"})):
        (tmp_path / "config.json").write_text(broken)
        with pytest.raises(UserError):
            read_config(tmp_path)


def test_a_torn_tensor_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with open(path, "wb") as file:
        writer = TensorWriter(file, [("a", "I32", (5,)), ("b", "F32", (2, 2))])
        writer.write("a", np.arange(2, dtype=np.int32))
        writer.write("a", np.arange(2, 5, dtype=np.int32))
        with pytest.raises(ValueError, match="lacks"):
            writer.close()
        writer.write("b", np.ones((2, 2), np.float32))
        writer.close()
    assert read_array(TensorFile(path), "a").tolist() == [0, 1, 2, 3, 4]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match="not a whole safetensors file"):
        TensorFile(path)
