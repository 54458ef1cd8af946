"""The canonical order of steps: the same steps always make the same trace, whatever order they arrived in."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from traces.errors import BrokenTraceError, CycleError, DuplicateStepError, UnknownPredecessorError


class OrderedStep(Protocol):
    """What the order of a step depends on."""

    @property
    def id(self) -> str: ...

    @property
    def predecessors(self) -> tuple[str, ...]: ...


S = TypeVar("S", bound=OrderedStep)


def sort_canonically(steps: Sequence[S]) -> tuple[S, ...]:
    """Sort steps by their distance from a root, then by id, so that predecessors come first.

    Raises a BrokenTraceError if the steps do not form a DAG.
    """
    depths, is_sorted = _compute_depths_in_one_pass(steps)
    if depths is None:
        depths = _compute_depths(steps)
    if "" in depths:
        raise BrokenTraceError("a step has an empty id; give every step an id, such as the name of its node")
    if is_sorted:
        return tuple(steps)
    return tuple(sorted(steps, key=lambda step: (depths[step.id], len(step.id), step.id)))  # ~2 comes before ~10


def _compute_depths_in_one_pass(steps: Sequence[OrderedStep]) -> tuple[dict[str, int] | None, bool]:
    """How far each step is from a root if predecessors come first, else None; and whether the steps are sorted.

    In all files that we write, they are.
    """
    depths: dict[str, int] = {}
    is_sorted = True
    last = (-1, 0, "")
    for step in steps:
        depth = 0
        for predecessor in step.predecessors:
            before = depths.get(predecessor)
            if before is None:
                return None, False
            if before >= depth:
                depth = before + 1
        step_id = step.id
        if step_id in depths:
            raise DuplicateStepError(step_id)
        depths[step_id] = depth
        key = (depth, len(step_id), step_id)
        is_sorted = is_sorted and last < key
        last = key
    return depths, is_sorted


def _compute_depths(steps: Sequence[OrderedStep]) -> dict[str, int]:
    waiting_for: dict[str, int] = {}
    for step in steps:
        if step.id in waiting_for:
            raise DuplicateStepError(step.id)
        waiting_for[step.id] = len(step.predecessors)
    followers: dict[str, list[str]] = {}
    for step in steps:
        for predecessor in step.predecessors:
            if predecessor not in waiting_for:
                raise UnknownPredecessorError(step.id, predecessor, known=waiting_for)
            followers.setdefault(predecessor, []).append(step.id)

    depths: dict[str, int] = {}
    ready = [step_id for step_id, count in waiting_for.items() if count == 0]
    depth = 0
    while ready:
        for step_id in ready:
            depths[step_id] = depth
        reached = []
        for step_id in ready:
            for follower in followers.get(step_id, ()):
                waiting_for[follower] -= 1
                if waiting_for[follower] == 0:
                    reached.append(follower)
        ready, depth = reached, depth + 1
    if len(depths) < len(steps):
        raise CycleError(_find_cycle(step for step in steps if step.id not in depths))
    return depths


def _find_cycle(steps: Iterable[OrderedStep]) -> list[str]:
    """Find a cycle, in execution order, among steps that each have a predecessor among them."""
    predecessors = {step.id: step.predecessors for step in steps}
    walked: dict[str, int] = {}
    step_id = min(predecessors)
    while step_id not in walked:
        walked[step_id] = len(walked)
        step_id = next(predecessor for predecessor in predecessors[step_id] if predecessor in predecessors)
    cycle = list(walked)[walked[step_id] :][::-1]
    first = cycle.index(min(cycle))
    return cycle[first:] + cycle[:first]
