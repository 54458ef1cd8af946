"""Confirmation: blame with little support counts if it recurs when its cases are repeated.

A model that slips now and then fails a few cases, each time another one and in another place. A fault that only few
cases meet fails the same cases again, in the same place. So these cases are run once more, under the same profile: what
passes now, or is blamed on another surface, was noise.
"""

from __future__ import annotations

from dataclasses import replace

from promptiter.engine.session import Session
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.rerun_cases import select_cases


class Confirmation:
    """Repeats the cases behind blame with little support, in one run. All of them are repeated under one number."""

    def __init__(self, session: Session, finder: BlameFinder, *, most: int) -> None:
        self._session = session
        self._finder = finder
        self._most = most
        self._repeats: range | None = None
        self._known: dict[tuple[str, int | None], BlameReport] = {}

    async def confirm(self, report: BlameReport) -> BlameReport:
        """Return the blame with little support that recurs, as signals. Equal reports are confirmed once."""
        key = report.profile.digest, report.evaluation.number
        if key not in self._known:
            self._known[key] = await self._confirm(report)
        return self._known[key]

    async def _confirm(self, report: BlameReport) -> BlameReport:
        nothing = replace(report, signals=(), weak=(), gradients={})
        cases = select_cases(report.eval_set, report.weak, most=self._most)
        if not cases.cases:
            return nothing
        if self._repeats is None:
            self._repeats = self._session.reserve_repeats(1)
        evaluation = await self._session.evaluate(cases, report.profile, phase="repeat", repeats=self._repeats)
        if evaluation.pass_rate == 1.0:
            return nothing
        blamed = {
            (each.surface_id, each.case_id) for signal in report.weak for each in report.gradients[signal.surface_id]
        }
        return await self._finder.find(evaluation, cases, report.profile, phase="repeat", only=frozenset(blamed))
