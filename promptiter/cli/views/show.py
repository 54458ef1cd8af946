"""`promptiter show`: a run in full, or one side of it: the diffs, the rounds, the blame, the costs."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from promptiter.cli.output import heading, print_indented
from promptiter.cli.views.costs import cost_line
from promptiter.cli.views.diff import diff
from promptiter.cli.views.run import (
    changes_title,
    failing_line,
    figure,
    in_a_line,
    print_commands,
    print_headline,
    print_warnings,
)
from promptiter.runs.round_summary import BlameOutcome, CandidateSummary, Figures, Rejected
from promptiter.runs.summary import RunSummary
from promptiter.wording import join_names, plural
from traces.text import one_line

SHOWN_NAMES = 12
SHOWN_REJECTIONS = 5

BLAME_OUTCOMES: dict[BlameOutcome, tuple[str, str]] = {
    "adopted": ("changed", "green"),
    "not_adopted": ("patch accepted, not adopted", "yellow"),
    "rejected": ("patch rejected", "yellow"),
    "no_patch": ("no patch", "dim"),
    "below_support": ("too few cases for a patch", "dim"),
}


def print_summary(screen: Console, summary: RunSummary) -> None:
    """Everything but the accounting, in the order of the questions."""
    print_title(screen, summary)
    _print_scores(screen, summary)
    _print_evidence(screen, summary)
    print_changes(screen, summary)
    _print_unchanged(screen, summary)
    print_blame(screen, summary, is_short=True)
    _print_rejections(screen, summary)
    heading(screen, "Cost")
    print_indented(screen, Text(cost_line(summary.costs)))
    print_warnings(screen, summary)
    screen.print()
    print_commands(screen, summary)


def print_title(screen: Console, summary: RunSummary) -> None:
    """The agent and the run, and the outcome in a line."""
    screen.print(Text.assemble((one_line(summary.agent), "bold"), f"  {one_line(summary.run_id)}"))
    print_headline(screen, summary)


def print_changes(screen: Console, summary: RunSummary) -> None:
    """Each changed surface: its diff, and the reasons for the patches."""
    if not summary.changes:
        heading(screen, "Nothing changed")
        return
    heading(screen, changes_title(summary))
    for number, change in enumerate(summary.changes):
        if number:
            screen.print()
        gain = "" if change.gain is None else f"  {-change.gain:+.3f} without it"
        screen.print(Text.assemble((f"  {one_line(change.surface_id)}", "cyan"), (gain, "dim")))
        screen.print(Padding(diff(change.before, change.after), (0, 0, 0, 4), expand=False))
        for reason in change.reasons:
            print_indented(screen, Text(f"why (round {reason.round}): {in_a_line(reason.text)}", "dim"), by=4)


def print_rounds(screen: Console, summary: RunSummary) -> None:
    """A line a round, and the reason for each decision."""
    heading(screen, "Rounds")
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("round", no_wrap=True, justify="right")
    for name in ("train", "validation"):
        table.add_column(name, no_wrap=True)
    table.add_column("decision", overflow="fold")
    table.add_row("0", "", _figures(summary.baseline), Text("baseline", "dim"))
    for each in summary.rounds:
        lines = [(_figures(one.validation), _decision(one)) for one in each.candidates]
        if each.skipped or not lines:
            lines.append(("", Text(in_a_line(each.skipped), "dim")))
        for number, (validation, decision) in enumerate(lines):
            row = ("", "") if number else (str(each.round), _figures(each.train))
            table.add_row(*row, validation, decision)
        if each.notes:
            notes = ", ".join(f"{name} ×{count}" if count > 1 else name for name, count in each.notes.items())
            table.add_row("", "", "", Text(f"recorded by the search: {in_a_line(notes)}", "dim"))
    screen.print(table)
    if summary.stopped:
        screen.print(f"\nstopped: {in_a_line(summary.stopped)}", markup=False)


def _decision(candidate: CandidateSummary) -> Text:
    word, style = {True: ("accepted", "green"), False: ("rejected", "yellow"), None: ("", "dim")}[candidate.accepted]
    patched = f"{join_names(candidate.patched, limit=SHOWN_NAMES)}: " if candidate.patched else ""
    reason = in_a_line(f"{patched}{candidate.reason}")
    return Text.assemble((word, style), " " if word and reason else "", reason)


def print_blame(screen: Console, summary: RunSummary, *, is_short: bool = False) -> None:
    """Which surfaces were blamed, by how many cases, why, and what came of it."""
    if not summary.blame and not summary.no_blame:
        return
    heading(screen, "Blame")
    if summary.no_blame:
        print_indented(screen, Text(f"no surface was blamed: {summary.no_blame}"))
    for each in summary.blame:
        outcome, style = BLAME_OUTCOMES[each.outcome]
        screen.print(
            Text.assemble(
                (f"  {one_line(each.surface_id)}", "cyan"),
                f"  {plural(len(each.case_ids), 'case')}, ",
                (outcome, style),
            )
        )
        if is_short and each.outcome == "adopted":  # its reason is printed with the change
            continue
        for reason in each.reasons[-1:] if is_short else each.reasons:
            print_indented(screen, Text(f"round {reason.round}: {in_a_line(reason.text)}", "dim"), by=4)
            if not is_short:
                print_indented(screen, Text(f"cases: {join_names(reason.case_ids, limit=SHOWN_NAMES)}", "dim"), by=4)


def _print_scores(screen: Console, summary: RunSummary) -> None:
    before, after = summary.baseline, summary.validation
    if before is None or after is None:
        return
    is_changed = summary.adopted or bool(summary.changes)
    table = Table(box=None, header_style="dim", pad_edge=False, padding=(0, 3, 0, 0))
    table.add_column("validation")
    table.add_column("baseline", justify="right")
    if is_changed:
        table.add_column("adopted" if summary.adopted else "accepted", justify="right")
    table.add_column("")
    rows = [("mean score", figure(before.score), figure(after.score), "")]
    rows.append(("cases that pass", f"{before.passed}/{before.cases}", f"{after.passed}/{after.cases}", ""))
    if len(summary.metrics) > 1:
        rows += [
            (each.name, figure(each.before), figure(each.after), f"threshold {each.limit:g}")
            for each in summary.metrics
        ]
    for name, old, new, note in rows:
        table.add_row(Text(one_line(name)), old, *((Text(new, "bold"),) if is_changed else ()), Text(note, "dim"))
    screen.print()
    screen.print(table)
    if summary.failing:
        text = f"{failing_line(summary)}: {join_names(summary.failing, limit=SHOWN_NAMES)}"
        screen.print(Text(one_line(text), "dim"))


def _print_evidence(screen: Console, summary: RunSummary) -> None:
    if not summary.evidence:
        return
    heading(screen, "Evidence")
    for reason in summary.evidence:
        print_indented(screen, Text(in_a_line(reason)))
    if summary.removed:
        print_indented(screen, Text(f"removed, no worse without: {join_names(summary.removed, limit=SHOWN_NAMES)}"))


def _print_unchanged(screen: Console, summary: RunSummary) -> None:
    if summary.rounds and summary.unchanged and summary.changes:
        heading(screen, f"Unchanged: {len(summary.unchanged)} of {plural(len(summary.targets), 'surface')}")
        print_indented(screen, Text(one_line(join_names(summary.unchanged, limit=SHOWN_NAMES)), "dim"))


def _print_rejections(screen: Console, summary: RunSummary) -> None:
    found = summary.rejections
    if not found:
        return
    heading(screen, "Rejected")
    if len(found) > SHOWN_REJECTIONS:
        screen.print(f"  the last {SHOWN_REJECTIONS} of {len(found):,}; --rounds has all", style="dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in found[-SHOWN_REJECTIONS:]:
        table.add_row(f"round {each.round}", Text(in_a_line(_rejected(each))))
    screen.print(Padding(table, (0, 0, 0, 2), expand=False))


def _rejected(each: Rejected) -> str:
    return f"{', '.join(each.surface_ids)}: {each.reason}" if each.surface_ids else each.reason


def _figures(figures: Figures | None) -> str:
    return "" if figures is None else f"{figure(figures.score)}, {figures.passed}/{figures.cases} pass"
