"""What code a stage is: what changes the digest, and what does not."""

import glob
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.code_digest import CodeError, closure, normal_form

ROOT = Path(__file__).parents[2]
BASE = '''
"""A module."""
import os


def scale(x, factor=2):
    """Scale."""
    name = f"{x!r:>{factor}} and {os.sep}" "tail"
    return x * factor  # a comment


class Thing:
    """A class."""

    value = 1
'''


@pytest.mark.parametrize(
    "edit",
    [
        ('"""Scale."""', '"""Scale, in other words."""'),
        ('    """Scale."""\n', ""),
        ("  # a comment", "  # another"),
        ("return x * factor", "return (\n        x\n        * factor\n    )"),
        ('"tail"', "'tail'"),
        ("def scale(", "@task(retries=3)\ndef scale("),
    ],
)
def test_what_does_nothing_changes_nothing(edit: tuple[str, str]) -> None:
    edited = BASE.replace(*edit)
    assert edited != BASE
    assert normal_form(edited) == normal_form(BASE)


@pytest.mark.parametrize(
    "edit",
    [
        ("x * factor", "x + factor"),
        ("factor=2", "factor=3"),
        ('"tail"', '"tale"'),
        ("value = 1", "value = 1.0"),
        (":>", ":<"),
    ],
)
def test_what_may_do_something_changes_it(edit: tuple[str, str]) -> None:
    assert normal_form(BASE.replace(*edit)) != normal_form(BASE)


def test_how_a_stage_is_run_is_not_what_it_computes() -> None:
    stage = 'STAGE = Stage("training", module=__name__, libraries=("torch",), retries=1, device="cpu")'
    assert normal_form(stage) == normal_form(stage.replace("retries=1", "retries=5").replace('"cpu"', '"accelerator"'))
    assert normal_form(stage) != normal_form(stage.replace('"torch"', '"numpy"'))


def _tree(root: Path, **modules: str) -> Path:
    for name, source in modules.items():
        path = root.joinpath(*name.split("__")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        (path.parent / "__init__.py").touch()
        path.write_text(source)
    return root


def test_imports_are_followed_wherever_they_stand(tmp_path: Path) -> None:
    root = _tree(
        tmp_path,
        tasks__stage="def compute():\n    from kimi_adapters import near\n    import artifacts.store\n",
        kimi_adapters__near="from .far import value\nimport json\n",
        kimi_adapters__far="value = 1\n",
        kimi_adapters__other="value = 2\n",
        artifacts__store="import kimi_adapters.other\n",
    )
    before = closure(root, "tasks.stage")
    assert {"tasks.stage", "kimi_adapters.near", "kimi_adapters.far"} <= set(before)
    assert not {"kimi_adapters.other", "artifacts.store", "json"} & set(before)
    (root / "kimi_adapters/far.py").write_text("value = 3\n")
    after = closure(root, "tasks.stage")
    assert [name for name in before if before[name] != after[name]] == ["kimi_adapters.far"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("import importlib\nimportlib.import_module('kimi_' + 'x')\n", "computed name"),
        ("from importlib import import_module as get\nget(name)\n", "computed name"),
        ("import importlib\nimportlib.import_module('.a', 'kimi_adapters')\n", "computed name"),
        ("import runpy\nrunpy.run_path('kimi_adapters/a.py')\n", "computed name"),
        ("from importlib.util import spec_from_file_location as s\ns('a', 'kimi_adapters/a.py')\n", "computed name"),
        ("def broken(:\n", "does not parse"),
        ("from kimi_adapters.nothing import here\n", "imports kimi_adapters.nothing"),
    ],
)
def test_code_that_cannot_be_known_is_an_error(tmp_path: Path, source: str, message: str) -> None:
    root = _tree(tmp_path, tasks__stage=source, kimi_adapters__a="")
    with pytest.raises(CodeError, match=message):
        closure(root, "tasks.stage")


