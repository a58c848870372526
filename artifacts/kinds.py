"""The closed schema of facts: what a reference of each kind may say, and in which type."""

from typing import Any

_STR, _INT, _FLOAT, _LIST, _DICT = str, int, (float, int), list, dict

KINDS: dict[str, dict[str, Any]] = {
    "verifier": {
        "family": _STR,
        "roles": _DICT,
        "vocab_size": _INT,
        "hidden_size": _INT,
        "num_layers": _INT,
        "max_length": _INT,
        "parameters": _INT,
    },
    "conversations": {
        "conversations": _INT,
        "prompts": _INT,
        "tokens": _INT,
        "errors": _INT,
        "reasons": _DICT,
        "text_only": _INT,
    },
    "token_shard": {"tokens": _INT, "samples": _INT},
    "loss_masks": {
        "tokens": _INT,
        "samples": _INT,
        "train_samples": _INT,
        "held_out_samples": _INT,
        "train_supervised": _INT,
        "held_out_supervised": _INT,
    },
    "rejects": {
        "rows": _INT,
        "conversations": _INT,
        "samples": _INT,
        "duplicates": _INT,
        "rejects": _INT,
        "forgotten": _INT,
        "reasons": _DICT,
        "supervised": _INT,
        "lost_supervised": _INT,
        "lost_by_length": _DICT,
        "round_trip": _FLOAT,
    },
    "hidden_states": {"tokens": _INT, "hidden_size": _INT, "layer_ids": _LIST, "dtype": _STR},
    "layer_reference": {"tokens": _INT, "layers": _INT, "hidden_size": _INT},
    "state_stats": {"tokens": _INT, "samples": _INT, "not_finite": _INT, "unusable": _DICT},
    "comparison": {"rows": _INT, "relative_error": _FLOAT, "worst_row": _FLOAT, "agreement": _FLOAT},
    "shard_check": {
        "samples": _INT,
        "tokens": _INT,
        "supervised": _INT,
        "read": _INT,
        "scored": _INT,
        "score": _FLOAT,
        "agreement": _FLOAT,
        "faults": _LIST,
    },
    "validation_report": {
        "samples": _INT,
        "tokens": _INT,
        "supervised": _INT,
        "quarantined": _INT,
        "rate": _FLOAT,
        "reasons": _DICT,
        "dropped": _DICT,
        "faults": _LIST,
        "norms": _DICT,
        "scored": _INT,
        "score": _FLOAT,
        "agreement": _FLOAT,
    },
    "quarantine": {"samples": _INT, "dropped": _INT},
    "vocabulary": {
        "size": _INT,
        "target_size": _INT,
        "special": _INT,
        "coverage": _FLOAT,
        "held_out_coverage": _FLOAT,
        "parent": _STR,
        "parent_coverage": _FLOAT,
        "coverage_by_slice": _DICT,
        "supervised_by_slice": _DICT,
    },
    "draft": {
        "hidden_size": _INT,
        "draft_vocab_size": _INT,
        "layer_ids": _LIST,
        "steps": _INT,
        "best_step": _INT,
        "continued_at": _INT,
        "parent_tokens": _INT,
        "cut_samples": _INT,
        "replayed_length": _FLOAT,
        "replayed_samples": _INT,
        "loss": _FLOAT,
        "choices": _DICT,
    },
    "draft_start": {"seed": _INT},
    "curves": {"steps": _INT, "tokens": _INT, "loss": _FLOAT, "loader_share": _FLOAT, "loader_rate": _INT},
    "acceptance": {
        "method": _STR,
        "k": _INT,
        "length": _FLOAT,
        "low": _FLOAT,
        "high": _FLOAT,
        "per_position": _LIST,
        "untrained_length": _FLOAT,
        "untrained_per_position": _LIST,
        "prompts": _INT,
        "tokens": _INT,
        "steps": _INT,
        "lossless": _INT,
        "replay_length": _FLOAT,
    },
    "engine_acceptance": {
        "engine": _STR,
        "k": _INT,
        "concurrency": _INT,
        "prompts": _INT,
        "prompts_as_ours": _INT,
        "tokens": _INT,
        "steps": _INT,
        "length": _FLOAT,
        "per_position": _LIST,
        "tokens_per_s": _FLOAT,
        "degenerate": _INT,
        "sound_length": _FLOAT,
        "warm": _DICT,
        "plain_tokens_per_s": _FLOAT,
        "equal": _INT,
        "repeats_equal": _INT,
    },
    "export": {"engine": _STR, "dtype": _STR, "parameters": _INT, "reload_checked": _INT, "served": _STR},
    "decision": {
        "verdict": _STR,
        "reasons": _LIST,
        "candidate": _STR,
        "champion": _STR,
        "verifier": _STR,
        "methods": _LIST,
    },
}


def check_facts(kind: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return ``facts`` when each is known to ``kind`` and of its type; raise ``ValueError`` otherwise."""
    if kind not in KINDS:
        raise ValueError(f"unknown artifact kind {kind!r}")
    for name, value in facts.items():
        if name not in KINDS[kind]:
            raise ValueError(f"{kind} has no fact {name!r}")
        if not isinstance(value, KINDS[kind][name]) or isinstance(value, bool):
            raise ValueError(f"fact {name} of {kind} has type {type(value).__name__}")
    return facts
