"""Settings from a YAML file and from the command line; a mistake is told in one sentence."""

from pathlib import Path
from typing import Any

from errors import UserError


def load_settings(path: Path, overrides: list[str]) -> Any:
    """The settings of a YAML file with ``section.key=value`` put over them; ``UserError`` names what is wrong."""
    import yaml
    from pydantic import ValidationError

    from tasks.settings import Settings

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except OSError as error:
        raise UserError(f"settings file {path} cannot be read ({error.strerror}): correct the path") from None
    except (yaml.YAMLError, ValueError) as error:  # a date that is none is a ValueError
        raise UserError(f"settings file {path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"settings file {path} holds no mapping of settings: see deployments/demo.yaml")
    for override in overrides:
        _override(values, override)
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "settings"
        why = (
            "is no setting" if first["type"] == "extra_forbidden" else f"is wrong: {first['msg'].removeprefix('Value error, ')}"
        )
        raise UserError(f"{where} in {path} {why}: see tasks/settings.py for every setting") from None


def _override(values: dict[str, Any], override: str) -> None:
    import yaml

    name, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"--set {override} has no value: write --set section.key=value")
    *sections, key = name.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise UserError(f"--set {override}: {section} is no section of settings")
    try:
        values[key] = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        raise UserError(f"--set {override}: the value is not YAML: {' '.join(str(error).split())}") from None
