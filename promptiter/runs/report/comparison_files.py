"""Writes the report of a comparison into its folder: comparison.json and comparison.html."""

from __future__ import annotations

from pathlib import Path

import orjson
from markupsafe import Markup

from promptiter.evaluation.stats.search_differences import ComparedFigure
from promptiter.runlog.codec import to_plain
from promptiter.runs.comparison_wording import BASES, FigureWording, describe_budget, list_counts
from promptiter.runs.report.pages import render_page
from promptiter.runs.report.spending_chart import COLORS, chart_spending
from promptiter.runs.search_comparison import SearchComparison
from promptiter.runs.search_verdict import NOUNS, describe_difference, write_verdict
from promptiter.runs.spending_curves import average_curves
from promptiter.wording import plural
from traces.files import write_atomically
from traces.model import Json

JSON, PAGE = "comparison.json", "comparison.html"
SCHEMA_VERSION = 1


def write_comparison(folder: Path, found: SearchComparison) -> Path:
    """Write both files, each whole or not at all; return the path of the page."""
    content = orjson.dumps(comparison_as_json(found), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    for name, raw in ((JSON, content), (PAGE, render_comparison(found).encode("utf-8", "replace"))):
        with write_atomically(folder / name) as file:
            file.write(raw)
    return folder / PAGE


def comparison_as_json(found: SearchComparison) -> dict[str, Json]:
    """The content of comparison.json: the verdict, the figures of each search and run, and all differences."""
    plain = to_plain(found)
    assert isinstance(plain, dict), "a comparison is a record"
    sentences: list[Json] = [describe_difference(each) for each in found.differences]
    return {"schema_version": SCHEMA_VERSION, "verdict": write_verdict(found), "sentences": sentences, **plain}


def render_comparison(found: SearchComparison) -> str:
    """comparison.html: one file without scripts or links to other files, except to the reports of the runs."""
    charts = {axis: _draw_chart(found, axis) for axis in found.costs}
    return render_page(
        "comparison.html",
        found=found,
        verdict=write_verdict(found),
        sentences=[describe_difference(each) for each in found.differences],
        is_shown=any(figure.is_shown for each in found.differences for figure in each.figures),
        by_seed={each.name: {run.seed: run for run in each.runs} for each in found.searches},
        charts={NOUNS[axis]: chart for axis, chart in charts.items() if chart},
        nouns=NOUNS,
        counts=list_counts(found),
        show=FigureWording(found.objective),
        colors=COLORS,
        basis=BASES[found.basis],
        budget=describe_budget(found.budget),
        runs=plural(sum(len(each.runs) for each in found.searches), "run"),
    )


def _draw_chart(found: SearchComparison, axis: ComparedFigure) -> Markup:
    curves = {each.name: average_curves(each.complete, axis) for each in found.searches}
    return Markup(chart_spending(curves, axis=axis, objective=found.objective))
