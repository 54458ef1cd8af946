"""Payloads of the engine's own events: one frozen record per event type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.penalties import NO_PENALTIES, Penalties
from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.stats.final_test import FinalTestResult
from promptiter.evaluation.teacher import LabelledSet
from promptiter.llm.ledger import Spending
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.policies.goals import SCORE, Goal
from promptiter.policies.paired_runs import NO_RUNS, PairedRuns
from promptiter.policies.stop_decision import StopDecision
from promptiter.policies.verdict import Conclusion, Verdict
from promptiter.profile import PatchSet, Profile
from promptiter.runlog.events import Payload, event_type
from promptiter.runlog.results import Ablation, RunMeasured, RunShape, Status
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalSetSummary:
    """An eval set by name, content and size."""

    id: str
    digest: str
    cases: int

    @classmethod
    def of(cls, eval_set: EvalSet) -> EvalSetSummary:
        return cls(id=eval_set.id, digest=eval_set.content_digest, cases=len(eval_set.cases))


@dataclass(frozen=True, slots=True, kw_only=True)
class StartMeasured:
    """When the run began, and the id under which the uses of its cases are kept."""

    started_at: str = ""
    use_id: str = ""


@event_type("run_started")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Payload):
    """What the run is asked for. Policies are given by their description."""

    structure: Json
    profile: Profile
    targets: tuple[str, ...]
    train: EvalSetSummary
    validation: EvalSetSummary
    test: EvalSetSummary | None = None
    shape: RunShape = "two_sets"
    objective: Objective = "mean_score"
    goal: Goal = SCORE
    acceptance: str = ""
    final_test: str = ""
    stop: str = ""
    max_rounds: int = 0
    search: str = ""
    seed: int = 0
    measured: StartMeasured = StartMeasured()


@event_type("references")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReferencesWritten(Payload):
    """The eval sets with the expected answers of a teacher."""

    train: LabelledSet
    validation: LabelledSet


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationMeasured:
    """The position in the cache before the first case."""

    mark: int = 0


@event_type("evaluation_started")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationStarted(Payload):
    """An evaluation, by its number in the run. `without` are the changes that an ablation leaves out."""

    evaluation: int
    eval_set_id: str
    profile_digest: str
    cases: int
    runs: int
    without: tuple[str, ...] = ()
    measured: EvaluationMeasured = EvaluationMeasured()


@event_type("case")
@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFinished(Payload):
    """One case run of an evaluation."""

    evaluation: int
    row: CaseRow


@event_type("evaluation_finished")
@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationFinished(Payload):
    """The settings that the scores depend on, and the figures of the rows before, for observers."""

    evaluation: int
    thresholds: Mapping[str, float]
    weights: Mapping[str, float] = field(default_factory=dict)
    penalties: Penalties = NO_PENALTIES
    max_errored_fraction: float = 0.25
    mean_score: float | None = None
    pass_rate: float | None = None
    metric_means: Mapping[str, float | None] = field(default_factory=dict)
    errored_fraction: float = 0.0

    @staticmethod
    def of(evaluation: Evaluation, number: int) -> EvaluationFinished:
        return EvaluationFinished(
            evaluation=number,
            thresholds=dict(evaluation.thresholds),
            weights=dict(evaluation.weights),
            penalties=evaluation.penalties,
            max_errored_fraction=evaluation.max_errored_fraction,
            mean_score=evaluation.mean_score,
            pass_rate=evaluation.pass_rate,
            metric_means=evaluation.metric_means,
            errored_fraction=evaluation.errored_fraction,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservedMeasured:
    expected: Spending = field(default_factory=Spending)
    before: Spending = field(default_factory=Spending)


@event_type("budget_reserved")
@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetReserved(Payload):
    """What the final test is expected to cost, and what was spent before it was reserved."""

    measured: ReservedMeasured = ReservedMeasured()


@event_type("cases_used")
@dataclass(frozen=True, slots=True, kw_only=True)
class CasesUsed(Payload):
    """How many validation cases the search has, and how often the project used them before; see CaseUseHistory."""

    validation_cases: int
    earlier_runs: int = 0
    seen_cases: int = 0


@event_type("round_started")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundStarted(Payload):
    profile_digest: str


@event_type("candidate")
@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateProposed(Payload):
    """A candidate: its patches and the values that no patch sets, so that no other event is needed to rebuild it."""

    profile_digest: str
    parents: tuple[str, ...]
    patches: PatchSet = field(default_factory=PatchSet)
    other_values: Mapping[str, Json] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, Json]:
        """The values of all surfaces that it changes, or sets back to what they were."""
        return {**self.other_values, **self.patches.values}


@dataclass(frozen=True, slots=True, kw_only=True)
class UndeclaredRead:
    """A node that behaved differently in a case although nothing it is known to read had changed."""

    node_id: str
    case_id: str
    repeat: int = 0


@event_type("audit")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsAudited(Payload):
    undeclared: tuple[UndeclaredRead, ...] = ()


ValidationReader: TypeAlias = Literal["search", "reviewer"]


@event_type("validation_read")
@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationRead(Payload):
    """The search has read validation cases or results on them, or a reviewer of its patches may have."""

    by: ValidationReader = "search"


@event_type("decision")
@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateDecided(Payload):
    """The decision on a candidate, and what the policy saw; without a candidate, why a round has none."""

    candidate: str | None
    decision: AcceptanceDecision
    evidence: EvidenceRecord | None = None


@event_type("round_completed")
@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCompleted(Payload):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StopMeasured:
    """What the policies saw besides the record itself."""

    spent: Spending = field(default_factory=Spending)
    evaluations: int = 0


@event_type("stop")
@dataclass(frozen=True, slots=True, kw_only=True)
class StopDecided(Payload):
    """Whether the run stops. `reads_score`: the decision depends on the validation of the accepted profile."""

    decision: StopDecision
    reads_score: bool = False
    measured: StopMeasured = StopMeasured()


@event_type("budget_ended")
@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEnded(Payload):
    """The budget ended the search or the ablation; the run continues with what comes after it."""

    cap: str
    message: str


@event_type("ablation")
@dataclass(frozen=True, slots=True, kw_only=True)
class AblationFinished(Payload):
    ablation: Ablation


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunMeasured:
    """The id under which the final test is kept among the uses of cases."""

    id: str = ""


@event_type("final_test_begun")
@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTestBegun(Payload):
    measured: BegunMeasured = BegunMeasured()


@event_type("test_set_opened")
@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedTestSet(Payload):
    """How often the project had used the test cases before; see CaseUseHistory."""

    opened_before: int = 0
    seen_cases: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedMeasured:
    """The id under which the result is kept among the uses of cases."""

    id: str = ""


@event_type("final_test")
@dataclass(frozen=True, slots=True, kw_only=True)
class FinalTestFinished(Payload):
    """The result of the final test for one scope, and the case runs that it is based on."""

    result: FinalTestResult
    runs: PairedRuns = NO_RUNS
    measured: FinishedMeasured = FinishedMeasured()


@event_type("conclusion")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunConcluded(Payload):
    conclusion: Conclusion


@event_type("run_completed")
@dataclass(frozen=True, slots=True, kw_only=True)
class RunCompleted(Payload):
    """The end of a run, or of one of its processes: an `is_final` end is not continued."""

    status: Status
    verdict: Verdict
    stop: StopDecision | None = None
    error: str | None = None
    is_final: bool = False
    baseline: float | None = None
    best: float | None = None
    measured: RunMeasured = field(default_factory=RunMeasured)
