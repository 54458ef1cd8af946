"""One case of a run: all of its runs with their scores, then the first and the last answer."""

from __future__ import annotations

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from promptiter.cli.output import new_table, print_indented
from promptiter.evaluation.result import CaseRow
from promptiter.runlog.events import Phase
from promptiter.runs.case_history import CaseHistory, CaseRun
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.summary_wording import shorten_reason
from promptiter.wording import format_score, plural
from traces.text import one_line

MAX_OUTPUT = 2000

PHASES: dict[Phase, str] = {
    "rerun": "train, patched",
    "repeat": "train, repeated",
    "train_again": "train, compared",
    "final_test": "final test",
    "test": "test set",
}
"""Names of phases, where they differ from the phase itself."""


def print_case(screen: Console, history: CaseHistory, address: RunAddress) -> None:
    """Print all runs of the case, the first and the last answer, and the command that shows the traces."""
    screen.print(Text.assemble((one_line(history.case_id), "bold"), f"  {plural(len(history.runs), 'run')}"))
    if not history.runs:
        return
    screen.print()
    screen.print(runs_table(history))
    first, last = history.runs[0], history.runs[-1]
    for run in (first, last) if last is not first else (first,):
        _print_answer(screen, run)
    command = address.show_traces(history.case_id)
    screen.print()
    screen.print(Text.assemble(("traces: ", "dim"), command), soft_wrap=True)


def runs_table(history: CaseHistory, *, chosen: int | None = None) -> Table:
    """A numbered table of the runs: phase, profile and score; the chosen one is marked."""
    table = new_table(">run", "round", "phase", "profile", ">repeat", ">score", "", gap=3)
    for number, run in enumerate(history.runs, start=1):
        table.add_row(
            f"→ {number}" if number == chosen else str(number),
            str(run.round or ""),
            phase_name(run.phase),
            run.profile,
            str(run.row.repeat),
            format_score(mean_score(run.row)),
            Text("pass", "green") if run.row.passed else Text("error" if run.row.error is not None else "fail", "red"),
        )
    return table


def choose_run(history: CaseHistory, number: int) -> RenderableType:
    """The table of runs with one of them marked, and its error, which names the line in the user's code."""
    table, error = runs_table(history, chosen=number), history.runs[number - 1].row.error
    return table if error is None else Group(table, "", Text(shorten_reason(str(error)), "red"))


def phase_name(phase: Phase) -> str:
    return PHASES.get(phase, phase)


def mean_score(row: CaseRow) -> float | None:
    """The mean over the metrics; None if one of them is unscored."""
    values = [score.value for score in row.scores if score.value is not None]
    return sum(values) / len(values) if values and len(values) == len(row.scores) else None


def _print_answer(screen: Console, run: CaseRun) -> None:
    screen.print()
    screen.print(Text(f"{run.profile} ({phase_name(run.phase)})", "bold"))
    if run.row.error is not None:
        print_indented(screen, Text(shorten_reason(str(run.row.error)), "red"))
        return
    output = run.row.output
    more = f" … {plural(len(output) - MAX_OUTPUT, 'more character')}" if len(output) > MAX_OUTPUT else ""
    print_indented(screen, Text(one_line(output[:MAX_OUTPUT]) + more))
    for score in run.row.scores:
        reason = (score.error or score.reason).removeprefix(f"{score.metric}: ")
        text = f"{one_line(score.metric)} {format_score(score.value)}: {shorten_reason(reason)}"
        print_indented(screen, Text(text, "dim" if score.passed else "red"))
