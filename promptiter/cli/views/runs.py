"""A list of runs at 80 columns: run, outcome, rounds, score, cost, time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import new_table
from promptiter.cli.views.run import MARKS, OTHER_MARK
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.run_list import ListedRun
from promptiter.wording import dollars, plural
from traces.text import cut, one_line

MAX_ERROR = 200


def print_runs(screen: Console, runs: Sequence[ListedRun], locate: Callable[[str], RunAddress]) -> None:
    """Print one line per run, then errors, and how to resume the last run that can be resumed.

    `locate` returns how a run is named on the command line.
    """
    table = new_table("run", "outcome", ">rounds", ">score", ">cost", ">time")
    for each in runs:
        table.add_row(
            each.run_id,
            Text(each.outcome.replace("_", " "), MARKS.get(each.outcome, OTHER_MARK)[1].removeprefix("bold ")),
            str(each.rounds),
            _score(each),
            "unknown" if each.cost_usd is None else dollars(each.cost_usd),
            "" if each.duration_s is None else f"{each.duration_s:.0f} s",
        )
    screen.print(table)
    for each in runs:
        if note := _note(each):
            screen.print(Text(f"{each.run_id}: {note}", "dim"), soft_wrap=True)
    waiting = [locate(each.run_id) for each in runs if each.can_resume and each.is_named]
    if waiting and waiting[-1].place != "database":
        text = f"{plural(len(waiting), 'run')} can be resumed: promptiter resume {waiting[-1].arguments}"
        screen.print(f"\n{text}", style="dim", soft_wrap=True, markup=False)


def _note(each: ListedRun) -> str:
    """The error of a run, or the process that is working on it."""
    if each.error is not None:
        return cut(one_line(each.error), MAX_ERROR)
    return f"process {each.holder.pid} on {each.holder.host}" if each.holder is not None else ""


def _score(each: ListedRun) -> str:
    if each.baseline is None:
        return ""
    before = f"{abs(each.baseline):.3f}"
    return before if each.best in (None, each.baseline) else f"{before} → {abs(each.best or 0.0):.3f}"
