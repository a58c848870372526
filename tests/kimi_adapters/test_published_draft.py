import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from errors import UserError
from kimi_adapters.config import parse_config
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.published_draft import PublishedDraft, read_published
from kimi_adapters.tiny_config import Options, config_values
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY
from tests.kimi_adapters.published_fixtures import (
    flat_names,
    flat_values,
    layer_values,
    nested_values,
    published_tensors,
    write_draft,
)

TENSORS = published_tensors()


def same_tensors(draft: PublishedDraft, expected: dict[str, torch.Tensor] = TENSORS) -> bool:
    stored = {name: value.bfloat16() if value.is_floating_point() else value for name, value in expected.items()}
    return draft.tensors.keys() == stored.keys() and all(torch.equal(draft.tensors[name], stored[name]) for name in stored)


def test_both_formats_say_the_same_draft(tmp_path: Path) -> None:
    flat = read_published(write_draft(tmp_path / "flat", flat_values(norm_before_residual=True), flat_names(TENSORS)))
    nested = read_published(write_draft(tmp_path / "nested", nested_values(), TENSORS))
    assert same_tensors(flat) and same_tensors(nested)
    differing = {"speculators_config", "speculators_version"}
    assert {n: v for n, v in flat.config.items() if n not in differing} == {
        n: v for n, v in nested.config.items() if n not in differing
    }
    assert nested.config["eagle_aux_hidden_state_layer_ids"] == LAYER_IDS and nested.config["dtype"] == "bfloat16"
    assert nested.config["norm_before_residual"] is True and nested.config["norm_output"] is False
    assert nested.config["transformer_layer_config"]["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e6}
    assert nested.config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 5
    assert "someone" not in json.dumps(nested.config) and "auto_map" not in nested.config
    assert flat.vocabulary is not None and torch.equal(flat.vocabulary.targets(), VOCABULARY.targets())


def test_shards_prefixes_narrow_maps_and_what_drafts_carry_along(tmp_path: Path) -> None:
    named = {f"model.{name}": tensor for name, tensor in flat_names(TENSORS).items() if name not in ("t2d", "d2t")}
    extras = {"midlayer.self_attn.rotary_emb.inv_freq": torch.ones(8), "d2t": TENSORS["d2t"].int()}
    halves = list(named)[:7], list(named)[7:]
    files = [{name: named[name] for name in half} for half in halves]
    assert same_tensors(read_published(write_draft(tmp_path / "d", flat_values(), files[0], files[1] | extras)))


def test_the_whole_vocabulary_needs_no_maps_and_may_take_both_tables_from_the_verifier(tmp_path: Path) -> None:
    whole = published_tensors(DraftVocabulary(97, 97))
    zeros = {"d2t": torch.zeros(97, dtype=torch.int64), "t2d": torch.ones(97, dtype=torch.bool)}
    draft = read_published(write_draft(tmp_path / "mapped", flat_values(draft_vocab_size=97), flat_names(whole) | zeros))
    assert draft.vocabulary is None and same_tensors(draft, whole)
    bare = {name: tensor for name, tensor in whole.items() if name not in ("embed_tokens.weight", "lm_head.weight")}
    values = {name: value for name, value in flat_values().items() if name != "draft_vocab_size"}
    draft = read_published(write_draft(tmp_path / "bare", values, flat_names(bare)))
    assert draft.config["draft_vocab_size"] == 97 and same_tensors(draft, bare)


def test_more_layers_old_norm_names_and_a_stretched_rope_are_kept(tmp_path: Path) -> None:
    tensors = published_tensors(layers=2) | {f"fc_norm.{i}.weight": torch.full((32,), float(i)) for i in range(3)}
    named = flat_names(tensors)
    named["layers.1.hidden_norm.weight"] = named.pop("layers.1.input_layernorm.weight")
    for i, old in enumerate(("aux_norm_low", "aux_norm_mid", "aux_norm_high")):
        named[f"{old}.weight"] = named.pop(f"fc_norm.{i}.weight")
    yarn = {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "mscale_all_dim": 1.0}
    values = flat_values(use_aux_norm=True, num_hidden_layers=2, rope_scaling=yarn)
    draft = read_published(write_draft(tmp_path / "d", values, named))
    assert same_tensors(draft, tensors) and draft.config["fc_norm"] is True
    assert draft.config["transformer_layer_config"]["rope_parameters"] == {
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
        "beta_slow": 1.0, "truncate": True, "attention_factor": 0.1 * math.log(64.0) + 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("eagle", "top", "kimi", "expected"),
    [
        ([1, 29, 57], None, True, [2, 30, 58]),
        ([1, 29, 57], None, False, [2, 30, 58]),
        ([2, 30, 58], None, True, [2, 30, 58]),  # SGLang's reading for DeepSeek's layers
        ([2, 30, 58], None, False, [3, 31, 59]),
        (None, [2, 30, 58], True, [2, 30, 58]),
        ([1, 29, 57], [2, 30, 58], False, [2, 30, 58]),
        (None, None, True, [2, 30, 58]),  # the engines' default for 61 layers
    ],
)
def test_layer_ids_are_what_the_engine_makes_of_them(
    tmp_path: Path, eagle: list[int] | None, top: list[int] | None, kimi: bool, expected: list[int]
) -> None:
    family: Any = parse_config(config_values(Options()), "config.json") if kimi else VERIFIER
    verifier = replace(family, num_layers=61, vocab_size=97, hidden_size=32)
    values = flat_values(
        eagle_config=eagle and {"eagle_aux_hidden_state_layer_ids": eagle}, eagle_aux_hidden_state_layer_ids=top
    )
    folder = write_draft(tmp_path / "d", values, flat_names(TENSORS))
    assert read_published(folder, verifier).config["eagle_aux_hidden_state_layer_ids"] == expected


def test_a_layer_of_qwen3_has_norms_over_heads(tmp_path: Path) -> None:
    norms = {f"layers.0.self_attn.{name}_norm.weight": torch.ones(16) for name in "qk"}
    flat = flat_values(architectures=["Eagle3Qwen3ForCausalLM"], model_type="qwen3", use_sliding_window=False)
    nested = nested_values(transformer_layer_config=layer_values(model_type="qwen3"), norm_before_residual=False)
    drafts = [
        read_published(write_draft(tmp_path / "flat", flat, flat_names(TENSORS | norms))),
        read_published(write_draft(tmp_path / "nested", nested, TENSORS | norms)),
    ]
    layers = [draft.config["transformer_layer_config"] for draft in drafts]
    assert layers[0] == layers[1] and layers[0]["model_type"] == "qwen3" and "mlp_bias" not in layers[0]
    assert all(same_tensors(draft, TENSORS | norms) for draft in drafts)
    with pytest.raises(UserError, match=r"lacks layers\.0\.self_attn\.k_norm"):
        read_published(write_draft(tmp_path / "bare", flat, flat_names(TENSORS)))


def test_without_ids_and_without_a_verifier_they_stay_open(tmp_path: Path) -> None:
    draft = read_published(write_draft(tmp_path / "d", flat_values(eagle_config=None), flat_names(TENSORS)))
    assert draft.config["eagle_aux_hidden_state_layer_ids"] == []


CONFIG_MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "an MLA draft": (flat_values(architectures=["Eagle3DeepseekV2ForCausalLM"]), "Eagle3DeepseekV2ForCausalLM"),
    "another algorithm": (nested_values(speculators_model_type="dflash"), "'dflash'"),
    "an open flag": ({n: v for n, v in nested_values().items() if n != "norm_before_residual"}, "norm_before_residual"),
    "ids that disagree": (flat_values(eagle_aux_hidden_state_layer_ids=[2, 4, 7]), "not the same tensors"),
    "quantized weights": (flat_values(quantization_config={"quant_method": "quark"}), "unquantized"),
    "biases": (flat_values(attention_bias=True), "attention_bias"),
    "a draft of another width": (flat_values(target_hidden_size=64), "size 64"),
    "another layer": (nested_values(transformer_layer_config=layer_values(model_type="deepseek_v3")), "deepseek_v3"),
    "a missing field": (nested_values(transformer_layer_config={"model_type": "llama"}), "num_attention_heads"),
    "heads that the weights do not have": (flat_values(num_attention_heads=4), "o_proj.weight as bfloat16"),
    "another count of ids": (flat_values(eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 4]}), r"fc.weight .*\[32, 64\]"),
}


