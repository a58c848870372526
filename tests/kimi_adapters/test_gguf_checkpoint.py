"""The converted small verifier against transformers' own reading of the GGUF."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, LlamaConfig, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from errors import UserError
from kimi_adapters.gguf_checkpoint import convert
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.weights import Checkpoint
from tests.conftest import gguf_path

TEXTS = [
    "The year 1984 was not like 2024; it's 3.14159 today, isn't it?",
    "def add(a, b):\n    return a + b  # sums\n\n\nclass X:\n\tpass\n",
    "Käse, 你好, Ωμέγα, emoji 🙂👩‍👩‍👧, soft\u00adhyphen, nbsp\u00a0x, ½ ② ٣",
    "  leading,   inner   and trailing  \n\n \t",
    "<|im_start|> and <|endoftext|> and <file_sep>",
    "",
]


@pytest.fixture(scope="module")
def theirs(whole_verifier: Path) -> dict[str, Any]:
    with torch.device("meta"):
        model = LlamaForCausalLM(AutoConfig.from_pretrained(whole_verifier))
    loaded: dict[str, Any] = load_gguf_checkpoint(str(gguf_path()), return_tensors=True, model_to_load=model)
    return loaded


def test_every_tensor_is_transformers_own(whole_verifier: Path, theirs: dict[str, Any]) -> None:
    ours = Checkpoint(whole_verifier)
    assert len(theirs["tensors"]) == len(ours.names) == 272
    for name, value in theirs["tensors"].items():
        assert torch.equal(ours.read(name.removeprefix("model.")), value), name


def test_the_configuration_is_transformers_own(whole_verifier: Path, theirs: dict[str, Any]) -> None:
    wanted = LlamaConfig(**theirs["config"])
    ours = AutoConfig.from_pretrained(whole_verifier)
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings",
                 "max_position_embeddings", "rope_parameters", "vocab_size", "eos_token_id"):  # fmt: skip
        assert getattr(ours, name) == getattr(wanted, name), name
    assert ours.rms_norm_eps == pytest.approx(wanted.rms_norm_eps, rel=1e-7)
    assert json.loads((whole_verifier / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


def test_token_ids_are_transformers_own_but_for_digits(whole_verifier: Path) -> None:
    ours = Tokenizer(whole_verifier)
    backend = AutoTokenizer.from_pretrained(gguf_path().parent, gguf_file=gguf_path().name).backend_tokenizer
    backend.encode_special_tokens = True
    for text in TEXTS:
        assert ours.encode(text) == backend.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ours.encode(text), keep_special=True) == text
    # transformers forgets that SmolLM splits off digits first; so does white space before one come out otherwise.
    listed = "Steps:\n\n1. Mix\n\n2. Bake  3 times"
    assert ours.encode(listed) != backend.encode(listed, add_special_tokens=False).ids
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    assert ours.encode(listed) == backend.encode(listed, add_special_tokens=False).ids


def test_what_is_no_whole_gguf_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    shutil.copy(gguf_path(), broken)
    with open(broken, "r+b") as file:
        file.truncate(50_000_000)
    with pytest.raises(UserError, match="not a whole GGUF file"):
        convert(broken, lambda name: open(tmp_path / name, "wb"))  # noqa: SIM115 - convert closes what it opens
    broken.write_bytes(b"GGML" + bytes(40))
    with pytest.raises(UserError, match="not a GGUF file"):
        convert(broken, lambda name: open(tmp_path / name, "wb"))  # noqa: SIM115
