"""A look at an engine before anything large is drawn: is it the one named, and are its hidden states those of our layers?"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from errors import UserError
from kimi_adapters.engine_client import EngineClient
from kimi_adapters.engine_requests import RequestFailed
from kimi_adapters.engine_states import IDS, STATES, Source, not_there, read, remove
from kimi_adapters.layer_proof import Proof, Prover

_GENERATED = 16  # tokens of the engine's own that the last states must give


def require_engine(client: EngineClient, version: str | None, longest: int) -> None:
    """``UserError`` where the engine is another than said, caches prefixes, or takes no samples of ``longest`` tokens."""
    client.require_model()
    told = client.version()
    if version is not None and told != version:
        raise UserError(
            f"the endpoint {client.url} runs version {told}, and hidden_states.engine_version is {version}: set it, and states "
            "are drawn anew"
        )
    if caches_prefixes(client.metrics()) is not False:
        raise UserError(
            f"the endpoint {client.url} does not say that prefix caching is off, with which states of shared prompts may be of "
            "another request: start it with --no-enable-prefix-caching"
        )
    lengths = [one.get("max_model_len") for one in client.get("/v1/models")["data"] if one.get("id") == client.model]
    if lengths and isinstance(lengths[0], int) and lengths[0] <= longest:
        raise UserError(
            f"the endpoint {client.url} takes {lengths[0]} tokens with the one it generates, and the longest sample has "
            f"{longest}: start it with --max-model-len {longest + 1}, or lower corpus.max_length"
        )


def caches_prefixes(metrics: str) -> bool | None:
    """What vLLM's metrics say of prefix caching; None where they say nothing."""
    try:
        families = list(text_string_to_metric_families(metrics))
    except ValueError:
        return None
    labels = [one.labels for family in families for one in family.samples if one.name == "vllm:cache_config_info"]
    told = {one.get("enable_prefix_caching") for one in labels}
    return True if "True" in told else False if told == {"False"} else None


def examine(client: EngineClient, source: Source, token_ids: Sequence[int], prover: Prover) -> Proof:
    """Fetches the states of a text and of the engine's own greedy answer to it, and says what they are."""
    try:
        found = client.post("/v1/completions", _request(source.model, token_ids))
    except RequestFailed as error:
        raise UserError(f"the endpoint {client.url} gives no states of a text of {len(token_ids)} tokens: {error}") from None
    path, answer = _read(client, source, found)
    try:
        states = read(path, source.timeout)
    finally:
        remove([path])
    if states is None:
        raise UserError(f"the endpoint {client.url} gives no states, since {not_there(path)}")
    if states[IDS].tolist() != [*token_ids, *answer[:-1]]:
        raise UserError(
            f"the endpoint {client.url} gave states of other tokens than it was sent: start it as `eyas engine-command` says"
        )
    return prover.prove(states[STATES], answer)


def _request(model: str, token_ids: Sequence[int]) -> dict[str, Any]:
    return {
        "model": model,
        "prompt": list(token_ids),
        "max_tokens": _GENERATED,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "kv_transfer_params": {"include_output_tokens": True},
    }


def _read(client: EngineClient, source: Source, found: Any) -> tuple[Path, list[int]]:
    try:
        return source.local(found["kv_transfer_params"]["hidden_states_path"]), list(found["choices"][0]["token_ids"])
    except (TypeError, KeyError, IndexError):
        raise UserError(
            f"the endpoint {client.url} answers without a file of states: start the engine as `eyas engine-command` says"
        ) from None
