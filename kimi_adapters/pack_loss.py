"""The loss of a pack as a module over the draft: what is differentiated, replicated and sharded."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from speculators.losses import LossConfig, resolve_loss_config
from speculators.models.eagle3 import Eagle3DraftModel
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from kimi_adapters.chunked_head import ChunkedHead
from kimi_adapters.draft import draft_shape
from kimi_adapters.draft_layers import DraftLayers
from kimi_adapters.gpu_layers import Copies, GpuLayers
from kimi_adapters.packing import Batch
from kimi_adapters.recipe import Recipe
from kimi_adapters.ttt import Head, PlainHead, ttt_loss


class PackLoss(torch.nn.Module):
    """Batch -> (loss, metric sums), on whatever device the batch is."""

    def __init__(self, model: Eagle3DraftModel, recipe: Recipe, choices: Mapping[str, str]):
        super().__init__()
        self.model, self.recipe, self.choices = model, recipe, choices
        self.shape = draft_shape(model)
        self.frozen: dict[str, Tensor] = {}  # copies of what is never trained
        self.copies: Copies | None = None  # of all weights, while they stand still
        self.loss_config: LossConfig = resolve_loss_config(recipe.loss, choices["loss"])

    @contextmanager
    def one_step(self) -> Iterator[None]:
        """Around the packs of one optimizer step: the weights stand still, and are cast once for all of them.

        Sharded ones are another tensor a pack.
        """
        self.copies = None if isinstance(self, FSDPModule) else Copies(torch.bfloat16, self.frozen)
        try:
            yield
        finally:
            self.copies = None

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """Batch as `PackedShards.load` gives it; loss float32, a number; the sums are those of speculators' metrics."""
        # The parameters as they are now: sharded ones are whole only while this runs.
        weights = dict(self.model.named_parameters())
        layers, head = self._on_gpu(weights) if batch["hidden_states"].is_cuda else self._on_cpu(weights)
        return ttt_loss(layers, batch, self.recipe.ttt_steps, self.recipe.ttt_decay, head)

    def _on_gpu(self, weights: Mapping[str, Tensor]) -> tuple[DraftLayers, Head]:
        layers = GpuLayers(self.shape, weights, self.copies or Copies(torch.bfloat16, self.frozen))
        return layers, ChunkedHead(layers, self.loss_config)

    def _on_cpu(self, weights: Mapping[str, Tensor]) -> tuple[DraftLayers, Head]:
        layers = DraftLayers(self.shape, weights)
        return layers, PlainHead(layers, self.loss_config)
