"""A noisy quadratic: six numbers with an optimum that one sentence of the instruction moves, and lifts.

The agent searches an archive. Its score falls with the squared distance of its six settings from the best ones, and
each run adds noise. Without the rule to quote a passage, answers are capped and short passages do best; with it, the
cap is gone and other settings are best. So numbers alone hit the cap, and the rule alone leaves the settings wrong.

`ReasonReader` and `RuleAdder` are a critic and an applier that see what any other would: the verdicts of failed cases.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Any

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.declarations import Parameter
from promptiter.agents.function import agent
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Search
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.profile import Profile
from promptiter.search.descent.search import CoordinateDescent
from promptiter.stages.diagnosis import ApplyRequest, DiagnoseRequest, Diagnosis, TextEdit
from promptiter.structure import StructureSnapshot

TEXT = "archive#instruction"
RULE = "Quote the passage that the answer rests on."
CAP = 0.7
"""The best score without the rule."""

REACHED = 0.9
"""The true score of a profile that has found the rule and the settings."""

PASSING = 0.95
"""The score with which a case passes."""

NOISE = 0.04
STEEPNESS = 2.0


@dataclass(frozen=True, slots=True)
class Setting:
    """One number: its bounds, where it starts, and its best values without and with the rule, from 0 to 1."""

    low: float
    high: float
    start: float
    best: tuple[float, float]
    is_log: bool = False

    def place(self, value: float) -> float:
        """Where a value is between the bounds, from 0 to 1."""
        if self.is_log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)


SETTINGS: Mapping[str, Setting] = {
    "temperature": Setting(0.0, 1.0, 0.9, (0.4, 0.3)),
    "top_p": Setting(0.5, 1.0, 1.0, (0.6, 0.5)),
    "top_k": Setting(1, 20, 19, (0.2, 0.55)),
    "semantic_weight": Setting(0.0, 1.0, 0.1, (0.4, 0.65)),
    "min_score": Setting(0.001, 1.0, 0.002, (0.65, 0.4), is_log=True),
    "passage_chars": Setting(100, 2000, 1900, (0.25, 0.6)),
}
AXES = tuple(f"archive#parameter.{name}" for name in SETTINGS)


@agent(
    instruction="Answer the question from the archive.",
    parameter={
        name: Parameter(value=each.start, minimum=each.low, maximum=each.high, scale="log" if each.is_log else "linear")
        for name, each in SETTINGS.items()
    },
)
def archive(message: str) -> str:
    return message


class QuadraticAgent:
    """Answers with how good the answer is. Case, repeat and profile seed the noise."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.snapshot = archive.describe()
        self.case_runs = 0

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        self.case_runs += 1
        dice = Random(f"{self.seed} {context.case_id} {context.repeat} {profile.digest}")
        quality = self.find_quality(profile) + dice.gauss(0, NOISE)
        quotes = RULE in str(profile.value(TEXT, self.snapshot))
        return AgentRun(output=f"{min(1.0, max(0.0, quality)):.6f} {'with' if quotes else 'without'} a quote")

    def find_quality(self, profile: Profile) -> float:
        """The true score of a profile, without noise."""
        has_rule = RULE in str(profile.value(TEXT, self.snapshot))
        distances = []
        for name, setting in SETTINGS.items():
            value = profile.value(f"archive#parameter.{name}", self.snapshot)
            assert isinstance(value, int | float)
            distances.append((setting.place(value) - setting.best[has_rule]) ** 2)
        return max(0.0, (1.0 if has_rule else CAP) - STEEPNESS * fmean(distances))


async def quality(_case: EvalCase, run: AgentRun) -> tuple[float, str]:
    """The quality of an answer; the reason says what a reader would miss."""
    value = float(run.output.split()[0])
    return value, "" if "with a quote" in run.output else "the answer does not show where it is from"


class ReasonReader:
    """A critic that names the commonest reason of the failed cases."""

    def diagnose(self, request: DiagnoseRequest) -> Diagnosis:
        verdicts = [text for each in request.failing for turn in each.turns for text in turn.verdict]
        lines = [line for text in verdicts for line in text.splitlines()]
        reasons = Counter(line.removeprefix("reason: ") for line in lines if line.startswith("reason: "))
        tried = {each.diagnosis.failing_pattern for each in request.rejected}
        found = [reason for reason, _ in reasons.most_common() if reason not in tried]
        if not found:
            return Diagnosis(failing_pattern="the cases fail for no stated reason", confidence=0.1)
        return Diagnosis(
            failing_pattern=found[0],
            suggested_change_direction=found[0],
            confidence=0.8,
            citations=tuple(each.case_id for each in request.failing),
        )


class RuleAdder:
    """An applier that knows how to answer a reason, and adds the rule to the text."""

    def apply(self, request: ApplyRequest) -> TextEdit:
        knows = "where it is from" in request.diagnosis.failing_pattern
        rule = RULE if knows else "Be as helpful as you can."
        return TextEdit(new_text=f"{request.surface.value} {rule}", rationale="adds the rule", edit_type="insert")


def make_cases(name: str, count: int) -> EvalSet:
    cases = (EvalCase(id=f"{name}-{n}", turns=(Turn(user=f"{name} question {n}"),)) for n in range(count))
    return EvalSet(id=name, cases=tuple(cases))


def build_engine(search: Search, *, seed: int, passing: float = PASSING) -> Engine:
    metric = FunctionMetric(name="quality", function=quality, threshold=passing)
    return Engine(QuadraticAgent(seed), Evaluator([metric], options=EvaluationOptions(seed=seed)), search=search)


def build_request(*, targets: tuple[str, ...] = (TEXT, *AXES), cases: int = 6) -> RunRequest:
    return RunRequest(
        train=make_cases("train", cases),
        validation=make_cases("validation", cases),
        targets=targets,
        acceptance=SigmaGain(),
        final_test=None,
    )


def build_descent(**options: Any) -> CoordinateDescent:
    """Coordinate descent with the critic and the applier of this world."""
    return CoordinateDescent(critic=ReasonReader(), applier=RuleAdder(), **options)
