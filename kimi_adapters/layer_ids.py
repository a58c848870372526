"""The one convention for layer ids, and what each engine calls the same tensors.

Layer id k is the residual stream that ENTERS layer k, counted from 0: Hugging Face's `hidden_states[k]`, and the id
that vLLM and speculators use. SGLang names a tensor by the layer it LEAVES: k - 1. The state after the last layer
is no id here: it is stored as "last", before the final norm.
"""

from collections.abc import Sequence

from errors import UserError


def default_layer_ids(num_layers: int) -> list[int]:
    """An early, a middle and a late layer, [2, L // 2, L - 3]: vLLM's and speculators' defaults."""
    return check_layer_ids([2, num_layers // 2, num_layers - 3], num_layers)


def check_layer_ids(layer_ids: Sequence[int], num_layers: int) -> list[int]:
    """The ids as a list; UserError unless they are rising and each names a layer of the verifier."""
    ids = list(layer_ids)
    if not ids or any(not 0 <= k < num_layers for k in ids) or any(a >= b for a, b in zip(ids, ids[1:], strict=False)):
        raise UserError(
            f"layer_ids {ids} do not fit a verifier of {num_layers} layers: give rising ids from 0 to "
            f"{num_layers - 1} (the state after the last layer is always stored)."
        )
    return ids


def to_vllm(layer_ids: Sequence[int]) -> list[int]:
    """The same tensors as vLLM and speculators name them: unchanged."""
    return list(layer_ids)


def to_sglang(layer_ids: Sequence[int]) -> list[int]:
    """The same tensors as SGLang names them: k - 1. Id 0, the embeddings, has no name there: UserError."""
    if 0 in layer_ids:
        raise UserError("layer id 0 (the embeddings) cannot be named in SGLang; choose auxiliary layers from 1 up.")
    return [k - 1 for k in layer_ids]
