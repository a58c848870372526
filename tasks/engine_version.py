"""Which engine it is: part of the key of what is measured in it, so it must be known before anything is measured."""

import re
import shutil
from pathlib import Path

from errors import UserError
from tasks import endpoint
from tasks.settings import EngineSettings, Settings

_FOLDER = re.compile(r"vllm(?:_\w+)?-(.+)\.dist-info")


def engine_version(settings: Settings, model: str) -> str:
    """The version of the engine of ``acceptance.engine``: as the settings say, as the running one says, or of the package
    beside the command. ``UserError`` where none can be known."""
    if settings.engine.version is not None:
        return settings.engine.version
    if settings.acceptance.engine == "start":
        return _installed(settings.engine)
    with endpoint.client({**endpoint.knobs(settings), "attempts": 1, "timeout": 10.0}, model) as client:
        found: str | None = client.version()
    if found is None:
        raise UserError(f"the endpoint {settings.endpoint.url} has no /version, so no key can name it: set engine.version")
    return found


def engine_command(settings: EngineSettings) -> list[str]:
    """The command with the absolute path of its program."""
    program = shutil.which(settings.command[0])
    if program is None:
        raise UserError(f"engine.command names {settings.command[0]}, which is no program here: give the path of its bin/vllm")
    return [str(Path(program).absolute()), *settings.command[1:]]


def _installed(settings: EngineSettings) -> str:
    program = Path(engine_command(settings)[0])
    found = {
        match[1]
        for path in program.parent.parent.glob("lib/python*/site-packages/vllm*.dist-info")
        if (match := _FOLDER.fullmatch(path.name))
    }
    if not found:
        raise UserError(f"no vLLM is installed beside {program}, so its version is not known: set engine.version")
    return max(found, key=len)  # a repackaged one has two folders, of which one names its build, too
