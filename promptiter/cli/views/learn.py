"""What was learned from traces: on a terminal, as Markdown, and as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from promptiter.cli.output import json_text, new_table, print_rows
from promptiter.cli.views.diff import diff_table
from promptiter.cli.views.forecast import describe_cost
from promptiter.runlog.codec import to_plain
from promptiter.runs.cost_ranges import Cost
from promptiter.tasks.failed_runs import FailedRuns, RunsToJudge
from promptiter.tasks.failure_groups import FailureGroup
from promptiter.tasks.lessons import Lessons, SurfaceLesson
from promptiter.tasks.surface_matching import Matching
from promptiter.wording import join_names, plural
from traces.text import cut, one_line

PICTURE = "lessons.svg"
SHOWN_GROUPS, SHOWN_SURFACES = 8, 10
MOST_TEXT = 200
"""Characters of what was wrong with runs, on a terminal."""


def print_judging_forecast(screen: Console, selected: RunsToJudge, judging: Cost, blame: Cost) -> None:
    """Say what it takes to judge the runs, before that is spent, and at most to learn from those that fail."""
    sampled = f", a random sample of {selected.seen:,}" if len(selected.runs) < selected.seen else ""
    rows = [(f"judging {plural(len(selected.runs), 'run')}{sampled}", judging), ("then causes and patches", blame)]
    for name, cost in rows:
        screen.print(Text(f"Forecast  {name}: {describe_cost(cost)}", style="dim"))


def print_forecast(screen: Console, found: FailedRuns, cost: Cost) -> None:
    """Say what was found before anything is spent, and what it takes to learn from it."""
    sampled = f", {len(found.sample)} of them are looked into" if len(found.sample) < found.failed else ""
    screen.print(Text(f"{found.failed:,} of {plural(found.judged, 'judged run')} failed{sampled}"))
    screen.print(Text(f"Forecast  {describe_cost(cost)}", style="dim"))


def print_notes(screen: Console, found: FailedRuns) -> None:
    """Print what to know about the runs and the feedback."""
    if rows := [*_list_left_out(found.left_out), *(("Note", note) for note in found.notes)]:
        screen.print()
        print_rows(screen, rows)


def print_lessons(screen: Console, lessons: Lessons, written: Iterable[Path]) -> None:
    """Print what fails, where, how often and since when; then the patches."""
    screen.print(Text(_headline(lessons), style="bold"))
    print_groups(screen, lessons.groups)
    if lessons.surfaces:
        patched = lessons.patches.surface_ids
        table = new_table(">evidence", ">runs", ">guessed", "first", "last", "surface", "")
        for lesson in lessons.surfaces[:SHOWN_SURFACES]:
            table.add_row(
                f"{lesson.evidence:.1f}",
                str(len(lesson.case_ids)),
                str(lesson.guessed or ""),
                _date(lesson.first_ns),
                _date(lesson.last_ns),
                Text(one_line(lesson.surface_id)),
                _say_what_is_done(lesson, is_patched=lesson.surface_id in patched),
            )
        _keep_whole(table, 5)
        screen.print()
        screen.print(table)
        _print_rest(screen, len(lessons.surfaces) - SHOWN_SURFACES, "surface", "surfaces")
    for patch in lessons.patches:
        screen.print()
        screen.print(Text(one_line(f"{patch.surface_id}: {patch.reason}"), style="bold"))
        screen.print(diff_table(lessons.structure.surface(patch.surface_id).value, patch.value))
    screen.print()
    print_rows(screen, [*_list_remarks(lessons), *(("Written", str(path)) for path in written)])


def print_groups(screen: Console, groups: Sequence[FailureGroup]) -> None:
    """Print what went wrong, how often and since when."""
    if not groups:
        return
    table = new_table(">runs", "first", "last", "what failed")
    for group in groups[:SHOWN_GROUPS]:
        what = f"{group.kind}: {group.text}" if group.text else group.kind
        table.add_row(
            str(len(group.case_ids)), _date(group.first_ns), _date(group.last_ns), Text(cut(one_line(what), MOST_TEXT))
        )
    _keep_whole(table, 3)
    screen.print()
    screen.print(table)
    _print_rest(screen, len(groups) - SHOWN_GROUPS, "kind of failure", "kinds of failures")


def _keep_whole(table: Table, count: int) -> None:
    """Keep the first columns, figures and dates, as wide as they are; the others wrap."""
    for at, column in enumerate(table.columns):
        column.no_wrap = at < count
        column.overflow = "fold"


def lessons_as_json(lessons: Lessons) -> str:
    """Everything that was learned."""
    return json_text({"schema_version": 1, **to_plain(lessons)})


def lessons_as_markdown(lessons: Lessons) -> str:
    """A page for people: what fails where, how often, since when, and the proposed texts."""
    lines = ["# What production taught", "", _headline(lessons), ""]
    if lessons.surfaces:
        lines += [f"![The nodes, with the evidence against their texts]({PICTURE})", ""]
    if lessons.groups:
        lines += ["## What failed", "", "| runs | first | last | what |", "|---:|---|---|---|"]
        lines += [
            f"| {len(each.case_ids)} | {_date(each.first_ns)} | {_date(each.last_ns)} | "
            f"{_cell(f'{each.kind}: {each.text}')} |"
            for each in lessons.groups
        ]
        lines.append("")
    if lessons.surfaces:
        lines += ["## Where it came from", ""]
        lines += ["| evidence | runs | over guessed edges | first | last | surface |", "|---:|---:|---:|---|---|---|"]
        lines += [
            f"| {each.evidence:.1f} | {len(each.case_ids)} | {each.guessed} | {_date(each.first_ns)} | "
            f"{_date(each.last_ns)} | {_cell(each.surface_id)} |"
            for each in lessons.surfaces
        ]
        lines.append("")
        for lesson in lessons.surfaces:
            if (change := _describe_change(lesson)) is not None:
                lines += [f"{_cell(change)}.", ""]
            if len(lesson.versions) > 1:
                lines += [f"Versions of {_cell(lesson.surface_id)}:", ""]
                lines += [f"- {each}" for each in _list_versions(lesson)] + [""]
    for patch in lessons.patches:
        before = lessons.structure.surface(patch.surface_id).value
        lines += [f"## {_cell(patch.surface_id)}", "", _cell(patch.reason), "", "Now:", "", _quote(before), ""]
        lines += ["Proposed:", "", _quote(patch.value), ""]
    listed_above = ("Changed", "Versions")
    lines += [f"- {name}: {_cell(text)}" for name, text in _list_remarks(lessons) if name not in listed_above]
    return "\n".join(lines).rstrip() + "\n"


def _headline(lessons: Lessons) -> str:
    found = f"{lessons.failed:,} of {plural(lessons.judged, 'judged run')} failed"
    if not lessons.failed:
        return f"{found}: there is nothing to learn from"
    if not lessons.surfaces:
        return f"{found}; no text could be blamed"
    patches = plural(len(lessons.patches), "patch", "patches")
    return f"{found}; {plural(len(lessons.surfaces), 'text')} blamed, {patches} written"


def _say_what_is_done(lesson: SurfaceLesson, *, is_patched: bool) -> str:
    if is_patched:
        return "patched"
    if not lesson.is_patchable:
        return "not in the live agent"
    return "no patch" if lesson.is_supported else "weak evidence"


def _list_remarks(lessons: Lessons) -> Iterator[tuple[str, str]]:
    yield from _list_left_out(lessons.left_out)
    guessed = sum(lesson.guessed > 0 for lesson in lessons.surfaces)
    if guessed:
        yield (
            "Guessed",
            "which step read which is partly guessed in these traces; blame that rests on it counts for less",
        )
    for lesson in lessons.surfaces:
        if (change := _describe_change(lesson)) is not None:
            yield "Changed", change
        if len(lesson.versions) > 1:
            yield "Versions", f"{lesson.surface_id}: {'; '.join(_list_versions(lesson))}"
    yield from _describe_matching(lessons.matching)
    for rejection in lessons.refused:
        yield "Refused", f"a patch of {rejection.surface_id}: {rejection.reason}"
    yield from (("Note", note) for note in lessons.notes)


def _list_left_out(left_out: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    return (("Left out", f"{plural(count, 'run')}: {reason}") for reason, count in left_out.items())


def _describe_matching(matching: Matching | None) -> Iterator[tuple[str, str]]:
    if matching is None:
        return
    for match in matching.matches:
        if match.recorded != match.live or match.is_edited:
            edited = ", edited since" if match.is_edited else ""
            yield "Matched", f"{match.recorded} is {match.live} by its {match.by}{edited}"
    if matching.only_recorded:
        yield "Unmatched", f"not in the live agent: {join_names(matching.only_recorded, limit=10)}"
    if matching.only_live:
        yield "Unmatched", f"not in the traces: {join_names(matching.only_live, limit=10)}"


def _list_versions(lesson: SurfaceLesson) -> list[str]:
    return [
        f"{each.digest[:8]} since {_time(each.first_ns) or '?'}: {each.failed} of {plural(each.runs, 'run')} failed"
        for each in lesson.versions
    ]


def _describe_change(lesson: SurfaceLesson) -> str | None:
    """Since which change of the text more runs fail, if they do."""
    if (at := lesson.worse_since) is None:
        return None
    earlier, later = lesson.versions[:at], lesson.versions[at:]
    before, since = (
        f"{sum(each.failed for each in part)} of {plural(sum(each.runs for each in part), 'judged run')}"
        for part in (earlier, later)
    )
    return (
        f"{lesson.surface_id} fails more often since it was changed, about {_time(later[0].first_ns)}: {since} failed "
        f"since then, {before} before"
    )


def _print_rest(screen: Console, count: int, one: str, many: str) -> None:
    if count > 0:
        screen.print(f"and {plural(count, one, many)} more", style="dim")


def _date(nanoseconds: int | None) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d") if nanoseconds else ""


def _time(nanoseconds: int | None) -> str:
    return datetime.fromtimestamp(nanoseconds / 1e9, UTC).strftime("%Y-%m-%d %H:%M UTC") if nanoseconds else ""


def _cell(text: object) -> str:
    """A text of the traces in a page: no markup, so no pictures and links of others."""
    return re.sub(r"([\\`*\[\]|])", r"\\\1", one_line(str(text))).replace("<", "&lt;")


def _quote(value: object) -> str:
    return "\n".join(f"    {one_line(line)}" for line in str(value).splitlines() or [""])
