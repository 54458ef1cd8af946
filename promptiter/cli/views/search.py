"""What a search did, for people: where the blame went, what changed, what was left alone, what was not kept and why."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from promptiter.cli.views.diff import diff
from promptiter.runlog.results import RunResult
from traces.text import cut, one_line

NAMED = 12
LONGEST_REASON = 400
MOST_REJECTIONS = 20


def print_blame(screen: Console, result: RunResult) -> None:
    """Which surfaces were blamed, for how many cases, and what came of it."""
    blamed = _blamed(result)
    if result.goal.kind != "score" or not any(each.train for each in result.rounds):
        return
    heading(screen, "Where the blame went")
    if not blamed:
        screen.print(f"  nowhere: {_why_nobody(result)}")
        return
    changed = {change.surface_id for change in result.changes}
    kept = {each.surface_id for each in result.initial_profile.changes(result.working_profile, result.structure)}
    tried = {patch.surface_id for each in result.rounds for patch in each.patches}
    for surface_id, blame in blamed.items():
        count = len(blame.case_ids)
        outcome, style = ("changed", "green") if surface_id in changed else ("tried, not kept", "yellow")
        if surface_id in kept - changed:
            outcome = "kept, not adopted"
        if surface_id not in changed | tried:
            outcome, style = ("no patch" if blame.has_support else "too few cases for a patch", "dim")
        screen.print(
            Text.assemble(
                (f"  {one_line(surface_id)}", "cyan"), f"  {count} case{'s' * (count != 1)}, ", (outcome, style)
            )
        )
        screen.print(Padding(Text(in_a_line(blame.text), "dim"), (0, 0, 0, 4), expand=False))


def print_changes(screen: Console, result: RunResult) -> None:
    """What is adopted; or what was kept, and not shown to be better."""
    changes = result.changes or result.initial_profile.changes(result.working_profile, result.structure)
    if not changes:
        return
    heading(screen, "What changed" if result.changes else "What was kept, and is not adopted")
    for number, change in enumerate(changes):
        if number:
            screen.print()
        screen.print(Text(f"  {one_line(change.surface_id)}", "cyan"))
        screen.print(Padding(diff(change.before, change.after), (0, 0, 0, 4), expand=False))


def print_left_alone(screen: Console, result: RunResult) -> None:
    """The surfaces that could have changed, and did not."""
    changed = {change.surface_id for change in result.changes}
    alone = [surface_id for surface_id in result.targets if surface_id not in changed]
    if not result.rounds or not alone:
        return
    heading(screen, f"Left alone: {len(alone)} of {len(result.targets)} surfaces that could change")
    more = f" and {len(alone) - NAMED} more" if len(alone) > NAMED else ""
    screen.print(Padding(Text(one_line(", ".join(alone[:NAMED]) + more), "dim"), (0, 0, 0, 2), expand=False))


def print_never_read(screen: Console, surface_ids: Sequence[str]) -> None:
    """Surfaces that no run has read, in a line; nothing if there are none."""
    if surface_ids:
        more = f" and {len(surface_ids) - NAMED} more" if len(surface_ids) > NAMED else ""
        told = f"Never read: {', '.join(surface_ids[:NAMED])}{more}; a patch there cannot change anything"
        screen.print()
        screen.print(Text(one_line(told), "yellow"))


def print_rejections(screen: Console, result: RunResult) -> None:
    """What was refused or rejected, with the reason; the last ones."""
    told: deque[tuple[int, str]] = deque(maxlen=MOST_REJECTIONS)
    count = 0
    for each in _rejections(result):
        told.append(each)
        count += 1
    if not told:
        return
    heading(screen, "What was not kept")
    if count > len(told):
        screen.print(f"  the last {len(told)} of {count}; all are in result.json", style="dim")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for number, reason in told:
        table.add_row(f"round {number}", Text(in_a_line(reason)))
    screen.print(Padding(table, (0, 0, 0, 2), expand=False))


def heading(screen: Console, text: str) -> None:
    """A bold line, after an empty one."""
    screen.print()
    screen.print(Text(text, "bold"))


def in_a_line(text: str) -> str:
    """A reason without line breaks, cut if it is long."""
    return cut(one_line(" ".join(text.split())), LONGEST_REASON)


@dataclass(slots=True)
class _Blame:
    case_ids: set[str] = field(default_factory=set)
    text: str = ""
    has_support: bool = False


def _blamed(result: RunResult) -> dict[str, _Blame]:
    """By surface, as they were found, over all rounds; the reason is the one that was told last."""
    found: dict[str, _Blame] = {}
    for each in (each for one in result.rounds for each in one.passes):
        for signal in (*each.signals, *each.below_support):
            blame = found.setdefault(signal.surface_id, _Blame())
            blame.case_ids.update(signal.case_ids)
            blame.text = signal.text or blame.text
            blame.has_support = blame.has_support or signal in each.signals
    return found


def _why_nobody(result: RunResult) -> str:
    trained = [each.train for each in result.rounds if each.train is not None]
    if all(train.pass_rate == 1.0 for train in trained):
        return "no train case failed"
    if any(each.losses for each in result.rounds):
        return "no surface could be blamed for the failures"
    if not any(row.trace_digests for train in trained for row in train.rows):
        return "the failed runs left no trace; use an agent that records one"
    return "the runs failed with errors that no text can mend"


def _rejections(result: RunResult) -> Iterator[tuple[int, str]]:
    for each in result.rounds:
        for one in each.passes:
            for refused in one.refused:
                yield each.round, f"{refused.surface_id}: {refused.reason}"
            for error in one.notes:
                yield each.round, f"no patch: {error}"
        if each.decision is not None and not each.decision.accepted:
            patched = ", ".join(sorted(each.patches.surface_ids))
            yield each.round, f"{patched}: {each.decision.reason}" if patched else each.decision.reason
        elif each.decision is None and each.patches:
            yield each.round, "cut short before it was decided"
