"""The recipes of `benchmarks.draft_quality` trained on the same packs, and a draft judged by real decoding."""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import yaml
from speculators.losses import resolve_loss_config
from speculators.train.optimizers import build_optimizers
from speculators.train.trainer import TrainerConfig
from torch import Tensor
from transformers import get_linear_schedule_with_warmup

from kimi_adapters.acceptance_length import Acceptance
from kimi_adapters.config import TextConfig
from kimi_adapters.decoding import decode_all
from kimi_adapters.draft import EMBEDDINGS, VERIFIER_ONLY, VerifierRows, build_draft, draft_config, draft_config_values
from kimi_adapters.draft_runner import PROPOSE_ROWS, DraftRunner
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.packing import PackedShards, ShardFiles
from kimi_adapters.process_group import Ranks
from kimi_adapters.recipe import Recipe
from kimi_adapters.token_choice import Greedy, Sampling
from kimi_adapters.trainer import train
from kimi_adapters.training_choices import choose
from kimi_adapters.verifier import Verifier

# What speculators 0.9's command line defaults to for eagle3, with the draft vocabulary of its documentation's commands and of
# its configuration; the schedule warms up over 1% of the steps.
STOCK: dict[str, Any] = {
    "loop": "speculators",
    "optimizer": "muon",
    "norm_before_residual": True,
    "norm_before_fc": True,
    "norm_output": True,
    "scheduler": "linear",
    "ttt_steps": 3,
    "vocabulary": 32_000,
}
# What NOTES_training.md's tries found to help. Vocabulary and number of parameters are the stock draft's: 6 heads of 128 with
# keys and values of their own take 3.1M numbers where the verifier's 9 of 64 over 3 take 1.4M, and an MLP of 576 gives them
# (1.0M for 1,536's 2.7M).
OURS: dict[str, Any] = {
    "optimizer": "muon",
    "muon_lr": 0.003,
    "norm_before_residual": True,
    "fc_norm": True,
    "norm_output": True,
    "scheduler": "linear",
    "ttt_steps": 3,
    "train_lm_head": True,
    "vocabulary": 32_000,
    "num_heads": 6,
    "num_kv_heads": 6,
    "head_dim": 128,
    "intermediate_size": 576,
}


@dataclass(frozen=True)
class Trained:
    """A draft, its optimizer steps, and its `parameters`: all but the embeddings, which an engine shares with the verifier."""

    runner: DraftRunner
    steps: int
    parameters: int


def recipes_of(given: Namespace) -> dict[str, dict[str, Any]]:
    """The values of all recipes that the command line of `benchmarks.draft_quality` names."""
    recipes = {"stock": STOCK, "ours": {**OURS, **_fields(given.set)}}
    for one in given.also:
        name, _, fields = one.partition(":")
        recipes[name] = {**recipes["stock" if name.startswith("stock") else "ours"], **_fields(fields.split(","))}
    return recipes


def _fields(given: Sequence[str]) -> dict[str, Any]:
    return {name: yaml.safe_load(value) for name, _, value in (one.partition("=") for one in given if one)}


def train_draft(
    given: dict[str, Any],
    longest: int,
    shards: Sequence[ShardFiles],
    layer_ids: Sequence[int],
    verifier: TextConfig,
    rows: VerifierRows,
    vocabulary: DraftVocabulary,
    device: torch.device,
    scratch: Path,
) -> Trained:
    """The draft of a recipe's values; with a `loop` among them, by speculators' own.

    Packs are cut for the `longest` chain of all recipes compared, so that all see the same tokens in the same order and steps.
    """
    values = dict(given)
    stock = values.pop("loop", None)
    recipe = Recipe.from_dict(values)
    data = PackedShards(shards, layer_ids, recipe.pack_tokens, longest, recipe.seed, supervised=recipe.supervised)
    if stock:
        config, tensors, steps = _stock(recipe, data, verifier, rows, vocabulary, device)
    else:
        result = train(recipe, data, verifier, rows, vocabulary, scratch, lambda entry: None, Ranks(device))
        config, tensors = draft_config_values(result.model.config, torch.float32), result.model.state_dict()
        steps = len(result.curves)
    left_out = {EMBEDDINGS, *VERIFIER_ONLY, "d2t", "t2d"}
    parameters = sum(tensor.numel() for name, tensor in tensors.items() if name not in left_out)
    return Trained(DraftRunner(config, tensors, device), steps, parameters)


def _stock(
    recipe: Recipe,
    data: PackedShards,
    verifier: TextConfig,
    rows: VerifierRows,
    vocabulary: DraftVocabulary,
    device: torch.device,
) -> tuple[dict[str, Any], dict[str, Tensor], int]:
    """speculators' forward, loss, optimizers (Muon's are for matrices, AdamW has the rest), schedule and clipping."""
    choices = choose(recipe, device)
    config = draft_config(recipe, verifier, data.layer_ids, vocabulary.size, choices["attention"])
    model = build_draft(config, rows, vocabulary, recipe.seed).to(device)
    stock = TrainerConfig(lr=recipe.lr, num_epochs=recipe.epochs, save_path="", optimizer=recipe.optimizer, muon_lr=recipe.lr)
    optimizers = build_optimizers(model, stock)
    epochs = [data.packs(epoch) for epoch in range(recipe.epochs)]
    steps = sum(map(len, epochs))
    schedulers = [get_linear_schedule_with_warmup(one, steps // 100, steps) for one in optimizers]
    loss_config = resolve_loss_config(recipe.loss, choices["loss"])
    for pack in (pack for packs in epochs for pack in packs):
        batch = {key: value.to(device) for key, value in data.load(pack).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(**batch, ttt_steps=recipe.ttt_steps, ttt_step_loss_decay=recipe.ttt_decay, loss_config=loss_config)[1]
        for one in optimizers:
            one.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for each in (*optimizers, *schedulers):
            each.step()
    return draft_config_values(config, torch.float32), model.state_dict(), steps


def judge(
    verifier: Verifier,
    draft: DraftRunner,
    held_out: Mapping[str, Sequence[Sequence[int]]],
    temperatures: Sequence[float],
    k: int,
    longest: int,
    stops: Sequence[int],
) -> dict[float, dict[str, list[Acceptance]]]:
    """What each prompt gives, by temperature and kind of prompt: all decoded with the draft, side by side.

    At a temperature each has a stream of its own, the same for all drafts.
    """
    asked = [(heat, kind, number) for heat in temperatures for kind in held_out for number in range(len(held_out[kind]))]
    found: dict[float, dict[str, list[Acceptance]]] = {heat: {kind: [] for kind in held_out} for heat in temperatures}
    for some in (asked[start : start + PROPOSE_ROWS] for start in range(0, len(asked), PROPOSE_ROWS)):
        prompts = [held_out[kind][number] for _, kind, number in some]
        choices = [Sampling(heat, number) if heat else Greedy() for heat, _, number in some]
        results = decode_all(verifier, draft, prompts, k, longest, stops, choices)
        for (heat, kind, _), result in zip(some, results, strict=True):
            found[heat][kind].append(result.acceptance)
    return found
