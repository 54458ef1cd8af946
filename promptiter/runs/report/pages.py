"""The pages of a report: report.html, one file that needs no network, and report.md, for a pull request.

Jinja renders them; this is the only module that imports it. Everything recorded is escaped: it appears as text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from promptiter.profile import SurfaceChange
from promptiter.runs.blame_summary import BlameSummary, find_main_reason
from promptiter.runs.candidate_pool import describe_parents
from promptiter.runs.cost_wording import cost_line, describe_usage
from promptiter.runs.hunk_evidence import HunkEvidence, make_anchor
from promptiter.runs.iteration_rows import IterationOutcome
from promptiter.runs.report.candidate_tree import count_widest
from promptiter.runs.report.case_changes import CaseEffect
from promptiter.runs.report.charts import chart_trajectory, chart_trials, choose_points
from promptiter.runs.report.evidence_cases import choose_gradients
from promptiter.runs.report.run_report import RunReport
from promptiter.runs.summary import ChangeSummary, FigureChange, RunSummary
from promptiter.runs.summary_wording import BLAME_OUTCOMES, changes_title, describe_scores, failing_line, format_amount
from promptiter.runs.trial_phases import PHASE_ENDS
from promptiter.text_diff import find_hunks, split_passages
from promptiter.wording import dollars, escape_markdown, format_score, join_names, plural
from traces.draw.svg import to_svg
from traces.text import cut_at_word

MOST_DETAILED_CASES = 200
"""Cases whose answers are shown; of the others only the scores."""

MAX_TEXT = 4_000
MAX_CELL = 160
MAX_ID = 60
"""Characters of a text, of a cell of a table in Markdown, and of the id of a case in a list."""

MOST_SCALED = 16
"""Nodes of a diagram that is scaled to the width of the page; a larger one is scrolled."""

MOST_BESIDE = 8
"""Candidates side by side in a tree that is scaled to the width of the page; a wider one is scrolled."""

MOST_REJECTED = 100
MOST_LISTED = 30
"""Rows of a table in Markdown; report.html has all."""


_FORBIDDEN: dict[int, str] = {
    **dict.fromkeys([*range(9), 11, *range(14, 32), *range(127, 160)], "\N{REPLACEMENT CHARACTER}"),
    **{code: f"[U+{code:04X}]" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}
"""Control characters, which are an error in HTML, and those that change the direction of the text around them."""

EFFECT_TONES: dict[CaseEffect, str] = {"new fail": "bad", "down": "bad", "new pass": "good", "up": "good"}
"""The colours of what happened to a case."""


ITERATION_TONES: dict[IterationOutcome, str] = {"best": "good", "kept": "", "rejected": "warn"}
"""The colours of what became of an iteration's candidate."""


class Piece(NamedTuple):
    """A part of the text of a surface: unchanged, removed or added; and the hunk that it belongs to."""

    kind: str
    text: str
    hunk: HunkEvidence | None = None


def render_html(report: RunReport, *, is_alone: bool = False) -> str:
    """report.html: one file without scripts or links to other files. Charts and diagrams escape their own texts.

    One that `is_alone` has no other files of the run beside it, and does not name them.
    """
    points, trials = report.points, report.summary.descent.trials
    chart = chart_trajectory(points, objective=_name_objective(report)) if len(points) > 1 else ""
    text = (
        _environment(is_html=True)
        .get_template("report.html")
        .render(
            report=report,
            run=report.summary,
            chart=Markup(chart),
            trial_chart=Markup(chart_trials(trials) if len(trials) > 1 else ""),
            diagrams=[Markup(to_svg(each, name=f"blame-{at}-")) for at, each in enumerate(report.diagrams)],
            candidates=Markup("" if report.candidates is None else to_svg(report.candidates, name="candidates-")),
            is_wide=report.candidates is not None and count_widest(report.candidates) > MOST_BESIDE,
            is_thinned=len(choose_points(points)) < len(points),
            is_alone=is_alone,
            step_anchors={
                gradient.id: step.anchor
                for case in report.evidence
                for step in case.steps
                for gradient in step.gradients
            },
            **_shared(report),
        )
    )
    return text.translate(_FORBIDDEN)


def render_page(template: str, **values: object) -> str:
    """An HTML page of another template. Values that are not Markup are escaped."""
    return _environment(is_html=True).get_template(template).render(**values).translate(_FORBIDDEN)


