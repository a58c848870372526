"""``eyas verify``, ``gc``, ``show`` and ``forget`` as a person types them."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from artifacts.aliases import Aliases
from artifacts.forgotten import Forgotten
from artifacts.store import Store
from running.cli import main
from tests.artifacts.pipelines import Pipeline, add_shard, add_training, make_pipeline


class Shop:
    """A store with a settings file, and what a command printed."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.capsys = folder, capsys
        self.made: Pipeline = make_pipeline(folder / "store")
        self.settings = folder / "settings.yaml"
        paths = {"path": str(folder / "store"), "state": str(folder / "state")}
        self.settings.write_text(yaml.safe_dump({"store": paths}))

    def eyas(self, command: str, *arguments: str, code: int = 0) -> str:
        """Standard output, or for a mistake its one sentence."""
        self.capsys.readouterr()
        assert main([command, str(self.settings), *arguments]) == code
        out, errors = self.capsys.readouterr()
        if code == 2:
            assert errors.startswith("eyas: ") and len(errors.splitlines()) == 1
            return errors
        return out


@pytest.fixture
def shop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shop:
    return Shop(tmp_path, capsys)


def test_verify_and_repair(shop: Shop) -> None:
    states = shop.made.refs["hidden_states shard 0 of a states"]
    draft = shop.made.refs["training first draft"]
    assert "nothing is damaged" in shop.eyas("verify", "--deep")
    for ref, name in ((states, "states.safetensors"), (draft, "model.safetensors")):
        path = shop.made.store.folder(ref.digest) / name
        path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    assert "nothing is damaged" in shop.eyas("verify"), "sizes are as they were"
    said = shop.eyas("verify", "--deep", code=1)
    assert said.count("damaged ") == 2 and "2 damaged; --repair puts them aside" in said
    assert f"made by  hidden states · shard 0 of a, which can make it again ({states.digest[:12]})" in said
    assert f"made by  training · first, which cannot make it again bit for bit: restore it ({draft.digest[:12]})" in said
    assert shop.made.store.has(states.digest), "it only says"
    assert shop.eyas("verify", "--deep", "--repair", code=1).count("aside ") == 2
    assert not shop.made.store.has(states.digest)
    assert "nothing is damaged" in shop.eyas("verify", "--deep")


def test_gc_says_first_and_does_with_yes(shop: Shop) -> None:
    draft = shop.made.refs["training first draft"]
    assert "so all of it would go: run the flow once" in shop.eyas("gc", code=2)
    Aliases(shop.folder / "state").move("ab" * 32, "champion", draft.digest, None, "the first")
    runs = shop.folder / "state" / "runs"
    for n in range(5):
        (runs / f"2026110{n}T000000-aaaa" / "code").mkdir(parents=True)
    before = shop.made.store.used_bytes()
    said = shop.eyas("gc")
    assert "would be freed" in said and shop.made.store.used_bytes() == before
    rows = {line.split()[0]: line.split()[1:] for line in said.splitlines() if line.startswith(("hidden_states ", "draft "))}
    assert rows["hidden_states"][0] == "0" and rows["hidden_states"][2] == "4" and rows["draft"][0] == "1"
    said = shop.eyas("gc", "--yes", "--keep-runs", "2")
    after = shop.made.store.used_bytes()
    assert f"{before - after:,} bytes freed" in said and shop.made.store.has(draft.digest)
    assert sorted(path.name for path in runs.iterdir()) == ["20261103T000000-aaaa", "20261104T000000-aaaa"]
    with Store(shop.folder / "store").in_use():
        assert "a run uses the store" in shop.eyas("gc", "--yes", code=2)


def test_show_finds_by_digits_alias_and_path(shop: Shop, tmp_path: Path) -> None:
    made, draft = shop.made, shop.made.refs["training first draft"]
    Aliases(shop.folder / "state").move("ab" * 32, "champion", draft.digest, None, "the first")
    blob = made.store.folder(made.refs["export first export"].digest)
    with_manifest, without = tmp_path / "served", tmp_path / "plain"
    shutil.copytree(blob, with_manifest)
    shutil.copytree(blob, without, ignore=shutil.ignore_patterns("manifest.json"))
    same = {
        shop.eyas("show", ref) for ref in (draft.digest, draft.digest[:6], "champion", str(made.store.folder(draft.digest)))
    }
    assert len(same) == 1
    exported = {
        shop.eyas("show", str(path))
        for path in (blob, blob / "config.json", with_manifest, without, without / "model.safetensors")
    }
    assert len(exported) == 1 and exported.pop().startswith(f"export {blob.name}")
    os.truncate(without / "model.safetensors", 1)
    assert "nor an unchanged copy" in shop.eyas("show", str(without), code=2)
    assert "is no alias, no path and not the first 6" in shop.eyas("show", draft.digest[:5], code=2)


