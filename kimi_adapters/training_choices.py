"""What a device can do, decided once and told: attention, loss implementation, forward, dtype."""

import torch
from speculators.losses import resolve_loss_config
from torch import Tensor

from kimi_adapters.draft import attention_for
from kimi_adapters.recipe import Recipe

SUPERVISED_ROWS = "supervised rows"  # all of the draft but step 0's keys and values (ttt)
SPECULATORS = "speculators"  # its own compiled forward over every index: what ours is compared with on a GPU


def choose(recipe: Recipe, device: torch.device) -> dict[str, str]:
    """The choices by name, and with them the ONE dtype policy.

    On CPU everything is float32. On CUDA the weights and the optimizer are float32, the products of the forward bfloat16.
    UserError: a pack length that flex attention's masks do not divide into blocks.
    """
    cuda = device.type == "cuda"
    if cuda:
        recipe.check_gpu()
    return {
        "device": device.type,
        "attention": attention_for(device),
        "loss": "fused" if cuda and fused_loss_works(recipe.loss, device) else "eager",
        "forward": SUPERVISED_ROWS,
        "dtype": "bfloat16 products, float32 weights" if cuda else "float32",
    }


def fused_loss_works(loss: str, device: torch.device) -> bool:
    """Whether the fused loss gives the eager loss's gradient under torch.compile, as the draft's forward runs it.

    It needs Triton and a driver; under torch 2.11 its compiled backward raises.
    """

    def gradient(implementation: str, compiled: bool) -> Tensor:
        ((fn, _),) = resolve_loss_config(loss, implementation).values()
        leaf = logits.clone().requires_grad_(True)
        (torch.compile(fn) if compiled else fn)(leaf, targets).sum().backward()
        if leaf.grad is None:
            raise RuntimeError("no gradient")
        return leaf.grad

    if device.type != "cuda":
        return False
    generator = torch.Generator().manual_seed(0)
    logits, targets = torch.randn(2, 1, 8, 512, generator=generator).to(device)
    try:
        return torch.allclose(gradient("fused", True), gradient("eager", False), atol=1e-4)
    except Exception:  # whatever a driver or a compiler throws, the eager loss is the answer
        return False
