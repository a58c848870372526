"""The draft that Kimi-K2.5's configuration gives when the recipe leaves everything open: as the published ones are.

The rows of shared/reference/kimi_k25.md that are about the draft and its training, and the tests that hold each:
3, 4, 5 and 18 (shape, YaRN, token ids and sliding windows, norm flags) here; 6 test_recipe (layers are llama or qwen3);
7 test_draft (attention set at construction, reload by draft_reload); 8 test_packing (states float32 whatever their file) and
test_training_choices (one dtype policy); 9 to 12 test_training_choices (CPU, sdpa, eager loss) and test_trainer (steps over
all epochs); 13, 14 test_trainer and test_training_checkpoint (rates and bits after a kill, float32 optimizer state);
15 test_corpus_and_vocabulary and test_draft (special tokens, sizes); 16 tests/tasks/test_corpus_properties (sides);
19 tests/test_arrows and test_prefetch (a process that is spawned finds nothing to do, and none is);
20 test_draft (a closed config.json);
21 test_packing and tests/tasks/test_left_out (noise in the data, on the training side alone).
"""

import pytest
import torch
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from kimi_adapters.draft import draft_config, draft_config_values
from kimi_adapters.draft_rope import inverse_frequencies
from kimi_adapters.layer_ids import default_layer_ids
from kimi_adapters.llama_config import Llama3Scaling
from kimi_adapters.recipe import LAYERS, Recipe
from tests.kimi_adapters.draft_fixtures import VERIFIER
from tests.kimi_adapters.test_deepseek_config import PUBLISHED, parse

KIMI = parse(PUBLISHED)
IDS = default_layer_ids(KIMI.num_layers)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_recipe_that_leaves_all_open_gives_the_published_draft(layer: str) -> None:
    config = draft_config(Recipe(layer=layer), KIMI, IDS, 32000, "sdpa")
    values = draft_config_values(config, torch.float32)
    inside = values["transformer_layer_config"]
    assert (inside["num_attention_heads"], inside["num_key_value_heads"], inside["head_dim"]) == (64, 64, 128)
    assert (inside["hidden_size"], inside["intermediate_size"], inside["num_hidden_layers"]) == (7168, 12288, 1)
    assert inside["rope_parameters"] == {"rope_type": "default", "rope_theta": 50000.0}
    assert inside["max_position_embeddings"] == 262144 and inside["model_type"] == layer
    assert (inside["bos_token_id"], inside["eos_token_id"], inside["pad_token_id"]) == (163584, [163585], 163839)
    assert inside["tie_word_embeddings"] is False and inside["vocab_size"] == 163840 and values["draft_vocab_size"] == 32000
    assert values["eagle_aux_hidden_state_layer_ids"] == [2, 30, 58]
    assert not any(values[flag] for flag in ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"))
    built = config.transformer_layer_config
    assert built._attn_implementation == "sdpa" and not getattr(built, "sliding_window", None)
    assert set(getattr(built, "layer_types", None) or ["full_attention"]) == {"full_attention"}


def test_every_default_gives_way_to_the_recipe() -> None:
    recipe = Recipe(num_heads=56, head_dim=64, intermediate_size=18432, max_position_embeddings=32768, rope_theta=1e6)
    inside = draft_config(recipe, KIMI, IDS, 32000, "sdpa").transformer_layer_config
    assert (inside.num_attention_heads, inside.num_key_value_heads, inside.head_dim) == (56, 56, 64)
    assert inside.intermediate_size == 18432 and inside.max_position_embeddings == 32768
    assert inside.rope_parameters["rope_theta"] == 1e6


def test_the_verifiers_stretch_comes_where_it_is_asked_for_and_is_transformers() -> None:
    stretched = VERIFIER.__class__(**{**VERIFIER.__dict__, "rope_scaling": Llama3Scaling(8.0, 1.0, 4.0, 64)})
    for verifier, kind, ids in ((KIMI, "yarn", IDS), (stretched, "llama3", [1, 3, 5])):
        config = draft_config(Recipe(rope="verifier"), verifier, ids, 32, "sdpa")
        rope = draft_config_values(config, torch.float32)["transformer_layer_config"]["rope_parameters"]
        assert rope["rope_type"] == kind and "softmax_factor" not in rope
        theirs = LlamaRotaryEmbedding(config.transformer_layer_config)
        ours, factor = inverse_frequencies(rope, config.transformer_layer_config.head_dim)
        torch.testing.assert_close(ours, theirs.inv_freq, rtol=1e-6, atol=0)
        assert factor == theirs.attention_scaling
    plain = draft_config(Recipe(rope="verifier"), VERIFIER, [1, 3, 5], 32, "sdpa").transformer_layer_config
    assert plain.rope_parameters == {"rope_type": "default", "rope_theta": 1e4}
