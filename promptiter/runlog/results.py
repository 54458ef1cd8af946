"""The result of a run: RunResult, RoundResult. Plain frozen data.

`status` is how the run ended, `verdict` what its evidence shows, `stop_reason` the condition that ended it. Everything
that differs between equal runs is in a block called `measured`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from typing import IO, Annotated, Literal, TypeAlias

from pydantic import AfterValidator, PlainSerializer

from promptiter.errors import SetupError
from promptiter.evaluation.result import Evaluation, Objective, merge_evaluations
from promptiter.evaluation.stats.final_test import Scope, describe_gain
from promptiter.evaluation.unscored import describe_unscored
from promptiter.llm.ledger import LedgerSnapshot
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.policies.goals import SCORE, Goal
from promptiter.policies.paired_runs import describe_uneven_outages
from promptiter.policies.stop_decision import StopDecision
from promptiter.policies.verdict import Conclusion, Verdict
from promptiter.profile import PatchSet, Profile, ProfileDiff
from promptiter.runlog.case_uses import CaseUseHistory
from promptiter.runlog.details import TaggedDetails
from promptiter.runlog.events import SCHEMA_VERSION
from promptiter.structure import StructureSnapshot
from promptiter.wording import count_model_calls, count_unknown_costs, dollars, format_score, join_names, plural
from traces.model import Json
from traces.notebook import html_block, html_heading

Status: TypeAlias = Literal["queued", "running", "succeeded", "failed", "cancelled"]

RunShape: TypeAlias = Literal["two_sets", "one_set", "scorer"]
"""What a run learns from and validates on: two sets of cases, the same cases for both, or a scorer without cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateResult:
    """A profile that a search proposed, and what became of it.

    `parents` are the digests of the profiles that it was made from, `patches` what it changes about the first of them.
    `decision` is None if the round ended before one. `evidence` names the rows that the policy decided on.
    """

    profile: Profile
    parents: tuple[str, ...] = ()
    patches: PatchSet = field(default_factory=PatchSet)
    evaluations: tuple[Evaluation, ...] = ()
    decision: AcceptanceDecision | None = None
    evidence: EvidenceRecord | None = None

    @property
    def validation(self) -> Evaluation | None:
        """Its runs on validation that the decision rests on, or all if there is none yet; None if there were none."""
        found = (each for each in self.evaluations if each.phase == "validation")
        seen = None if self.evidence is None else self.evidence.candidate
        return merge_evaluations(each for each in found if seen is None or each.number in seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchNote:
    """An event of a search's own in a round, as plain data."""

    type: str
    data: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundResult:
    """One round: its candidates, and how the search came to them.

    `evaluations` are those of other profiles than the candidates: the train cases under `input_profile`, the profile
    that was accepted when the round began, or that profile on the repeats of a candidate. `details` is what the
    search recorded of the round, `notes` are its other events. `skipped` says why a round has no candidate.
    """

    round: int
    input_profile: Profile
    candidates: tuple[CandidateResult, ...] = ()
    evaluations: tuple[Evaluation, ...] = ()
    details: TaggedDetails = None
    notes: tuple[SearchNote, ...] = ()
    skipped: str = ""
    stop: StopDecision | None = None

    @property
    def train(self) -> Evaluation | None:
        """The train cases under the input profile, of several parts all; None if the search ran none in this round."""
        return next((each for each in reversed(self.evaluations) if each.phase == "train"), None)

    @property
    def candidate(self) -> CandidateResult | None:
        """The candidate that was accepted, of several the last; without one, the last that was proposed."""
        accepted = [each for each in self.candidates if each.decision is not None and each.decision.accepted]
        in_order = sorted(accepted, key=lambda each: 0 if each.evidence is None else each.evidence.candidates_tried)
        return next(reversed(in_order or self.candidates), None)

    @property
    def decision(self) -> AcceptanceDecision | None:
        """The decision on `candidate`; the reason of a round that was skipped; None in a round that did not finish."""
        if self.candidate is None and self.skipped:
            return AcceptanceDecision(accepted=False, delta=None, reason=self.skipped)
        return self.candidate.decision if self.candidate is not None else None

    @property
    def patches(self) -> PatchSet:
        """The patches of `candidate`."""
        return self.candidate.patches if self.candidate is not None else PatchSet()

    @property
    def validation(self) -> Evaluation | None:
        """The validation of `candidate`."""
        return self.candidate.validation if self.candidate is not None else None

    @property
    def all_evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations of candidates and of other profiles, in the order of their numbers."""
        found = (*self.evaluations, *(each for one in self.candidates for each in one.evaluations))
        by_number = {each.number or 0: each for each in found}  # candidates with the same profile share evaluations
        return tuple(by_number[number] for number in sorted(by_number))

    @property
    def compared(self) -> Evaluation | None:
        """The input profile on the repeats of its candidates' validation; None if its earlier record was used."""
        return merge_evaluations(each for each in self.evaluations if each.phase == "validation")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """The parts of the accepted profile that were dropped, and the mean losses on train cases that decided this.

    A loss is not an estimate of the effect of a part: a part stays because its loss came out above 0.
    """

    losses: Mapping[str, float] = field(default_factory=dict)
    dropped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunMeasured:
    """What differs between equal runs: the id, times, spending, and problems that did not end the run.

    `case_history` is how often the project used the same cases before.
    """

    run_id: str = ""
    started_at: str = ""
    duration_s: float = 0.0
    case_runs: int = 0
    paid_case_runs: int = 0
    spent: LedgerSnapshot = field(default_factory=LedgerSnapshot)
    problems: tuple[str, ...] = ()
    case_history: CaseUseHistory = field(default_factory=CaseUseHistory)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """The state of a run, finished or in progress.

    `shape` says what it learned from and was validated on, and so what its verdict is about.
    `working_profile` is the best profile of the search; `accepted_profile` is the one to adopt: the same until the
    `conclusion`, and the initial profile if the final test shows no gain. `accepted` and `baseline` are the validation
    of the adopted and of the initial profile, after a final test on its repeats. `evaluations` are all those outside of
    rounds, by phase: the baseline, the ablation, the final test, the test set. `notes` are events of the search before
    the first round. `ablation` has the parts that were removed before the final test. No case run read the
    `unread_surfaces`. `error` says why a run failed. The `rounds` of a run that just ended are read from its journal on
    demand; in a result that was loaded from a file they are a tuple.
    """

    status: Status
    verdict: Verdict
    structure: StructureSnapshot
    targets: tuple[str, ...]
    objective: Objective
    shape: RunShape = "two_sets"
    goal: Goal = SCORE
    initial_profile: Profile
    baseline: Evaluation | None = None
    accepted_profile: Profile
    accepted: Evaluation | None = None
    working_profile: Profile
    evaluations: tuple[Evaluation, ...] = ()
    notes: tuple[SearchNote, ...] = ()
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
    def case_history(self) -> CaseUseHistory:
        """How often the project used the same cases before."""
        return self.measured.case_history

    @property
    def current_round(self) -> int:
        return len(self.rounds)

    @property
    def stop_reason(self) -> str | None:
        """The condition that ended the run; None while it runs, or if it failed."""
        return self.stop.reason if self.stop is not None else None

    @property
    def scope(self) -> Scope | None:
        """What the gain is shown for: `new cases`, `these cases`, or `this scorer`; None if no gain is shown."""
        return self.conclusion.scope if self.conclusion is not None else None

    @property
    def is_shown_for_new_cases(self) -> bool:
        """Whether the gain is shown for cases that the run has never seen; the verdict is then `improved`."""
        return self.scope == "new cases"

    @property
    def changes(self) -> ProfileDiff:
        """How the accepted profile differs from the initial one."""
        return self.initial_profile.changes(self.accepted_profile, self.structure)

    @property
    def baseline_score(self) -> float | None:
        return self.baseline.objective(self.objective) if self.baseline is not None else None

    @property
    def accepted_score(self) -> float | None:
        return self.accepted.objective(self.objective) if self.accepted is not None else None

    @property
    def problems(self) -> tuple[str, ...]:
        """Problems that did not end the run, such as cases that could not be scored, or surfaces that no run read."""
        return (*self.measured.problems, *self._unscored, *self._unread)

    @property
    def _unread(self) -> tuple[str, ...]:
        if not self.unread_surfaces:
            return ()
        return (f"never read: {join_names(self.unread_surfaces, limit=4)}; a patch there cannot change anything",)

    @property
    def _unscored(self) -> tuple[str, ...]:
        """What could not be scored of the baseline and the accepted profile, unless it made the evaluation invalid."""
        if self.baseline is None or self.accepted is None or self.verdict == "invalid_eval":
            return ()
        noun = {"two_sets": "validation case", "one_set": "case", "scorer": "scorer"}[self.shape]
        before, after = (describe_unscored(each, noun=noun) for each in (self.baseline, self.accepted))
        if before == after:
            return before
        return (*(f"baseline: {each}" for each in before), *(f"accepted profile: {each}" for each in after))

    def __repr__(self) -> str:
        changed = ", ".join(change.surface_id for change in self.changes) or "nothing"
        problems = [f"problem: {problem}" for problem in self.problems]
        lines = [*self._evidence, *self._uneven_outages, f"changed: {changed}", self._spending, *problems]
        return "\n  ".join([f"RunResult({self.status}, {self._headline})", *lines])

    def _repr_html_(self) -> str:
        accepted = "" if self.accepted is None else self.accepted._repr_html_()
        details = "; ".join((*self._evidence, *self._uneven_outages, self.status, self._spending))
        return html_block(html_heading(self._headline, details), self.changes._repr_html_(), accepted)

    @property
    def _headline(self) -> str:
        """The verdict, the score before and after, and why the run failed or its evaluation is invalid.

        If the test set decided, its scores come first.
        """
        invalid = self.stop.text if self.verdict == "invalid_eval" and self.stop is not None else None
        cause = "; ".join(each for each in (self.error, invalid) if each)
        scores = f"{format_score(self.baseline_score)} → {format_score(self.accepted_score)}"
        found = self.conclusion
        if found is not None and found.test_before is not None and self.verdict in ("improved", "overfit_risk"):
            on_test = f"{format_score(found.test_before)} → {format_score(found.test_after)}"
            scores = f"{on_test} on the test set ({scores} on validation)"
        return f"{self.verdict}: {self.objective} {scores}{cause and f'; {cause}'}"

    @property
    def _evidence(self) -> tuple[str, ...]:
        """What the gain is shown for, with its interval, and why it is not shown for new cases."""
        found = self.conclusion
        if found is None or found.scope is None:
            return ()
        shown = [each for each in found.results if each.scope == found.scope and each.looks]
        gains = [f": {describe_gain(each.looks[-1])}" for each in shown[-1:]]
        is_learned = self.shape == "one_set" and found.scope == "these cases"
        where = "these cases, which it learned from" if is_learned else found.scope
        limit = (f"not shown for new cases: {found.obstacle}",) if found.obstacle else ()
        return (f"shown for {where}{''.join(gains)}", *limit)

    @property
    def _uneven_outages(self) -> tuple[str, ...]:
        return () if self.conclusion is None else describe_uneven_outages(self.conclusion.runs)

    @property
    def _spending(self) -> str:
        spent = self.measured.spent.of_models
        unknown = count_unknown_costs(unpriced=spent.unpriced_calls, uncounted=spent.uncounted_calls)
        cost = "cost unknown" if spent.cost_usd is None else f"{dollars(spent.cost_usd)}{unknown}"
        counts = f"{plural(len(self.rounds), 'round')}, {count_model_calls(spent.calls, cached=spent.cache_hits)}"
        return f"{counts}, {cost}, {self.measured.duration_s:.1f} s"

    def to_json(self) -> bytes:
        """Return the content of result.json, in a fixed order."""
        file = BytesIO()
        self.write_json(file)
        return file.getvalue()

    def write_json(self, file: IO[bytes]) -> None:
        """Write the content of result.json, with one row in memory at a time."""
        from promptiter.runlog.json_pieces import open_evaluation, open_record, write_pieces

        document = open_record(
            self,
            baseline=open_evaluation(self.baseline),
            accepted=open_evaluation(self.accepted),
            evaluations=map(open_evaluation, self.evaluations),
            rounds=(
                open_record(
                    each,
                    candidates=(
                        open_record(candidate, evaluations=map(open_evaluation, candidate.evaluations))
                        for candidate in each.candidates
                    ),
                    evaluations=map(open_evaluation, each.evaluations),
                )
                for each in self.rounds
            ),
        )
        document["schema_version"] = SCHEMA_VERSION
        write_pieces(file, document)
        file.write(b"\n")

    @staticmethod
    def from_json(raw: bytes) -> RunResult:
        """Parse a result.json."""
        import orjson

        from promptiter.runlog.codec import from_plain

        document = orjson.loads(raw)
        if (found := document.pop("schema_version", None)) != SCHEMA_VERSION:
            raise SetupError(f"this result has schema_version {found!r}, and this release reads {SCHEMA_VERSION}")
        result: RunResult = from_plain(RunResult, document)
        return result
