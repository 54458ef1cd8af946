"""`promptiter show RUN --blame SURFACE`: each change of a surface with what it rests on and what was measured."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from promptiter.cli.output import print_heading, print_indented
from promptiter.cli.views.diff import diff_table
from promptiter.cli.views.run import hanging_indent, print_points
from promptiter.runs.hunk_evidence import GradientEvidence, HunkEvidence
from promptiter.runs.measured_effect import MeasuredEffect
from promptiter.runs.next_commands import RunAddress
from promptiter.runs.summary_wording import BLAME_OUTCOMES, shorten_reason
from promptiter.runs.surface_evidence import SurfaceEvidence
from promptiter.wording import join_names, plural
from traces.text import one_line

MAX_GRADIENTS = 6
MAX_GRADIENT = 200
MAX_NAMES = 8
MAX_REJECTIONS = 5


def print_surface(screen: Console, found: SurfaceEvidence, address: RunAddress) -> None:
    """Print the changes of a surface, or why it has none, and the commands that show the cases behind it."""
    screen.print(Text.assemble((one_line(found.surface_id), "bold cyan"), f"  {_describe_state(found)}"))
    for hunk in found.hunks:
        _print_hunk(screen, hunk)
    if not found.hunks:
        _print_blame(screen, found)
    _print_rejections(screen, found)
    _print_command(screen, found, address)


def _describe_state(found: SurfaceEvidence) -> str:
    if found.hunks:
        count = plural(len(found.hunks), "change")
        return f"{count}, {'adopted' if found.is_adopted else 'accepted, not adopted'}"
    if not found.is_target:
        return "not changed: it is not a target of this run"
    if found.is_removed:
        return "not changed: its patch was accepted, then dropped because nothing was lost without it"
    if found.blame is not None:
        return f"not changed: {BLAME_OUTCOMES[found.blame.outcome]}"
    return "not changed: it was not blamed" if found.is_read else "not changed: no case run read it"


def _print_hunk(screen: Console, hunk: HunkEvidence) -> None:
    rounds = ", ".join(map(str, hunk.rounds))
    title = f"{hunk.number}. round {rounds}, about {hunk.tokens_before:,} → {hunk.tokens_after:,} tokens"
    print_heading(screen, f"{title}, edited by a reviewer" if hunk.is_reviewed else title)
    screen.print(Padding(diff_table(hunk.before, hunk.after), (0, 0, 0, 4), expand=False))
    if hunk.reason:
        print_points(screen, "why:", hunk.reason)
    for effect in hunk.effects:
        screen.print(Padding(hanging_indent(Text("effect:", "dim"), _describe_effect(effect)), (0, 0, 0, 4)))
    _print_gradients(screen, hunk)


def _describe_effect(effect: MeasuredEffect) -> Text:
    """`+0.500 for this change alone; 8 cases newly pass: a, b and 6 more`."""
    if effect.scope == "surface":
        loss = "unknown" if effect.delta is None else f"{effect.delta:.3f}"
        return Text(f"{loss} lost without {effect.subject} ({effect.reason})")
    counts = [
        f"{plural(len(cases), 'case')} newly {verb}: {one_line(join_names(cases, limit=MAX_NAMES))}"
        for verb, cases in (("pass", effect.newly_passed), ("fail", effect.newly_failed))
        if cases
    ]
    return Text("; ".join([f"{_format_delta(effect.delta)} for {effect.subject}", *counts]))


def _format_delta(delta: float | None) -> str:
    return "unknown" if delta is None else f"{delta:+.3f}"


def _print_gradients(screen: Console, hunk: HunkEvidence) -> None:
    counts = [
        plural(len(found), noun)
        for noun, found in (("gradient", hunk.gradients), ("case", hunk.cases), ("step", hunk.steps))
        if found
    ]
    of = " of the whole surface" if hunk.whole_surface else ""
    print_indented(screen, Text(f"evidence{of}: {', '.join(counts) or 'none recorded'}"), by=4)
    if not hunk.gradients and hunk.cases:
        print_indented(screen, Text(f"cases: {one_line(join_names(hunk.cases, limit=MAX_NAMES))}", "dim"), by=6)
    for gradient in hunk.gradients[:MAX_GRADIENTS]:
        grid = hanging_indent(Text(gradient.severity), _describe_gradient(gradient))
        screen.print(Padding(grid, (0, 0, 0, 6), expand=False))
    if len(hunk.gradients) > MAX_GRADIENTS:
        more = f"… {plural(len(hunk.gradients) - MAX_GRADIENTS, 'more gradient')}; --json has all"
        print_indented(screen, Text(more, "dim"), by=6)


def _describe_gradient(gradient: GradientEvidence) -> Text:
    where = f"case {one_line(gradient.case_id)}, step {one_line(gradient.step_id)}: "
    return Text.assemble((where, "cyan"), shorten_reason(gradient.text, limit=MAX_GRADIENT))


def _print_blame(screen: Console, found: SurfaceEvidence) -> None:
    if found.blame is None:
        return
    print_heading(screen, f"Blamed by {plural(len(found.blame.case_ids), 'case')}, support {found.blame.support:.1f}")
    for reason in found.blame.reasons:
        print_points(screen, f"round {reason.round}:", reason.text)
        print_indented(screen, Text(f"cases: {one_line(join_names(reason.case_ids, limit=MAX_NAMES))}", "dim"), by=4)


def _print_rejections(screen: Console, found: SurfaceEvidence) -> None:
    if not found.rejections:
        return
    print_heading(screen, "Rejected")
    if len(found.rejections) > MAX_REJECTIONS:
        screen.print(f"  the last {MAX_REJECTIONS} of {len(found.rejections):,}; --json has all", style="dim")
    for each in found.rejections[-MAX_REJECTIONS:]:
        others = f" with {len(each.surface_ids) - 1} more" if len(each.surface_ids) > 1 else ""
        print_indented(screen, Text(f"round {each.round}{others}: {shorten_reason(each.reason)}"))
        for change in each.changes:
            if change.surface_id == found.surface_id:
                screen.print(Padding(diff_table(change.before, change.after), (0, 0, 0, 4), expand=False))


def _print_command(screen: Console, found: SurfaceEvidence, address: RunAddress) -> None:
    cases = [case_id for hunk in found.hunks for case_id in hunk.cases]
    cases += found.blame.case_ids if found.blame is not None else ()
    if cases:
        command = address.show_traces(cases[0])
        screen.print()
        screen.print(Text.assemble(("trace of a case: ", "dim"), command), soft_wrap=True)
