"""`promptiter show RUN1 RUN2`: two runs side by side."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from promptiter.cli.output import new_table, print_heading, print_indented
from promptiter.cli.views.diff import diff_table
from promptiter.runs.cost_wording import price
from promptiter.runs.round_summary import EvaluationSummary
from promptiter.runs.run_comparison import ChangedIn, RunComparison
from promptiter.runs.summary import FigureChange, RunSummary
from promptiter.wording import format_score, join_names, plural
from traces.text import one_line

MAX_NAMES = 12
_CHANGED: Mapping[ChangedIn, str] = {
    "first": "changed in the first run only",
    "second": "changed in the second run only",
    "both_alike": "the same in both runs",
    "both_differently": "changed in both runs, differently",
}


def print_comparison(screen: Console, found: RunComparison) -> None:
    """Print the figures of both, the inputs that differ, the surfaces, and the cases that only one of them solves."""
    table = new_table("", one_line(found.first.run_id), one_line(found.second.run_id), gap=3)
    for column in table.columns:
        column.no_wrap, column.overflow = False, "fold"
    for name, describe in _ROWS.items():
        first, second = describe(found.first), describe(found.second)
        if first or second:
            table.add_row(Text(name, "dim"), one_line(first), one_line(second))
    screen.print(table)
    if found.inputs:
        print_heading(screen, "The second run was given other inputs")
        for text in found.inputs:
            print_indented(screen, Text(one_line(text)))
    _print_surfaces(screen, found)
    _print_cases(screen, found)


_ROWS: Mapping[str, Callable[[RunSummary], str]] = {
    "outcome": lambda run: run.headline,
    "because": lambda run: run.reason,
    "score": lambda run: _format_change(run.score),
    "on the test set": lambda run: _format_change(run.test_score),
    "cases that pass": lambda run: _count_passes(run.validation),
    "rounds": lambda run: f"{len(run.rounds):,}",
    "model calls": lambda run: f"{run.costs.models.calls:,}",
    "cost": lambda run: price(run.costs.models),
    "time": lambda run: f"{run.costs.duration_s:.1f} s",
}


def _format_change(change: FigureChange | None) -> str:
    if change is None:
        return ""
    before = format_score(change.before)
    return before if change.after is None else f"{before} → {format_score(change.after)}"


def _count_passes(evaluation: EvaluationSummary | None) -> str:
    return "" if evaluation is None else f"{evaluation.passed}/{evaluation.cases}"


def _print_surfaces(screen: Console, found: RunComparison) -> None:
    if not found.surfaces:
        print_heading(screen, "Neither run changed anything")
        return
    print_heading(screen, "Changed surfaces: from the first run to the second")
    for each in found.surfaces:
        screen.print(Text.assemble((f"  {one_line(each.surface_id)}", "cyan"), f"  {_CHANGED[each.changed_in]}"))
        if each.first != each.second and each.first is not None and each.second is not None:
            screen.print(Padding(diff_table(each.first, each.second), (0, 0, 0, 4), expand=False))


def _print_cases(screen: Console, found: RunComparison) -> None:
    if not found.common_cases:
        print_heading(screen, "The runs have no validation case in common")
        return
    print_heading(screen, f"Cases: {plural(found.common_cases, 'validation case')} in both runs")
    for name, cases in (("first", found.only_first_passes), ("second", found.only_second_passes)):
        names = join_names(cases, limit=MAX_NAMES) if cases else "none"
        print_indented(screen, Text(f"pass at the end of the {name} run only: {one_line(names)}"))
