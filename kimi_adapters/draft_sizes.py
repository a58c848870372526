"""The sizes that a draft has over a verifier where its recipe leaves some open. Plain data: a plan asks it."""

from dataclasses import dataclass

from errors import UserError
from kimi_adapters.config_fields import TextConfig
from kimi_adapters.recipe import Recipe

_PUBLISHED_INTERMEDIATE = {("deepseek_v3", 7168): 12288}


@dataclass(frozen=True)
class DraftSizes:
    """Head counts, and widths in numbers."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int


def draft_sizes(recipe: Recipe, verifier: TextConfig) -> DraftSizes:
    """The recipe's sizes; the verifier's where it leaves one None, but for key-value heads beside heads that it gives: as many.

    UserError: counts that do not divide, or an odd head.
    """
    num_heads = recipe.num_heads or verifier.num_heads
    num_kv_heads = recipe.num_kv_heads or (recipe.num_heads or verifier.num_kv_heads)
    head_dim = recipe.head_dim or verifier.head_dim
    if num_heads % num_kv_heads or head_dim % 2:
        raise UserError(
            f"The draft has {num_heads} heads over {num_kv_heads} key-value heads of size {head_dim}; give "
            "training.num_heads and training.num_kv_heads that divide and an even training.head_dim."
        )
    if recipe.layer == "llama" and verifier.hidden_size % num_heads:  # transformers' LlamaConfig takes no other
        raise UserError(
            f"The draft has {num_heads} heads, which do not divide the verifier's hidden size {verifier.hidden_size} as a "
            "llama layer needs it; set training.num_heads to a count that does, or training.layer to qwen3."
        )
    return DraftSizes(num_heads, num_kv_heads, head_dim, recipe.intermediate_size or _intermediate_size(verifier))


def _intermediate_size(verifier: TextConfig) -> int:
    """The verifier's, but for K2.5, whose published drafts do not follow its one dense layer (18,432)."""
    return _PUBLISHED_INTERMEDIATE.get((verifier.family, verifier.hidden_size), verifier.intermediate_size)
