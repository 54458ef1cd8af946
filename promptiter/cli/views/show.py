"""`promptiter show`: a whole run, or one part of it: the diffs, the rounds, the blame."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from promptiter.backprop.record import NO_BLAME
from promptiter.cli.output import new_table, print_heading, print_indented
from promptiter.cli.views.candidate_tree import print_candidates
from promptiter.cli.views.diff import diff_table
from promptiter.cli.views.phases import print_phases
from promptiter.cli.views.run import hanging_indent, print_commands, print_headline, print_points, print_warnings
from promptiter.runs.blame_summary import BlameOutcome, BlameReason, EditReason, find_main_reason
from promptiter.runs.cost_wording import cost_line
from promptiter.runs.round_summary import EvaluationSummary, RejectionSummary
from promptiter.runs.summary import RunSummary
from promptiter.runs.summary_wording import BLAME_OUTCOMES, changes_title, failing_line, shorten_reason
from promptiter.wording import format_score, join_names, plural
from traces.text import one_line

MAX_NAMES = 12
MAX_REJECTIONS = 5
MAX_EDIT_CASES = 6
MAX_PASSAGE = 80

BLAME_STYLES: dict[BlameOutcome, str] = {"adopted": "green", "not_adopted": "yellow", "rejected": "yellow"}


def print_summary(screen: Console, summary: RunSummary) -> None:
    """Print everything but the accounting, most important first."""
    print_title(screen, summary)
    _print_scores(screen, summary)
    _print_evidence(screen, summary)
    print_changes(screen, summary, is_short=True)
    _print_unchanged(screen, summary)
    print_blame(screen, summary, is_short=True)
    print_candidates(screen, summary)
    print_phases(screen, summary)
    _print_rejections(screen, summary)
    print_heading(screen, "Cost")
    print_indented(screen, Text(cost_line(summary.costs)))
    print_warnings(screen, summary)
    print_commands(screen, summary, is_shown=True)


def print_title(screen: Console, summary: RunSummary) -> None:
    """Print the agent, the run, and the outcome."""
    screen.print(Text.assemble((one_line(summary.agent), "bold"), f"  {one_line(summary.run_id)}"))
    print_headline(screen, summary)


def print_changes(screen: Console, summary: RunSummary, *, is_short: bool = False) -> None:
    """Print each changed surface: its diff, and the reasons for its patches, down to single edits."""
    if not summary.changes:
        print_heading(screen, "Nothing changed")
        return
    print_heading(screen, changes_title(summary))
    for number, change in enumerate(summary.changes):
        if number:
            screen.print()
        screen.print(Text(f"  {one_line(change.surface_id)}", "cyan"))
        screen.print(Padding(diff_table(change.before, change.after), (0, 0, 0, 4), expand=False))
        for reason in change.reasons:
            print_points(screen, f"why (round {reason.round}):", reason.text)
            if not is_short:
                _print_edits(screen, reason)


def _print_edits(screen: Console, reason: BlameReason) -> None:
    """Print what the optimizer says about a change, and for each edit the points that it answers, with the cases."""
    if reason.patch_reason:
        print_indented(screen, Text(f"the optimizer: {shorten_reason(reason.patch_reason)}", "dim"), by=4)
    for each in reason.edits:
        added = f'"{shorten_reason(each.after or each.before, limit=MAX_PASSAGE)}"'
        text = Text.assemble(added if each.after else f"{added} removed", ": ", _explain_edit(each), style="dim")
        screen.print(Padding(hanging_indent(Text("edit", "dim"), text), (0, 0, 0, 4), expand=False))


def _explain_edit(each: EditReason) -> str:
    """`answers points 1, 3 (cases: fan, lamp and 2 more)`."""
    cases = f" (cases: {one_line(join_names(each.case_ids, limit=MAX_EDIT_CASES))})" if each.case_ids else ""
    if each.points:
        word = "point" if len(each.points) == 1 else "points"
        return f"answers {word} {join_names([str(number) for number in each.points])}{cases}"
    return f"{shorten_reason(each.reason) or ('for these cases' if cases else 'the optimizer names no point')}{cases}"


def print_blame(screen: Console, summary: RunSummary, *, is_short: bool = False) -> None:
    """Print the blamed surfaces: by how many cases, why, and with what result."""
    if not summary.blame and not summary.no_blame:
        return
    print_heading(screen, "Blame")
    if summary.no_blame:
        is_said = summary.no_blame.startswith(NO_BLAME)
        print_indented(screen, Text(summary.no_blame if is_said else f"no surface was blamed: {summary.no_blame}"))
    for each in summary.blame:
        outcome, style = BLAME_OUTCOMES[each.outcome], BLAME_STYLES.get(each.outcome, "dim")
        if each.outcome == "below_support":
            outcome += f" (support {each.support:.1f}; a model may be more certain: stages)"
        screen.print(
            Text.assemble(
                (f"  {one_line(each.surface_id)}", "cyan"),
                f"  {plural(len(each.case_ids), 'case')}, ",
                (outcome, style),
            )
        )
        if is_short and each.outcome == "adopted":  # its reason is printed with the change
            continue
        main = find_main_reason(each.reasons)
        for reason in (main,) if is_short and main else each.reasons:
            print_points(screen, f"round {reason.round}:", reason.text)
            if not is_short:
                print_indented(screen, Text(f"cases: {join_names(reason.case_ids, limit=MAX_NAMES)}", "dim"), by=4)


def _print_scores(screen: Console, summary: RunSummary) -> None:
    before, after = summary.baseline, summary.candidate or summary.validation
    if before is None or after is None:
        return
    is_changed = summary.adopted or bool(summary.changes)
    new_column = [">adopted" if summary.adopted else ">accepted"] if is_changed else []
    measured = {"two_sets": "validation", "one_set": "cases", "scorer": "scorer"}[summary.shape]
    table = new_table(measured, ">baseline", *new_column, "", gap=3)
    rows = [("mean score", format_score(before.score), format_score(after.score), "")]
    if summary.shape != "scorer":
        rows.append(("cases that pass", f"{before.passed}/{before.cases}", f"{after.passed}/{after.cases}", ""))
    if len(summary.metrics) > 1:
        rows += [
            (each.name, format_score(each.before), format_score(each.after), f"threshold {each.limit:g}")
            for each in summary.metrics
        ]
    rows += [
        (name, f"{old:.6g}", f"{after.figures[name]:.6g}", "")
        for name, old in before.figures.items()
        if name in after.figures
    ]
    rows += _list_eval_sets(before, after)
    if summary.test_baseline is not None and summary.test is not None:
        rows.append(_compare("test set", summary.test_baseline, summary.test))
        rows += _list_eval_sets(summary.test_baseline, summary.test)
    for name, old, new, note in rows:
        table.add_row(Text(one_line(name)), old, *((Text(new, "bold"),) if is_changed else ()), Text(note, "dim"))
    screen.print()
    screen.print(table)
    if summary.failing and summary.shape != "scorer":
        text = f"{failing_line(summary)}: {join_names(summary.failing, limit=MAX_NAMES)}"
        screen.print(Text(one_line(text), "dim"))


def _list_eval_sets(before: EvaluationSummary, after: EvaluationSummary) -> list[tuple[str, str, str, str]]:
    """One row for each eval set, if the cases come from several."""
    return [
        _compare(f"in {name}", part, after.eval_sets[name])
        for name, part in before.eval_sets.items()
        if name in after.eval_sets
    ]


def _compare(name: str, before: EvaluationSummary, after: EvaluationSummary) -> tuple[str, str, str, str]:
    return name, format_score(before.score), format_score(after.score), plural(after.cases, "case")


def _print_evidence(screen: Console, summary: RunSummary) -> None:
    if not summary.evidence:
        return
    print_heading(screen, "Evidence")
    for reason in summary.evidence:
        print_indented(screen, Text(shorten_reason(reason)))
    if summary.removed:
        print_indented(screen, Text(f"removed, no loss without: {join_names(summary.removed, limit=MAX_NAMES)}"))


def _print_unchanged(screen: Console, summary: RunSummary) -> None:
    if summary.rounds and summary.unchanged and summary.changes:
        print_heading(screen, f"Unchanged: {len(summary.unchanged)} of {plural(len(summary.targets), 'surface')}")
        print_indented(screen, Text(one_line(join_names(summary.unchanged, limit=MAX_NAMES)), "dim"))


def _print_rejections(screen: Console, summary: RunSummary) -> None:
    rejections = summary.rejections
    if not rejections:
        return
    print_heading(screen, "Rejected")
    if len(rejections) > MAX_REJECTIONS:
        screen.print(f"  the last {MAX_REJECTIONS} of {len(rejections):,}; --rounds shows all", style="dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for each in rejections[-MAX_REJECTIONS:]:
        table.add_row(f"round {each.round}", Text(shorten_reason(_format_rejection(each))))
    screen.print(Padding(table, (0, 0, 0, 2), expand=False))


def _format_rejection(each: RejectionSummary) -> str:
    return f"{', '.join(each.surface_ids)}: {each.reason}" if each.surface_ids else each.reason
