"""The end of a run, for people and for machines: the changes, the outcome, the cost, and the next commands."""

from __future__ import annotations

from pathlib import Path

import orjson
from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from promptiter.cli.output import print_indented
from promptiter.cli.views.apply import report_as_plain
from promptiter.cli.views.diff import diff_table
from promptiter.cli.views.forecast import describe_needs, stages_as_json
from promptiter.errors import PromptiterError
from promptiter.runlog.codec import to_plain
from promptiter.runlog.results import RunResult
from promptiter.runs.apply import ApplyReport
from promptiter.runs.artifacts import REPORT
from promptiter.runs.blame_summary import find_main_reason
from promptiter.runs.cost_wording import cost_line, describe_uncertain_costs, describe_unknown_prices
from promptiter.runs.forecast_file import read_forecast
from promptiter.runs.stage_costs import spent_by_stage
from promptiter.runs.summary import ChangeSummary, RunSummary
from promptiter.runs.summary_wording import (
    MAX_REASON,
    changes_title,
    describe_scores,
    failing_line,
    format_amount,
    shorten_reason,
)
from promptiter.wording import MAX_FIGURES, join_names, path_from_here, plural
from traces.text import one_line

MAX_FIRST_REASON = 150
MAX_FIRST_POINTS = 3
MAX_POINTS = 12
FIRST_DIFF_LINES = 8
"""Lines of the first diff that are printed; `promptiter show --diff` prints all."""

MARKS = {
    "improved": ("✓", "bold green"),
    "improved_on_validation": ("✓", "bold green"),
    "baseline_only": ("●", "bold"),
    "target_reached": ("✓", "bold green"),
    "running": ("●", "bold cyan"),
    "failed": ("✗", "bold red"),
    "invalid_eval": ("✗", "bold red"),
}
OTHER_MARK = ("●", "bold yellow")


def result_as_json(
    result: RunResult,
    path: Path,
    *,
    exit_code: int,
    applied: ApplyReport | PromptiterError | None = None,
    is_copy: bool = False,
) -> str:
    """The result, with its folder, the forecast in total and by stage, what was applied, and the exit code.

    A folder that `is_copy` is temporary, and not named.
    """
    forecast = read_forecast(path)
    document = {
        **orjson.loads(result.to_json()),
        "forecast": None if forecast is None else to_plain(forecast.total),
        "stages": None if forecast is None else stages_as_json(forecast, spent_by_stage(path)),
        "path": None if is_copy else str(path),
        "exit_code": exit_code,
    }
    if applied is not None:
        document["applied"] = report_as_plain(applied) if isinstance(applied, ApplyReport) else {"error": str(applied)}
    return orjson.dumps(
        document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    ).decode()


def print_line(screen: Console, summary: RunSummary) -> None:
    """Print one line: the agent, the outcome, the score and the reason."""
    style = MARKS.get(summary.outcome, OTHER_MARK)[1]
    name = one_line(summary.agent)
    screen.print(
        Text.assemble((f"{name}: ", "bold"), (summary.headline, style), describe_scores(summary)), soft_wrap=True
    )


def print_end(screen: Console, summary: RunSummary) -> None:
    """Print about 15 lines: the first diff, the headline and its limit, what fails, the cost, commands to paste."""
    if summary.changes:
        _print_first_change(screen, summary)
        screen.print()
    print_headline(screen, summary)
    cost = f"cost {cost_line(summary.costs)}"
    limit = f"Not shown for new cases: {summary.obstacle}" if summary.obstacle else ""
    found = [
        _figures_line(summary),
        limit,
        *_need_lines(summary),
        failing_line(summary),
        *summary.case_history,
        *_per_run_lines(summary),
        cost,
    ]
    for line in found:
        if line:
            print_indented(screen, Text(line))
    print_warnings(screen, summary)
    print_commands(screen, summary)


def print_headline(screen: Console, summary: RunSummary) -> None:
    """Print the outcome, the score before and after, and the p-value or the reason."""
    mark, style = MARKS.get(summary.outcome, OTHER_MARK)
    text = Text.assemble((summary.headline, style), describe_scores(summary))
    screen.print(hanging_indent(Text(mark, style), text))


def _need_lines(summary: RunSummary) -> list[str]:
    """What a run whose budget ended was expected to take, by its forecast."""
    if summary.outcome != "budget_ended" or summary.folder is None:
        return []
    forecast = read_forecast(summary.folder)
    return [] if forecast is None else describe_needs(forecast)


