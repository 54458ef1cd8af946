"""`promptiter apply`: what was written where, or the diff of what would be."""

from __future__ import annotations

from promptiter.cli.output import echo, json_text
from promptiter.runs.apply import ApplyReport
from promptiter.wording import join_names, path_from_here, plural

_HEADLINES = {"applied": "Applied", "reverted": "Reverted", "preview": "Would change"}
_MAX_NAMES = 4


def print_report(report: ApplyReport, *, is_revert: bool = False) -> None:
    """Print the diffs of a preview, or one line for each file."""
    if report.state == "preview":
        for file in report.files:
            echo(file.diff, nl=False)
    if not report.surface_ids and not report.commit:
        held = "old" if is_revert else "new"
        echo(f"Nothing to do: every place has its {held} value")
        return
    if report.surface_ids:
        where = plural(len(report.files) + len(report.callbacks), "place")
        text = f"{_HEADLINES[report.state]} {plural(len(report.surface_ids), 'surface')} in {where}"
        echo(text, err=report.state == "preview")
    if report.state != "preview":
        for file in report.files:
            echo(f"  {path_from_here(file.path)}: {join_names(file.surface_ids, limit=_MAX_NAMES)}")
    for surface_id in report.callbacks:
        echo(f"  callback: {surface_id}", err=report.state == "preview")
    if report.commit is not None:
        echo(f"  commit {report.commit[:12]}")


def report_as_json(report: ApplyReport) -> str:
    """The report, with a diff of each file."""
    return json_text(report_as_plain(report))


def report_as_plain(report: ApplyReport) -> dict[str, object]:
    """The report as plain data."""
    return {
        "state": report.state,
        "run_id": report.run_id,
        "files": [
            {"path": str(file.path), "surfaces": list(file.surface_ids), "diff": file.diff} for file in report.files
        ],
        "callbacks": list(report.callbacks),
        "unchanged": list(report.unchanged),
        "commit": report.commit,
    }
