"""RecordedAgent: runs that have happened, in the place of an agent, so that metrics and stages can judge them.

Nothing is run. A case is the question of one run, and its run is the recorded one; there are no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.backprop.loss import is_fixable_by_prompt
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.score import Score
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from promptiter.tasks.feedback import Feedback
from promptiter.tasks.recorded_run import RecordedRun
from traces import ExecutionTrace, Failure

RunOutcome: TypeAlias = Literal["failed", "outage", "good", "unknown"]
"""How a run ended. No text is to blame for an outage."""

DISLIKED = "a user was not satisfied with this answer, and did not say why"
"""The reason of a bad rating without a comment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedRun:
    """A recorded run, and what was said about it, if anything."""

    trace: ExecutionTrace
    run: RecordedRun
    feedback: Feedback | None = None

    @property
    def id(self) -> str:
        return self.trace.id

    @property
    def error(self) -> Failure | None:
        """The error that the run ended with. One that users were satisfied with was handled by the agent."""
        is_liked = self.feedback is not None and self.feedback.is_good
        return None if is_liked else self.run.error

    @property
    def outcome(self) -> RunOutcome:
        """What its error says, or else people; unknown if there is neither."""
        if self.error is not None:
            return "failed" if is_fixable_by_prompt(self.error) else "outage"
        if self.feedback is None or self.feedback.is_good is None:
            return "unknown"
        return "good" if self.feedback.is_good else "failed"

    def as_case(self) -> EvalCase:
        """The case of the run. Its answer is the reference only if feedback says that it was good."""
        said = self.feedback
        expected = None if said is None else said.expected
        if expected is None and said is not None and said.is_good:
            expected = self.run.answer or None
        turn = Turn(user=self.run.question, expected=expected)
        return EvalCase(id=self.id, turns=(turn,), context=self.run.earlier)


class RecordedAgent:
    """An agent whose runs are recorded ones, by case id."""

    def __init__(self, structure: StructureSnapshot, runs: Iterable[JudgedRun]) -> None:
        self._structure = structure
        self._runs: Mapping[str, JudgedRun] = {each.id: each for each in runs}

    def describe(self) -> StructureSnapshot:
        return self._structure

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        """Return the recorded run. Raises SetupError for another profile: nobody knows what it would have answered."""
        if profile.overrides:
            raise SetupError("a recorded run cannot be repeated with other texts; give the live agent")
        recorded = self._runs[context.case_id]
        return AgentRun(
            output=recorded.run.answer,
            trace=recorded.trace,
            usage=recorded.trace.usage,
            error=recorded.error,
        )


class FeedbackMetric:
    """What people said about a run, as a metric: 1 if it was good, else 0. A run without feedback is unscored."""

    name = "feedback"
    threshold = 1.0
    needs_reference = False
    description = "what users of the agent said about the answer"

    def __init__(self, runs: Iterable[JudgedRun]) -> None:
        self._said = {each.id: each.feedback for each in runs}

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:  # noqa: ARG002
        said = self._said.get(case.id)
        if said is None or said.is_good is None:
            return Score(metric=self.name, value=None, error="there is no feedback on this run")
        if said.is_good:
            return Score(metric=self.name, value=1.0, reason=said.comment)
        return Score(metric=self.name, value=0.0, reason=said.comment or DISLIKED)


class CompletedMetric:
    """Whether a run ended without an error: how runs are judged that nobody said anything about."""

    name = "completed"
    threshold = 1.0
    needs_reference = False

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:  # noqa: ARG002
        if run.error is None:
            return Score(metric=self.name, value=1.0)
        return Score(metric=self.name, value=0.0, reason=run.error.text)
