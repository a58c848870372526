"""Which tensors a DeepSeek-V3's layers have, by name, shape and dtype: known before hours are spent on reading them."""

from collections.abc import Iterator
from dataclasses import dataclass

from errors import UserError
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.quantization import PER_WORD

_FLOATS = ("BF16", "F16", "F32")
WHOLE = ("F32",)  # what a cast to half its width would make useless


@dataclass(frozen=True)
class Expected:
    """A tensor's shape, and the safetensors dtypes it may have."""

    shape: tuple[int, ...]
    dtypes: tuple[str, ...] = _FLOATS


def layer_tensors(config: DeepseekConfig, index: int) -> dict[str, Expected]:
    """The tensors of layer `index` by their names inside it.

    UserError when the quantization covers anything but the routed experts, or only some of them.
    """
    tensors = {
        "input_layernorm.weight": Expected((config.hidden_size,)),
        "post_attention_layernorm.weight": Expected((config.hidden_size,)),
        **_attention_norms(config),
    }
    for module, shape in _attention_linears(config):
        tensors[f"{module}.weight"] = Expected(shape)
        if config.attention_bias and module.endswith(("q_a_proj", "kv_a_proj_with_mqa", "o_proj")):
            tensors[f"{module}.bias"] = Expected(shape[:1])
    if index < config.first_dense_layers:
        linears = _block("mlp", config.hidden_size, config.intermediate_size)
    else:
        tensors["mlp.gate.weight"] = Expected((config.num_experts, config.hidden_size))
        tensors["mlp.gate.e_score_correction_bias"] = Expected((config.num_experts,), WHOLE)
        width = config.num_shared_experts * config.expert_size
        linears = _block("mlp.shared_experts", config.hidden_size, width)
        tensors |= _experts(config, index)
    tensors |= {f"{module}.weight": Expected(shape) for module, shape in linears}
    _check_covered(config, index, [name.removesuffix(".weight") for name in tensors if "_proj" in name])
    return tensors


def expert_linears(config: DeepseekConfig) -> dict[str, tuple[int, int]]:
    """The three products of one routed expert, [out, in]."""
    return dict(_block("", config.hidden_size, config.expert_size))


def packed(config: DeepseekConfig, index: int) -> bool:
    """Whether the routed experts of layer `index` are stored packed. UserError when some are and some are not."""
    if config.quantization is None:
        return False
    names = [
        f"{_full(index)}.mlp.experts.{expert}.{name}" for expert in range(config.num_experts) for name in expert_linears(config)
    ]
    covered = {config.quantization.covers(name) for name in names}
    if len(covered) > 1:
        raise UserError(
            f"the verifier's quantization covers some experts of layer {index} and not others; "
            "give a checkpoint whose routed experts are all packed, or none."
        )
    return covered.pop()


def _experts(config: DeepseekConfig, index: int) -> dict[str, Expected]:
    is_packed, group = packed(config, index), config.expert_group_size
    tensors = {}
    for expert in range(config.num_experts):
        for name, (rows, width) in expert_linears(config).items():
            module = f"mlp.experts.{expert}.{name}"
            if is_packed and group:
                tensors[f"{module}.weight_packed"] = Expected((rows, width // PER_WORD), ("I32",))
                tensors[f"{module}.weight_scale"] = Expected((rows, width // group))
                tensors[f"{module}.weight_shape"] = Expected((2,), ("I32", "I64"))
            else:
                tensors[f"{module}.weight"] = Expected((rows, width))
    return tensors


def _attention_norms(config: DeepseekConfig) -> dict[str, Expected]:
    norms = {"self_attn.kv_a_layernorm.weight": Expected((config.kv_lora_rank,))}
    if config.q_lora_rank:
        norms["self_attn.q_a_layernorm.weight"] = Expected((config.q_lora_rank,))
    return norms


def _attention_linears(config: DeepseekConfig) -> Iterator[tuple[str, tuple[int, int]]]:
    hidden, heads = config.hidden_size, config.num_heads
    if config.q_lora_rank:
        yield "self_attn.q_a_proj", (config.q_lora_rank, hidden)
        yield "self_attn.q_b_proj", (heads * config.qk_head_dim, config.q_lora_rank)
    else:
        yield "self_attn.q_proj", (heads * config.qk_head_dim, hidden)
    yield "self_attn.kv_a_proj_with_mqa", (config.kv_lora_rank + config.qk_rope_head_dim, hidden)
    yield "self_attn.kv_b_proj", (heads * (config.qk_nope_head_dim + config.v_head_dim), config.kv_lora_rank)
    yield "self_attn.o_proj", (hidden, heads * config.v_head_dim)


def _block(module: str, hidden: int, width: int) -> list[tuple[str, tuple[int, int]]]:
    before = f"{module}." if module else ""
    return [
        (f"{before}gate_proj", (width, hidden)),
        (f"{before}up_proj", (width, hidden)),
        (f"{before}down_proj", (hidden, width)),
    ]


def _full(index: int) -> str:
    return f"model.layers.{index}"


def _check_covered(config: DeepseekConfig, index: int, modules: list[str]) -> None:
    """A Linear outside the experts that the configuration says is packed is one that we would misread."""
    if config.quantization is None:
        return
    for module in modules:
        if ".experts." not in module and config.quantization.covers(f"{_full(index)}.{module}"):
            raise UserError(
                f"the verifier's quantization covers {_full(index)}.{module}, and only routed experts are read packed; "
                "put it on the quantization's ignore list if it is stored unpacked."
            )
