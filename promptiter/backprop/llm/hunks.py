"""Hunks: the sentences and lines in which a new text differs from the current one, each traced to points of the signal.

A model that returns a whole text also lists its changes with the points that they answer. A hunk gets the evidence of
the changes that are in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from promptiter.profile import PatchEdit, PatchEvidence
from promptiter.stages.contracts import SignalPoint
from promptiter.wording import join_sentences


@dataclass(frozen=True, slots=True)
class NamedChange:
    """A changed passage, as the model quotes it, and the numbers of the points that it answers."""

    text: str
    points: tuple[int, ...]


def build_edits(
    before: str, after: str, changes: Iterable[NamedChange], points: Sequence[SignalPoint]
) -> tuple[PatchEdit, ...]:
    """The hunks of a change, each with the evidence of the points that the model names for it."""
    quoted = [(_normalize(change.text), change.points) for change in changes if change.text.strip()]
    edits = []
    for old, new in find_hunks(before, after):
        sides = [side for side in (_normalize(new), _normalize(old)) if side]
        numbers = [
            number for text, named in quoted if any(text in side or side in text for side in sides) for number in named
        ]
        answered = select_points(numbers, points)
        reason = join_sentences(point.text for point in answered)
        edits.append(PatchEdit(before=old, after=new, reason=reason, evidence=collect_evidence(answered)))
    return tuple(edits)


def find_hunks(before: str, after: str) -> list[tuple[str, str]]:
    """The passages of two texts that differ, by sentences and lines: the old and the new one of each."""
    old, new = _split(before), _split(after)
    matcher = SequenceMatcher(a=list(map(_normalize, old)), b=list(map(_normalize, new)), autojunk=False)
    hunks = [
        ("".join(old[first:last]).strip(), "".join(new[start:end]).strip())
        for kind, first, last, start, end in matcher.get_opcodes()
        if kind != "equal"
    ]
    return [hunk for hunk in hunks if any(hunk)]


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


def _split(text: str) -> list[str]:
    """The sentences and lines of a text, which joined give the text."""
    return [part for part in re.split(r"(?<=[.!?。！？])(?=\s)|(?<=\n)", text) if part]


def _normalize(text: str) -> str:
    return " ".join(text.split())
