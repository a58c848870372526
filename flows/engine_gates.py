"""Gates on what a serving engine made of the draft."""

from artifacts.stage import Made
from flows.gates import facts_of, gate
from tasks.settings import Settings


def engine_gap(judged: list[Made], engine: Made) -> dict[str, float]:
    """How far acceptance in the engine is from our own, by method: from real decoding and the replay of its answers, or from
    replay on held-out text alone."""
    (measured,) = facts_of([engine], "engine_acceptance")
    own = {facts["method"]: facts for facts in reversed(facts_of(judged, "acceptance"))}  # the draft's own come first
    lengths = {method: facts["length"] for method, facts in own.items()}
    if "real decoding" in own:
        lengths["replay"] = own["real decoding"]["replay_length"]  # of the same prompts
    return {method: round(measured["length"] - length, 4) for method, length in lengths.items()}


def gate_engine(settings: Settings, judged: list[Made], engines: list[Made]) -> None:
    """Stop when the engine accepts clearly more or less than we do, or when its answers change with the draft."""
    for made, facts in zip(engines, facts_of(engines, "engine_acceptance"), strict=False):
        gaps = engine_gap(judged, made)
        method = "real decoding" if "real decoding" in gaps else "replay"
        gate(
            settings,
            abs(gaps.get(method, 0.0)) > settings.gates.max_engine_gap,
            f"{facts['engine']} has an acceptance length of {facts['length']}, {gaps.get(method, 0.0):+.2f} from our {method}, "
            f"more than gates.max_engine_gap = {settings.gates.max_engine_gap}: see that it serves this draft and verifier, "
            "feeds the draft the auxiliary layers that its config.json names, and takes its d2t as offsets",
        )
        changed, unstable = (facts["prompts"] - facts.get(name, facts["prompts"]) for name in ("equal", "repeats_equal"))
        gate(
            settings,
            changed > unstable,
            f"{facts['engine']} answers {changed} of {facts['prompts']} prompts otherwise with the draft, and {unstable} when "
            "it is asked again without one: speculation must not change greedy text, so see that engine's settings",
        )
