"""A real run whose states come from an engine: in children that may open what they declare, and nothing is drawn twice."""

import json
from pathlib import Path

from tasks.formats import read_tokens
from tests.projects import TOPICS, Project, write_corpus
from tests.states_endpoint import MODEL, VERSION, StatesEndpoint

SECRET = "sk-Quetzal-7"


def shards(project: Project) -> list[list[list[int]]]:
    """The samples of each shard that the corpus has made."""
    found = []
    for record in project.records("corpus"):
        for name, output in sorted(json.loads(record.read_text())["outputs"].items()):
            if name.startswith("ids"):
                ids, offsets = read_tokens(project.store / "blobs" / output["digest"][:2] / output["digest"])
                found.append([ids[start:stop].tolist() for start, stop in zip(offsets[:-1], offsets[1:], strict=True)])
    return found


def test_a_second_run_asks_for_what_the_first_did_not_get(fresh: Project, cut_verifier: Path, tmp_path: Path) -> None:
    """Of the shard that is asked for second the last sample gets nothing in the first run; a gate ends the other run when the
    states are there."""
    write_corpus(fresh.folder / "few.jsonl", TOPICS[:8])
    endpoint = StatesEndpoint(cut_verifier, tmp_path / "states", [1, 2, 3], key=SECRET)
    samples: list[list[list[int]]] = []

    def refused(number: int) -> str:
        samples[:] = samples or shards(fresh)
        asked = [shard for prompt in endpoint.prompts[:number] for shard in samples if prompt in shard]
        second = [shard for shard in asked if shard != asked[0]][:1]
        return "500" if any(endpoint.prompts[number - 1] == shard[-1] for shard in second) else ""

    fresh.environment["ENDPOINT_KEY"] = SECRET
    chosen = ["data.conversations=[few.jsonl]", "corpus.shard_tokens=400", "validation.min_supervised=1000"]
    chosen += ["endpoint.attempts=1", "endpoint.concurrency=1", "endpoint.api_key_env=ENDPOINT_KEY"]
    chosen += ["hidden_states.source=engine", f"hidden_states.engine_version={VERSION}", f"endpoint.model={MODEL}"]
    chosen += [f"endpoint.states_folder={endpoint.folder}"]
    with endpoint.served():
        arguments = [word for one in [*chosen, f"endpoint.url={endpoint.url}"] for word in ("--set", one)]
        endpoint.fault = refused
        first = fresh.eyas("run", str(fresh.settings), *arguments)
        assert first.returncode != 0, first.stdout[-3000:]
        assert "got no states from the engine in 1 tries: status 500" in first.stderr, first.stderr[-3000:]
        (kept,) = fresh.records("engine_states")
        (given,) = (shard for shard in samples if endpoint.prompts[1] in shard)
        endpoint.fault, endpoint.prompts = (lambda number: ""), []
        second = fresh.eyas("run", str(fresh.settings), *arguments)
    assert second.returncode == 2 and "more than gates.max_quarantined" in second.stderr, second.stderr[-3000:]
    assert len(fresh.records("layer_reference")) == 1
    assert kept in fresh.records("engine_states") and len(fresh.records("engine_states")) == len(samples) > 1
    lacking = [sample for shard in samples if shard != given for sample in shard]
    proof, *asked = endpoint.prompts
    assert sorted(asked) == sorted(lacking) and not any(proof in shard for shard in samples)
    assert not [path for path in endpoint.folder.iterdir() if path.stem.startswith("cmpl-")], "what was taken over is gone"
    written = [path for path in fresh.folder.rglob("*") if path.is_file() and SECRET.encode() in path.read_bytes()]
    assert not written and SECRET not in first.stdout + first.stderr + second.stdout + second.stderr
