"""The export stage on a tiny draft: both directories come back, and what an engine would misread is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts.manifest import Ref
from artifacts.stage import Input, Made, Node, Pending, Stage
from artifacts.writer import ArtifactWriter
from errors import UserError
from kimi_adapters import draft_formats, torch_file
from kimi_adapters.deepseek_config import YarnScaling
from kimi_adapters.draft import save_draft
from kimi_adapters.draft_layers import DraftLayers
from kimi_adapters.draft_reload import first_drafts
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.llama_config import Llama3Scaling
from kimi_adapters.published_draft import read_published
from kimi_adapters.recipe import Recipe
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.tiny_config import Options, config_values
from kimi_adapters.torch_file import write_tensors
from tasks import export
from tasks.formats import ACCEPTANCE
from tasks.handles import Verifier
from tasks.settings import Settings
from tests.kimi_adapters.draft_fixtures import VERIFIER, VOCABULARY, generator, outputs_in, save, verifier_tensors
from tests.kimi_adapters.draft_models import tiny_draft
from tests.kimi_adapters.sglang_loader import load
from tests.tasks.stage_jobs import Bench

FACTS = {"method": "replay", "k": 3, "length": 2.5, "low": 2.25, "high": 2.75, "per_position": [0.8, 0.5], "tokens": 900}
SETTINGS: dict[str, Any] = {
    "verifier_name": "org/verifier",
    "k": 3,
    "recipe": {"lr": 0.001, "layer_ids": [1, 3, 5]},
    "data": {"ids of 2 shards": "ab12"},
}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A store beside as much of a verifier as an export reads."""
    folder = tmp_path_factory.mktemp("export")
    embed, norm, head = verifier_tensors()
    (folder / "verifier").mkdir()
    names = {"model.embed_tokens.weight": embed, "model.norm.weight": norm, "lm_head.weight": head}
    save(folder / "verifier" / "model.safetensors", names)
    values = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "vocab_size": 97,
        "num_hidden_layers": 6, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 48,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "max_position_embeddings": 512,
    }  # fmt: skip
    (folder / "verifier" / "config.json").write_text(json.dumps(values))
    return Bench(folder, folder / "verifier")


def exported(
    bench: Bench, engine: str, dtype: str = "bfloat16", vocabulary: DraftVocabulary = VOCABULARY, **recipe: Any
) -> Path:
    """The directory that the stage makes of a tiny draft."""
    return bench.store.open(made(bench, engine, dtype, tiny_draft(Recipe(**recipe), vocabulary)).digest)


def made(bench: Bench, engine: str, dtype: str, model: Any, facts: dict[str, Any] = FACTS) -> Ref:
    """The stage's output for a draft and what was measured of it."""
    draft, judged = ArtifactWriter("draft", bench.workspace), ArtifactWriter("acceptance", bench.workspace)
    save_draft(model, draft.open)
    judged.write(ACCEPTANCE, json.dumps(facts).encode())
    inputs = {"draft": bench.store.commit(draft.seal()).digest, "acceptance.0": bench.store.commit(judged.seal()).digest}
    settings = {**SETTINGS, "engine": engine, "dtype": dtype}
    return bench.refs[bench.job(export.compute, settings, {**inputs, "verifier": bench.verifier})["export"]]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("recipe", [{}, {"norm_before_fc": True, "norm_output": True, "num_layers": 2, "head_dim": 12}])
def test_what_comes_back_of_an_export_drafts_the_same(
    bench: Bench, tmp_path: Path, engine: str, recipe: dict[str, Any]
) -> None:
    """Our runner on what is read back, and speculators' model on it, against speculators' model of the trained draft."""
    folder = exported(bench, engine, **recipe)
    if engine == "sglang":
        loaded = load(folder)
        assert loaded.dropped == [] and loaded.unfilled == [] and loaded.captured(deepseek=False) == [1, 3, 5]
    back = read_published(folder, VERIFIER)
    (tmp_path / "back").mkdir()
    (tmp_path / "back" / "config.json").write_text(json.dumps(back.config))
    with open(tmp_path / "back" / "model.safetensors", "wb") as file:
        write_tensors(file, back.tensors, None, {"format": "pt"})
    drafts = first_drafts(tmp_path / "back", bench.verifier, 64, generator(5))
    save_draft(tiny_draft(Recipe(**recipe)), outputs_in(tmp_path / "trained"), torch.bfloat16)
    expected = first_drafts(tmp_path / "trained", bench.verifier, 64, generator(5))
    assert len(expected[0].unique()) > 5
    assert all(torch.equal(one, expected[0]) for one in (*drafts, expected[1]))


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_equal_vocabularies_leave_the_maps_out(bench: Bench, engine: str) -> None:
    folder = exported(bench, engine, vocabulary=DraftVocabulary(97, 97))
    with TensorFile(folder / "model.safetensors") as file:
        assert not {"d2t", "t2d"} & file.entries.keys()
    back = read_published(folder)
    assert back.vocabulary is None and back.config["draft_vocab_size"] == 97
    with TensorFile(exported(bench, engine) / "model.safetensors") as file:
        assert {"d2t", "t2d"} <= file.entries.keys()


