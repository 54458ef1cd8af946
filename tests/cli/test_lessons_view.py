"""Lessons as people read them: on a narrow terminal, as a page, and as a picture."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from promptiter.cli.views.learn import lessons_as_markdown, print_lessons
from promptiter.cli.views.lessons_diagram import lessons_as_svg
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.structure import Node, StructureEdge, StructureSnapshot, Surface
from promptiter.tasks.failure_groups import FailureGroup
from promptiter.tasks.lessons import Lessons, SurfaceLesson
from promptiter.tasks.run_tally import SurfaceVersion

DAY = 86_400_000_000_000
HOSTILE = "\x1b[31mred ![x](http://evil.example/p.png) <img src=x> | cell `code` [link](javascript:x)"
RUNS = tuple(f"t{number}" for number in range(30))


def make_version(day: int, *, failed: int, runs: int = 40) -> SurfaceVersion:
    return SurfaceVersion(
        digest=f"{day:064x}", runs=runs, failed=failed, first_ns=day * DAY, last_ns=(day + 1) * DAY - 1
    )


def make_lessons(*versions: SurfaceVersion, text: str = "the answer lacks the order number") -> Lessons:
    structure = StructureSnapshot(
        nodes=(Node(id="note", kind="llm"), Node(id="answer", kind="llm")),
        edges=(StructureEdge(source="note", target="answer"),),
        surfaces=(
            Surface(node_id="note", type="instruction", value="Take notes.\x1b[2J"),
            Surface(node_id="answer", type="instruction", value="Answer."),
        ),
    )
    lessons = [
        SurfaceLesson(
            surface_id=f"{node}#instruction",
            evidence=20.0 if node == "note" else 1.0,
            case_ids=RUNS,
            guessed=30,
            text=text,
            first_ns=20_000 * DAY,
            last_ns=20_001 * DAY,
            versions=versions if node == "note" else (),
            is_supported=node == "note",
        )
        for node in ("note", "answer")
    ]
    group = FailureGroup(
        kind="feedback", text=text, case_ids=RUNS, nodes=("note",), first_ns=20_000 * DAY, last_ns=20_001 * DAY
    )
    return Lessons(
        structure=structure,
        recorded=structure,
        runs=80,
        judged=40,
        failed=30,
        sampled=30,
        blamed=30,
        groups=(group,),
        surfaces=tuple(lessons),
        patches=PatchSet(
            (SurfacePatch(surface_id="note#instruction", value="Take notes. Keep numbers.", reason=text),)
        ),
    )


def show(lessons: Lessons, *, width: int = 80) -> str:
    screen = Console(file=StringIO(), width=width)
    print_lessons(screen, lessons, [])
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def test_figures_and_dates_are_whole_on_a_narrow_terminal() -> None:
    shown = show(make_lessons(text="order_id is 'unknown', expected 'KX-4821', " * 6))
    assert "  30  2024-10-04  2024-10-05  feedback: order_id" in shown
    assert "    20.0    30       30  2024-10-04  2024-10-05  note#instruction" in shown
    assert "weak evidence" in " ".join(shown.split())
    assert max(map(len, shown.splitlines())) <= 80


def test_a_change_after_which_more_runs_fail_is_named() -> None:
    lessons = make_lessons(make_version(20_000, failed=2), make_version(20_001, failed=30))
    said = (
        "note#instruction fails more often since it was changed, about 2024-10-05 00:00 UTC: 30 of 40 judged runs "
        "failed since then, 2 of 40 judged runs before"
    )
    assert said in " ".join(show(lessons).split())
    assert said in lessons_as_markdown(lessons)


@pytest.mark.parametrize("failed", [(2, 3), (30, 30), (30, 2)])
def test_a_change_that_made_nothing_worse_is_only_listed(failed: tuple[int, int]) -> None:
    versions = [make_version(20_000 + at, failed=count) for at, count in enumerate(failed)]
    page = lessons_as_markdown(make_lessons(*versions))
    assert "fails more often" not in page
    assert "Versions of note#instruction" in page


def test_texts_of_traces_are_no_markup() -> None:
    lessons = make_lessons(text=HOSTILE)
    page, shown = lessons_as_markdown(lessons), show(lessons)
    assert "\x1b" not in page + shown
    assert page.count("![") == 1
    assert "![x]" not in page
    assert "<img" not in page
    assert "\\`code\\`" in page
    assert "<img" not in lessons_as_svg(lessons)
    assert "\x1b" not in lessons_as_svg(lessons)


def test_the_picture_shows_where_failures_come_from() -> None:
    drawn = lessons_as_svg(make_lessons())
    assert "30 of 40 judged runs failed" in drawn
    assert drawn.count('class="blamed"') == 2  # a box, and the legend
    assert ">blamed for failures<" in drawn
    assert "instruction: blamed in 30 runs" in drawn
    assert "(lessons.svg)" in lessons_as_markdown(make_lessons())


def test_guessed_edges_are_dashed_in_the_picture() -> None:
    lessons = make_lessons()
    assert "stroke-dasharray" not in lessons_as_svg(lessons)
    drawn = lessons_as_svg(replace(lessons, guessed_edges=frozenset([("note", "answer")])))
    assert drawn.count("stroke-dasharray") == 2
    assert "guessed from texts or times" in drawn