@pytest.mark.parametrize("mistake", CONFIG_MISTAKES)
def test_a_config_that_cannot_be_taken_is_told_in_one_sentence(tmp_path: Path, mistake: str) -> None:
    values, said = CONFIG_MISTAKES[mistake]
    with pytest.raises(UserError, match=said):
        read_published(write_draft(tmp_path / "d", values, flat_names(TENSORS)))


def without(*names: str) -> dict[str, torch.Tensor]:
    return {name: tensor for name, tensor in flat_names(TENSORS).items() if name not in names}


WEIGHT_MISTAKES: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "no fc": (without("fc.weight"), "lacks fc.weight"),
    "no head for a part of the vocabulary": (without("lm_head.weight"), "lacks lm_head.weight"),
    "no d2t": (without("d2t"), "has no d2t"),
    "absolute ids for offsets": ({**without(), "d2t": VOCABULARY.targets()}, "holds ids, not offsets"),
    "absolute ids that leave the vocabulary": ({**without("t2d"), "d2t": VOCABULARY.targets()}, "holds ids, not offsets"),
    "offsets that leave the vocabulary": ({**without("t2d"), "d2t": TENSORS["d2t"] + 80}, "rising ids below 97"),
    "a t2d of other tokens": ({**without(), "t2d": TENSORS["t2d"].roll(1)}, "contradicts"),
    "a norm that llama layers do not read": ({**without(), "midlayer.self_attn.q_norm.weight": torch.ones(16)}, "q_norm"),
    "one tensor under two names": ({**without(), "layers.0.hidden_norm.weight": torch.ones(32)}, "two names"),
    "packed weights": ({**without(), "fc.weight": torch.ones(32, 96, dtype=torch.int32)}, "int32"),
}


