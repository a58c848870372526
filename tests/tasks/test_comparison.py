"""A published draft is judged as ours is, from its own format; what could not be judged is refused while planning."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from artifacts.manifest import canonical_json, digest_bytes
from artifacts.stage import Input, Node, Pending
from errors import UserError
from kimi_adapters.config import read_config
from kimi_adapters.published_draft import draft_shapes, read_published
from kimi_adapters.torch_file import write_tensors
from kimi_adapters.weights import Checkpoint
from tasks import acceptance, comparison
from tasks.formats import ACCEPTANCE, QUARANTINE, START
from tasks.handles import Verifier
from tasks.paired import difference
from tasks.prompts import read_prompts
from tasks.settings import Settings
from tests.kimi_adapters.draft_fixtures import generator, save
from tests.kimi_adapters.published_fixtures import flat_names, flat_values, layer_values, nested_values, write_draft
from tests.tasks.stage_jobs import Bench, Text

IDS = [1, 2, 3]
TINY = {"hidden_size": 32, "vocab_size": 97, "num_layers": 6}


@pytest.fixture(scope="module")
def published(cut_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small flat draft of the cut verifier, of the whole vocabulary, without the two tables that engines share."""
    verifier = read_config(cut_verifier)
    sizes = {"vocab_size": verifier.vocab_size, "hidden_size": verifier.hidden_size, "draft_vocab_size": verifier.vocab_size}
    values = flat_values(**sizes, eagle_config={"eagle_aux_hidden_state_layer_ids": [k - 1 for k in IDS]})
    shapes = draft_shapes({**values, "norm_before_fc": False, "fc_norm": False, "transformer_layer_config": values}, len(IDS))
    source = generator(1)
    own = {name: 0.05 * torch.randn(shape, generator=source) for name, shape in shapes.items()}
    own |= {name: torch.ones(tensor.shape) for name, tensor in own.items() if tensor.dim() == 1}
    kept = {name: tensor for name, tensor in own.items() if name not in ("embed_tokens.weight", "lm_head.weight")}
    return write_draft(tmp_path_factory.mktemp("published") / "theirs", values, flat_names(kept))


