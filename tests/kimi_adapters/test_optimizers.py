"""Muon and AdamW take the steps that speculators' optimizers take, and what they keep goes through a checkpoint."""

from pathlib import Path

import pytest
import torch
from speculators.train.optimizers import build_optimizers
from speculators.train.trainer import TrainerConfig
from torch import nn

from errors import UserError
from kimi_adapters import optimizers
from kimi_adapters.recipe import Recipe


def model() -> nn.ModuleDict:
    """Matrices, a vector of one row, norms, and an embedding that is trained."""
    torch.manual_seed(0)
    parts = {"fc": nn.Linear(12, 8), "norm": nn.LayerNorm(8), "one": nn.Linear(8, 1), "embed_tokens": nn.Embedding(5, 8)}
    return nn.ModuleDict(parts)


def steps(model: nn.ModuleDict, chosen: list[torch.optim.Optimizer], first: int, last: int) -> None:
    """Steps of gradients that depend on their number alone."""
    for number in range(first, last):
        torch.manual_seed(number)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        for one in chosen:
            one.step()


def ours(model: nn.ModuleDict, **recipe: object) -> list[torch.optim.Optimizer]:
    return optimizers.build(Recipe.from_dict({"lr": 0.01, **recipe}), model, dict(model.named_parameters()))


@pytest.mark.parametrize(("optimizer", "rates"), [("adamw", {}), ("muon", {}), ("muon", {"muon_lr": 0.03})])
def test_steps_are_speculators_own(tmp_path: Path, optimizer: str, rates: dict[str, float]) -> None:
    mine, theirs = model(), model()
    config = TrainerConfig(
        lr=0.01, num_epochs=1, save_path=str(tmp_path), optimizer=optimizer, muon_lr=rates.get("muon_lr", 0.01)
    )
    steps(mine, ours(mine, optimizer=optimizer, **rates), 0, 4)
    steps(theirs, build_optimizers(theirs, config), 0, 4)
    for (name, one), other in zip(mine.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7, msg=name)  # AdamW is fused here, and not there


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_they_keep_goes_through_a_checkpoint(optimizer: str) -> None:
    """Half of the steps, then all that is kept put into others: the same bits as without the break."""
    whole, before = model(), model()
    steps(whole, ours(whole, optimizer=optimizer), 0, 6)
    chosen = ours(before, optimizer=optimizer)
    steps(before, chosen, 0, 3)
    kept = {name: value.clone() for name, value in optimizers.kept_tensors(chosen, dict(before.named_parameters())).items()}
    assert ("momentum_buffer.fc.weight" in kept) == (optimizer == "muon") != ("exp_avg.fc.weight" in kept)
    assert {"exp_avg.embed_tokens.weight", "exp_avg.one.weight", "exp_avg.norm.weight", "step.fc.bias"} <= set(kept)
    after = model()
    after.load_state_dict(before.state_dict())
    again = ours(after, optimizer=optimizer)
    optimizers.restore(again, dict(after.named_parameters()), kept)
    steps(after, again, 3, 6)
    assert all(torch.equal(one, other) for one, other in zip(after.parameters(), whole.parameters(), strict=True))
    other = ours(model(), optimizer="muon" if optimizer == "adamw" else "adamw")
    with pytest.raises(UserError, match="another optimizer made it; give training.optimizer as it was"):
        optimizers.restore(other, dict(after.named_parameters()), kept)
