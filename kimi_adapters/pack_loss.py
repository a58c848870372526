"""The loss of a pack as a module over the draft: what is differentiated, replicated and sharded."""

from collections.abc import Mapping

import torch
from speculators.losses import LossConfig, resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor

from kimi_adapters.draft import draft_shape
from kimi_adapters.draft_layers import DraftLayers
from kimi_adapters.packing import Batch
from kimi_adapters.recipe import Recipe
from kimi_adapters.training_choices import HEAD_ROWS, SUPERVISED_ROWS
from kimi_adapters.ttt import ttt_loss
from kimi_adapters.ttt_head import head_rows_loss


class PackLoss(torch.nn.Module):
    """Batch -> (loss, metric sums), by the forward that the choices name."""

    def __init__(self, model: Eagle3DraftModel, recipe: Recipe, choices: Mapping[str, str]):
        super().__init__()
        self.model, self.recipe, self.choices = model, recipe, choices
        self.shape = draft_shape(model)
        self.loss_config: LossConfig = resolve_loss_config(recipe.loss, choices["loss"])

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Batch as `PackedShards.load` gives it; loss float32, a number; the sums are those of speculators' metrics."""
        recipe = self.recipe
        if self.choices["forward"] == SUPERVISED_ROWS:
            # The parameters as they are now: sharded ones are whole only while this runs.
            layers = DraftLayers(self.shape, dict(self.model.named_parameters()))
            return ttt_loss(layers, batch, recipe.ttt_steps, recipe.ttt_decay, self.loss_config)
        with torch.autocast(batch["hidden_states"].device.type, dtype=torch.bfloat16):
            if self.choices["forward"] == HEAD_ROWS:
                return head_rows_loss(self.model, batch, recipe.ttt_steps, recipe.ttt_decay, self.loss_config)
            _, loss, metrics = self.model(
                **batch,
                ttt_steps=recipe.ttt_steps,
                ttt_step_loss_decay=recipe.ttt_decay,
                loss_config=self.loss_config,
            )
        return loss, metrics