def test_a_card_says_how_it_was_made_how_good_it_is_and_how_it_is_served(bench: Bench) -> None:
    text = (exported(bench, "sglang", norm_output=True) / "README.md").read_text()
    for part in (
        "# EAGLE-3 draft for org/verifier",
        "--speculative-algorithm EAGLE3",
        "--speculative-num-steps 3 --speculative-eagle-topk 1",
        "--speculative-num-draft-tokens 4",
        "SGLang 0.5.23 or later: this draft has norm_output",
        "| replay | 3 | **2.50** | 2.25 to 2.75 | 80%, 50% |",
        "| lr | 0.001 |",
        "| ids of 2 shards | `ab12` |",
        "Positions up to 512, rope default, rope_theta 10000.0.",
    ):
        assert part in text, part
    vllm = (exported(bench, "vllm") / "README.md").read_text()
    assert "vllm serve org/verifier --speculative-config" in vllm and '"num_speculative_tokens": 3' in vllm
    assert "SGLang 0.5.23" not in vllm and str(bench.folder) not in text + vllm


def test_a_draft_that_the_engine_would_misread_is_not_written(bench: Bench) -> None:
    with pytest.raises(UserError, match="export.engines has sglang, and training.norm_before_residual is true"):
        exported(bench, "sglang", norm_before_residual=True)
    with pytest.raises(UserError, match="float16"):
        exported(bench, "sglang", dtype="float32")


@pytest.mark.parametrize(
    ("engine", "function", "wrong", "named"),
    [
        (
            "vllm",
            "to_vllm",
            lambda ids: [k + 1 for k in ids],
            "the trained one in eagle_aux_hidden_state_layer_ids: report",
        ),
        ("sglang", "to_sglang", list, r"auxiliary layers \[1, 3, 5\], and under eagle_config \[1, 3, 5\], .* not the same"),
    ],
)
def test_layer_ids_that_an_export_shifts_by_one_are_named(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, engine: str, function: str, wrong: Any, named: str
) -> None:
    monkeypatch.setattr(draft_formats, function, wrong)
    with pytest.raises(UserError, match=named):
        exported(bench, engine)


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_offsets_that_an_export_takes_as_absolute_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    write = torch_file.write_tensors

    def absolute(file: Any, tensors: dict[str, torch.Tensor], *more: Any) -> None:
        write(file, {**tensors, "d2t": tensors["d2t"] + torch.arange(len(tensors["d2t"]))}, *more)

    monkeypatch.setattr(torch_file, "write_tensors", absolute)
    with pytest.raises(UserError, match=r"a d2t that holds ids, not offsets \(target = i \+ d2t\[i\]\)"):
        exported(bench, engine)


def test_offsets_that_our_runner_takes_as_absolute_are_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    right = DraftRunner.load

    def absolute(folder: Path) -> DraftRunner:
        runner = right(folder)
        runner.targets -= torch.arange(len(runner.targets))
        return runner

    monkeypatch.setattr(DraftRunner, "load", absolute)
    with pytest.raises(UserError, match="other drafts than the trained one at [1-9]"):
        exported(bench, "vllm")


def test_a_state_that_our_runner_norms_twice_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    read_out = DraftLayers.read_out
    monkeypatch.setattr(DraftLayers, "read_out", lambda layers, hidden: read_out(layers, read_out(layers, hidden)[0]))
    with pytest.raises(UserError, match="other drafts than the trained one at [1-9]"):
        exported(bench, "vllm")


STRETCHES = [YarnScaling(8.0, 64, 32.0, 1.0, True, 1.0, 1.0), Llama3Scaling(8.0, 1.0, 4.0, 64)]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize("scaling", STRETCHES)
def test_stretched_positions_are_kept(bench: Bench, engine: str, scaling: Any) -> None:
    model = tiny_draft(Recipe(rope="verifier"), verifier=replace(VERIFIER, rope_scaling=scaling))
    folder = bench.store.open(made(bench, engine, "bfloat16", model).digest)
    rope = read_published(folder).config["transformer_layer_config"]["rope_parameters"]
    assert rope["rope_type"] == ("yarn" if scaling is STRETCHES[0] else "llama3") and rope["factor"] == 8.0


