"""The settings that ship are settings, and the UI's defaults are the demo's."""

from pathlib import Path

import pytest
import yaml

from tasks.settings import Settings

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "deployments").glob("*.yaml")), ids=lambda path: path.name)
def test_each_file_of_settings_is_valid(path: Path) -> None:
    Settings.model_validate(yaml.safe_load(path.read_text()))


def test_the_first_run_from_the_ui_hits_what_the_demo_made() -> None:
    (deployment,) = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    demo = yaml.safe_load((ROOT / "deployments" / "demo.yaml").read_text())
    assert Settings.model_validate(deployment["parameters"]["settings"]) == Settings.model_validate(demo)
