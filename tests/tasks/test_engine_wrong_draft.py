"""An engine that serves a trained draft as it is meant, and wrong: acceptance falls, and the gate stops the run."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from artifacts.manifest import Ref
from artifacts.stage import Made, Node
from errors import UserError
from flows.engine_gates import gate_engine
from kimi_adapters.acceptance_length import total
from kimi_adapters.draft import draft_config_values, verifier_rows
from kimi_adapters.draft_runner import DraftRunner
from kimi_adapters.draft_vocabulary import DraftVocabulary
from kimi_adapters.packing import PackedShards
from kimi_adapters.recipe import Recipe
from kimi_adapters.trainer import train
from kimi_adapters.weights import Checkpoint
from tasks import acceptance, engine_acceptance
from tasks.settings import Settings
from tests.engine_endpoint import Endpoint, Engine, serving
from tests.kimi_adapters.alone import decode
from tests.kimi_adapters.draft_fixtures import Sample
from tests.kimi_adapters.heard_answers import heard, talkative
from tests.tasks.engine_judge import ROWS, Judge, K

LAYER_IDS, NEW_TOKENS = [1, 2, 3], 20


@pytest.fixture(scope="module")
def speaker(whole_verifier: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talkative(whole_verifier, tmp_path_factory.mktemp("wrong") / "verifier")


@pytest.fixture(scope="module")
def learned(speaker: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[], DraftRunner]:
    """A draft that was trained on the answers that the engine gives."""
    engine, checkpoint, folder = Engine(speaker), Checkpoint(speaker), tmp_path_factory.mktemp("learned")
    prompts = [engine.prompt(row["messages"]) for row in ROWS]
    answers = engine.know(prompts, NEW_TOKENS)
    made: list[Sample] = [(p + a, [0] * len(p) + [1] * len(a), "train") for p, a in zip(prompts, answers, strict=True)]
    vocabulary = DraftVocabulary.of_tokens({token for answer in answers for token in answer}, checkpoint.config.vocab_size)
    recipe = Recipe(epochs=40, pack_tokens=64, lr=2e-3, intermediate_size=256, norm_before_fc=True, replay_every_steps=0)
    data = PackedShards([heard(folder / "shard", engine.verifier, made, LAYER_IDS)], LAYER_IDS, 64, recipe.ttt_steps)
    rows = verifier_rows(checkpoint, vocabulary)
    result = train(recipe, data, checkpoint.config, rows, vocabulary, folder / "c", lambda entry: None)
    config, tensors = draft_config_values(result.model.config, torch.float32), result.model.state_dict()
    return lambda: DraftRunner(config, tensors)


@pytest.fixture(scope="module")
def ours(speaker: Path, learned: Callable[[], DraftRunner]) -> Made:
    """What our own decoding accepts."""
    engine, draft = Engine(speaker), learned()
    prompts = [engine.prompt(row["messages"]) for row in ROWS]
    found = total([decode(engine.verifier, draft, p, K, NEW_TOKENS, engine.stops).acceptance for p in prompts], K)
    facts = {"method": "real decoding", "length": found.length, "replay_length": found.length}
    return Made(Node(acceptance.STAGE, "", {}, {}), {"acceptance": Ref(kind="acceptance", digest="00", facts=facts)})


def measured(speaker: Path, draft: DraftRunner, folder: Path) -> Made:
    """What an engine that serves the draft counts."""
    with serving(Endpoint(Engine(speaker), draft=draft)) as endpoint:
        facts, _ = Judge(folder, speaker)(endpoint, max_new_tokens=NEW_TOKENS, temperatures=[])
    ref = Ref(kind="engine_acceptance", digest="00", facts=facts)
    return Made(Node(engine_acceptance.STAGE, "vLLM", {}, {}), {"engine_acceptance": ref})


def ids_shifted_by_one(draft: DraftRunner) -> None:
    draft.shape = replace(draft.shape, layer_ids=tuple(k - 1 for k in LAYER_IDS))


def offsets_as_absolute_ids(draft: DraftRunner) -> None:
    draft.targets -= torch.arange(len(draft.targets))


def test_an_engine_that_serves_the_draft_as_it_is_meant_passes(
    speaker: Path, learned: Callable[[], DraftRunner], ours: Made, tmp_path: Path
) -> None:
    right = measured(speaker, learned(), tmp_path)
    assert right.outputs and right.outputs["engine_acceptance"].facts["length"] > 1.5
    gate_engine(Settings(), [ours], [right])


@pytest.mark.parametrize("fault", [ids_shifted_by_one, offsets_as_absolute_ids])
def test_an_engine_that_serves_it_wrong_is_stopped(
    speaker: Path,
    learned: Callable[[], DraftRunner],
    ours: Made,
    tmp_path: Path,
    fault: Callable[[DraftRunner], None],
) -> None:
    draft = learned()
    fault(draft)
    wrong = measured(speaker, draft, tmp_path)
    with pytest.raises(UserError, match="-.* from our real decoding.*auxiliary layers.* d2t as offsets"):
        gate_engine(Settings(), [ours], [wrong])
