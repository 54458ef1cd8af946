"""The steps of a recording by id. Ids are paths that do not depend on timing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from traces.errors import AmbiguousStepError, UnknownPredecessorError

_LOOKS_LIKE_A_VISIT = re.compile(r"~\d+$")


class IndexedStep(Protocol):
    """A step that was opened: `number` counts the starts, and `scope` is the line of control that opened it."""

    id: str
    number: int
    predecessors: frozenset[str]

    @property
    def scope(self) -> object: ...


S = TypeVar("S", bound=IndexedStep)


class StepIndex(Generic[S]):
    """The steps in the order of their starts. `followed` are the ids of those that another step follows."""

    def __init__(self) -> None:
        self.followed: set[str] = set()
        self._steps: dict[str, S] = {}
        self._last_visit: dict[str, tuple[int, S]] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[S]:
        return iter(self._steps.values())

    def add(self, opened: S, path: str) -> None:
        """Give a step its id and its number. A further visit of its node must come after the previous one."""
        for source in opened.predecessors:
            if source not in self._steps:
                raise UnknownPredecessorError(path, source, known=self._steps)
        visit, previous = self._last_visit.get(path, (0, None))
        if previous is not None and not self._comes_before(previous, opened):
            raise AmbiguousStepError(path)
        while True:
            visit += 1
            # A node whose name already ends in ~2 gets ~1 for its first visit, so that the two are not confused.
            is_plain = visit == 1 and ("~" not in path or not _LOOKS_LIKE_A_VISIT.search(path))
            opened.id = path if is_plain else f"{path}~{visit}"
            if opened.id not in self._steps:
                break
        opened.number = len(self._steps)
        self._last_visit[path] = (visit, opened)
        self._steps[opened.id] = opened
        self.followed |= opened.predecessors

    def _comes_before(self, previous: S, opened: S) -> bool:
        """Whether a step always runs after the previous visit of its node, not just by chance this time."""
        if previous.scope is opened.scope:
            return True
        seen = set(opened.predecessors)
        waiting = list(seen)
        while waiting:
            ancestor = self._steps[waiting.pop()]
            if ancestor is previous:
                return True
            if ancestor.number > previous.number:  # a step that started before the previous visit does not follow it
                further = ancestor.predecessors - seen
                seen |= further
                waiting.extend(further)
        return False