def test_a_computed_import_may_be_declared(tmp_path: Path) -> None:
    source = "import importlib\nDYNAMIC_IMPORTS = ('kimi_adapters.a',)\ndef get(n): return importlib.import_module(n)\n"
    root = _tree(tmp_path, tasks__stage=source, kimi_adapters__a="x = 1\n")
    assert "kimi_adapters.a" in closure(root, "tasks.stage")


@pytest.mark.parametrize(
    "stage",
    [
        "synthesis",
        "corpus",
        "legacy",
        "hidden_states",
        "validation",
        "vocabulary",
        "training",
        "acceptance",
        "comparison",
        "export",
    ],
)
def test_stages_do_not_reach_into_one_another(stage: str) -> None:
    """A fix in one stage must not rerun another: extraction does not see masks, acceptance does not see the trainer."""
    modules = set(closure(ROOT, f"tasks.{stage}"))
    stages = {
        "verifier",
        "synthesis",
        "corpus",
        "legacy",
        "hidden_states",
        "validation",
        "vocabulary",
        "training",
        "acceptance",
        "comparison",
        "export",
    }
    assert {m.removeprefix("tasks.") for m in modules} & stages == {stage}
    foreign = {
        "hidden_states": {
            "kimi_adapters.chat",
            "kimi_adapters.tokenizer",
            "tasks.conversations",
            "kimi_adapters.trainer",
        },
        "synthesis": {"kimi_adapters.chat_masks"},
        "acceptance": {
            "kimi_adapters.chat_masks",
            "kimi_adapters.trainer",
            "kimi_adapters.training_checkpoint",
            "kimi_adapters.layer_stream",
        },
        "training": {
            "kimi_adapters.replay",
            "kimi_adapters.acceptance_interval",
            "kimi_adapters.decoding",
            "kimi_adapters.draft_sequences",
            "kimi_adapters.token_choice",
            "kimi_adapters.verifier",
            "kimi_adapters.llama",
            "kimi_adapters.layer_stream",
            "tasks.curve_plots",
            "tasks.figures",
        },
    }
    assert not modules & foreign.get(stage, set())
    # An edit of replay or decoding judges again and trains nothing; how curves are drawn is in no key.
    judging = {f"kimi_adapters.{name}" for name in ("replay", "decoding", "draft_sequences", "acceptance_interval")}
    assert judging & modules == (judging if stage in ("acceptance", "comparison") else set())
    assert "tasks.curve_plots" not in modules
    if stage == "training":
        assert {"kimi_adapters.checkpoint_choice", "kimi_adapters.walk"} <= modules, "they choose the draft"


def _interpreters() -> list[str]:
    """Python 3.11 to 3.13 other than this one, as they are named on the path or kept by pyenv."""
    found = {}
    for minor in (11, 12, 13):
        names = [
            shutil.which(f"python3.{minor}"),
            *glob.glob(os.path.expanduser(f"~/.pyenv/versions/3.{minor}.*/bin/python")),
        ]
        for name in names:
            probe = [str(name), "-c", "import sys; print(sys.version_info[1])"]
            done = subprocess.run(probe, capture_output=True, text=True, check=False) if name else None
            if done and done.stdout.strip() == str(minor) != str(sys.version_info[1]):
                found[minor] = str(name)
    return list(found.values())


def test_the_digest_is_the_same_under_another_python() -> None:
    interpreters = _interpreters()
    if not interpreters:
        pytest.skip("no second Python of 3.11 to 3.13 on this machine")
    here = closure(ROOT, "tasks.training") | closure(ROOT, "tasks.corpus")
    program = (
        "from pathlib import Path; from artifacts.code_digest import closure; root = Path.cwd();"
        "print(sorted((closure(root, 'tasks.training') | closure(root, 'tasks.corpus')).items()))"
    )
    for interpreter in interpreters:
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        there = subprocess.run(
            [interpreter, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
        ).stdout.strip()
        assert there == str(sorted(here.items())), interpreter
