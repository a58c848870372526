"""Which draft ``training.parent`` names, that it is in keys by content and in the lineage by name, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.aliases import Aliases
from artifacts.manifest import Ref
from artifacts.records import Records
from artifacts.stage import Input, Made, Node, Pending, Stage
from artifacts.store import Store
from errors import UserError
from running.identity import FileMemo
from tasks import parents, training, vocabulary
from tasks.champions import scope
from tasks.handles import Verifier
from tasks.settings import Settings
from tests.artifacts.pipelines import Pipeline
from tests.kimi_adapters.test_inheritance import LAYER, PARENT

LAYERS = [1, 3, 5]
MADE = Made(Node(Stage("validation", "tasks.validation", ()), "", {}, {}), None)


@pytest.fixture
def verifier(tmp_path: Path) -> Verifier:
    """A verifier of the parent's sizes, as the flow knows it."""
    folder = tmp_path / "verifier"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": 32, "vocab_size": 97, "num_hidden_layers": 6, "num_attention_heads": 4,
        "intermediate_size": 48, "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    roles = dict.fromkeys(("embed", "norm", "lm_head", "numbers", "tokenizer"), "ab")
    return Verifier("v", {"roles": roles, "vocab_size": 97}, "", Input("", path=str(folder)), None)


def write_draft(folder: Path, config: Any = PARENT, weights: bytes = b"weights") -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").write_bytes(weights)
    return folder


def drafts_of(tmp_path: Path, *weights: bytes) -> list[Ref]:
    """Drafts in the store, each with the record of its training."""
    store = Store(tmp_path / "store")
    made = Pipeline(store, Records(store.root))
    refs = []
    for one in weights:
        files = {"config.json": json.dumps(PARENT).encode(), "model.safetensors": one}
        refs.append(made.blob("draft", files, hidden_size=32))
        made.node("training", one.decode(), {}, {"draft": refs[-1]})
    return refs


def find(tmp_path: Path, verifier: Verifier, parent: str | None, **recipe: Any) -> Input | Pending | None:
    chosen = {"num_layers": 2, "norm_before_fc": True, "parent": parent, **recipe}
    settings = settings_of(tmp_path, **chosen)
    return parents.find(settings, verifier, LAYERS, FileMemo(tmp_path / "state"))


def settings_of(tmp_path: Path, **training: Any) -> Settings:
    store = {"path": str(tmp_path / "store"), "state": str(tmp_path / "state")}
    return Settings.model_validate({"store": store, "training": training})


def test_a_digest_or_its_beginning(tmp_path: Path, verifier: Verifier) -> None:
    first, second = drafts_of(tmp_path, b"first", b"second")
    assert find(tmp_path, verifier, None) is None
    for ref in (first, second):
        assert find(tmp_path, verifier, ref.digest) == find(tmp_path, verifier, ref.digest[:8]) == Input.of(ref)
    with pytest.raises(UserError, match="no alias of this verifier's drafts"):
        find(tmp_path, verifier, "0" * 12)
    for path in Records(tmp_path / "store").paths():
        path.unlink()
    found = find(tmp_path, verifier, first.digest[:8])  # by its blob alone
    assert isinstance(found, Input) and found.digest == first.digest and found.ref and found.ref.kind == "draft"


def test_an_alias_is_of_this_verifiers_drafts_and_stands_in_the_lineage_alone(tmp_path: Path, verifier: Verifier) -> None:
    first, second = drafts_of(tmp_path, b"first", b"second")
    aliases = Aliases(tmp_path / "state")
    aliases.move("abcdef", "champion", first.digest, None, "of another verifier")
    with pytest.raises(UserError, match="'champion': no alias of this verifier's drafts"):
        find(tmp_path, verifier, "champion")
    aliases.move(str(scope(verifier)), "champion", second.digest, None, "it was better")
    assert find(tmp_path, verifier, "champion") == Input(second.digest, ref=second, path="champion")
    aliases.move(str(scope(verifier)), "lost", "ee" * 32, None, "its record is gone")
    with pytest.raises(UserError, match="alias of eeeeeeeeeeee, which is no draft"):
        find(tmp_path, verifier, "lost")


def test_a_folder_counts_by_its_configuration_and_weights(tmp_path: Path, verifier: Verifier) -> None:
    one, moved = write_draft(tmp_path / "one"), write_draft(tmp_path / "elsewhere" / "two")
    other = write_draft(tmp_path / "other", weights=b"weights of another")
    (moved / "README.md").write_text("a card")
    found = [find(tmp_path, verifier, str(folder)) for folder in (one, moved, other)]
    assert all(isinstance(each, Input) and each.ref is None for each in found)
    first, second, third = (each for each in found if isinstance(each, Input))
    assert first.digest == second.digest != third.digest and first.path == str(one)
    (one / "model.safetensors").unlink()
    with pytest.raises(UserError, match="no safetensors files"):
        find(tmp_path, verifier, str(one))


def test_a_recipe_that_does_not_fit_is_refused_while_planning(tmp_path: Path, verifier: Verifier) -> None:
    (ref,) = drafts_of(tmp_path, b"first")
    with pytest.raises(UserError, match="training.num_layers 2 and not 1"):
        find(tmp_path, verifier, ref.digest, num_layers=1)
    wide = {**PARENT, "transformer_layer_config": {**LAYER, "hidden_size": 64}}
    with pytest.raises(UserError, match="hidden size 64, and this one has"):
        find(tmp_path, verifier, str(write_draft(tmp_path / "wide", wide)))
    odd = {**PARENT, "transformer_layer_config": {**LAYER, "num_attention_heads": 5, "num_key_value_heads": 5}}
    with pytest.raises(UserError, match="5 heads, which do not divide"):
        find(tmp_path, verifier, str(write_draft(tmp_path / "odd", odd)))
    folder = write_draft(tmp_path / "torn")
    (folder / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        find(tmp_path, verifier, str(folder))


def test_a_verifier_that_is_not_made_yet_leaves_it_open(tmp_path: Path) -> None:
    made_later = Verifier("v", None, "verifier · smollm2", None, None)
    assert find(tmp_path, made_later, "champion") == Pending("verifier · smollm2")


def test_it_is_an_input_of_vocabulary_and_training_and_its_name_is_in_no_setting(tmp_path: Path, verifier: Verifier) -> None:
    (ref,) = drafts_of(tmp_path, b"first")
    named, plain = settings_of(tmp_path, parent=ref.digest, min_parent_coverage=0.9), settings_of(tmp_path)
    memo = FileMemo(tmp_path / "state")

    def nodes(settings: Settings, parent: Input | None) -> tuple[Node, Node]:
        return (
            vocabulary.node(settings, [], verifier, None, parent),
            training.node(settings, [], [], MADE, MADE, verifier, memo, parent),
        )

    (words, trained), (plain_words, plain_trained) = nodes(named, Input.of(ref)), nodes(plain, None)
    assert words.inputs["parent"] == trained.inputs["parent"] == Input.of(ref)
    assert "parent" not in plain_words.inputs and "parent" not in plain_trained.inputs
    assert words.settings == {**plain_words.settings, "min_parent_coverage": 0.9}
    assert trained.settings == plain_trained.settings and not {"parent", "min_parent_coverage"} & set(trained.settings)
