"""Screening: a cheap test on train cases of whether a shortened candidate lost something.

Cases that a similar candidate failed are run first; if they fail again, that is enough. Then a few more are run, and
the rest only if those show no clear loss. A result that may be noise is repeated, unless the baseline showed no noise.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence, has_noise
from promptiter.policies.non_inferiority import NonInferior
from promptiter.profile import Profile

MOST_CASES, FIRST_CASES = 24, 8
"""Number of train cases in the sample, and how many of them are run first."""


class Screening:
    """A sample of train cases with their results under the accepted profile (`before`)."""

    def __init__(self, session: Session, cases: EvalSet, before: Evaluation) -> None:
        self.cases = cases
        self.before = before
        self._session = session
        self._profile = session.accepted.profile

    @staticmethod
    async def of(session: Session) -> Screening:
        """Run the accepted profile on a sample of the train cases."""
        cases = session.train.cases
        chosen = sorted(session.rng.sample(range(len(cases)), min(MOST_CASES, len(cases))))
        sample = replace(session.train, cases=tuple(cases[at] for at in chosen))
        before = await session.evaluate(sample, session.accepted.profile, phase="train")
        return Screening(session, sample, before)

    async def find_losses(self, candidate: Profile, suspects: Collection[str] = ()) -> tuple[str, ...] | None:
        """The cases on which a candidate is worse; None if it is not worse overall. `suspects` are run first."""
        found: Evaluation | None = None
        for part in self._split_cases(suspects):
            more = await self._run(candidate, part)
            found = more if found is None else found.merge(more)
            evidence = self._build_evidence(found)
            if len(found.cases) < len(self.cases.cases) and self._is_clear_loss(evidence):
                return _find_lost_cases(evidence)
        assert found is not None, "an eval set has at least one case"
        evidence = self._build_evidence(found)
        answer = self._policy.decide(evidence)
        if isinstance(answer, MoreEvidence):
            repeat = 1 + max(row.repeat for row in found.rows)
            if repeat not in {row.repeat for row in self.before.rows}:
                self.before = self.before.merge(await self._run(self._profile, self.cases.cases, repeat=repeat))
            if self._policy.max_repeats > repeat:  # else the baseline just turned out to have no noise
                found = found.merge(await self._run(candidate, self.cases.cases, repeat=repeat))
            evidence = self._build_evidence(found)
            answer = self._policy.decide(evidence)
        return None if isinstance(answer, AcceptanceDecision) and answer.accepted else _find_lost_cases(evidence)

    @property
    def _policy(self) -> NonInferior:
        repeats = 1 + max(row.repeat for row in self.before.rows)
        is_quiet = repeats > 1 and not has_noise(self.before)
        return NonInferior(self._session.request.goal.margin, "tokens", max_repeats=1 if is_quiet else max(2, repeats))

    def _split_cases(self, suspects: Collection[str]) -> list[tuple[EvalCase, ...]]:
        suspected = [case for case in self.cases.cases if case.id in suspects][:FIRST_CASES]
        others = [case for case in self.cases.cases if case not in suspected]
        parts = (suspected, others[:FIRST_CASES], others[FIRST_CASES:])
        return [tuple(part) for part in parts if part]

    def _is_clear_loss(self, evidence: Evidence) -> bool:
        if evidence.gain is None or evidence.gain >= -self._session.request.goal.margin:
            return False
        return isinstance(self._policy.decide(evidence), AcceptanceDecision)

    def _build_evidence(self, found: Evaluation) -> Evidence:
        """Compare the candidate with the accepted profile on the case runs that both have."""
        run = {(row.case_id, row.repeat) for row in found.rows}
        before = replace(self.before, rows=tuple(row for row in self.before.rows if (row.case_id, row.repeat) in run))
        return Evidence(accepted=before, candidate=found, objective=self._session.request.objective)

    async def _run(self, profile: Profile, cases: Sequence[EvalCase], *, repeat: int | None = None) -> Evaluation:
        part = replace(self.cases, cases=tuple(cases))
        repeats = None if repeat is None else range(repeat, repeat + 1)
        return await self._session.evaluate(part, profile, phase="rerun", repeats=repeats)


def _find_lost_cases(evidence: Evidence) -> tuple[str, ...]:
    return (*(delta.case_id for delta in evidence.deltas if delta.change < 0), *evidence.newly_unscored)
