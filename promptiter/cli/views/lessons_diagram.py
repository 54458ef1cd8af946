"""A picture of what was learned from traces: the nodes that they show, and the evidence against their texts."""

from __future__ import annotations

from promptiter.tasks.lessons import Lessons, SurfaceLesson
from promptiter.wording import plural
from traces.draw.diagram import Arrow, Box, Diagram
from traces.draw.svg import to_svg
from traces.text import one_line


def lessons_as_svg(lessons: Lessons) -> str:
    """Draw one box per node, red if there is enough evidence against one of its texts. Guessed edges are dashed."""
    blamed: dict[str, list[SurfaceLesson]] = {}
    for lesson in lessons.surfaces:
        blamed.setdefault(lesson.surface_id.rpartition("#")[0], []).append(lesson)
    boxes = []
    for node in lessons.recorded.nodes:
        against = blamed.get(node.id, [])
        boxes.append(
            Box(
                node.id,
                one_line(node.id),
                "; ".join(map(_describe, against)),
                "blamed" if any(lesson.is_supported for lesson in against) else node.kind,
                hover="\n".join(one_line(f"{lesson.surface_id}: {lesson.text}") for lesson in against) or node.id,
            )
        )
    arrows = tuple(
        Arrow(edge.source, edge.target, is_guessed=(edge.source, edge.target) in lessons.guessed_edges)
        for edge in lessons.recorded.edges
    )
    title = f"{lessons.failed:,} of {plural(lessons.judged, 'judged run')} failed"
    return to_svg(Diagram(title, tuple(boxes), arrows))


def _describe(lesson: SurfaceLesson) -> str:
    name = one_line(lesson.surface_id.rpartition("#")[2])
    return f"{name}: blamed in {plural(len(lesson.case_ids), 'run')}"
