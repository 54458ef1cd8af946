"""CaseReplays: one failed run, replayed with corrected outputs. Each replay is run once, and its traces loaded once."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from promptiter.agents.base import Agent, Substitute
from promptiter.backprop.loss import extract_losses
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import RUN_LIMITS
from promptiter.grouping import ById
from promptiter.profile import Profile
from promptiter.search.blame_sample import RunKey
from promptiter.stages.losses import CaseLoss
from traces import ExecutionTrace, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayContext:
    """What a replay needs: an evaluation with the agent, evaluator, cases and profile that it came from."""

    agent: Agent
    evaluator: Evaluator
    eval_set: EvalSet
    evaluation: Evaluation
    profile: Profile


class CaseReplays:
    """The replays of one run, which failed in one turn. `count` says how many there were."""

    def __init__(self, context: ReplayContext, run: RunKey) -> None:
        case_id, repeat, self.turn = run
        self.context = context
        self.case: EvalCase = next(each for each in context.eval_set.cases if each.id == case_id)
        self.row = next(each for each in context.evaluation.rows if (each.case_id, each.repeat) == (case_id, repeat))
        self.count = 0
        self._limits = frozenset(
            score.metric for score in self.row.scores if any(each.predicate in RUN_LIMITS for each in score.findings)
        )
        self._traces: dict[str, ExecutionTrace] = {}
        self._steps: dict[str, dict[str, Step]] = {}
        self._losses: dict[ById[CaseRow], CaseLoss | None] = {}
        self._rows: dict[str, CaseRow] = {}

    async def replay(self, substitutes: tuple[Substitute, ...]) -> CaseRow:
        """Run the case again with these outputs. Everything before the first of them comes from the cache."""
        key = repr(substitutes)
        if key not in self._rows:
            self.count += 1
            context = self.context
            self._rows[key] = await context.evaluator.replay(
                context.agent, self.case, context.profile, repeat=self.row.repeat, substitutes=substitutes
            )
        return self._rows[key]

    async def load_trace(self, row: CaseRow) -> ExecutionTrace:
        """The trace of this turn of a run."""
        return await self._load(row.trace_digests[self.turn])

    async def find_step(self, step_id: str, row: CaseRow) -> Step | None:
        """The step of a run with this id; None if the run took another path."""
        digest = row.trace_digests[self.turn]
        if digest not in self._steps:
            self._steps[digest] = {step.id: step for step in (await self._load(digest)).steps}
        return self._steps[digest].get(step_id)

    async def find_loss(self, row: CaseRow) -> CaseLoss | None:
        """The loss of this turn of a run, which all its steps share; None if there is none."""
        key = ById(row)
        if key not in self._losses:
            only = replace(self.context.eval_set, cases=(self.case,))
            evaluation = self.context.evaluator.build_evaluation([row], only, self.context.profile)
            losses = await extract_losses(evaluation, only, self._load)
            self._losses[key] = next((each for each in losses if each.turn == self.turn), None)
        return self._losses[key]

    def is_better(self, row: CaseRow, other: CaseRow) -> bool:
        """Whether the score rose; at equal scores, whether there are fewer findings: another fault may keep it down."""
        score, before = self.compute_score(row), self.compute_score(other)
        return score > before or (score == before and _count_findings(row) < _count_findings(other))

    def compute_score(self, row: CaseRow) -> float:
        """The mean over the metrics, without limits on cost and time, which mean nothing for a replay."""
        if row.error is not None:
            return -math.inf
        values = [score.value for score in row.scores if score.metric not in self._limits and score.value is not None]
        return math.fsum(values) / len(values) if values else 0.0

    async def _load(self, digest: str) -> ExecutionTrace:
        """Load a trace once."""
        if digest not in self._traces:
            self._traces[digest] = await self.context.evaluator.trace_store.get(digest)
        return self._traces[digest]


def _count_findings(row: CaseRow) -> int:
    return sum(len(score.findings) for score in row.scores)