def test_a_layer_of_qwen3_is_vllms_alone(bench: Bench) -> None:
    assert read_published(exported(bench, "vllm", layer="qwen3")).config["transformer_layer_config"]["model_type"] == "qwen3"
    with pytest.raises(UserError, match="q_norm"):
        exported(bench, "sglang", layer="qwen3")


def test_embeddings_of_a_drafts_own_are_not_for_sglang(bench: Bench) -> None:
    model = tiny_draft()
    with torch.no_grad():
        model.embed_tokens.weight[5] += 1
    made(bench, "vllm", "bfloat16", model)
    with pytest.raises(UserError, match="embeddings of its own"):
        made(bench, "sglang", "bfloat16", model)


def test_another_card_is_another_export_of_what_an_engine_reads_as_before(bench: Bench) -> None:
    model = tiny_draft()
    once, again = (made(bench, "vllm", "bfloat16", model, {**FACTS, "length": length}) for length in (2.5, 2.6))
    other = made(bench, "vllm", "float32", model)
    assert once.digest != again.digest and once.facts["served"] == again.facts["served"] != other.facts["served"]


def settings(**values: Any) -> Settings:
    return Settings.model_validate({"export": {"engines": ["vllm", "sglang"]}, **values})


def target(family: str) -> Verifier:
    roles = dict.fromkeys(("embed", "norm", "lm_head", "numbers"), "00")
    return Verifier("org/verifier", {"family": family, "roles": roles}, "", Input("", path="/nowhere"), None)


def test_the_plan_refuses_before_anything_is_spent() -> None:
    export.check(settings(), target("deepseek_v3"), [2, 30, 58])
    with pytest.raises(UserError, match="begins with 3"):
        export.check(settings(), target("deepseek_v3"), [3, 31, 59])
    with pytest.raises(UserError, match=r"training\.norm_before_residual"):
        export.check(settings(training={"norm_before_residual": True}), target("llama"), [2, 5, 9])
    export.check(settings(training={"norm_before_residual": True}, export={"engine": "vllm"}), target("llama"), [2, 5, 9])


def test_the_plan_knows_of_positions_that_are_the_verifiers(tmp_path: Path) -> None:
    """Kimi-K2.5's YaRN has two mscales that cancel out, which both engines can be told; other two SGLang cannot."""
    values = config_values(Options())
    verifier = replace(target("deepseek_v3"), source=Input("", path=str(tmp_path)))
    stretched = settings(training={"rope": "verifier"})
    (tmp_path / "config.json").write_text(json.dumps(values))
    export.check(stretched, verifier, [2, 3, 4])
    values["text_config"]["rope_scaling"]["mscale"] = 0.5
    (tmp_path / "config.json").write_text(json.dumps(values))
    export.check(settings(), verifier, [2, 3, 4])
    with pytest.raises(UserError, match="export.engines has sglang, and the draft's rope has the attention_factor"):
        export.check(stretched, verifier, [2, 3, 4])


def judged(**facts: Any) -> Made:
    ref = Ref.model_construct(kind="acceptance", digest=str(facts), facts={**FACTS, **facts})
    return Made(Node(Stage("acceptance", "tasks.acceptance", ()), "replay", {}, {}), {"acceptance": ref})


def test_a_node_an_engine_reads_of_acceptance_what_the_card_shows() -> None:
    training = Node(Stage("training", "tasks.training", ()), "", {"lr": 0.1}, {f"ids.{i}": Input(str(i)) for i in range(3)})
    draft = Made(training, {"draft": Ref.model_construct(kind="draft", digest="d", facts={})})

    def planned(**facts: Any) -> list[Node]:
        return export.nodes(settings(), draft, [judged(**facts)], target("llama"))

    (vllm, sglang), again, other = planned(), planned(steps=5), planned(length=2.6)
    assert [node.settings["engine"] for node in (vllm, sglang)] == ["vllm", "sglang"] and vllm.name == "vllm"
    assert vllm.settings["recipe"] == {"lr": 0.1} and list(vllm.settings["data"]) == ["ids of 3 shards"]
    digests = [getattr(nodes[0].inputs["acceptance.0"], "digest", None) for nodes in ([vllm], again, other)]
    assert digests[0] == digests[1] != digests[2], "steps are not on the card"
    pending = export.nodes(settings(), draft, [Made(judged().node, None)], target("llama"))[0]
    assert isinstance(pending.inputs["acceptance.0"], Pending)
