"""Front: the candidates of a run with several objectives that no other one dominates.

One candidate dominates another if it is no worse in any objective, and better in one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from promptiter.policies.figure_gain import Direction

T = TypeVar("T")


@dataclass(slots=True)
class _Member(Generic[T]):
    name: str
    item: T
    figures: dict[str, float]
    uses: int = 0


class Front(Generic[T]):
    """Non-dominated items, in the order in which they came. `objectives` are figures and their directions."""

    def __init__(self, objectives: Mapping[str, Direction]) -> None:
        self._objectives = dict(objectives)
        self._members: list[_Member[T]] = []

    @property
    def figures(self) -> dict[str, dict[str, float]]:
        """The figures of each member, by name."""
        return {each.name: dict(each.figures) for each in self._members}

    def add(self, name: str, item: T, figures: Mapping[str, float]) -> bool:
        """Add an item, unless a member dominates it or has equal figures. Members that it dominates leave.

        Returns whether it was added. An item with an unknown figure is not.
        """
        if any(objective not in figures for objective in self._objectives):
            return False
        own = {objective: figures[objective] for objective in self._objectives}
        if any(
            each.name == name or each.figures == own or self._dominates(each.figures, own) for each in self._members
        ):
            return False
        self._members = [each for each in self._members if not self._dominates(own, each.figures)]
        self._members.append(_Member(name, item, own))
        return True

    def select(self, count: int) -> Sequence[T]:
        """Take this number of members in turn: those that were taken least often come first."""
        chosen = []
        for _ in range(count):
            member = min(self._members, key=lambda each: each.uses)
            member.uses += 1
            chosen.append(member.item)
        return chosen

    def _dominates(self, one: Mapping[str, float], other: Mapping[str, float]) -> bool:
        gains = [
            (one[name] - other[name]) * (1 if direction == "maximize" else -1)
            for name, direction in self._objectives.items()
        ]
        return all(gain >= 0 for gain in gains) and any(gain > 0 for gain in gains)
