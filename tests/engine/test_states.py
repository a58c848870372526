"""States from a real vLLM are ours, at every id, and the last is before the norm; the proof knows each by name."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from kimi_adapters import engine_probe
from kimi_adapters.engine_client import EngineClient
from kimi_adapters.layer_proof import REFERENCE
from kimi_adapters.layers import rms_norm
from kimi_adapters.own_streams import own_streams, proof_ids
from kimi_adapters.tensor_file import TensorFile
from kimi_adapters.tokenizer import Tokenizer
from kimi_adapters.weights import Checkpoint
from running.cli import main
from tasks import engine_states
from tasks.formats import STATES, state_rows
from tests.engine.vllm import LAYERS, VERSION, Served
from tests.projects import write_corpus
from tests.tasks import stage_jobs
from tests.tasks.stage_jobs import Bench, Text


def prove(served: Served, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["prove-layers", str(served.verifier), "--endpoint", served.url, "--dtype", "float32", *arguments])
    return code, capsys.readouterr().out


def test_the_proof_names_every_state(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = prove(served, capsys)
    assert code == 0, told
    assert [line.split()[:2] for line in told.splitlines()[1:5]] == [[f"layer.{k}"] * 2 for k in LAYERS] + [["last"] * 2]
    assert "give 16 of the engine's own 16 next tokens" in told and told.endswith("the last before the norm\n")


@pytest.mark.parametrize(("ids", "shift"), [("1,14,26", "+1"), ("3,16,28", "-1")])
def test_ids_shifted_by_one_are_named(served: Served, capsys: pytest.CaptureFixture[str], ids: str, shift: str) -> None:
    code, told = prove(served, capsys, "--layer-ids", ids)
    assert code == 1 and f"its ids are shifted by {shift}" in told


@pytest.mark.parametrize(("times", "named"), [(1, "AFTER the final norm"), (2, "a last state that was normed twice")])
def test_a_last_state_that_went_through_the_norm_is_named(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, times: int, named: str
) -> None:
    """The engine's own states, normed on their way."""
    checkpoint, read = Checkpoint(served.verifier), engine_probe.read
    norm, eps = checkpoint.norm(torch.float32), checkpoint.config.rms_norm_eps

    def normed(path: Path, timeout: float) -> dict[str, torch.Tensor] | None:
        found = read(path, timeout)
        assert found
        for _ in range(times):
            found["hidden_states"][:, -1] = rms_norm(found["hidden_states"][:, -1], norm, eps)
        return found

    monkeypatch.setattr(engine_probe, "read", normed)
    code, told = prove(served, capsys)
    assert code == 1 and named in told.splitlines()[-1]


def test_a_shard_is_what_our_own_extraction_gives(served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples of up to 900 tokens, several at once: the engine batches them, and cuts the long ones."""
    monkeypatch.setattr(stage_jobs, "LAYERS", LAYERS)
    bench, text = Bench(tmp_path, served.verifier), Tokenizer(served.verifier).encode(Path(__file__).read_text())
    samples = [text[start : start + length] for start, length in ((0, 1), (3, 17), (40, 300), (100, 900))]
    firsts = np.cumsum([0, *map(len, samples[:-1])])
    shard = bench.shard([Text(ids, [1] * len(ids)) for ids in samples])
    bench.extract(shard)
    with open(tmp_path / REFERENCE, "wb") as file:
        own_streams(Checkpoint(served.verifier), proof_ids(served.verifier)).write(file)
    before = set(served.folder.iterdir())
    inputs = {"ids": shard.ids, "verifier": served.verifier, "head": served.verifier, "reference": tmp_path}
    settings = {"engine": "vllm", "version": VERSION, "layer_ids": LAYERS}
    settings |= {"state_dtype": "float32", "compute_dtype": "float32"}
    knobs: dict[str, Any] = {"url": served.url, "model": served.verifier.name, "api_key_env": None}
    knobs |= {"timeout": 300.0, "attempts": 2, "backoff": 0.5, "concurrency": 4, "max_errors": 0.0}
    (made,) = bench.jobs(engine_states.compute_shards, settings, [{**inputs, "folder": served.folder}], **knobs)
    drawn = TensorFile(bench.store.folder(made["states"]) / STATES)
    for name, ours in bench.states(shard).items():
        theirs = state_rows(drawn, name, slice(None))
        differences, norms = np.linalg.norm(theirs - ours, axis=1), np.linalg.norm(ours, axis=1)
        own = np.delete(np.arange(len(ours)), firsts)  # without first tokens, whose norms are a hundred times the others'
        error, worst = np.linalg.norm(differences[own]) / np.linalg.norm(norms[own]), (differences / norms).max()
        print(f"{name}: relative error {error:.1e}, of a row at most {worst:.1e}")
        assert error < 1e-5 and worst < 5e-5
    assert set(served.folder.iterdir()) == before, "what was taken over is gone"


def test_a_flow_draws_its_states_from_the_engine(served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A gate stops the run once they are there: what follows reads the same artifacts as ever. A second run asks nobody."""
    write_corpus(tmp_path / "rows.jsonl", [f"number {n}" for n in range(16)])
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write(json.dumps({"id": "loop", "prompt": "Go on.", "response": "and on " * 60}) + "\n")
    settings = {
        "verifier": {"directory": str(served.verifier)},
        "data": {"conversations": [str(tmp_path / "rows.jsonl")]},
        "corpus": {"max_length": 256, "shard_tokens": 1024, "held_out": 0.2},
        "hidden_states": {"source": "engine", "engine_version": VERSION, "layer_ids": LAYERS},
        "endpoint": {"url": served.url, "model": served.verifier.name, "states_folder": str(served.folder)},
        "vocabulary": {"size": 512},
        "gates": {"min_coverage": 0.1, "max_quarantined": 0.0},
        "store": {"path": str(tmp_path / "store"), "state": str(tmp_path / "state")},
    }
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump(settings))
    assert main(["run", str(tmp_path / "settings.yaml"), "--json"]) == 2
    assert "gates.max_quarantined = 0.0" in capsys.readouterr().err
    made = {path.name for path in (tmp_path / "store" / "records").iterdir()}
    assert {"layer_reference", "engine_states", "validation"} <= made and "hidden_states" not in made
    asked = requests_served(served)
    lowered = ["--set", "gates.max_quarantined=0.1", "--set", "endpoint.concurrency=3"]
    assert main(["plan", str(tmp_path / "settings.yaml"), "--json", *lowered]) == 0
    status = {node["stage"]: node["status"] for node in json.loads(capsys.readouterr().out)}
    assert {status["layer_reference"], status["engine_states"], status["vocabulary"]} == {"hit"} and status["training"] == "run"
    assert requests_served(served) == asked


def requests_served(served: Served) -> str:
    """What the engine counts."""
    with EngineClient(served.url, served.verifier.name) as client:
        return next(line for line in client.metrics().splitlines() if line.startswith("vllm:request_success_total"))
