"""The report's section about training, from curves as training writes them."""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest

from artifacts.stage import Made, Node, Stage
from artifacts.store import Store
from artifacts.writer import ArtifactWriter
from flows.report_training import draw_curves, training_section
from flows.train_draft import DraftRun
from tasks.curve_plots import training_plot
from tasks.curves import curves_parquet, read_curves
from tasks.formats import CURVES


@dataclass
class Run:
    """What the section reads of a run."""

    training: Made


def curves(replays: dict[int, float]) -> list[dict[str, float]]:
    one = [
        {"step": s, "epoch": 0, "lr": 1e-3, "loss": 9 / s, "grad_norm": 1.0, "tokens": 30, "acc_0": s / 60, "acc_1": s / 90}
        for s in range(1, 61)
    ]
    for entry in one:
        entry["tokens_per_s"] = 500.0
        if int(entry["step"]) in replays:
            entry["replayed_length"] = replays[int(entry["step"])]
    return one


def made(folder: Path, facts: dict[str, Any], replays: dict[int, float], share: float = 0.0214) -> tuple[Store, DraftRun]:
    store, workspace = Store(folder / "store"), folder / "workspace"
    workspace.mkdir()
    draft, drawn = ArtifactWriter("draft", workspace), ArtifactWriter("curves", workspace)
    drawn.write(CURVES, curves_parquet(curves(replays)))
    waiting = {"loader_share": share, "loader_rate": 1_234_567_890}
    outputs = {"draft": store.commit(draft.seal(**facts)), "curves": store.commit(drawn.seal(steps=60, **waiting))}
    return store, cast(DraftRun, Run(Made(Node(Stage("training", "tasks.training", ()), "", {}, {}), outputs)))


def test_it_names_the_chosen_step_and_shows_the_curves(tmp_path: Path) -> None:
    choices = {"attention": "sdpa", "loss": "eager", "loss_because": "a fused one needs a GPU"}
    choices |= {"device": "cpu", "dtype": "float32"}
    facts = {"steps": 60, "loss": 0.15, "best_step": 30, "replayed_length": 1.754, "replayed_samples": 16, "choices": choices}
    store, run = made(tmp_path, facts, {15: 1.2, 30: 1.754, 45: 1.5, 60: 1.7})
    plot = draw_curves(store, run, tmp_path, tmp_path / "plots")
    assert plot is not None and plot.read_bytes().startswith(b"\x89PNG") and plot.stat().st_size > 20_000
    text = training_section(run, plot, tmp_path / "no loggers")
    assert "loggers" not in text and f"Its loggers wrote into `{tmp_path}`" in training_section(run, plot, tmp_path)
    assert (
        "step 30" in text
        and "16 held-out samples" in text
        and "1.75 tokens a step" in text
        and "in 2.1% of" in text
        and "took attention sdpa, loss eager (a fused one needs a GPU), float32." in text
        and f"]({plot.name})" in text
    )
    shutil.rmtree(store.folder(run.training.outputs["curves"].digest))  # type: ignore[index]
    assert draw_curves(store, run, tmp_path, tmp_path / "plots") is None and "![" not in training_section(run, None)


def test_a_run_without_replays_and_a_continued_one_say_so(tmp_path: Path) -> None:
    facts = {"steps": 60, "loss": 0.15, "best_step": 60, "continued_at": 50}
    store, run = made(tmp_path, facts, {})
    text = training_section(run, draw_curves(store, run, tmp_path, tmp_path / "plots"))
    assert "On the device" not in text and "cut" not in text, "where it is not known"
    (other := tmp_path / "other").mkdir()
    cut = training_section(made(other, facts | {"cut_samples": 7}, {})[1], None)
    assert "7 samples are longer than a pack and were cut" in cut
    assert "that of the last step" in text and "first 50 steps were taken over" in text


def test_a_training_that_waits_says_for_what(tmp_path: Path) -> None:
    facts = {"steps": 60, "loss": 0.15, "best_step": 60}
    for share, told in (
        (0.029, "in 2.9% of the steps' time."),
        (0.03, "in 3.0% of the steps' time: the states' files gave 1.23 GB/s"),
    ):
        (folder := tmp_path / str(share)).mkdir()
        assert told in training_section(made(folder, facts, {}, share)[1], None)


def test_the_same_curves_give_the_same_bytes_and_others_do_not() -> None:
    read = {name: [entry.get(name) for entry in curves({60: 1.5})] for name in curves({60: 1.5})[-1]}
    assert training_plot(read, 60) == training_plot(read, 60)
    assert training_plot(read, 60) != training_plot({**read, "loss": [1.0] * 60}, 60)


@pytest.mark.parametrize("replays", [{}, {20: 1.25, 60: 1.5}])
def test_curves_come_back_with_their_types_and_gaps(tmp_path: Path, replays: dict[int, float]) -> None:
    path = tmp_path / CURVES
    path.write_bytes(curves_parquet(curves(replays)))
    with open(path, "rb") as file:
        columns = read_curves(file)
    for name, values in columns.items():
        assert values == [entry.get(name) for entry in curves(replays)]
    assert isinstance(columns["step"][0], int) and isinstance(columns["lr"][0], float)
    assert sum(value is not None for value in columns.get("replayed_length", [])) == len(replays)


def test_a_plot_is_drawn_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run in which everything hits loads no library that draws; other curves are drawn."""
    store, run = made(tmp_path, {"steps": 60, "loss": 0.15, "best_step": 30}, {30: 1.5})
    plots, folders = tmp_path / "plots", [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    first = draw_curves(store, run, folders[0], plots)
    assert first is not None
    monkeypatch.setattr("tasks.curve_plots.training_plot", lambda *_: b"drawn anew")
    second = draw_curves(store, run, folders[1], plots)
    assert second is not None and second.read_bytes() == first.read_bytes()
    run.training.outputs["draft"].facts["best_step"] = 60  # type: ignore[index]
    other = draw_curves(store, run, folders[1], plots)
    assert other is not None and other.read_bytes() == b"drawn anew"
