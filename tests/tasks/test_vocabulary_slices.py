"""Coverage of the draft vocabulary, overall and by slice, on the training side."""

from pathlib import Path

import numpy as np

from kimi_adapters.tensor_file import TensorFile, read_array
from kimi_adapters.tokenizer import Tokenizer
from tasks import vocabulary
from tasks.formats import VOCABULARY
from tests.tasks.stage_jobs import Bench, Text


def test_coverage_is_counted_by_slice_on_the_training_side(bench: Bench) -> None:
    latin, han = {"slices": {"script": "latin", "source": "a"}}, {"slices": {"script": "han"}}
    shards = [
        bench.shard([Text([1, 2, 3, 4], [0, 1, 1, 1], more=latin), Text([9, 9, 2], [0, 1, 1], more=han)]),
        bench.shard(
            [
                Text([1, 2, 9], [0, 1, 1], more=latin),
                Text([1, 9, 9], [0, 1, 1], "held_out", latin),
                Text([1, 2], [0, 1], more={}),
                Text([1, 2], [0, 0], more=han),
            ]
        ),
    ]
    folders = [(bench.store.folder(shard.ids), bench.store.folder(shard.masks)) for shard in shards]
    t2d = np.zeros(10, bool)
    t2d[[2, 3, 4]] = True
    found = vocabulary.coverage_by_slice(folders, t2d)
    assert found == {"script=latin": (4, 5), "script=han": (1, 2), "source=a": (4, 5)}
    assert list(found) == ["script=latin", "script=han", "source=a"], "the larger first"


def test_the_largest_sources_are_kept(bench: Bench) -> None:
    many = [Text([1] * (n + 2), [0] + [1] * (n + 1), more={"slices": {"source": f"s{n}"}}) for n in range(60)]
    shard = bench.shard(many)
    folders = [(bench.store.folder(shard.ids), bench.store.folder(shard.masks))]
    found = vocabulary.coverage_by_slice(folders, np.ones(10, bool))
    assert len(found) == 50 and "source=s59" in found and "source=s9" not in found


def test_the_stage_states_it_in_its_facts(bench: Bench, texts: list[Text], cut_verifier: Path) -> None:
    shard = bench.shard(texts)
    inputs = {"ids.0": shard.ids, "masks.0": shard.masks, "tokenizer": cut_verifier}
    made = bench.job(vocabulary.compute, {"size": 40, "target_size": 49_152}, inputs)
    facts = bench.refs[made["vocabulary"]].facts
    assert set(facts["coverage_by_slice"]) == {"source=own", "source=foreign"}
    parts = facts["supervised_by_slice"]
    assert sum(parts.values()) == sum(sum(text.mask) for text in texts)
    weighted = sum(facts["coverage_by_slice"][name] * parts[name] for name in parts) / sum(parts.values())
    assert abs(weighted - facts["coverage"]) < 1e-4 and 0 < facts["coverage"] < 1


def test_held_out_answers_choose_no_token(bench: Bench, cut_verifier: Path) -> None:
    """A token that held-out answers use most, and train never, is in no vocabulary that has others to take."""
    train, held_out = Text([7, 30_001, 30_002], [0, 1, 1]), Text([7] + [30_003] * 50, [0] + [1] * 50, "held_out")
    shard = bench.shard([train, held_out])
    special = Tokenizer(cut_verifier).special_ids()
    inputs = {"ids.0": shard.ids, "masks.0": shard.masks, "tokenizer": cut_verifier}
    made = bench.job(vocabulary.compute, {"size": len(special) + 2, "target_size": 49_152}, inputs)
    file = TensorFile(bench.store.folder(made["vocabulary"]) / VOCABULARY)
    chosen = np.flatnonzero(read_array(file, "t2d"))
    assert set(chosen.tolist()) == {*special, 30_001, 30_002}
    facts = bench.refs[made["vocabulary"]].facts
    assert (facts["coverage"], facts["held_out_coverage"]) == (1.0, 0.0)
