"""How a vLLM is started that gives hidden states."""

import json
from collections.abc import Sequence
from pathlib import Path

from kimi_adapters.layer_ids import check_layer_ids, to_vllm

PLUGINS = Path(__file__).parents[1] / "engine_plugins"  # on the engine's PYTHONPATH: it imports nothing of ours


def hidden_states_arguments(layer_ids: Sequence[int], num_layers: int, folder: Path, without_cuda: bool) -> list[str]:
    """Further arguments of `vllm serve`: the states that enter ``layer_ids``, and the last before the norm, go to ``folder``.

    vLLM's own connector copies through CUDA; ``without_cuda`` names ours in its place. Prefix caching is off: with it, states
    of a prompt's beginning may be another request's.
    """
    ids = [*to_vllm(check_layer_ids(layer_ids, num_layers)), num_layers]
    speculative = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": {"eagle_aux_hidden_state_layer_ids": ids}},
    }
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    if without_cuda:
        transfer |= {"kv_connector": "HiddenStatesConnector", "kv_connector_module_path": "hidden_states_connector"}
    return [
        "--no-enable-prefix-caching",
        "--speculative-config",
        json.dumps(speculative),
        "--kv-transfer-config",
        json.dumps(transfer),
    ]
