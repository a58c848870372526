"""A pass that cannot fit is refused in one sentence by the plan, from the configuration alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from artifacts.stage import Input, Made, Node, Pending
from benchmarks import kimi_widths
from errors import UserError
from flows import train_draft
from flows.planning import open_host, plan
from kimi_adapters.deepseek_config import DeepseekConfig
from kimi_adapters.pass_memory import layer_bytes
from kimi_adapters.tiny_checkpoint import make
from kimi_adapters.weights import Checkpoint
from running.devices import Memory
from tasks import hidden_states, passes
from tasks.settings import Settings
from tests.projects import TOPICS, write_corpus

SHARD = 131072
H200, CARD_96 = Memory(141 * 10**9, 8, 9.0), Memory(96 * 10**9, 8, 12.0)


def no_rates(node: Node) -> None:
    """Of a store that has measured nothing."""


def settings(folder: Path, size: int | None, **more: Any) -> Settings:
    """Settings of a verifier of Kimi-K2.5's widths, of which there is the configuration alone."""
    (folder / "config.json").write_text(json.dumps(kimi_widths.values()))
    return Settings.model_validate(
        {
            "verifier": {"directory": str(folder)},
            "corpus": {"shard_tokens": SHARD, "max_length": 32768},
            "hidden_states": {"compute_dtype": "bfloat16"},
            "running": {"shards_per_pass": size},
        }
        | more
    )


def nodes(count: int, tokens: int = SHARD, pending: bool = False) -> list[Node]:
    """Extractions of so many shards."""
    ids = Pending("corpus · a") if pending else Input("digest")
    return [Node(hidden_states.STAGE, str(n), {}, {"ids": ids}, tokens=tokens) for n in range(count)]


def check(given: Settings, shards: list[Node], memory: Memory | None) -> bool:
    """Judge a plan that would run these; True when nothing is refused."""
    made = [Made(node, None) for node in passes.sized(given, shards, no_rates, lambda: memory)]
    passes.check(given, made, lambda: memory)
    return True


@pytest.mark.parametrize(("memory", "size"), [(H200, 26), (CARD_96, 6)])
def test_the_passes_that_the_deployment_names_fit(tmp_path: Path, memory: Memory, size: int) -> None:
    given = settings(tmp_path, size)
    assert check(given, nodes(40), memory)
    assert {node.knobs["shards_per_pass"] for node in passes.sized(given, nodes(40), no_rates, lambda: memory)} == {size}


def test_a_pass_that_fits_no_gpu_says_what_would(tmp_path: Path) -> None:
    given = settings(tmp_path, 26)
    expected = r"3,407,872 tokens in 26 shards needs .* GB of device memory and 96.0 GB are on the smallest GPU; .*_pass to \d+"
    with pytest.raises(UserError, match=expected):
        check(given, nodes(40), CARD_96)
    assert check(given, nodes(5), CARD_96), "no more than there are"
    with pytest.raises(UserError, match="in 26 shards"):
        check(given, nodes(1, 30 * SHARD, pending=True), CARD_96)
    assert check(given, nodes(40), None)


def test_a_gpu_without_the_fused_kernels_has_its_own_arithmetic(tmp_path: Path) -> None:
    given = settings(tmp_path, 4)
    assert check(given, nodes(40), Memory(96 * 10**9, 8, 9.0))
    with pytest.raises(UserError, match=r"of device memory and 80.0 GB are on .*; give a device with [\d,]+ bytes"):
        check(given, nodes(40), Memory(80 * 10**9, 8, 8.0))
    wide = settings(tmp_path, 4, hidden_states={"compute_dtype": "float32"})
    with pytest.raises(UserError, match=r"of device memory and 141.0 GB are .*; set running.shards_per_pass to 2\."):
        check(wide, nodes(40), H200)
    assert check(settings(tmp_path, 2, hidden_states={"compute_dtype": "float32"}), nodes(40), H200)


def test_layers_stay_only_beside_a_pass_that_fits(tmp_path: Path) -> None:
    """Seven layers are 60 GB, and 8 shards with all of them 139.5; streamed 96.1."""
    given = settings(tmp_path, 8)
    (tmp_path / "config.json").write_text(json.dumps(kimi_widths.values(7)))
    assert check(given, nodes(8), Memory(125 * 10**9, 1, 9.0))


def test_what_is_recorded_needs_no_memory(tmp_path: Path) -> None:
    given = settings(tmp_path, 26)
    passes.check(given, [Made(node, {}) for node in nodes(40)], lambda: CARD_96)


def test_a_pass_that_fits_no_host(tmp_path: Path) -> None:
    wide = settings(tmp_path, 1, hidden_states={"compute_dtype": "float32"})
    host = Memory(256 * 10**9, 2, None)
    assert check(wide, nodes(1), host)
    with pytest.raises(UserError, match=r"for each of 4 children; .*running.cpu_slots"):
        check(wide, nodes(8), Memory(host.bytes, 4, None))
    many = settings(tmp_path, 40, hidden_states={"compute_dtype": "float32"})
    with pytest.raises(UserError, match=r"256.0 GB are there; set running.shards_per_pass to (\d+)\.") as caught:
        check(many, nodes(40), Memory(host.bytes, 1, None))
    fit = int(str(caught.value).split()[-1].rstrip("."))
    named, more = (settings(tmp_path, n, hidden_states={"compute_dtype": "float32"}) for n in (fit, fit + 1))
    assert check(named, nodes(40), Memory(host.bytes, 1, None))
    with pytest.raises(UserError, match=f"set running.shards_per_pass to {fit}"):
        check(more, nodes(40), Memory(host.bytes, 1, None))


@pytest.mark.parametrize(("memory", "tokens", "size"), [(H200, 394_000, 4), (H200, 10**7, 27), (CARD_96, 3_370_000, 6)])
def test_a_pass_left_open_hides_the_reading_as_far_as_it_fits(tmp_path: Path, memory: Memory, tokens: int, size: int) -> None:
    open_size = settings(tmp_path, None)
    sized = passes.sized(open_size, nodes(400), lambda node: tokens, lambda: memory)
    assert {node.knobs["shards_per_pass"] for node in sized} == {size}
    sized = passes.sized(open_size, nodes(400), no_rates, lambda: memory)
    assert {node.knobs["shards_per_pass"] for node in sized} == {1}, "nothing was measured"


def test_layers_weigh_what_their_files_do(tmp_path: Path) -> None:
    checkpoint = Checkpoint(make(tmp_path))
    assert isinstance(checkpoint.config, DeepseekConfig)
    found = layer_bytes(checkpoint.config)
    assert found.total == pytest.approx(checkpoint.layer_bytes, rel=0.01)
    assert found.largest == pytest.approx(checkpoint.largest_layer_bytes, rel=0.01)


def test_the_plan_refuses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_corpus(tmp_path / "a.jsonl", TOPICS)
    make(tmp_path / "kimi")
    tiny = {"verifier": {"directory": "kimi"}, "data": {"conversations": ["a.jsonl"]}, "vocabulary": {"size": 640}}
    given = Settings.model_validate(tiny)
    assert plan(given, open_host(given)).steps
    monkeypatch.setattr(train_draft, "memory", lambda indices, slots: Memory(10**6, 1, None))
    with pytest.raises(UserError, match="of host memory and 0.001 GB are there"):
        plan(given, open_host(given))
