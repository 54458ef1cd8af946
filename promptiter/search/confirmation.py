"""Confirmation: blame with little support counts if it recurs when its cases are repeated.

A model that slips now and then fails a few cases, each time another one and in another place. A fault that only few
cases meet fails the same cases again, in the same place. So these cases are run once more, under the same profile: what
passes now was noise. What fails again in another place was noise, too, or a slip hid the fault this time: if nothing
else is confirmed, it is run a last time.
"""

from __future__ import annotations

from dataclasses import replace

from promptiter.engine.session import Session
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.rerun_cases import select_cases

MOST_REPEATS = 2
"""How often cases that keep failing are repeated."""


class Confirmation:
    """Repeats the cases behind blame with little support, in one run. All first repeats have one number, and so on."""

    def __init__(self, session: Session, finder: BlameFinder, *, most: int) -> None:
        self._session = session
        self._finder = finder
        self._most = most
        self._repeats: list[range] = []
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
        blamed = {
            (each.surface_id, each.case_id) for signal in report.weak for each in report.gradients[signal.surface_id]
        }
        for number in range(MOST_REPEATS):
            if not cases.cases:
                break
            evaluation = await self._session.evaluate(
                cases, report.profile, phase="repeat", repeats=self._reserve_repeat(number)
            )
            failed = {case.case_id for case in evaluation.cases if not case.passed}
            if not failed:
                break
            found = await self._finder.find(evaluation, cases, report.profile, phase="repeat", only=frozenset(blamed))
            if found.signals:
                return found
            cases = replace(cases, cases=tuple(case for case in cases.cases if case.id in failed))
        return nothing

    def _reserve_repeat(self, number: int) -> range:
        if number == len(self._repeats):
            self._repeats.append(self._session.reserve_repeats(1))
        return self._repeats[number]
