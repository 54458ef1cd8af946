"""Validator: compares a candidate with the accepted profile on the validation cases, at the lowest cost.

A case that reads nothing that was patched cannot change, so it is not run again; recorded reads say which cases those
are. A score is never compared with the record that selected its case: both profiles run again, on repeats that no
decision has seen, on the cases that may change. The first candidate is an exception. It is compared with the
baseline's own record, because the cache replays that up to the first patched read, and no decision was based on it;
unless the search learns from the same cases, because then that record chose what was patched. A search that has run a
candidate on validation itself, to choose among candidates, has the other exception: these rows are compared with the
record of the accepted profile on the same repeats. That record may have been lucky, so a gain is seldom overestimated.

Cases that cannot change are replayed where the cache makes that free. If the outcome differs, a node reads something
that its trace does not record, and its recorded reads are no longer trusted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from promptiter.engine.audit import find_undeclared_reads
from promptiter.engine.evaluations import EvaluationRequest, Evaluations
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import CaseRepeat, Evaluator, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.surface_reads import Reads, may_touch, merge_reads
from promptiter.policies.evidence import Evidence, MoreEvidence
from promptiter.policies.evidence_record import EvidenceRecord
from promptiter.profile import Profile
from promptiter.runlog.candidates import ValidatedProfile
from promptiter.runlog.events import Payload, Phase
from promptiter.runlog.payloads import ReadsAudited
from promptiter.runlog.results import RunShape
from promptiter.runlog.run_state import RunState
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace
from traces.model import Json

P = TypeVar("P", bound=Payload)


class ValidatorContext(Protocol):
    """What a validator needs of the run. An ActiveRun provides it."""

    request: RunRequest
    shape: RunShape
    evaluator: Evaluator
    evaluations: Evaluations
    targets: frozenset[str]
    snapshot: StructureSnapshot

    @property
    def state(self) -> RunState: ...

    @property
    def train(self) -> EvalSet: ...

    @property
    def validation(self) -> EvalSet: ...

    @property
    def round(self) -> int: ...

    @property
    def accepted(self) -> ValidatedProfile: ...

    async def trace(self, trace_digest: str) -> ExecutionTrace: ...

    def report(self, problem: str) -> None: ...

    async def record(self, kind: type[P], work: Callable[[], Awaitable[P]], *, request: Json = None) -> P: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedEvaluation:
    """Two profiles on the same cases and repeats. The change cannot reach the `unaffected` cases.

    `accepted_from` and `candidate_from` are the recorded evaluations that the rows come from, by number, each with its
    cases (None: all of them).
    """

    accepted: Evaluation
    candidate: Evaluation
    unaffected: frozenset[str] = frozenset()
    accepted_from: Mapping[int, tuple[str, ...] | None] = field(default_factory=dict)
    candidate_from: Mapping[int, tuple[str, ...] | None] = field(default_factory=dict)

    def add(self, more: PairedEvaluation) -> PairedEvaluation:
        """Return this pair with the rows of another."""
        return replace(
            self,
            accepted=self.accepted.merge(more.accepted),
            candidate=self.candidate.merge(more.candidate),
            accepted_from={**self.accepted_from, **more.accepted_from},
            candidate_from={**self.candidate_from, **more.candidate_from},
        )


class Comparison:
    """One candidate next to the accepted profile. `record` is the evidence that a policy has seen of it so far."""

    def __init__(
        self,
        validator: Validator,
        candidate: Profile,
        *,
        known: Sequence[CaseRow] = (),
        train: tuple[Evaluation, Evaluation] | None = None,
        compares_records: bool = False,
    ) -> None:
        self._validator = validator
        self._candidate = candidate
        self._known = known
        self._compares_records = compares_records
        self._known_train = None if train is None else _pair_evaluations(*train)
        self._validation: PairedEvaluation | None = None
        self._train: PairedEvaluation | None = None
        self._looks = 0
        self.record = EvidenceRecord()

    async def gather(self, request: MoreEvidence | None) -> Evidence:
        """Return all evidence so far with the requested repeats; without a request, with the first validation."""
        validator = self._validator
        if request is not None and request.on == "train":
            known, self._known_train = self._known_train, None
            self._train = known or await validator.run_more(request, self._train, self._candidate)
        elif self._validation is not None and request is not None:
            self._validation = await validator.run_more(request, self._validation, self._candidate)
        else:
            await self._validate(request)
        self._looks += 1
        self.record = validator.build_record(self._validation, self._train, self._candidate, looks=self._looks)
        return validator.build_evidence(self.record, self._validation, self._train)

    async def _validate(self, request: MoreEvidence | None) -> None:
        """Run validation for the first time, with more repeats than usual if the request asks for them."""
        pair = await self._validator.run_first(
            self._candidate, known=self._known, compares_records=self._compares_records
        )
        missing = 0 if request is None else request.repeats - self._validator.repeats
        if request is not None and missing > 0:
            pair = await self._validator.run_more(replace(request, repeats=missing), pair, self._candidate)
        self._validation = pair


class Validator:
    """Compares the candidates of a run with its accepted profile. `untrusted_nodes` read more than is recorded."""

    def __init__(self, context: ValidatorContext) -> None:
        self.untrusted_nodes: frozenset[str] = frozenset()
        self._context = context
        self._reads: dict[str, Reads | None] = {}
        self._has_fresh_record = context.shape == "two_sets"
        self.repeats = context.evaluator.options.repeats
        self._next_repeat = self.repeats

    def build_evidence(
        self, record: EvidenceRecord, validation: PairedEvaluation | None, train: PairedEvaluation | None
    ) -> Evidence:
        """Build what a policy decides on."""
        context, on_train = self._context, None
        if train is not None and record.train is not None:
            on_train = record.train.build_evidence(train.accepted, train.candidate)
        if validation is None:
            nothing = context.evaluator.build_evaluation((), context.validation, context.accepted.profile)
            return record.build_evidence(nothing, nothing, train=on_train)
        return record.build_evidence(validation.accepted, validation.candidate, train=on_train)

    def build_record(
        self, validation: PairedEvaluation | None, train: PairedEvaluation | None, candidate: Profile, *, looks: int
    ) -> EvidenceRecord:
        """Build the record of what a policy decides on, by reference."""
        context = self._context
        record = EvidenceRecord(
            objective=context.request.objective,
            round=context.round,
            candidates_tried=context.state.candidates_tried + 1,
            protected=tuple(sorted(context.request.protected)),
            first_look_repeats=self.repeats,
            characters=self._count_characters(candidate),
            accepted_gain=context.state.accepted_gain,
            looks=looks,
        )
        on_train = None if train is None else replace(record, **_evidence_fields(train), characters=None)
        return replace(record, **({} if validation is None else _evidence_fields(validation)), train=on_train)

    def _count_characters(self, candidate: Profile) -> tuple[int, int]:
        """The length of all texts that may change, under the accepted profile and under the candidate."""
        context = self._context
        before, after = (
            sum(len(str(profile.value(target, context.snapshot))) for target in context.targets)
            for profile in (context.accepted.profile, candidate)
        )
        return before, after

    async def run_first(
        self, candidate: Profile, *, known: Sequence[CaseRow] = (), compares_records: bool = False
    ) -> PairedEvaluation:
        """Run both profiles on validation, with the repeats that an evaluation of this run has.

        If rows of the candidate are `known` for all that the record of the accepted profile has, nothing is run. If the
        search learns from these cases, that holds only if it `compares_records`.
        """
        context, record = self._context, self._context.accepted.validation
        recorded = {(row.case_id, row.repeat) for row in record.rows}
        may_compare = compares_records or context.shape == "two_sets"
        if may_compare and recorded and recorded == {(row.case_id, row.repeat) for row in known}:
            return await self._compare_records(candidate, known)
        changed = [change.surface_id for change in context.accepted.profile.changes(candidate, context.snapshot)]
        affected = self.find_affected_cases(record.rows, changed)
        unaffected = frozenset(case.id for case in context.validation.cases) - affected
        uses_record = self._has_fresh_record and _is_comparable(record, affected)
        self._has_fresh_record = False
        free, kept = _split_replayable(row for row in record.rows if row.case_id in unaffected)
        sources: dict[int, tuple[str, ...] | None] = {}
        if uses_record:
            runs = [(row.case_id, row.repeat) for row in record.rows if row.case_id in affected]
        else:
            runs = self.list_fresh_runs(context.validation, affected, self.repeats)
        replayed = [(row.case_id, row.repeat) for row in free]
        wanted = EvaluationRequest(
            eval_set=context.validation, profile=candidate, phase="validation", runs=[*runs, *replayed], kept=kept
        )
        if uses_record:
            accepted = record
            [found] = await self._run([wanted])
        else:
            again, found = await self._run(
                [replace(wanted, profile=context.accepted.profile, runs=runs, kept=()), wanted]
            )
            accepted = replace(record, rows=(*again.rows, *free, *kept))
            sources |= _cases_by_number(again)
        await self._audit(free, found, candidate)
        sources |= _cases_by_number(record, None if uses_record else tuple(sorted(unaffected)))
        return PairedEvaluation(
            accepted=accepted,
            candidate=found,
            unaffected=unaffected,
            accepted_from=sources,
            candidate_from=_cases_by_number(found),
        )

    async def _compare_records(self, candidate: Profile, known: Sequence[CaseRow]) -> PairedEvaluation:
        record, self._has_fresh_record = self._context.accepted.validation, False
        request = EvaluationRequest(
            eval_set=self._context.validation, profile=candidate, phase="validation", runs=(), kept=known
        )
        [found] = await self._run([request])
        return _pair_evaluations(record, found)

    async def run_more(
        self, request: MoreEvidence, pair: PairedEvaluation | None, candidate: Profile
    ) -> PairedEvaluation:
        """Run the repeats that a policy asks for under both profiles, and add them to the pair."""
        context = self._context
        eval_set = context.validation if request.on == "validation" else context.train
        unaffected = pair.unaffected if pair is not None else frozenset()
        cases = frozenset(request.cases or (case.id for case in eval_set.cases)) - unaffected
        runs = self.list_fresh_runs(eval_set, cases, request.repeats)
        phase: Phase = "validation" if request.on == "validation" else "train_again"
        accepted, found = await self._run(
            [
                EvaluationRequest(eval_set=eval_set, profile=profile, phase=phase, runs=runs)
                for profile in (context.accepted.profile, candidate)
            ]
        )
        more = _pair_evaluations(accepted, found)
        return more if pair is None else pair.add(more)

    def find_affected_cases(self, rows: Iterable[CaseRow], surface_ids: Sequence[str]) -> frozenset[str]:
        """Return the validation cases that a change of these surfaces may change: a run of theirs may have read one.

        A case that once read a surface stays affected. Reads vary from run to run: if only the latest record counted,
        cases would drop out with each accepted candidate and never come back.
        """
        for row in rows:
            known = self._reads.get(row.case_id, {})
            self._reads[row.case_id] = merge_reads(known, row.reads)
        return frozenset(
            case.id
            for case in self._context.validation.cases
            if case.id not in self._reads or may_touch(self._reads[case.id], surface_ids, unsure=self.untrusted_nodes)
        )

    def list_fresh_runs(self, eval_set: EvalSet, case_ids: frozenset[str], repeats: int) -> list[CaseRepeat]:
        """List runs of these cases, with this number of repeats that no decision has seen yet."""
        wanted = replace(eval_set, cases=tuple(case for case in eval_set.cases if case.id in case_ids))
        return list_case_runs(wanted, self.reserve_repeats(repeats))

    def reserve_repeats(self, count: int) -> range:
        """Reserve this number of repeats that no decision has seen yet."""
        start, self._next_repeat = self._next_repeat, self._next_repeat + count
        return range(start, start + count)

    async def _run(self, requests: Sequence[EvaluationRequest]) -> list[Evaluation]:
        """Run these evaluations at once, except for those without rows."""
        context = self._context
        found = iter(await context.evaluations.evaluate_many([each for each in requests if each.runs or each.kept]))
        return [
            next(found)
            if each.runs or each.kept
            else context.evaluator.build_evaluation((), each.eval_set, each.profile)
            for each in requests
        ]

    async def _audit(self, recorded: Sequence[CaseRow], found: Evaluation, candidate: Profile) -> None:
        """Find nodes whose output changed although it could not. This is free: the runs were replayed from the cache.

        A different digest alone proves nothing, because a trace may carry the name of its profile.
        """
        context = self._context
        replayed = {(row.case_id, row.repeat): row for row in found.rows}
        pairs = [(row, replayed[row.case_id, row.repeat]) for row in recorded]
        differing = [(before, after) for before, after in pairs if before.trace_digests != after.trace_digests]
        if not differing:
            return

        async def find() -> ReadsAudited:
            for rows, profile in zip(zip(*differing, strict=True), (context.accepted.profile, candidate), strict=True):
                await context.evaluations.restore_traces(replace(found, rows=rows), context.validation, profile)
            return ReadsAudited(undeclared=await find_undeclared_reads(differing, context.trace))

        audited = await context.record(ReadsAudited, find, request=[[row.case_id, row.repeat] for row, _ in differing])
        for each in audited.undeclared:
            if each.node_id not in self.untrusted_nodes:
                self.untrusted_nodes |= {each.node_id}
                context.report(
                    f"node {each.node_id!r} gave a different output in case {each.case_id!r} although none of its "
                    "recorded inputs changed: it reads an undeclared surface or is non-deterministic. Its cases will "
                    "always be re-run"
                )


def _pair_evaluations(accepted: Evaluation, candidate: Evaluation) -> PairedEvaluation:
    return PairedEvaluation(
        accepted=accepted,
        candidate=candidate,
        accepted_from=_cases_by_number(accepted),
        candidate_from=_cases_by_number(candidate),
    )


def _cases_by_number(evaluation: Evaluation, cases: tuple[str, ...] | None = None) -> dict[int, tuple[str, ...] | None]:
    return {} if evaluation.number is None else {evaluation.number: cases}


def _evidence_fields(pair: PairedEvaluation) -> dict[str, Any]:
    return {
        "accepted": pair.accepted_from,
        "candidate": pair.candidate_from,
        "unaffected": tuple(sorted(pair.unaffected)),
    }


def _is_comparable(record: Evaluation, affected: frozenset[str]) -> bool:
    """Whether a candidate may be compared with a record that no decision was based on.

    It may if all cases run again, because then the record selected none; or if the cache replays the record up to the
    first patched read, which needs runs that made their calls through the gateway.
    """
    rows = [row for row in record.rows if row.case_id in affected]
    return len(rows) == len(record.rows) or all(map(is_replayable, rows))


def is_replayable(row: CaseRow) -> bool:
    """Whether a run made its calls through the gateway, so that the cache has its answers."""
    return row.measured.paid_calls + row.measured.cache_hits > 0


def _split_replayable(rows: Iterable[CaseRow]) -> tuple[list[CaseRow], list[CaseRow]]:
    """Split rows into those that the cache replays for free and those that would have to run again."""
    free: list[CaseRow] = []
    kept: list[CaseRow] = []
    for row in rows:
        (free if is_replayable(row) else kept).append(row)
    return free, kept
