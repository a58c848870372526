"""What states from an engine are filed under: the engine, its version and dtype; never where it is or how it is asked."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from artifacts.key import node_parts
from artifacts.manifest import Ref
from artifacts.stage import Input, Made, Node
from errors import UserError
from tasks import engine_states, hidden_states, layer_reference
from tasks.handles import Shard, Verifier
from tasks.settings import Settings

ROLES = {role: f"{role} digest" for role in ("embed", "layer", "norm", "lm_head", "numbers", "tokenizer")}
VERIFIER = Verifier("org/small", {"roles": ROLES, "num_layers": 8, "hidden_size": 64}, "", Input("", path="/verifier"), None)
SHARD = Shard("shard 1/1", Input("ids digest"), Input("masks digest"), 100)


def settings(folder: Path, endpoint: dict[str, Any] | None = None, **chosen: Any) -> Settings:
    drawn = {"source": "engine", "engine_version": "0.32.0", **chosen}
    where = {"url": "http://127.0.0.1:8000/v1", "states_folder": str(folder), **(endpoint or {})}
    return Settings.model_validate({"hidden_states": drawn, "endpoint": where})


def node(given: Settings, reference: str = "a") -> Node:
    made = Made(
        layer_reference.node(given, VERIFIER), {"reference": Ref(kind="layer_reference", digest=reference * 64, facts={})}
    )
    (found,) = engine_states.nodes(given, [SHARD], VERIFIER, made, hidden_states.layer_ids(given, VERIFIER), 512)
    return found


def test_addresses_and_manners_are_in_no_key(tmp_path: Path) -> None:
    here = node_parts(node(settings(tmp_path)))
    other = {
        "url": "http://elsewhere:9/v1",
        "states_folder": "/elsewhere",
        "concurrency": 99,
        "model": "m",
        "api_key_env": "KEY",
    }
    assert node_parts(node(settings(tmp_path, other))) == here
    assert node_parts(node(settings(tmp_path), reference="b")) == here  # it says only whether the states are right
    assert not any("8000" in part or str(tmp_path) in part for part in here.values())


def test_engine_version_dtype_and_layers_are_in_it(tmp_path: Path) -> None:
    here = node_parts(node(settings(tmp_path)))
    for change in ({"engine_version": "0.33.0"}, {"compute_dtype": "bfloat16"}, {"layer_ids": [1, 2, 3]}):
        assert node_parts(node(settings(tmp_path, **change))) != here


def test_an_engine_does_not_change_the_keys_of_our_own_extraction(tmp_path: Path) -> None:
    ours = [hidden_states.nodes(given, [SHARD], VERIFIER) for given in (Settings(), settings(tmp_path))]
    assert node_parts(ours[0][0]) == node_parts(ours[1][0])


def test_what_cannot_be_asked_is_refused_before_anything_runs(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="give hidden_states.engine_version"):
        settings(tmp_path, engine_version=None)
    with pytest.raises(UserError, match="endpoint.url is empty"):
        engine_states.check(settings(tmp_path, {"url": None}))
    with pytest.raises(UserError, match="states_folder is .*missing: give the folder"):
        engine_states.check(settings(tmp_path / "missing"))
    engine_states.check(settings(tmp_path))
    engine_states.check(Settings())