def render_markdown(report: RunReport) -> str:
    """report.md: the same for a pull request, without pictures."""
    text = (
        _environment(is_html=False)
        .get_template("report.md")
        .render(report=report, run=report.summary, **_shared(report))
    )
    return re.sub(r"\n{3,}", "\n\n", text).strip().translate(_FORBIDDEN) + "\n"


def split_pieces(change: ChangeSummary, hunks: Sequence[HunkEvidence]) -> Iterator[Piece]:
    """The text of a changed surface in order, the hunks in their places; a value that is not a text is one hunk."""
    if not (isinstance(change.before, str) and isinstance(change.after, str)):
        yield from _split_hunk(hunks[0]) if hunks else ()
        return
    passages, place = split_passages(change.after), 0
    for hunk, evidence in zip(find_hunks(change.before, change.after), hunks, strict=False):
        yield Piece("same", "".join(passages[place : hunk.new.start]))
        yield from _split_hunk(evidence)
        place = hunk.new.stop
    yield Piece("same", "".join(passages[place:]))


def _split_hunk(hunk: HunkEvidence) -> Iterator[Piece]:
    if hunk.before:
        yield Piece("removed", hunk.before, hunk)
    if hunk.after:
        yield Piece("added", hunk.after, hunk)


def _shared(report: RunReport) -> dict[str, object]:
    """What both templates use."""
    summary = report.summary
    return {
        "scores": describe_scores(summary),
        "failing": failing_line(summary),
        "title": changes_title(summary),
        "cost": cost_line(summary.costs),
        "tone": _choose_tone(report),
        "unchanged": _list_unchanged(summary),
    }


def _list_unchanged(summary: RunSummary) -> list[str]:
    """The targets that no shown change is about, if there is one."""
    changed = {each.surface_id for each in summary.changes}
    return [name for name in summary.unchanged if name not in changed] if changed else []


def _choose_tone(report: RunReport) -> str:
    """The colour of the verdict."""
    if report.summary.outcome in ("improved", "improved_on_validation", "target_reached"):
        return "good"
    return "bad" if report.summary.outcome in ("failed", "invalid_eval", "overfit_risk") else "warn"


def _name_objective(report: RunReport) -> str:
    return "objective" if report.summary.score is None else report.summary.score.name


@cache
def _environment(*, is_html: bool) -> Environment:
    environment = Environment(
        loader=FunctionLoader(lambda name: files(__package__).joinpath(f"{name}.jinja").read_text("utf-8")),
        autoescape=is_html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "score": format_score,
        "usd": dollars,
        "usage": describe_usage,
        "short": lambda text, limit=MAX_TEXT: cut_at_word(text, limit),
        "names": lambda names, limit=12: join_names(list(names), limit=limit),
        "cell": lambda value: escape_markdown(cut_at_word(str(value), MAX_CELL)),
        "line": lambda value: escape_markdown(str(value)),
        "fence": _fence,
    }
    environment.globals |= {
        "plural": plural,
        "pieces": split_pieces,
        "gradients_of": choose_gradients,
        "most_detailed": MOST_DETAILED_CASES,
        "most_listed": MOST_LISTED,
        "most_rejected": MOST_REJECTED,
        "most_id": MAX_ID,
        "most_scaled": MOST_SCALED,
        "case_anchor": lambda case_id: make_anchor("case", case_id),
        "blame_outcomes": BLAME_OUTCOMES,
        "effect_tones": EFFECT_TONES,
        "iteration_tones": ITERATION_TONES,
        "parents": describe_parents,
        "phase_ends": PHASE_ENDS,
        "main_reason": _find_reason,
        "amount": format_amount,
        "change_as_text": lambda each: SurfaceChange(each.surface_id, each.before, each.after).as_text(),
        "relative": _compare_relatively,
    }
    return environment


def _find_reason(blame: BlameSummary) -> str:
    reason = find_main_reason(blame.reasons)
    return "" if reason is None else reason.text


def _compare_relatively(change: FigureChange) -> str:
    """`+12%`, or nothing if it is unknown."""
    if not change.before or change.after is None:
        return ""
    return f"{100 * (change.after / change.before - 1):+.1f}%"


def _fence(text: str, language: str = "") -> str:
    """A block of code in Markdown, with a fence that its text cannot close."""
    longest = max(map(len, re.findall(r"`{3,}", text)), default=2)
    marks = "`" * (longest + 1)
    return f"{marks}{language}\n{text}\n{marks}"
