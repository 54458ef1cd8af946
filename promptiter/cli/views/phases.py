"""The phases of coordinate descent as tables: what each phase gained, and the share of each surface; its trials."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from promptiter.cli.output import new_table, print_heading
from promptiter.runs.summary import RunSummary
from promptiter.runs.summary_wording import shorten_reason
from promptiter.runs.trial_phases import PHASE_ENDS, TrialSummary
from traces.text import one_line

MOST_SHOWN = 20
STYLES = {"accepted": "green", "noise": "yellow", "holdout": "yellow", "failed": "red", "unreliable": "red"}


def print_phases(screen: Console, summary: RunSummary) -> None:
    """Print the phases and surfaces; nothing if the search has no phases. Of many phases, the last."""
    phases, axes = summary.descent.phases[-MOST_SHOWN:], summary.descent.axes[:MOST_SHOWN]
    if not phases:
        return
    print_heading(screen, "Phases")
    table = new_table(">cycle", "phase", ">trials", ">accepted", ">gain on train", gap=2)
    table.add_column("ended", overflow="fold")
    for each in phases:
        ended = Text(each.reason or PHASE_ENDS[each.ended], "dim")
        table.add_row(str(each.cycle), each.phase, str(each.trials), str(each.accepted), f"{each.gain:+.3f}", ended)
    screen.print(Padding(table, (0, 0, 0, 2), expand=False))
    if any(each.accepted for each in axes):
        shares = new_table("surface", ">trials", ">accepted", ">share of the gain", gap=2)
        for axis in axes:
            shares.add_row(one_line(axis.surface_id), str(axis.trials), str(axis.accepted), f"{axis.gain:+.3f}")
        screen.print()
        screen.print(Padding(shares, (0, 0, 0, 2), expand=False))
    screen.print("  --rounds shows each trial", style="dim")


def print_trials(screen: Console, summary: RunSummary) -> None:
    """Print a line per trial, with a line above each phase."""
    table = new_table(">round", "trial", ">train loss", ">gain", ">noise", gap=2)
    table.add_column("result", overflow="fold")
    phases = {each.first_round: each for each in summary.descent.phases}
    for row in summary.descent.trials:
        if (phase := phases.pop(row.round, None)) is not None:
            start = Text(f"{phase.phase} phase, from a loss of {phase.before:.3f}", "bold")
            table.add_row("", f"cycle {phase.cycle}", "", "", "", start)
        table.add_row(str(row.round), f"{row.phase[0]} {row.place}", *_format_figures(row), _format_result(row))
    screen.print(table)


def _format_figures(row: TrialSummary) -> tuple[str, str, str]:
    loss = "" if row.loss is None else f"{row.loss:.3f}" + (f" ± {row.std:.3f}" if row.std else "")
    return loss, "" if row.gain is None else f"{row.gain:+.3f}", "" if row.noise_bar is None else f"{row.noise_bar:.3f}"


def _format_result(row: TrialSummary) -> Text:
    words = Text(row.outcome.replace("_", " "), STYLES.get(row.outcome, "dim"))
    reason = f" ({shorten_reason(row.reason)})" if row.outcome in ("low_confidence", "no_edit", "failed") else ""
    return Text.assemble(words, f" {one_line(row.proposal)}", (reason, "dim"))
