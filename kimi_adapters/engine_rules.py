"""What a serving engine makes of a draft's settings, and the refusal of those that it would ignore or misread.

Read from vLLM 0.32.0 (models/llama_eagle3.py and qwen3_eagle3.py, transformers_utils/configs/speculators/algos.py) and
SGLang 0.5.23 (srt/models/llama_eagle3.py, llama.py and deepseek_v2.py, srt/configs/model_config.py,
srt/layers/rotary_embedding/). "as trained" means that the engine computes what speculators' model computes.

    setting                    vLLM                              SGLang
    norm_before_fc, fc_norm    as trained                        as trained; versions without `fc_norm` ignore both
    norm_output                as trained                        as trained; those versions ignore it, too
    norm_before_residual       as trained                        ignored: the residual is always taken before the norm
    num_layers > 1             as trained                        as trained: later layers' input_layernorm is hidden_norm
    layer qwen3                as trained (its own class)        its Llama class drops q_norm and k_norm without a word
    embeddings of its own      as trained                        replaced by the verifier's
    a head of its own          as trained                        as trained
    head_dim, head counts      as trained                        as trained
    max_position_embeddings    raised to the serving length      raised to the serving length
    rope default               as trained                        as trained
    rope yarn                  as trained                        no `attention_factor`: only 1 or YaRN's own can be told
    rope yarn, `attn_factor`   ignored                           read, where transformers does not
    rope llama3                as trained                        as trained
    other ropes                refused: their reading was not compared
    number of layer ids        3 unless num_aux_hidden_states    any but 1: then `fc` is skipped
    layer id 0                 as trained                        has no name
    layer ids, DeepSeek's      as trained                        shifted only if the first is 1, which is our 2 (PR 25454)
    float32                    the verifier's dtype              served in float16
    equal vocabularies         no maps                           no maps
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from errors import UserError
from kimi_adapters.draft_formats import sglang_scaling

ENGINES = ("vllm", "sglang")
DEEPSEEK = "deepseek_v3"  # the family whose verifiers SGLang runs by deepseek_v2.py; Kimi-K2 and K2.5 are of it
_TRANSFORMERS_YARN = {
    "rope_type", "rope_theta", "factor", "original_max_position_embeddings", "beta_fast", "beta_slow", "mscale",
    "mscale_all_dim", "attention_factor", "truncate",
}  # fmt: skip


def check_engine(
    engine: str, recipe: Mapping[str, Any], layer_ids: Sequence[int], family: str | None, dtype: str, rope: Mapping[str, Any]
) -> None:
    """UserError with the reasons why `engine` would not serve the draft as it was trained.

    `recipe` holds the training settings that shape a draft, `layer_ids` ours, `family` the verifier's (None: not known
    yet), `rope` the draft's rope_parameters (empty: the default).
    """
    reasons = [*_of_any(rope), *(_of_sglang(recipe, layer_ids, family, dtype, rope) if engine == "sglang" else ())]
    if reasons:
        raise UserError(f"export.engines has {engine}, and {'; '.join(reasons)}: change that, or leave {engine} out")


def _of_any(rope: Mapping[str, Any]) -> Iterator[str]:
    kind = rope.get("rope_type", "default")
    if kind not in ("default", "yarn", "llama3"):
        yield f"the draft's rope is {kind}, which is not exported"
    strange = sorted(rope.keys() - _TRANSFORMERS_YARN)
    if kind == "yarn" and strange:
        yield f"the draft's rope has {', '.join(strange)}, which training does not read"


def _of_sglang(
    recipe: Mapping[str, Any], layer_ids: Sequence[int], family: str | None, dtype: str, rope: Mapping[str, Any]
) -> Iterator[str]:
    if recipe["norm_before_residual"]:
        yield "training.norm_before_residual is true, which it ignores"
    if recipe.get("layer", "llama") != "llama":
        yield f"training.layer is {recipe['layer']}, whose q_norm and k_norm it drops"
    if recipe.get("train_embeddings"):
        yield "the draft has embeddings of its own (training.train_embeddings), which it replaces by the verifier's"
    if dtype == "float32":
        yield "export.dtype is float32, which it serves in float16"
    if (sglang_scaling(rope) or {}).get("attention_factor") is not None:
        yield f"the draft's rope has the attention_factor {rope['attention_factor']}, which it ignores"
    if 0 in layer_ids:
        yield "hidden_states.layer_ids has 0, the embeddings, which have no name there"
    if len(layer_ids) == 1:
        yield "hidden_states.layer_ids has one id, for which it skips the draft's fc"
    if family == DEEPSEEK and layer_ids and layer_ids[0] != 2:
        yield (
            f"hidden_states.layer_ids begins with {layer_ids[0]}, and for verifiers of DeepSeek's layers it shifts ids only "
            "where the first is 2"
        )
