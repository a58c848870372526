"""The layer-id proof as a person asks for it: a table of what an engine's states are, and what is wrong with them."""

from pathlib import Path
from typing import Any

from errors import UserError
from tasks import endpoint
from tasks.settings import Settings


def layer_table(
    directory: Path,
    layer_ids: list[int] | None,
    dtype: str,
    *,
    model: str | None,
    reference: Any = None,
    **endpoint_settings: Any,
) -> tuple[str, str | None]:
    """The table, and the fault in words that end a sentence about the endpoint (None: all is right).

    ``layer_ids`` None: the default ones. ``model`` None: the only one that the endpoint serves. ``reference`` None: computed
    once the endpoint has answered.
    """
    from kimi_adapters.engine_probe import examine, require_engine
    from kimi_adapters.engine_states import Source
    from kimi_adapters.layer_ids import default_layer_ids
    from kimi_adapters.layer_proof import Prover
    from kimi_adapters.weights import Checkpoint

    chosen = _checked(endpoint_settings)
    checkpoint = Checkpoint(directory)
    knobs = endpoint.knobs(chosen)
    with endpoint.client(knobs, model or "") as client:
        client.model = model or _only(client.models(), chosen.endpoint.url)
        reference = reference or own_reference(directory, dtype)
        require_engine(client, None, len(reference.token_ids))
        folder = chosen.endpoint.states_folder
        source = Source(client.url, client.model, Path(folder) if folder else None)
        ids = layer_ids or default_layer_ids(checkpoint.config.num_layers)
        prover = Prover(reference, checkpoint, ids, dtype)
        proof = examine(client, source, reference.token_ids.tolist(), prover)
    lines = [f"{'asked for':<12}{'is':<20}{'error':>9}{'next nearest':>14}{'as asked for':>14}"]
    lines += [
        f"{one.asked:<12}{one.found:<20}{one.error:>9.1e}{one.next_error:>14.1e}{one.asked_error:>14.1e}"
        for one in proof.findings
    ]
    lines.append(f"norm and head on the last state give {proof.agreed} of the engine's own {proof.generated} next tokens")
    return "\n".join(lines), prover.fault(proof)


def own_reference(directory: Path, dtype: str) -> Any:
    """What the engine's states are held against: our own forward of the proof's text, on a GPU where there is one."""
    import torch

    from kimi_adapters.own_streams import own_streams, proof_ids
    from kimi_adapters.weights import Checkpoint

    device = "cuda" if torch.cuda.is_available() else "cpu"
    return own_streams(Checkpoint(directory), proof_ids(directory), device, getattr(torch, dtype))


def _checked(endpoint_settings: dict[str, Any]) -> Settings:
    from pydantic import ValidationError

    try:
        settings = Settings.model_validate({"endpoint": endpoint_settings})
    except ValidationError as error:
        first = error.errors()[0]
        option = {"url": "--endpoint", "api_key_env": "--api-key-env"}.get(str(first["loc"][-1]), "an option")
        raise UserError(f"{option} is wrong: {first['msg'].removeprefix('Value error, ')}") from None
    endpoint.check(settings, "eyas prove-layers")
    return settings


def _only(models: list[str], url: str | None) -> str:
    if len(models) != 1:
        raise UserError(f"the endpoint {url} serves {', '.join(models) or 'nothing'}: name the verifier's with --model")
    return models[0]
