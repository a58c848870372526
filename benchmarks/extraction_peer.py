"""transformers' DeepseekV3 layer at Kimi-K2.5's widths, beside which extraction is measured."""

from typing import Any

import torch

from benchmarks.extraction_parts import DEVICE, Ceilings, seconds
from benchmarks.kimi_widths import config, products, scores, values


def transformers_layer(top: Ceilings) -> dict[str, float]:
    """One layer of experts by transformers, bf16, 16 samples of 2,048 tokens: the better of its paths."""
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3DecoderLayer, DeepseekV3RotaryEmbedding

    text = {k: v for k, v in values()["text_config"].items() if k not in ("model_type", "quantization_config")}
    c = DeepseekV3Config(**text)
    c._attn_implementation, c._experts_implementation = "sdpa", "grouped_mm"
    torch.set_default_dtype(torch.bfloat16)
    with DEVICE:
        layer = DeepseekV3DecoderLayer(c, 1).eval()
    torch.set_default_dtype(torch.float32)
    for name, parameter in layer.named_parameters():
        parameter.data.fill_(1.0) if "norm" in name else parameter.data.normal_(0, parameter.shape[-1] ** -0.5)
    x = torch.randn(16, 2048, c.hidden_size, device=DEVICE, dtype=torch.bfloat16)
    places = torch.arange(2048, device=DEVICE)[None]
    tables = DeepseekV3RotaryEmbedding(c).to(DEVICE)(x, places)

    def forward() -> Any:
        return layer(x, position_embeddings=tables, position_ids=places, attention_mask=None, use_cache=False)

    took, tokens = seconds(forward), 16 * 2048
    operations = tokens * products(config()) + scores(config(), [2048] * 16)
    return {
        "seconds": took,
        "gflop_a_token": operations / tokens / 1e9,
        "of_ceiling": operations / took / top.flops,
        "projected": tokens / took / 61,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9,
    }