@pytest.fixture(scope="module")
def stored(cut_verifier: Path, published: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same draft as our own training would have written it, with what it began as."""
    folder = tmp_path_factory.mktemp("stored")
    draft, checkpoint = read_published(published, read_config(cut_verifier)), Checkpoint(cut_verifier)
    tables = {"embed_tokens.weight": checkpoint.embed(torch.float32), "lm_head.weight": checkpoint.lm_head(torch.float32)}
    (folder / "config.json").write_text(json.dumps(draft.config))
    with open(folder / "model.safetensors", "wb") as file:
        write_tensors(file, {**draft.tensors, **tables})
    save(folder / START, {"fc.weight": torch.zeros(draft.tensors["fc.weight"].shape)})
    return folder


def cases(bench: Bench, made: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bench.store.open(made["acceptance"]) / ACCEPTANCE).read_text())
    return found


def test_replay_of_a_published_draft_is_that_of_the_same_draft_of_ours(
    cut_verifier: Path, published: Path, stored: Path, tmp_path: Path
) -> None:
    bench = Bench(tmp_path / "bench", cut_verifier)
    source = generator(2)
    texts = [
        Text(torch.randint(5, 400, (30,), generator=source).tolist(), [0] * 8 + [1] * 22, side)
        for side in ("held_out", "train", "held_out")
    ]
    shard = bench.shard(texts)
    bench.extract(shard)
    (tmp_path / QUARANTINE).write_text(json.dumps({"quarantine": {}, "drop": {}}))
    shared = {"quarantine": tmp_path, "ids.0": shard.ids, "masks.0": shard.masks, "states.0": shard.states}
    theirs = bench.job(comparison.compute_replay, {"k": 2}, {**shared, "draft": published, "verifier": cut_verifier})
    ours = bench.job(acceptance.compute_replay, {"k": 2}, {**shared, "draft": stored, "start": stored})
    told, same = cases(bench, theirs), cases(bench, ours)
    assert told["cases"] == same["cases"] and len(told["cases"]) == 2 and told["method"] == "replay"
    assert all(told[name] == same[name] for name in ("length", "low", "high", "per_position", "prompts", "tokens"))
    found = difference(*(bench.store.open(one["acceptance"]) for one in (ours, theirs)))
    assert (found.samples, found.value, found.low, found.high) == (2, 0.0, 0.0, 0.0)


def test_real_decoding_with_a_published_draft(cut_verifier: Path, published: Path, stored: Path, tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", cut_verifier)
    path = tmp_path / "prompts.jsonl"
    turns = [{"role": "user", "content": "Tell me about moss."}]
    path.write_text(json.dumps({"id": "p", "messages": turns}) + "\n")
    settings = {"k": 2, "max_new_tokens": 6, "chat_format": "smollm2"}
    inputs: dict[str, Any] = {"verifier": cut_verifier, "prompts": path}
    events: list[Any] = []
    made = []
    for entry, own in ((comparison.compute_decoding, {"draft": published}), (acceptance.compute_decoding, {"draft": stored})):
        job = bench.one_job(settings, {**inputs, **own, "start": stored}, {"count": 1}, events)
        job.digests["prompts"] = digest_bytes(canonical_json(read_prompts(str(path))))
        entry(job)
        made.append(json.loads((Path(events[-1]["outputs"]["acceptance"]["folder"]) / ACCEPTANCE).read_text()))
    assert made[0]["cases"] == made[1]["cases"] and made[0]["length"] == made[1]["length"] and made[0]["prompts"] == 1


def judged(folder: Path, counts: Sequence[tuple[int, int]]) -> Path:
    folder.mkdir()
    rows = [{"shard": 0, "sample": i, "tokens": tokens, "steps": steps} for i, (tokens, steps) in enumerate(counts)]
    (folder / ACCEPTANCE).write_text(json.dumps({"cases": rows}))
    return folder


def test_a_difference_is_paired_by_sample(tmp_path: Path) -> None:
    """Samples that differ widely among one another, each half a token a step better: the pairs leave no doubt."""
    steps = 10
    ours = judged(tmp_path / "ours", [(steps + 3 * i + 5, steps) for i in range(12)])
    theirs = judged(tmp_path / "theirs", [(steps + 3 * i, steps) for i in range(12)])
    found = difference(ours, theirs)
    assert found.samples == 12 and found.value == pytest.approx(0.5)
    assert (found.low, found.high) == pytest.approx((0.5, 0.5))


def target(sizes: dict[str, Any]) -> Verifier:
    facts = {"family": "llama", "num_layers": 4, "hidden_size": 576, "vocab_size": 49152, **sizes}
    roles = dict.fromkeys(("embed", "lm_head", "numbers"), "00")
    return Verifier("org/verifier", {**facts, "roles": roles}, "", Input("", path="/nowhere"), None)


def compare(*folders: Path, **acceptance: Any) -> Settings:
    return Settings.model_validate({"acceptance": {"compare": [str(folder) for folder in folders], **acceptance}})


class Digests:
    """What remembers digests of files, without a memory."""

    def digests(self, paths: Sequence[Path]) -> list[str]:
        return [digest_bytes(path.read_bytes()) for path in paths]


def test_what_could_not_be_judged_is_refused_while_planning(published: Path, tmp_path: Path) -> None:
    settings = compare(published)
    comparison.check(settings, target({}), IDS, decodes=False)
    comparison.check(settings, target({}), [2, 3], decodes=True)
    with pytest.raises(UserError, match=r"reads the layers \[1, 2, 3\], and hidden states are of \[2, 3\]"):
        comparison.check(settings, target({}), [2, 3], decodes=False)
    with pytest.raises(UserError, match="this one has 49152 and 64"):
        comparison.check(settings, target({"hidden_size": 64}), IDS, decodes=False)
    with pytest.raises(UserError, match=r"nowhere has no safetensors"):
        comparison.check(compare(tmp_path / "nowhere"), target({}), IDS, decodes=False)
    scaling = {"rope_type": "dynamic", "rope_theta": 5e4, "factor": 4.0}
    stretched = write_draft(tmp_path / "stretched", flat_values(**layer_values(rope_scaling=scaling)), {"x": torch.ones(1)})
    with pytest.raises(UserError, match="with the rope dynamic, which does not run here"):
        comparison.check(compare(stretched), target(TINY), IDS, decodes=False)


def test_what_only_an_engine_runs_is_judged_there_alone(published: Path, tmp_path: Path) -> None:
    """Another architecture, another algorithm, quantized weights, another rope, layers that are not stored."""
    weights, scaling = {"x": torch.ones(1)}, {"rope_type": "dynamic", "rope_theta": 5e4, "factor": 4.0}
    values = {
        "latent": flat_values(architectures=["Eagle3DeepseekV2ForCausalLM"]),
        "packed": flat_values(quantization_config={"quant_method": "fp8"}),
        "parallel": nested_values(speculators_model_type="dflash"),
        "stretched": flat_values(**layer_values(rope_scaling=scaling)),
        "deeper": flat_values(),
    }
    folders = [write_draft(tmp_path / name, each, weights) for name, each in values.items()]
    settings, verifier, memo = compare(*folders, engine="start"), target(TINY), Digests()
    told = comparison.check(settings, verifier, IDS, decodes=False)
    assert len(told) == 5 and all(each.endswith("; it is judged in the engine alone") for each in told)
    reasons = ("DeepseekV2ForCausalLM", "quantization_config", "algorithm 'dflash'", "rope dynamic", "reads the layers")
    assert all(reason in sentence for reason, sentence in zip(reasons, told, strict=True)), told
    replaying = Node(acceptance.STAGE, "replay", {"k": 3}, {"ids.0": Input("aa")}, entry="compute_replay")
    assert comparison.nodes(settings, [replaying], verifier, IDS, memo) == []
    assert [name for name, _ in comparison.drafts(settings, memo)] == list(values)
    for folder in folders:
        with pytest.raises(UserError):
            comparison.check(compare(folder), verifier, IDS, decodes=False)
    with pytest.raises(UserError, match="this one has 49152 and 64"):
        comparison.check(compare(published, engine="start"), target({"hidden_size": 64}), IDS, decodes=False)
    (folders[0] / "config.json").write_text("{")
    with pytest.raises(UserError, match="is not JSON"):
        comparison.check(compare(folders[0], engine="start"), verifier, IDS, decodes=False)


def test_a_node_is_ours_with_another_draft_and_does_not_depend_on_ours(published: Path) -> None:
    inputs: dict[str, Input | Pending] = {"draft": Pending("training"), "start": Pending("training"), "ids.0": Input("aa")}
    ours = Node(acceptance.STAGE, "replay", {"k": 3}, inputs, entry="compute_replay", tokens=9)
    (node,) = comparison.nodes(compare(published), [ours], target({}), IDS, Digests())
    assert (node.name, node.entry, node.settings, node.tokens) == ("theirs", "compute_replay", {"k": 3}, 9)
    assert set(node.inputs) == {"draft", "ids.0", "verifier"} and node.inputs["ids.0"] == Input("aa")
    draft = node.inputs["draft"]
    assert isinstance(draft, Input) and draft.path == str(published)
    assert comparison.nodes(compare(), [ours], target({}), IDS, Digests()) == []
