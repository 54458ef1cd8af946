"""Writes the report of a run into its folder: report.html, report.md and trajectory.csv."""

from __future__ import annotations

import os
from pathlib import Path

from promptiter.runlog.results import RunResult
from promptiter.runs.artifacts import REPORT
from promptiter.runs.report.pages import render_html, render_markdown
from promptiter.runs.report.run_report import collect_report, read_report
from promptiter.runs.report.trajectory import write_csv
from traces.files import write_atomically

MARKDOWN, TRAJECTORY = "report.md", "trajectory.csv"


def write_report(folder: str | os.PathLike[str], result: RunResult | None = None) -> Path:
    """Write the report of a run, at any time; return the path of report.html.

    Without a `result`, it is read from the folder: SetupError if it cannot be read or the run has not begun.
    """
    path = Path(folder)
    report = read_report(path) if result is None else collect_report(result, path)
    pages = {TRAJECTORY: write_csv(report.points), MARKDOWN: render_markdown(report), REPORT: render_html(report)}
    for name, text in pages.items():
        with write_atomically(path / name) as file:
            file.write(text.encode("utf-8", "replace"))
    return path / REPORT
