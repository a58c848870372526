"""The optimizers of a training: AdamW, or Muon for the weight matrices and AdamW for what is left.

Muon's step of a matrix [m, n], m <= n, is its momentum made orthogonal: 5 Newton-Schulz steps of 4 m² n + 2 m³ FLOP each, in
bfloat16 on every device. For a draft of K2.5 (7168 x 21504, 8192 x 14336, 7168 x 8192, three of 7168 x 18432) that is 1.3e14,
0.2 s on an H200, where a pack of 4,096 tokens takes 0.13: give `packs_per_step`. It holds 4 bytes a number, AdamW 8.
"""

from collections.abc import Mapping, Sequence

from speculators.train.optimizers import split_named_params_for_muon
from torch import Tensor
from torch.nn import Module
from torch.optim import AdamW, Muon, Optimizer

from errors import UserError
from kimi_adapters.data_parallel import part_like
from kimi_adapters.recipe import Recipe

# What each keeps of a tensor. A step counter is the same on every rank; the others are sharded with their tensor.
_COUNTER = "step"
_KEPT = {AdamW: ("exp_avg", "exp_avg_sq", _COUNTER), Muon: ("momentum_buffer",)}


def build(recipe: Recipe, model: Module, trainable: Mapping[str, Tensor]) -> list[Optimizer]:
    """AdamW first. Muon takes what speculators gives it: matrices, but for embeddings and head; with the momentum and the scale
    of its rates, which then mean what AdamW's do, that are the defaults there."""
    muon = [name for name, _ in split_named_params_for_muon(model)[0]] if recipe.optimizer == "muon" else []
    others = [value for name, value in trainable.items() if name not in muon]
    found: list[Optimizer] = [AdamW(others, lr=recipe.lr, weight_decay=recipe.weight_decay, fused=True)]
    if muon:
        matrices = [value for name, value in trainable.items() if name in muon]
        rate = recipe.lr if recipe.muon_lr is None else recipe.muon_lr
        found.append(Muon(matrices, lr=rate, weight_decay=recipe.muon_weight_decay, adjust_lr_fn="match_rms_adamw"))
    return found


def kept_tensors(optimizers: Sequence[Optimizer], trainable: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What the optimizers keep of the trained tensors, after a step, by name; a sharded one's is this rank's part."""
    names = {id(value): name for name, value in trainable.items()}
    return {
        f"{key}.{names[id(tensor)]}": optimizer.state[tensor][key]
        for optimizer in optimizers
        for tensor in _tensors(optimizer)
        for key in _KEPT[type(optimizer)]
    }


def restore(optimizers: Sequence[Optimizer], trainable: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> None:
    """Puts back whole tensors under the names of `kept_tensors`. UserError: another optimizer had kept them."""
    names = {id(value): name for name, value in trainable.items()}
    for optimizer in optimizers:
        saved = optimizer.state_dict()
        try:
            saved["state"] = {
                number: {key: _part(key, stored[f"{key}.{names[id(tensor)]}"], tensor) for key in _KEPT[type(optimizer)]}
                for number, tensor in enumerate(_tensors(optimizer))
            }
        except KeyError as missing:
            raise UserError(
                f"The checkpoint has no {missing.args[0]}: another optimizer made it; give training.optimizer as it was."
            ) from None
        optimizer.load_state_dict(saved)


def _tensors(optimizer: Optimizer) -> list[Tensor]:
    return [tensor for group in optimizer.param_groups for tensor in group["params"]]


def _part(key: str, whole: Tensor, tensor: Tensor) -> Tensor:
    return whole if key == _COUNTER else part_like(whole, tensor)
