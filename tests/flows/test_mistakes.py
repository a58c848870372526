"""A user's mistakes: one sentence each, before work starts."""

import shutil
from pathlib import Path

import pytest

from artifacts.runs import Runs
from tests.projects import Project, no_orphans, wait_for

CASES = {
    "missing corpus": (["--set", "data.conversations=[nowhere.jsonl]"], "corpus file nowhere.jsonl does not exist"),
    "empty corpus": (["--set", "data.conversations=[empty.jsonl]"], "corpus file empty.jsonl is empty"),
    "no corpus": (["--set", "data.conversations=[]"], "both empty"),
    "unknown key": (["--set", "training.learning_rate=1"], "training.learning_rate in"),
    "unknown section": (["--set", "trainning.lr=1"], "trainning in"),
    "bad value": (["--set", "training.lr=fast"], "training.lr in"),
    "no value": (["--set", "training.lr"], "has no value"),
    "no verifier": (["--set", "verifier.directory=nowhere"], "config.json cannot be read"),
    "two verifiers": (["--set", "verifier.embedded=smollm2-135m-instruct"], "only one"),
    "no weights": (["--set", "verifier.directory=hollow"], "lacks model.safetensors"),
    "vocabulary too large": (["--set", "vocabulary.size=50000"], "vocabulary.size is 50000 and the verifier has 49152"),
    "layer ids": (["--set", "hidden_states.layer_ids=[1, 2, 9]"], "do not fit a verifier of 4 layers"),
    "recipe": (["--set", "training.norm_before_fc=true", "--set", "training.fc_norm=true"], "exclude each other"),
    "pack too short": (
        ["--set", "training.pack_tokens=9", "--set", "training.ttt_steps=5"],
        "too short for 5 training.ttt_steps",
    ),
    "no prompts": (["--set", "acceptance.prompts=nowhere.jsonl"], "prompts file nowhere.jsonl cannot be read"),
    "store too small": (["--set", "store.max_bytes=1000000"], "store.max_bytes"),
    "store is a file": (["--set", "store.path=a.jsonl"], "cannot be made"),
    "no such GPU": (["--set", "running.devices=[77]"], "names GPU 77"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_mistake_is_told_in_one_sentence_before_work_starts(fresh: Project, cut_verifier: Path, case: str) -> None:
    arguments, expected = CASES[case]
    (fresh.folder / "empty.jsonl").touch()
    hollow = fresh.folder / "hollow"
    hollow.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy2(cut_verifier / name, hollow)
    for command in ("run",) if case == "no such GPU" else ("plan", "run"):  # a plan leases nothing
        done = fresh.eyas(command, str(fresh.settings), *arguments)
        assert done.returncode == 2, done.stderr
        lines = [line for line in done.stderr.splitlines() if line.startswith("eyas: ")]
        assert len(lines) == 1 and expected in lines[0], done.stderr
        assert "Traceback" not in done.stderr
        assert not (fresh.store / "records").exists(), "nothing ran"


@pytest.mark.parametrize("address", ["http://127.0.0.1:1/api", "127.0.0.1:1"])
def test_a_server_that_does_not_answer_is_told_in_one_sentence(fresh: Project, address: str) -> None:
    fresh.environment["PREFECT_API_URL"] = address
    done = fresh.eyas("run", str(fresh.settings))
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert [line for line in done.stderr.splitlines() if "unset it to run with a server of its own" in line and address in line]
    assert not (fresh.store / "records").exists(), "nothing ran"


def test_settings_that_are_no_settings(fresh: Project) -> None:
    (fresh.folder / "list.yaml").write_text("- 1\n")
    (fresh.folder / "broken.yaml").write_text("a: [\n")
    for name, expected in (
        ("list.yaml", "no mapping"),
        ("broken.yaml", "is not YAML"),
        ("none.yaml", "cannot be read"),
    ):
        done = fresh.eyas("plan", name)
        assert done.returncode == 2 and expected in done.stderr and len(done.stderr.splitlines()) == 1


def test_a_corpus_of_rubbish_stops_after_the_corpus(fresh: Project) -> None:
    (fresh.folder / "a.jsonl").write_text('{"messages": [{"role": "wizard", "content": "x"}]}\nnot json\n')
    done = fresh.eyas("run", str(fresh.settings))
    assert done.returncode == 2 and "gave no usable conversation in 2 rows" in done.stderr
    assert not fresh.records("hidden_states")


def test_a_vocabulary_that_is_too_small_stops_before_extraction(fresh: Project) -> None:
    for size, told in ((30, "gates.min_coverage"), (10, "special tokens")):
        done = fresh.eyas("run", str(fresh.settings), "--set", f"vocabulary.size={size}")
        assert done.returncode == 2 and told in done.stderr
        assert fresh.records("corpus") and not fresh.records("hidden_states")


def test_a_smoke_run_only_warns_at_gates(fresh: Project) -> None:
    with open(fresh.folder / "a.jsonl", "r+") as file:
        good = file.read()
        file.seek(0)
        file.write("not json\n" * 6 + good)
    strict = fresh.eyas("run", str(fresh.settings), "--set", "gates.max_rejected=0.1")
    assert strict.returncode == 2 and "gates.max_rejected" in strict.stderr
    fresh.edit("settings.yaml", "name: test", "name: test\nlimit: 10\ngates: {max_rejected: 0.1}")
    smoke = fresh.start()
    assert smoke.stderr is not None
    warned = next(line for line in smoke.stderr if "gates.max_rejected" in line)
    assert "only a warning" in warned
    wait_for(lambda: fresh.records("hidden_states"), process=smoke)
    smoke.kill()
    smoke.communicate()
    assert [run.smoke for run in Runs(fresh.store).newest(2)] == [True, False]
    no_orphans(fresh)
