"""The converted small verifier against transformers' own reading of the GGUF."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from tokenizers import pre_tokenizers
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM

from errors import UserError
from kimi_adapters.gguf_checkpoint import convert
from kimi_adapters.gguf_file import GgufFile
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.weights import Checkpoint
from tests.conftest import gguf_path

TEXTS = [
    "The year 1984 was not like 2024; it's 3.14159 today, isn't it?",
    "def add(a, b):\n    return a + b  # sums\n\n\nclass X:\n\tpass\n",
    "Käse, 你好, Ωμέγα, emoji 🙂👩‍👩‍👧, soft\u00adhyphen, nbsp\u00a0x",
    "  leading,   inner   and trailing  \n\n \t",
    "<|im_start|> and <|endoftext|> and <file_sep>",
    "",
]


KEPT_LAYERS, KEPT_TOKENS = 2, 300


@pytest.fixture(scope="module")
def cut_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real GGUF's first layers and first tokens, as stored: transformers takes 20 CPU-s over the whole."""
    source, path = GgufFile(gguf_path()), tmp_path_factory.mktemp("gguf") / "cut.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_block_count(KEPT_LAYERS)
    writer.add_vocab_size(KEPT_TOKENS)
    for key, value in source.metadata.items():
        if key.startswith("llama.") and not key.endswith(("block_count", "vocab_size")):
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
        elif key.endswith(("_token_id", ".add_bos_token")):
            writer.add_uint32(key, int(value))
        elif key in ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.chat_template"):
            writer.add_string(key, value)
        elif isinstance(value, list) and key.startswith("tokenizer."):
            writer.add_array(key, value[:KEPT_TOKENS] if "merges" not in key else value[:20])
    for name, tensor in source.tensors.items():
        if not name.startswith("blk.") or int(name.split(".")[1]) < KEPT_LAYERS:
            kind = GGMLQuantizationType(tensor.kind)
            stored = source.stored(name)
            rows = stored[:KEPT_TOKENS] if name == "token_embd.weight" else stored
            plain = kind == GGMLQuantizationType.F32
            writer.add_tensor(name, rows.view("<f4") if plain else rows.copy(), raw_dtype=None if plain else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def theirs(cut_gguf: Path) -> LlamaForCausalLM:
    """transformers' own reading."""
    return LlamaForCausalLM.from_pretrained(cut_gguf.parent, gguf_file=cut_gguf.name, dtype=torch.float32)


@pytest.fixture(scope="module")
def ours(cut_gguf: Path) -> Path:
    convert(cut_gguf, lambda name: open(cut_gguf.parent / name, "wb"))  # noqa: SIM115 - convert closes what it opens
    return cut_gguf.parent


def test_every_tensor_is_transformers_own(ours: Path, theirs: LlamaForCausalLM, whole_verifier: Path) -> None:
    checkpoint, whole = Checkpoint(ours), Checkpoint(whole_verifier)
    assert len(checkpoint.names) == 2 + 9 * KEPT_LAYERS and len(whole.names) == 2 + 9 * 30
    for name, value in theirs.model.state_dict().items():
        assert torch.equal(checkpoint.read(name), value), name
        assert torch.equal(whole.read(name)[: len(value)], value), name


def test_the_configuration_is_transformers_own(ours: Path, theirs: LlamaForCausalLM, whole_verifier: Path) -> None:
    wanted, read = theirs.config, AutoConfig.from_pretrained(ours)
    for name in ("hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "tie_word_embeddings",
                 "max_position_embeddings", "rope_parameters", "vocab_size"):  # fmt: skip
        assert getattr(read, name) == getattr(wanted, name), name
    assert read.rms_norm_eps == pytest.approx(wanted.rms_norm_eps, rel=1e-7)
    assert json.loads((whole_verifier / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"


def test_token_ids_are_transformers_own_but_for_digits(whole_verifier: Path) -> None:
    ours = Tokenizer(whole_verifier)
    backend = AutoTokenizer.from_pretrained(gguf_path().parent, gguf_file=gguf_path().name).backend_tokenizer
    backend.encode_special_tokens = True
    for text in TEXTS:
        assert ours.encode(text) == backend.encode(text, add_special_tokens=False).ids, text
        assert ours.decode(ours.encode(text), keep_special=True) == text
    # transformers forgets that SmolLM splits off digits first: what stands before one comes out otherwise.
    listed = "Steps:\n\n1. Mix\n\n2. Bake  3 times, ½ cup ② ٣"
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
