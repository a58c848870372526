"""A published draft beside ours through the whole flow, on a store where everything else is made."""

import shutil

from tests.projects import Project, ran


def test_a_published_draft_is_judged_beside_ours_and_equal_numbers_export_nothing(project: Project) -> None:
    """The published draft is a copy of our own export, so that no sample tells the two apart; the edit changes no number."""
    theirs = project.folder / "elsewhere" / "theirs"
    shutil.copytree(project.blob_of("export", "export"), theirs)
    project.edit("kimi_adapters/replay.py", "\n\ndef walk_shards", "\n\nEDITED = 1\n\n\ndef walk_shards")
    nodes = project.nodes("run", "--set", f"acceptance.compare=[{theirs}]")
    assert ran(nodes) == {"acceptance", "comparison"}
    assert [node["node"] for node in nodes if node["stage"] == "comparison"] == ["theirs"]
    report = max((project.store / "reports").glob("*/report.md")).read_text()
    row = next(line for line in report.splitlines() if line.startswith("| theirs |"))
    assert row.endswith("| **+0.00** | +0.00 to +0.00 |") and "elsewhere" not in report