def _figures_line(summary: RunSummary) -> str:
    """What a scorer measured before and after, in its own units."""
    before, after = summary.baseline, summary.candidate or summary.validation
    if before is None or not before.figures:
        return ""
    new = {} if after is None else after.figures
    pairs = [
        f"{name} {old:.6g}" + (f" → {new[name]:.6g}" if name in new and new[name] != old else "")
        for name, old in before.figures.items()
    ]
    return f"measured: {', '.join(pairs[:MAX_FIGURES])}"


def _per_run_lines(summary: RunSummary) -> list[str]:
    if not summary.per_run:
        return []
    return [
        "per run: "
        + ", ".join(
            f"{format_amount(each, each.before)} → {format_amount(each, each.after)} {each.name}"
            for each in summary.per_run
        )
    ]


def print_warnings(screen: Console, summary: RunSummary) -> None:
    """Print what is uncertain about the cost and the judges, and problems."""
    for text in (*describe_unknown_prices(summary.costs.unpriced), *describe_uncertain_costs(summary.costs)):
        print_indented(screen, Text(text, "yellow"))
    for note in summary.judges:
        print_indented(screen, Text(one_line(note), "yellow"))
    for problem in summary.problems:
        print_indented(screen, Text(f"problem: {shorten_reason(problem)}", "yellow"))


def print_commands(screen: Console, summary: RunSummary, *, is_shown: bool = False) -> None:
    """Print where adopted texts and the report are, and commands to paste, one per line, never wrapped.

    If the run `is_shown`, commands to show it are left out.
    """
    if summary.adopted and summary.folder is not None:
        text = f"{path_from_here(summary.folder)}/surfaces/ and profiles/best.json"
        screen.print(Text.assemble(("  adopted: ", "dim"), text), soft_wrap=True)
    if summary.folder is not None and (summary.folder / REPORT).exists():
        text = str(path_from_here(summary.folder / REPORT))
        screen.print(Text.assemble(("  report: ", "dim"), text), soft_wrap=True)
    for each in summary.commands:
        if is_shown and each.command.startswith("promptiter show "):
            continue
        screen.print(Text.assemble((f"  {each.purpose}: ", "dim"), each.command), soft_wrap=True)


def _print_first_change(screen: Console, summary: RunSummary) -> None:
    first, *more = sorted(summary.changes, key=_count_cases, reverse=True)
    screen.print(Text(changes_title(summary), "bold"))
    screen.print(Text(f"  {one_line(first.surface_id)}", "cyan"))
    _print_first_lines(screen, Padding(diff_table(first.before, first.after), (0, 0, 0, 4), expand=False))
    if reason := find_main_reason(first.reasons):
        print_points(screen, "why:", reason.text, limit=MAX_FIRST_REASON, most=MAX_FIRST_POINTS)
    if more:
        names = join_names([one_line(each.surface_id) for each in more], limit=3)
        print_indented(screen, Text(f"and {plural(len(more), 'more surface')}: {names}"))


def _count_cases(change: ChangeSummary) -> int:
    """The cases behind the main reason for a change."""
    reason = find_main_reason(change.reasons)
    return 0 if reason is None else len(reason.case_ids)


def _print_first_lines(screen: Console, content: RenderableType) -> None:
    lines = screen.render_lines(content, pad=False)
    for line in lines[:FIRST_DIFF_LINES]:
        screen.print(Text.assemble(*((segment.text, segment.style or "") for segment in line)))
    if len(lines) > FIRST_DIFF_LINES:
        screen.print(f"    … {plural(len(lines) - FIRST_DIFF_LINES, 'more line')}", style="dim")


def print_points(screen: Console, label: str, text: str, *, limit: int = MAX_REASON, most: int = MAX_POINTS) -> None:
    """Print the reason for blame or a change: behind its label, or, if it has several points, one per line."""
    lines = [shorten_reason(line, limit=limit) for line in text.splitlines() if line.strip()]
    if len(lines) <= 1:
        print_indented(screen, Text(f"{label} {''.join(lines)}", "dim"), by=4)
        return
    more = [f"… {plural(len(lines) - most, 'more point')}"] if len(lines) > most else []
    print_indented(screen, Text(label, "dim"), by=4)
    for line in (*lines[:most], *more):
        number, _, rest = line.partition(". ")
        if number.isdecimal():
            grid = hanging_indent(Text(f"{number}.", "dim"), Text(rest, "dim"))
            screen.print(Padding(grid, (0, 0, 0, 6), expand=False))
        else:
            print_indented(screen, Text(line, "dim"), by=6)


def hanging_indent(mark: Text, text: Text) -> Table:
    """A mark, and to its right a text that may wrap."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(mark, text)
    return grid
