"""What a DeepSeek-V3's config.json says beyond the shared fields; Kimi-K2 and K2.5 are of this family."""

import math
from dataclasses import dataclass
from typing import ClassVar

from errors import UserError
from kimi_adapters.config_fields import Fields, TextConfig, rope_fields, rope_kind, shared_values
from kimi_adapters.quantization import Int4Groups, parse_quantization

FAMILY = "deepseek_v3"
MODEL_TYPES = ("deepseek_v3", "kimi_k2", "kimi_k25")


@dataclass(frozen=True)
class YarnScaling:
    """YaRN's stretching of the rotary frequencies (rope_type "yarn").

    cos and sin are multiplied by `attention_factor`, the softmax's scale by `softmax_factor`:
    m(s) = 0.1 · s · ln(factor) + 1; attention_factor = m(mscale) / m(mscale_all_dim), softmax_factor =
    m(mscale_all_dim)². Source: transformers' modeling_rope_utils.py and modeling_deepseek_v3.py.
    """

    factor: float
    original_max_position_embeddings: int
    beta_fast: float
    beta_slow: float
    truncate: bool
    attention_factor: float
    softmax_factor: float


@dataclass(frozen=True)
class DeepseekConfig(TextConfig):
    """A DeepSeek-V3: latent attention, a dense block in the first `first_dense_layers` layers, experts in the others.

    `head_dim` is `v_head_dim` (128 in K2.5), not the 64 rotary dimensions that transformers calls so. `q_lora_rank`
    None: queries without a latent. `rope_scaling` None: plain rotary positions. `mtp_layers`: layers past the last
    that predict further tokens; they are left out. `quantization` None: every weight is stored as such.
    """

    NUMERIC_FIELDS: ClassVar[tuple[str, ...]] = (
        "family", "hidden_size", "num_layers", "num_heads", "intermediate_size", "rms_norm_eps", "rope_theta",
        "rope_scaling", "attention_bias", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "num_experts", "experts_per_token", "num_shared_experts", "expert_size", "first_dense_layers",
        "expert_groups", "groups_per_token", "norm_topk_prob", "routed_scaling_factor", "expert_group_size",
    )  # fmt: skip

    rope_scaling: YarnScaling | None
    attention_bias: bool
    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int
    num_experts: int
    experts_per_token: int
    num_shared_experts: int
    expert_size: int
    first_dense_layers: int
    expert_groups: int
    groups_per_token: int
    norm_topk_prob: bool
    routed_scaling_factor: float
    mtp_layers: int
    quantization: Int4Groups | None

    @property
    def qk_head_dim(self) -> int:
        """Width of a head's queries and keys."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    @property
    def expert_group_size(self) -> int | None:
        """Neighbours under one scale of the experts' weights: all that states depend on of the quantization."""
        return self.quantization.group_size if self.quantization else None

    @property
    def softmax_scale(self) -> float:
        """What the products of queries and keys are multiplied by."""
        factor = self.rope_scaling.softmax_factor if self.rope_scaling else 1.0
        return float(self.qk_head_dim**-0.5 * factor)


def parse_deepseek(fields: Fields) -> DeepseekConfig:
    """A DeepSeek-V3's configuration. UserError: a missing or impossible field, or one that our forward does not have."""
    fields.only("scoring_func", "sigmoid")
    fields.only("topk_method", "noaux_tc")
    fields.only("moe_layer_freq", 1)
    fields.only("rope_interleave", True)
    shared = shared_values(fields)
    v_head_dim = fields.take("v_head_dim", int)
    config = DeepseekConfig(
        family=FAMILY,
        **shared,
        num_kv_heads=fields.optional("num_key_value_heads", int, shared["num_heads"]),
        head_dim=v_head_dim,
        rope_scaling=_rope_scaling(rope_fields(fields)),
        attention_bias=fields.optional("attention_bias", bool, False),
        q_lora_rank=fields.optional("q_lora_rank", int, 0) or None,
        kv_lora_rank=fields.take("kv_lora_rank", int),
        qk_nope_head_dim=fields.take("qk_nope_head_dim", int),
        qk_rope_head_dim=fields.take("qk_rope_head_dim", int),
        v_head_dim=v_head_dim,
        num_experts=fields.take("n_routed_experts", int),
        experts_per_token=fields.take("num_experts_per_tok", int),
        num_shared_experts=fields.take("n_shared_experts", int),
        expert_size=fields.take("moe_intermediate_size", int),
        first_dense_layers=fields.take("first_k_dense_replace", int),
        expert_groups=fields.take("n_group", int),
        groups_per_token=fields.take("topk_group", int),
        norm_topk_prob=fields.take("norm_topk_prob", bool),
        routed_scaling_factor=fields.take("routed_scaling_factor", float),
        mtp_layers=fields.optional("num_nextn_predict_layers", int, 0),
        quantization=parse_quantization(fields.values.get("quantization_config"), fields.where),
    )
    _check(config, fields.where)
    return config


def _check(config: DeepseekConfig, where: str) -> None:
    restore = "restore the verifier's config.json."
    if config.num_kv_heads != config.num_heads:
        raise UserError(f"{where} has fewer key-value heads than heads, which latent attention has not; {restore}")
    sizes = (
        config.kv_lora_rank, config.qk_nope_head_dim, config.qk_rope_head_dim, config.v_head_dim, config.num_experts,
        config.experts_per_token, config.num_shared_experts, config.expert_size, config.expert_groups,
    )  # fmt: skip
    if min(sizes) < 1 or config.qk_rope_head_dim % 2 or config.first_dense_layers < 0 or config.mtp_layers < 0:
        raise UserError(f"{where} has impossible head, expert or layer counts; {restore}")
    in_group, odd = divmod(config.num_experts, config.expert_groups)
    if odd or not 1 <= config.groups_per_token <= config.expert_groups or (config.expert_groups > 1 and in_group < 2):
        raise UserError(f"{where} has {config.num_experts} experts, which do not fit its n_group and topk_group; {restore}")
    if config.experts_per_token > config.groups_per_token * in_group:
        raise UserError(f"{where} takes more experts a token than there are; {restore}")
    if config.quantization:
        size = config.quantization.group_size
        for name, width in (("hidden_size", config.hidden_size), ("moe_intermediate_size", config.expert_size)):
            if width % size:
                raise UserError(f"{where} has quantization groups of {size}, which do not divide {name} = {width}; {restore}")


def _rope_scaling(rope: Fields) -> YarnScaling | None:
    if rope_kind(rope, "yarn") == "default":
        return None
    factor = rope.take("factor", float)
    mscale, all_dim = rope.optional("mscale", float, 0.0), rope.optional("mscale_all_dim", float, 0.0)
    default = _stretch(factor, mscale) / _stretch(factor, all_dim) if mscale and all_dim else _stretch(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=rope.take("original_max_position_embeddings", int),
        beta_fast=rope.optional("beta_fast", float, 32.0),
        beta_slow=rope.optional("beta_slow", float, 1.0),
        truncate=rope.optional("truncate", bool, True),
        attention_factor=rope.optional("attention_factor", float, default),
        softmax_factor=_stretch(factor, all_dim) ** 2 if all_dim else 1.0,
    )


def _stretch(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * mscale * math.log(factor) + 1.0
