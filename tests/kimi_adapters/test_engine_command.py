"""The engine is asked for the states that enter the layers, and for the last one before the norm."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from errors import UserError
from kimi_adapters.engine_command import PLUGINS, hidden_states_arguments


def option(arguments: list[str], name: str) -> Any:
    return json.loads(arguments[arguments.index(name) + 1])


def test_the_ids_are_ours_and_the_last_is_the_number_of_layers() -> None:
    arguments = hidden_states_arguments([2, 30, 58], 61, Path("/states"), without_cuda=False)
    chosen = option(arguments, "--speculative-config")["draft_model_config"]["hf_config"]
    assert chosen == {"eagle_aux_hidden_state_layer_ids": [2, 30, 58, 61]}
    assert "--no-enable-prefix-caching" in arguments
    assert option(arguments, "--kv-transfer-config")["kv_connector"] == "ExampleHiddenStatesConnector"
    with pytest.raises(UserError, match="do not fit a verifier of 61 layers"):
        hidden_states_arguments([2, 30, 61], 61, Path("/states"), without_cuda=False)


def test_without_cuda_our_connector_is_named_and_imports_nothing_of_ours() -> None:
    transfer = option(hidden_states_arguments([1], 4, Path("/states"), without_cuda=True), "--kv-transfer-config")
    tree = ast.parse((PLUGINS / f"{transfer['kv_connector_module_path']}.py").read_text())
    assert transfer["kv_connector"] in {one.name for one in tree.body if isinstance(one, ast.ClassDef)}
    imported = {one.module for one in ast.walk(tree) if isinstance(one, ast.ImportFrom)}
    assert {str(name).split(".")[0] for name in imported} == {"safetensors", "vllm"}
