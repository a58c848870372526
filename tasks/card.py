"""The card of an exported draft: what it is, how good, made how and from what, and how it is served."""

import json
from collections.abc import Mapping
from typing import Any

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Node
from tasks.markdown import markdown_table

# The facts of an acceptance that a card shows, and so all that an export depends on of it.
SHOWN = ("method", "k", "length", "low", "high", "per_position", "untrained_length", "prompts", "tokens")
_FORMATS = {"vllm": "Speculators' format, for vLLM", "sglang": "Flat LlamaForCausalLMEagle3, for SGLang"}
_SINCE_FC_NORM = ("norm_before_fc", "fc_norm", "norm_output")


def data_digests(training: Node) -> dict[str, str]:
    """What a draft was trained on, by digest: one for each kind of the training's inputs, of several their list's."""
    kinds: dict[str, list[str]] = {}
    for name, source in training.inputs.items():
        if isinstance(source, Input):
            kinds.setdefault(name.partition(".")[0], []).append(source.digest)
    lists = {kind: (len(digests), digest_bytes(canonical_json(digests))) for kind, digests in kinds.items() if len(digests) > 1}
    single = {kind: digests[0] for kind, digests in kinds.items() if len(digests) == 1}
    return single | {f"{kind} of {count} shards": digest for kind, (count, digest) in lists.items()}


def card(config: Mapping[str, Any], settings: Mapping[str, Any], draft: str, judged: list[dict[str, Any]]) -> str:
    """The markdown. `config` is the draft's own, `settings` the export node's, `draft` its digest."""
    layers, layer = config["eagle_aux_hidden_state_layer_ids"], config["transformer_layer_config"]
    rope = dict(layer["rope_parameters"])
    turned = ", ".join([f"rope {rope.pop('rope_type')}", *(f"{name} {value}" for name, value in sorted(rope.items()))])
    recipe = [[name, json.dumps(value)] for name, value in sorted(settings["recipe"].items()) if value is not None]
    data = [["draft", f"`{draft}`"], *([kind, f"`{digest}`"] for kind, digest in settings["data"].items())]
    return "\n\n".join(
        [
            f"# EAGLE-3 draft for {settings['verifier_name']}",
            f"{_FORMATS[settings['engine']]}; {settings['dtype']}. It proposes {config['draft_vocab_size']:,} of "
            f"{layer['vocab_size']:,} tokens. Auxiliary layers {layers} (states that enter them; SGLang counts from the layer "
            f"that they leave). Positions up to {layer['max_position_embeddings']:,}, {turned}.",
            "## Serving",
            f"```\n{command(settings)}\n```",
            *_version(config, settings["engine"]),
            "## Acceptance",
            _acceptance(judged),
            "## Recipe",
            markdown_table(["setting", "value"], recipe),
            "## Data",
            markdown_table(["artifact", "digest"], data),
            "",
        ]
    )


def command(settings: Mapping[str, Any]) -> str:
    """How the engine is started with the draft."""
    name, k = settings["verifier_name"], settings["k"]
    if settings["engine"] == "vllm":
        speculative = json.dumps({"method": "eagle3", "model": "THIS_DIRECTORY", "num_speculative_tokens": k})
        return f"vllm serve {name} --speculative-config '{speculative}'"
    return (
        f"python -m sglang.launch_server --model-path {name} --speculative-algorithm EAGLE3 \\\n"
        f"  --speculative-draft-model-path THIS_DIRECTORY --speculative-num-steps {k} --speculative-eagle-topk 1 \\\n"
        f"  --speculative-num-draft-tokens {k + 1}"
    )


def _version(config: Mapping[str, Any], engine: str) -> list[str]:
    """What an older engine would do to this draft without a word."""
    flags = [name for name in _SINCE_FC_NORM if config[name]]
    several = ["more than one layer"] if config["transformer_layer_config"]["num_hidden_layers"] > 1 else []
    if engine != "sglang" or not [*flags, *several]:
        return []
    return [f"SGLang 0.5.23 or later: this draft has {', '.join([*flags, *several])}, which earlier ones may ignore."]


def _acceptance(judged: list[dict[str, Any]]) -> str:
    """A row a method; lengths are tokens a verifier step, the bonus token included."""
    if not judged:
        return "Not measured when this was exported."
    rows = []
    for one in judged:
        facts = {name: one.get(name) for name in SHOWN}
        interval = "" if facts["low"] is None else f"{facts['low']:.2f} to {facts['high']:.2f}"
        positions = ", ".join(f"{share:.0%}" for share in facts["per_position"] or ())
        untrained = "" if facts["untrained_length"] is None else f"{facts['untrained_length']:.2f}"
        counts = f"{facts['prompts'] or 0:,} samples, {facts['tokens'] or 0:,} tokens"
        rows.append(
            [str(facts["method"]), str(facts["k"]), f"**{facts['length']:.2f}**", interval, positions, untrained, counts]
        )
    head = ["method", "k", "acceptance length", "95% interval", "accepted at 1, 2, …", "untrained", "measured on"]
    return f"{markdown_table(head, rows)}\n\nAcceptance length: tokens a verifier step, the bonus token included."
