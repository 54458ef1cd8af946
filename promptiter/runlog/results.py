"""What a run is asked for, and what came of it: RunRequest, RunResult, RoundResult. Plain frozen data.

`status` says how the run ended, `verdict` what the evidence says, `stop_reason` which condition ended it. Everything
that two equal runs do not share stands in a block called `measured`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from io import BytesIO
from typing import IO, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, PlainSerializer

from promptiter.agents.base import Agent
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import EvaluationOptions
from promptiter.evaluation.result import Evaluation, Objective
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.final_test import Conclusion, FinalTest, Verdict
from promptiter.policies.goals import SCORE, Goal
from promptiter.policies.stopping import StopDecision, StopPolicy
from promptiter.profile import PatchSet, Profile, ProfileDiff
from promptiter.runlog.events import SCHEMA_VERSION
from promptiter.stages.contracts import AggregateResult, BackwardResult, BlameCheck, Rejection
from promptiter.stages.losses import CaseLoss, LossHint, LossPlacement
from promptiter.structure import StructureSnapshot
from traces.notebook import html_block, html_heading

Status: TypeAlias = Literal["queued", "running", "succeeded", "failed", "cancelled"]


@dataclass(frozen=True, kw_only=True)
class RunRequest:
    """What to optimize, on which cases, under which rules.

    `targets` are the surfaces that may change; None means every text surface, or those that the goal is about.
    `teacher` (an agent, or the name of a model) writes the expected answers that cases lack; `judge` is the model that
    judging metrics ask instead of their own. `acceptance` says which candidates the search keeps, and `claim` how the
    run tests at its end whether what it kept is better; without a claim, that is adopted untested. `test` cases stay
    sealed until then: they say whether a gain holds for new cases. `error` is the chance that a claim may be wrong,
    and that a policy which promises one may err in the run. `protected` cases must go on passing, whatever else
    `acceptance` says. `max_rounds` bounds the rounds beside what `stop` says; without any, a run stops when validation
    is perfect, or after three rounds that brought nothing. A `goal` besides the score needs NonInferior as acceptance
    and a search for it, and ends when nothing is left to try. `seed` is the evaluator's if it is left out.
    """

    train: EvalSet | Sequence[EvalSet]
    validation: EvalSet | Sequence[EvalSet]
    test: EvalSet | Sequence[EvalSet] | None = None
    initial_profile: Profile | None = None
    teacher: Agent | str | None = None
    judge: str | None = None
    evaluation: EvaluationOptions | None = None
    acceptance: AcceptancePolicy = field(default_factory=AnyGain)
    final_test: FinalTest | None = field(default_factory=FinalTest)
    stop: StopPolicy | None = None
    max_rounds: int = 4
    targets: Sequence[str] | None = None
    objective: Objective = "mean_score"
    alpha: float = 0.05
    goal: Goal = SCORE
    loss_placements: tuple[LossPlacement, ...] = ()
    hints: tuple[LossHint, ...] = ()
    protected: frozenset[str] = frozenset()
    seed: int | None = None
    run_id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceBlame:
    """Where the losses of one trace went."""

    case_id: str
    repeat: int = 0
    turn: int = 0
    results: tuple[BackwardResult, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """One pass of a round from losses to patches. `below_support` are signals with too little support for a patch.

    Signals stand in the order of what a patch may remove, for what running the cases again costs that read the surface.
    `checks` are what replays said of a sample of the blame, in so many `replays`. `refused` are patches that lint or a
    reviewer refused, with the reason; `notes` say why there is no other patch.
    """

    losses: tuple[CaseLoss, ...] = ()
    blames: tuple[TraceBlame, ...] = ()
    checks: tuple[BlameCheck, ...] = ()
    replays: int = 0
    signals: tuple[AggregateResult, ...] = ()
    below_support: tuple[AggregateResult, ...] = ()
    patches: PatchSet = field(default_factory=PatchSet)
    refused: tuple[Rejection, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One round: the profile it started from, what was found on train, what was proposed, and what became of it.

    `compared` is the input profile, run once more on repeats of the candidate's `validation`; None if its record stood.
    `decision` is None in a round that was cut short.
    """

    round: int
    input_profile: Profile
    train: Evaluation | None = None
    passes: tuple[PassResult, ...] = ()
    reruns: tuple[Evaluation, ...] = ()
    output_profile: Profile | None = None
    validation: Evaluation | None = None
    compared: Evaluation | None = None
    decision: AcceptanceDecision | None = None
    stop: StopDecision | None = None

    @property
    def losses(self) -> tuple[CaseLoss, ...]:
        """Those of the train cases, before anything was changed."""
        return self.passes[0].losses if self.passes else ()

    @property
    def patches(self) -> PatchSet:
        """All patches of the round; a later pass does not change a surface again."""
        return PatchSet(tuple(patch for each in self.passes for patch in each.patches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """What the working profile loses without each part, and which parts were dropped because it loses nothing."""

    losses: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasured:
    """What differs between equal runs: the name, clocks, what was spent, and what watching it met with."""

    run_id: str = ""
    started_at: str = ""
    duration_s: float = 0.0
    case_runs: int = 0
    paid_case_runs: int = 0
    spent: LedgerSnapshot = field(default_factory=LedgerSnapshot)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The state of a run, at its end or on the way.

    `working_profile` is what the search has kept, and `accepted_profile` what is adopted: the same while nothing is
    concluded, afterwards only what the `conclusion` lets stand. `accepted` are its scores on validation, `baseline`
    those of the initial profile; of a run that made its claim, both on the fresh repeats of that. `ablation` says what
    was taken out before. `unread_surfaces` are targets that no run of any case has read. `error` says why a run failed.
    The `rounds` of a run that just ended are read from its journal when they are asked for; those of a result that was
    read from a file are a tuple.
    """

    status: Status
    verdict: Verdict
    structure: StructureSnapshot
    targets: tuple[str, ...]
    objective: Objective
    goal: Goal = SCORE
    initial_profile: Profile
    baseline: Evaluation | None = None
    accepted_profile: Profile
    accepted: Evaluation | None = None
    working_profile: Profile
    ablation: Ablation | None = None
    unread_surfaces: tuple[str, ...] = ()
    conclusion: Conclusion | None = None
    rounds: Annotated[
        Sequence[RoundResult], AfterValidator(tuple), PlainSerializer(tuple, return_type=tuple[RoundResult, ...])
    ] = ()
    stop: StopDecision | None = None
    error: str | None = None
    is_final: bool = False
    measured: RunMeasured = field(default_factory=RunMeasured, compare=False)

    @property
    def run_id(self) -> str:
        return self.measured.run_id

    @property
    def current_round(self) -> int:
        return len(self.rounds)

    @property
    def stop_reason(self) -> str | None:
        """Which condition ended the run; None while it runs, or if it failed."""
        return self.stop.reason if self.stop is not None else None

    @property
    def changes(self) -> ProfileDiff:
        """How the accepted profile differs from the one that the run started with."""
        return self.initial_profile.changes(self.accepted_profile, self.structure)

    @property
    def baseline_score(self) -> float | None:
        return self.baseline.objective(self.objective) if self.baseline is not None else None

    @property
    def accepted_score(self) -> float | None:
        return self.accepted.objective(self.objective) if self.accepted is not None else None

    def __repr__(self) -> str:
        changed = ", ".join(change.surface_id for change in self.changes) or "nothing"
        return f"RunResult({self.status}, {self._headline})\n  changed: {changed}\n  {self._spending}"

    def _repr_html_(self) -> str:
        accepted = "" if self.accepted is None else self.accepted._repr_html_()
        return html_block(
            html_heading(self._headline, f"{self.status}, {self._spending}"), self.changes._repr_html_(), accepted
        )

    @property
    def _headline(self) -> str:
        """The verdict, the score before and after, and why the run failed."""
        scores = [
            "unscored" if score is None else f"{score:.3f}" for score in (self.baseline_score, self.accepted_score)
        ]
        error = "" if self.error is None else f"; {self.error}"
        return f"{self.verdict}: {self.objective} {scores[0]} → {scores[1]}{error}"

    @property
    def _spending(self) -> str:
        spent = self.measured.spent.total
        cost = "cost unknown" if spent.cost_usd is None else f"${spent.cost_usd:.4f}"
        return f"{len(self.rounds)} rounds, {spent.calls:,} calls, {cost}, {self.measured.duration_s:.1f} s"

    def to_json(self) -> bytes:
        """As it is written into result.json: everything in a fixed order."""
        file = BytesIO()
        self.write_json(file)
        return file.getvalue()

    def write_json(self, file: IO[bytes]) -> None:
        """Write the same into a file, with one round in memory at a time."""
        import orjson

        from promptiter.runlog.codec import to_plain

        layout = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS
        document = {"schema_version": SCHEMA_VERSION, **to_plain(replace(self, rounds=()))}
        # JSON texts hold no bare line break, so these bytes are found nowhere but at the key itself.
        before, key, after = orjson.dumps(document, option=layout).partition(b'\n  "rounds": [')
        file.write(before + key)
        separator = b"\n    "
        for each in self.rounds:
            file.write(separator + orjson.dumps(to_plain(each), option=layout).replace(b"\n", b"\n    "))
            separator = b",\n    "
        file.write((b"\n  " if self.rounds else b"") + after + b"\n")

    @staticmethod
    def from_json(raw: bytes) -> RunResult:
        """The result of such a document."""
        import orjson

        from promptiter.runlog.codec import from_plain

        document = orjson.loads(raw)
        if (found := document.pop("schema_version", None)) != SCHEMA_VERSION:
            raise SetupError(f"this result has schema_version {found!r}, and this release reads {SCHEMA_VERSION}")
        result: RunResult = from_plain(RunResult, document)
        return result