@pytest.mark.parametrize("mistake", WEIGHT_MISTAKES)
def test_weights_that_cannot_be_taken_are_told_in_one_sentence(tmp_path: Path, mistake: str) -> None:
    tensors, said = WEIGHT_MISTAKES[mistake]
    with pytest.raises(UserError, match=said):
        read_published(write_draft(tmp_path / "d", flat_values(), tensors))


def test_absolute_low_ids_are_named_without_a_t2d_and_scattered_tokens_are_taken(tmp_path: Path) -> None:
    """Read as offsets they stay inside the vocabulary: 300 tokens of 2,000, with no two neighbours."""
    values = flat_values(vocab_size=2000, draft_vocab_size=300)
    others = without("d2t", "t2d", "embed_tokens.weight") | {"lm_head.weight": torch.ones(300, 32)}
    with pytest.raises(UserError, match="holds ids, not offsets"):
        read_published(write_draft(tmp_path / "ids", values, others | {"d2t": torch.arange(0, 1500, 5)}))
    scattered = torch.randperm(2000, generator=torch.Generator().manual_seed(3))[:300].sort().values
    draft = read_published(write_draft(tmp_path / "offsets", values, others | {"d2t": scattered - torch.arange(300)}))
    assert draft.vocabulary is not None and torch.equal(draft.vocabulary.targets(), scattered)


def test_pickles_are_not_read_and_a_draft_of_another_verifier_is_refused(tmp_path: Path) -> None:
    folder = write_draft(tmp_path / "d", flat_values(), flat_names(TENSORS))
    with pytest.raises(UserError, match="has 97 and 64"):
        read_published(folder, replace(VERIFIER, hidden_size=64))
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pytorch_model.bin is a pickle"):
        read_published(folder)
