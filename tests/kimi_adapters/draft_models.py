"""Tiny speculators drafts for tests; apart from draft_fixtures because importing speculators takes 14 s."""

import itertools
from typing import Any

import torch
from speculators.models.eagle3 import Eagle3DraftModel

from kimi_adapters.config import TextConfig
from kimi_adapters.draft import VerifierRows, build_draft, draft_config
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.recipe import Recipe
from tests.kimi_adapters.draft_fixtures import LAYER_IDS, VERIFIER, VOCABULARY, generator, verifier_tensors

FLAGS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
# All that speculators allows: norm_before_fc and fc_norm exclude each other.
FLAG_SETS: list[dict[str, Any]] = [
    dict(zip(FLAGS, values, strict=True))
    for values in itertools.product((False, True), repeat=4)
    if not (values[1] and values[2])
]


def flag_name(flags: dict[str, Any]) -> str:
    return "+".join(name if value is True else str(value) for name, value in flags.items() if value) or "plain"


def tiny_rows(vocabulary: DraftVocabulary = VOCABULARY) -> VerifierRows:
    embed, norm, head = verifier_tensors()
    return VerifierRows(embed, norm, head[vocabulary.targets()])


def tiny_draft(
    recipe: Recipe | None = None,
    vocabulary: DraftVocabulary = VOCABULARY,
    verifier: TextConfig = VERIFIER,
    attention: str = "sdpa",
    spread: float = 0.2,
    verifier_name: str | None = None,
) -> Eagle3DraftModel:
    """A draft whose every trainable tensor, norms too, is away from its initial value."""
    config = draft_config(recipe or Recipe(), verifier, LAYER_IDS, vocabulary.size, attention, verifier_name)
    model = build_draft(config, tiny_rows(vocabulary), vocabulary, seed=0, train_lm_head=bool(recipe and recipe.train_lm_head))
    source = generator(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += spread * torch.randn(parameter.shape, generator=source)
    return model
