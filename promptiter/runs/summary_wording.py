"""The wording of a run's summary, shared by the command line and the report."""

from __future__ import annotations

from promptiter.runs.blame_summary import BlameOutcome
from promptiter.runs.summary import FigureChange, RunSummary
from promptiter.wording import format_score, plural
from traces.text import cut_at_word, one_line

MAX_REASON = 400
MAX_CAUSE = 1000
SHORT_REASONS = ("improved", "improved_on_validation", "no_evidence", "underpowered", "overfit_risk")
"""The outcomes whose reason is a p-value or a few words."""

BLAME_OUTCOMES: dict[BlameOutcome, str] = {
    "adopted": "changed",
    "not_adopted": "patch accepted, not adopted",
    "rejected": "patch rejected",
    "undecided": "patch not decided on",
    "no_patch": "no patch",
    "below_support": "blame too uncertain for a patch",
}


def describe_scores(summary: RunSummary) -> str:
    """`: mean score 0.500 → 1.000 (p = 0.008)`, as far as known. A test set comes first, if it decided."""
    text, details = "", []
    is_of_test_set = summary.test_score is not None and summary.outcome in ("improved", "overfit_risk")
    if summary.score is not None and summary.outcome not in ("failed", "invalid_eval"):
        searched = "validation" if summary.shape == "two_sets" else "the cases of the search"
        if is_of_test_set and summary.test_score is not None:
            text += f": {format_change(summary.test_score)} on the test set"
            details.append(f"{searched} {_format_figures(summary.score)}")
        else:
            where = f" on {searched}" if summary.outcome == "improved" else ""
            text += f": {format_change(summary.score)}{where}"
    reason = shorten_reason(summary.reason, limit=MAX_CAUSE)
    if summary.outcome in SHORT_REASONS:
        found = "; ".join(each for each in (reason, *details) if each)
        text += f" ({found})" if found else ""
    elif reason:
        text += f"; {reason}" if text else f": {reason}"
    return text


def failing_line(summary: RunSummary) -> str:
    """The number of validation cases that fail, in any repeat, under the accepted profile; empty without cases."""
    figures = summary.validation
    if figures is None or summary.shape == "scorer":
        return ""
    failing = figures.cases - figures.passed
    cases = plural(figures.cases, "validation case" if summary.shape == "two_sets" else "case")
    if not failing:
        return f"all {cases} pass"
    still = " still" if summary.adopted else ""
    where = f" in at least one of {figures.repeats} repeats" if figures.repeats > 1 else ""
    return f"{failing} of {cases}{still} {'fails' if failing == 1 else 'fail'}{where}"


def changes_title(summary: RunSummary) -> str:
    """`What changed: 2 of 6 surfaces`, or a title for accepted changes that are not adopted."""
    if summary.adopted:
        return f"What changed: {len(summary.changes)} of {plural(len(summary.targets), 'surface')}"
    is_open = summary.outcome in ("running", "interrupted", "stopped", "cancelled", "failed", "budget_ended")
    return "Accepted so far, not tested yet" if is_open else "Accepted by the search, not adopted"


def format_change(change: FigureChange) -> str:
    """`mean score 0.500 → 1.000`, or a single figure if it did not change."""
    return f"{change.name} {_format_figures(change)}"


def _format_figures(change: FigureChange) -> str:
    after = "" if change.after is None or change.after == change.before else f" → {change.after:.3f}"
    return f"{format_score(change.before)}{after}"


def shorten_reason(text: str, *, limit: int = MAX_REASON) -> str:
    """A reason on a single line, cut if it is long."""
    return cut_at_word(one_line(" ".join(text.split())), limit)


def format_amount(figure: FigureChange, value: float | None) -> str:
    """The mean usage of a case run: tokens, or dollars."""
    if value is None:
        return "unknown"
    if figure.name != "dollars":
        return f"{value:,.0f}"
    return f"${float(f'{value:.3g}'):.12f}".rstrip("0").rstrip(".")
