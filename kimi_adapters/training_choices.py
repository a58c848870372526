"""What a device can do, decided once and told: attention, loss implementation, dtype."""

import logging

import torch
from speculators.losses import resolve_loss_config
from torch import Tensor

from kimi_adapters.draft import attention_for
from kimi_adapters.recipe import Recipe

logger = logging.getLogger(__name__)


def choose(recipe: Recipe, device: torch.device) -> dict[str, str]:
    """The choices by name, why the loss is what it is, and with them the ONE dtype policy.

    On CPU everything is float32. On CUDA the weights and the optimizer are float32, the products of the forward bfloat16.
    UserError: a pack length that flex attention's masks do not divide into blocks.
    """
    cuda = device.type == "cuda"
    if cuda:
        recipe.check_gpu()
    loss, because = checked_loss(recipe.loss, device) if cuda else ("eager", "a fused one needs a GPU")
    return {
        "device": device.type,
        "attention": attention_for(device),
        "loss": loss,
        "loss_because": because,
        "dtype": "bfloat16 products, float32 weights" if cuda else "float32",
    }


def checked_loss(loss: str, device: torch.device) -> tuple[str, str]:
    """(fused, or eager where that does not give the eager loss's gradient under torch.compile, as the draft's forward runs
    it; why). What was raised stands in the log, and of it the class alone in the reason: a message may hold a path.

    The fused one needs Triton and a driver; under torch 2.11 its compiled backward raises.
    """

    def gradient(implementation: str, compiled: bool) -> Tensor:
        ((fn, _),) = resolve_loss_config(loss, implementation).values()
        leaf = logits.clone().requires_grad_(True)
        (torch.compile(fn) if compiled else fn)(leaf, targets).sum().backward()
        if leaf.grad is None:
            raise RuntimeError("no gradient")
        return leaf.grad

    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 1, 8, 512, generator=generator).to(device)
    try:
        equal = torch.allclose(gradient("fused", True), gradient("eager", False), atol=1e-4)
    except Exception as error:  # whatever a driver or a compiler throws, the eager loss is the answer
        logger.warning("the fused %s loss fails here, and the eager one is taken", loss, exc_info=True)
        return "eager", f"the fused one raised {type(error).__name__}"
    return ("fused", "its gradient is the eager one's") if equal else ("eager", "the fused one's gradient differs")