def test_show_says_who_made_it_and_what_came_of_it(shop: Shop) -> None:
    made, draft = shop.made, shop.made.refs["training first draft"]
    said = shop.eyas("show", draft.digest)
    key = made.keys["training first"]
    for text in (
        f"draft {draft.digest}",
        "facts    steps 4, loss 1.5",
        "file     model.safetensors, 11 bytes",
        "made by  training · first on 2026-11-01T",
        f"key {key}, git commit c0ffee",
        "came from\n",
        f"    conversations {made.refs['synthesis chunk conversations'].digest[:12]}, synthesis · chunk",
        f"led to\n  export {made.refs['export first export'].digest[:12]}, export · first",
    ):
        assert text in said, said
    for folder in list(made.store.folders()):
        made.store.delete(folder.name)
    collected = shop.eyas("show", draft.digest)
    assert "not in the store any more" in collected and collected.split("came from")[1] == said.split("came from")[1]


def test_many_shards_are_counted_and_not_listed(shop: Shop) -> None:
    add_shard(shop.made, "big", "/data/big.jsonl", [[(f"big{n}", str(n))] for n in range(40)])
    draft = add_training(shop.made, "second", ["big"])
    said = shop.eyas("show", draft.digest)
    assert "  and 36 more token_shard" in said and "  and 36 more hidden_states" in said and len(said.splitlines()) < 80


def test_show_data_goes_through_warm_starts_after_blobs_were_collected(shop: Shop) -> None:
    made, parent = shop.made, shop.made.refs["training first draft"]
    add_shard(made, "b", "/data/b.jsonl", [[("b0", "1"), ("b1", "2")]])
    child = add_training(made, "second", ["b"], parent=parent)
    shop.eyas("forget", "a1", "--yes")
    for folder in list(made.store.folders()):
        made.store.delete(folder.name)
    mine, parents = shop.eyas("show", child.digest, "--data").split("\n\n")
    assert mine.startswith(f"draft {child.digest}, made 2026-11-0") and parents.startswith(f"draft {parent.digest}")
    assert "/data/b.jsonl" in mine and "/data/a.jsonl" not in mine
    assert "/data/a.jsonl" in parents and "synthesis · chunk" in parents and "prompts.jsonl" in parents
    row = next(line for line in parents.splitlines() if line.startswith("a "))
    assert "not JSON: 1" in row and row.split()[3:5] == ["5", "4"], "rows and samples"
    assert "1 conversations of it were to be forgotten after this was made" in parents
    assert "quarantine" in mine and "samples 1" in mine and "rate 0.25" in mine


def test_forget_says_first_and_does_with_yes(shop: Shop) -> None:
    said = shop.eyas("forget", "a1", "s2")
    assert "nothing was changed" in said and Forgotten(shop.made.store.root).sources == {}
    assert said.count("goes     hidden_states") == 2 and "rewrites conversations" in said
    assert "/data/a.jsonl is yours and stays as it is" in said
    draft = shop.made.refs["training first draft"]
    assert f"draft    {draft.digest[:12]} of 2026-11-01T" in said and "twins    1 samples" in said
    assert "forgotten; the next run" in shop.eyas("forget", "a1", "s2", "--yes")
    assert "nothing in the store holds it any more" in shop.eyas("forget", "a1", "--yes")
    assert "no sample in the store" in shop.eyas("forget", "nobody", "--yes", code=2)
    assert "nothing is damaged" in shop.eyas("verify", "--deep")


def test_a_wrong_path_makes_no_store(shop: Shop) -> None:
    for command in ("verify", "gc", "show", "forget", "push"):
        more = ["x"] if command in ("show", "forget") else []
        assert "there is no store at" in shop.eyas(command, *more, "--set", "store.path=/nowhere/else", code=2)
    assert not Path("/nowhere").exists()
