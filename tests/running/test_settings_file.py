"""Settings from a file and the command line: what cannot be read is told in one sentence."""

from pathlib import Path

import pytest

from errors import UserError
from running.cli import main
from running.settings_file import load_settings


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    """A file of settings that is read, though it names no verifier."""
    path = tmp_path / "settings.yaml"
    path.write_text("training: {lr: 1.0e-4}\n")
    return path


def test_what_is_set_on_the_command_line_wins(settings: Path) -> None:
    found = load_settings(settings, ["training.lr=5e-3", "corpus.held_out=0.2", "data.prompts=[a.jsonl]"])
    assert (found.training.lr, found.corpus.held_out, found.data.prompts) == (5e-3, 0.2, ["a.jsonl"])


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("training.lr=[", "the value is not YAML"),
        ("name=2026-13-45", "the value is not YAML"),
        ("training.lr.x=1", "lr"),
        ("store=5", "store in"),
        ("=5", "no setting"),
        ("training", "has no value"),
    ],
)
def test_nonsense_is_told_in_one_sentence(settings: Path, override: str, told: str) -> None:
    with pytest.raises(UserError, match=told) as raised:
        load_settings(settings, [override])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"a: [\n", b"a: 2026-13-45\n", b"a: \xff\n", b"a:\n\tb: 1\n"])
def test_what_is_no_yaml_is_told_in_one_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.yaml is not YAML") as raised:
        load_settings(tmp_path / "broken.yaml", [])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("limit", ["0", "-1"])
def test_a_limit_of_nothing_is_refused_and_not_a_whole_run(
    settings: Path, limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", str(settings), "--limit", limit]) == 2
    assert "limit in" in capsys.readouterr().err
