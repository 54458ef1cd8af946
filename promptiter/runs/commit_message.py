"""The message of a commit that applies a run: what changed, and the evidence for it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from promptiter.runs.blame_summary import find_main_reason
from promptiter.runs.summary import FigureChange, RunSummary
from promptiter.wording import format_score, join_names, plural
from traces.text import one_line

MAX_NAMES = 2
WIDTH = 100


def write_commit_message(summary: RunSummary) -> str:
    """The headline, the scores, the evidence, and the reason for each change."""
    names = [change.surface_id for change in summary.changes]
    subject = f"Apply promptiter run: {join_names(names, limit=MAX_NAMES)}"
    return "\n".join([subject, "", *_list_evidence(summary), "", *_list_changes(summary)]) + "\n"


def write_revert_message(summary: RunSummary) -> str:
    """The message of the commit that reverts a run."""
    names = [change.surface_id for change in summary.changes]
    return f"Revert promptiter run: {join_names(names, limit=MAX_NAMES)}\n\nRun: {summary.run_id}\n"


def _list_evidence(summary: RunSummary) -> Iterator[str]:
    reason = f" ({summary.reason})" if summary.reason else ""
    yield from _wrap(f"{summary.headline}{reason}.")
    if summary.obstacle:
        yield from _wrap(f"Not shown for new cases: {summary.obstacle}")
    yield ""
    yield f"Verdict: {summary.verdict}"
    for name, figure in (("", summary.score), (" on the test set", summary.test_score)):
        if figure is not None:
            yield f"{figure.name.capitalize()}{name}: {_compare(figure)}"
    for line in summary.evidence:
        if summary.obstacle and summary.obstacle in line:
            continue
        yield from _wrap(f"Evidence: {line}")
    yield f"Run: {summary.run_id}"


def _list_changes(summary: RunSummary) -> Iterator[str]:
    for change in summary.changes:
        reason = find_main_reason(change.reasons)
        why = "" if reason is None else reason.patch_reason or reason.text
        cases = f" ({plural(len(reason.case_ids), 'case')})" if reason is not None and reason.case_ids else ""
        yield from _wrap(f"{change.surface_id}: {one_line(why) or 'no reason recorded'}{cases}", bullet="- ")


def _compare(figure: FigureChange) -> str:
    return f"{format_score(figure.before)} -> {format_score(figure.after)}"


def _wrap(text: str, *, bullet: str = "") -> list[str]:
    """The lines of a text. None starts with #, which git would take for a comment."""
    indent = " " * len(bullet)
    lines = textwrap.wrap(one_line(text), WIDTH, initial_indent=bullet, subsequent_indent=indent)
    return [f" {line}" if line.startswith("#") else line for line in lines]
