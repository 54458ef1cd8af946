"""Case uses: which cases the runs of a project have used, and for what.

The validation cases of a run can speak for new cases only if no earlier run has shown results on them. And a test set
that was opened often is no longer new. So a project remembers the uses of its cases, by their content: sets that
overlap count, and deleting a run does not delete its uses. A store keeps them next to its runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Literal, Protocol, TypeAlias

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.splits import digest_input
from promptiter.wording import plural

UseKind: TypeAlias = Literal["search", "final_test", "test_set", "test_result", "try"]

_DIGITS = 16
"""Hexadecimal digits of a case's hash: two of a million cases have the same with a probability of 1 in 10 million."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseUse:
    """One use of cases by a run. Cases are given by the hash of their input; see `list_case_digests`.

    `kind` is what they were used for: a search, its final test, a test set that was opened, a result of the final test
    for one scope, or edits that were tried by hand. `place` is the name of the run in its store, which differs from its
    `run_id` if it was copied.
    """

    id: str
    run_id: str
    kind: UseKind
    place: str = ""
    train: tuple[str, ...] = ()
    validation: tuple[str, ...] = ()
    test: tuple[str, ...] = ()


class CaseUses(Protocol):
    """The uses of cases in a project. Uses are only added."""

    async def add(self, use: CaseUse) -> Sequence[CaseUse]:
        """Keep a use, unless one with its id is kept, and return all of them, in the order in which they were kept.

        Two processes that add at the same time see each other's uses in the same order.
        """
        ...


class MemoryCaseUses:
    """Uses of cases in the memory of this process."""

    def __init__(self) -> None:
        self._uses: dict[str, CaseUse] = {}

    async def add(self, use: CaseUse) -> Sequence[CaseUse]:
        self._uses.setdefault(use.id, use)
        return tuple(self._uses.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseUseHistory:
    """How often a project had used the cases of a run before.

    `earlier_runs` validated on some of its `validation_cases`, and `seen_cases` of these were used before for any
    purpose. A test set with some of its test cases was opened `test_opened` times before; None if this run did not
    open it. Searches or edits that were tried by hand had used `seen_test_cases` of them.
    """

    validation_cases: int = 0
    earlier_runs: int = 0
    seen_cases: int = 0
    test_opened: int | None = None
    seen_test_cases: int = 0

    @property
    def is_first_run(self) -> bool:
        """Whether no earlier run has used any of the validation cases."""
        return not self.seen_cases

    def describe(self) -> tuple[str, ...]:
        """`run 7 on these validation cases`, `the test set was opened twice before`, where they apply."""
        found = []
        some = "" if self.seen_cases == self.validation_cases else f", {self.seen_cases} of which were used before"
        if self.earlier_runs:
            found.append(f"run {self.earlier_runs + 1} on these {self.validation_cases} validation cases{some}")
        elif self.seen_cases:
            cases = plural(self.validation_cases, "validation case")
            found.append(f"used before by runs or `promptiter try`: {self.seen_cases} of {cases}")
        if self.test_opened:
            times = {1: "once", 2: "twice"}.get(self.test_opened, f"{self.test_opened} times")
            found.append(f"the test set was opened {times} before")
        if self.seen_test_cases:
            cases = plural(self.seen_test_cases, "test case")
            found.append(f"used before in a search or with `promptiter try`: {cases}")
        return tuple(found)


def list_case_digests(eval_set: EvalSet) -> tuple[str, ...]:
    """The cases of an eval set by the hash of their input, sorted."""
    return tuple(sorted({digest_input(case)[:_DIGITS] for case in eval_set.cases}))


def list_earlier_uses(uses: Iterable[CaseUse], use_id: str) -> list[CaseUse]:
    """The uses that were kept before one."""
    return list(takewhile(lambda use: use.id != use_id, uses))


def count_seen_cases(cases: Sequence[str], earlier: Iterable[CaseUse]) -> int:
    """The number of cases that earlier searches or opened test sets have used."""
    seen = {case for use in earlier for case in (*use.train, *use.validation, *use.test)}
    return len(seen.intersection(cases))


def count_overlapping(cases: Sequence[str], used: Iterable[Sequence[str]]) -> int:
    """The number of uses that have some of these cases."""
    return sum(not set(cases).isdisjoint(each) for each in used)
