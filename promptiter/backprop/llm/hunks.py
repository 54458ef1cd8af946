"""Hunks: the sentences and lines in which a new text differs from the current one, each traced to points of the signal.

A model that returns a whole text also lists its changes with the points that they answer. A hunk gets the evidence of
the changes that are in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from promptiter.profile import PatchEdit, PatchEvidence
from promptiter.stages.contracts import SignalPoint
from promptiter.text_diff import find_hunks, is_same_passage
from promptiter.wording import join_sentences


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A changed passage, as the model quotes it, and the numbers of the points that it answers."""

    text: str
    points: tuple[int, ...]


def build_edits(
    before: str, after: str, changes: Sequence[NamedChange], points: Sequence[SignalPoint]
) -> tuple[PatchEdit, ...]:
    """The hunks of a change, each with the evidence of the points that the model names for it.

    All hunks answer the point of a signal that has only one.
    """
    edits = []
    for hunk in find_hunks(before, after):
        named = (each.points for each in changes if _is_in(each.text, hunk.before, hunk.after))
        numbers = [1] if len(points) == 1 else [number for some in named for number in some]
        answered = select_points(numbers, points)
        reason = join_sentences(point.text for point in answered)
        edits.append(
            PatchEdit(before=hunk.before, after=hunk.after, reason=reason, evidence=collect_evidence(answered))
        )
    return tuple(edits)


def _is_in(text: str, *sides: str) -> bool:
    return any(is_same_passage(text, side) for side in sides)


def select_points(numbers: Iterable[int], points: Sequence[SignalPoint]) -> list[SignalPoint]:
    """The points of these numbers, as the prompt shows them; numbers of no point are ignored."""
    return [points[number - 1] for number in sorted(set(numbers)) if 1 <= number <= len(points)]


def collect_evidence(points: Iterable[SignalPoint]) -> PatchEvidence:
    """The cases and gradients behind some points."""
    points = list(points)
    return PatchEvidence(
        cases=tuple(dict.fromkeys(case_id for point in points for case_id in point.case_ids)),
        gradients=tuple(dict.fromkeys(gradient_id for point in points for gradient_id in point.gradient_ids)),
    )
