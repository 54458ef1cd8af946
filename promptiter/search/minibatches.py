"""Minibatches: of a large train set, a round runs only as many cases as it takes to see enough failures.

The first batch of a run is a random sample. Later ones are stratified by what is known of the cases: half of them
failed the last time, and each half is spread over the routes that its cases took, by the surfaces they read. If too few
cases of a batch fail, it is doubled. Small sets are always run whole. A case that an outage or a broken metric lost has
not failed here: blame can do nothing with it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from itertools import chain, zip_longest
from typing import TypeAlias

from promptiter.backprop.loss import can_be_blamed
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import Profile

MINIBATCH = 64
"""Number of train cases in the first batch of a round. Sets of up to twice this size are run whole."""

ENOUGH_SHARE = 0.125
"""A batch is large enough if this share of the first batch's size has failed."""

Route: TypeAlias = tuple[str, ...]
"""The surfaces that a case read."""


class Minibatches:
    """The train cases of one run's rounds. `size` is that of a first batch; None: always the whole set."""

    def __init__(self, session: Session, *, size: int | None) -> None:
        self._session = session
        self._size = size
        self._has_failed: dict[str, bool] = {}
        self._routes: dict[str, Route] = {}

    async def evaluate(self, profile: Profile) -> tuple[EvalSet, Evaluation]:
        """Run train cases under a profile until enough of them have failed; return those that were run."""
        train, size = self._session.train, self._size
        if size is None or len(train.cases) <= 2 * size:
            return train, await self._session.evaluate(train, profile, phase="train")
        order = self._order_cases()
        count, rows = size, tuple[CaseRow, ...]()
        while True:
            chosen = set(order[:count])
            batch = replace(train, cases=tuple(case for case in train.cases if case.id in chosen))
            found = await self._session.evaluate(batch, profile, phase="train", known=rows)
            failed = _find_failed_cases(found)
            if len(failed) >= ENOUGH_SHARE * size or count >= len(order):
                self._note_rows(found, failed)
                return batch, found
            count, rows = 2 * count, found.rows

    def _order_cases(self) -> list[str]:
        """All train cases, those first that say most about what fails."""
        names = [case.id for case in self._session.train.cases]
        self._session.rng.shuffle(names)
        failed = [name for name in names if self._has_failed.get(name)]
        new = [name for name in names if name not in self._has_failed]
        passed = [name for name in names if self._has_failed.get(name) is False]
        others = chain(self._spread(new), self._spread(passed))
        in_turn = chain.from_iterable(zip_longest(self._spread(failed), others))
        return [name for name in in_turn if name is not None]

    def _spread(self, names: Iterable[str]) -> Iterator[str]:
        """The cases in turn from each route."""
        by_route: defaultdict[Route, deque[str]] = defaultdict(deque)
        for name in names:
            by_route[self._routes.get(name, ())].append(name)
        waiting = deque(by_route[route] for route in sorted(by_route))
        while waiting:
            cases = waiting.popleft()
            yield cases.popleft()
            if cases:
                waiting.append(cases)

    def _note_rows(self, evaluation: Evaluation, failed: Collection[str]) -> None:
        self._has_failed |= {case.case_id: case.case_id in failed for case in evaluation.cases}
        self._routes |= {row.case_id: tuple(sorted(row.reads)) for row in evaluation.rows if row.reads is not None}


def _find_failed_cases(evaluation: Evaluation) -> set[str]:
    """The cases that failed in a way that blame can use."""
    failed = {case.case_id for case in evaluation.cases if not case.passed}
    return {row.case_id for row in evaluation.rows if row.case_id in failed and can_be_blamed(row)}
