"""What the stages refuse before anything runs: settings that contradict each other, or that the verifier does not fit."""

import logging

from errors import UserError
from tasks import (
    acceptance,
    comparison,
    draft_shape,
    endpoint_synthesis,
    engine_acceptance,
    engine_states,
    export,
    training,
    verifier,
    vocabulary,
)
from tasks.handles import Verifier
from tasks.settings import Settings

log = logging.getLogger("eyas")


def check_settings(settings: Settings) -> None:
    """``UserError`` for what can be known without the verifier."""
    verifier.check(settings.verifier)
    acceptance.check(settings)
    _warn(engine_acceptance.check(settings))
    if settings.synthesis.source == "endpoint":
        endpoint_synthesis.check(settings)
    training.check(settings)
    engine_states.check(settings)


def check_target(settings: Settings, target: Verifier, layer_ids: list[int]) -> None:
    """``UserError`` for what the verifier does not fit."""
    check_length(settings, target)
    verifier.check_decodes(settings, target)
    vocabulary.check(settings, target)
    draft_shape.check(settings, target)
    export.check(settings, target, layer_ids)
    decodes = settings.acceptance.prompts is not None and verifier.decodes(target)
    _warn(comparison.check(settings, target, layer_ids, decodes))


def _warn(sentences: list[str]) -> None:
    for sentence in sentences:
        log.warning("%s", sentence)


def check_length(settings: Settings, target: Verifier) -> None:
    """Refuse samples longer than the verifier reads: its states would be of positions that it never learned."""
    longest = target.facts.get("max_length") if target.facts else None
    if longest is not None and settings.corpus.max_length > longest:
        raise UserError(
            f"corpus.max_length is {settings.corpus.max_length} and the verifier reads {longest} tokens "
            "(max_position_embeddings of its config.json): lower it"
        )
