"""Comparisons: the accepted profile and a candidate on the validation cases, at the lowest cost.

A case that reads nothing that was patched cannot change, so it is not run again; recorded reads say which cases those
are. A score is never compared with the record that selected its case: both arms run again, on repeats that no decision
has seen, on the cases that may change. The first candidate is an exception. It is compared with the baseline's own
record, because the cache replays that up to the first patched read, and no decision was based on it before.

Cases that cannot change are replayed where the cache makes that free. If one comes out differently, a node reads
something that its trace does not record, and its recorded reads are not trusted any more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import Any, Protocol

from promptiter.engine.audit import UndeclaredRead, find_undeclared_reads
from promptiter.engine.evaluations import CaseRepeat, Evaluations
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.surface_reads import Reads, may_touch, merge_reads
from promptiter.policies.evidence import Evidence, MoreEvidence
from promptiter.profile import Profile
from promptiter.runlog.events import EventType, Phase
from promptiter.runlog.results import RunRequest
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace
from traces.model import Json


@dataclass(frozen=True, slots=True)
class Accepted:
    """A profile with its validation: the best so far, or the one that the run started with."""

    profile: Profile
    validation: Evaluation


class Comparing(Protocol):
    """What a validator needs of the run: a Session."""

    request: RunRequest
    evaluator: Evaluator
    evaluations: Evaluations
    train: EvalSet
    validation: EvalSet
    targets: frozenset[str]
    snapshot: StructureSnapshot
    candidates_tried: int
    accepted_gain: float

    @property
    def round(self) -> int: ...

    @property
    def accepted(self) -> Accepted: ...

    def trace(self, trace_digest: str) -> ExecutionTrace: ...

    def report(self, problem: str) -> None: ...

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None: ...

    async def record(
        self, kind: EventType, shape: Any, work: Callable[[], Awaitable[Any]], *, request: Json = None
    ) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Arms:
    """Two profiles on the same cases and repeats. `untouched` are the cases that the change cannot reach."""

    accepted: Evaluation
    candidate: Evaluation
    untouched: frozenset[str] = frozenset()

    @property
    def numbered(self) -> Arms:
        """With repeats that count from 0 in each case. Untouched cases have as many as the others: their first run
        again.

        They cannot differ between the arms, so how much they differ from run to run must not hide what does.
        """
        repeats = max((len(rows) for rows in _by_case(self.accepted.rows).values()), default=0)
        return replace(
            self, accepted=self._numbered(self.accepted, repeats), candidate=self._numbered(self.candidate, repeats)
        )

    def _numbered(self, arm: Evaluation, repeats: int) -> Evaluation:
        found = []
        for case_id, rows in _by_case(arm.rows).items():
            again = [rows[0]] * repeats if case_id in self.untouched else rows
            found += [replace(row, repeat=repeat) for repeat, row in enumerate(again)]
        return replace(arm, rows=tuple(found))


class Comparison:
    """One candidate beside the accepted profile: what a policy has been shown of it so far."""

    def __init__(self, comparisons: Comparisons, candidate: Profile) -> None:
        self.opening: Evaluation | None = None
        self._comparisons = comparisons
        self._candidate = candidate
        self._validation: Arms | None = None
        self._train: Arms | None = None

    async def gather(self, wish: MoreEvidence | None) -> Evidence:
        """All evidence so far and what was wished for; without a wish, the candidate's validation."""
        comparisons = self._comparisons
        if wish is not None and wish.on == "train":
            self._train = await comparisons.more(wish, self._train, self._candidate)
        elif self._validation is not None and wish is not None:
            self._validation = await comparisons.more(wish, self._validation, self._candidate)
        else:
            await self._open(wish)
        return comparisons.evidence(self._validation, self._train, self._candidate)

    async def _open(self, wish: MoreEvidence | None) -> None:
        """The first look at validation, with more repeats if more were wished for."""
        arms = await self._comparisons.first(self._candidate)
        self.opening = arms.candidate
        missing = 0 if wish is None else wish.repeats - self._comparisons.repeats
        if wish is not None and missing > 0:
            arms = await self._comparisons.more(replace(wish, repeats=missing), arms, self._candidate)
        self._validation = arms


class Comparisons:
    """The looks at the candidates of one run. `unsure` are nodes whose recorded reads are not to be trusted."""

    def __init__(self, session: Comparing) -> None:
        self.unsure: frozenset[str] = frozenset()
        self._session = session
        self._reads: dict[str, Reads | None] = {}
        self._has_fresh_record = True
        self.repeats = session.evaluator.options.repeats
        self._next_repeat = self.repeats

    def evidence(self, validation: Arms | None, train: Arms | None, candidate: Profile) -> Evidence:
        """What a policy is shown of these arms."""
        session = self._session
        if validation is None:
            nothing = session.evaluator.build_evaluation((), session.validation, candidate)
            validation = Arms(accepted=nothing, candidate=nothing)
        of_train = None if train is None else self._evidence(train)
        return replace(self._evidence(validation), train=of_train, characters=self._characters(candidate))

    def _evidence(self, arms: Arms) -> Evidence:
        session, arms = self._session, arms.numbered
        return Evidence(
            baseline=arms.accepted,
            candidate=arms.candidate,
            objective=session.request.objective,
            round=session.round,
            tried=session.candidates_tried + 1,
            protected=session.request.protected,
            gained=session.accepted_gain,
            opening=self.repeats,
        )

    def _characters(self, candidate: Profile) -> tuple[int, int]:
        """How long all texts are that may change, under either profile."""
        session = self._session
        before, after = (
            sum(len(str(profile.value(target, session.snapshot))) for target in session.targets)
            for profile in (session.accepted.profile, candidate)
        )
        return before, after

    async def first(self, candidate: Profile) -> Arms:
        """Both arms on validation, in as many repeats as an evaluation has."""
        session, record = self._session, self._session.accepted.validation
        changed = [change.surface_id for change in session.accepted.profile.changes(candidate, session.snapshot)]
        touched = self.touched(record.rows, changed)
        untouched = frozenset(case.id for case in session.validation.cases) - touched
        is_on_record, self._has_fresh_record = self._has_fresh_record and _may_stand(record, touched), False
        free, kept = _parted(row for row in record.rows if row.case_id in untouched)
        if is_on_record:
            accepted = record
            runs = [(row.case_id, row.repeat) for row in record.rows if row.case_id in touched]
        else:
            runs = self.fresh(session.validation, touched, self.repeats)
            again = await self._run(session.validation, session.accepted.profile, runs)
            accepted = replace(record, rows=(*again.rows, *free, *kept))
        replayed = [(row.case_id, row.repeat) for row in free]
        found = await self._run(session.validation, candidate, [*runs, *replayed], kept=kept)
        await self._audit(free, found, candidate)
        return Arms(accepted=accepted, candidate=found, untouched=untouched)

    async def more(self, wish: MoreEvidence, arms: Arms | None, candidate: Profile) -> Arms:
        """Both arms with more repeats of the cases that a policy wants to see."""
        session = self._session
        eval_set = session.validation if wish.on == "validation" else session.train
        untouched = arms.untouched if arms is not None else frozenset()
        cases = frozenset(wish.cases or (case.id for case in eval_set.cases)) - untouched
        runs = self.fresh(eval_set, cases, wish.repeats)
        accepted = await self._run(eval_set, session.accepted.profile, runs)
        found = await self._run(eval_set, candidate, runs)
        if arms is None:
            return Arms(accepted=accepted, candidate=found)
        return replace(
            arms,
            accepted=replace(arms.accepted, rows=(*arms.accepted.rows, *accepted.rows)),
            candidate=replace(arms.candidate, rows=(*arms.candidate.rows, *found.rows)),
        )

    def touched(self, rows: Iterable[CaseRow], surface_ids: Sequence[str]) -> frozenset[str]:
        """The validation cases that a change of these surfaces may change: a run of theirs read one, or may have.

        A case that once read a surface stays touched. Its next run may not read it, and the one after that again; if
        each record decided anew, more cases would drop out with each that is accepted, and none would ever come back.
        """
        for row in rows:
            known = self._reads.get(row.case_id, {})
            self._reads[row.case_id] = merge_reads(known, row.reads)
        return frozenset(
            case.id
            for case in self._session.validation.cases
            if case.id not in self._reads or may_touch(self._reads[case.id], surface_ids, unsure=self.unsure)
        )

    def fresh(self, eval_set: EvalSet, case_ids: frozenset[str], repeats: int) -> list[CaseRepeat]:
        """So many repeats of these cases that no decision has seen yet."""
        wanted = replace(eval_set, cases=tuple(case for case in eval_set.cases if case.id in case_ids))
        return list_case_runs(wanted, self.next_repeats(repeats))

    def next_repeats(self, count: int) -> range:
        """So many repeats, of any case, that no decision has seen yet."""
        start, self._next_repeat = self._next_repeat, self._next_repeat + count
        return range(start, start + count)

    async def _run(
        self, eval_set: EvalSet, profile: Profile, runs: Sequence[CaseRepeat], *, kept: Sequence[CaseRow] = ()
    ) -> Evaluation:
        session = self._session
        if not runs and not kept:
            return session.evaluator.build_evaluation((), eval_set, profile)
        phase: Phase = "validation" if eval_set is session.validation else "train_again"
        return await session.evaluations.evaluate(eval_set, profile, phase=phase, runs=runs, kept=kept)

    async def _audit(self, recorded: Sequence[CaseRow], found: Evaluation, candidate: Profile) -> None:
        """Look for runs that could not change and did. It costs nothing: they were replayed from the cache.

        A trace may be named after its profile, so another digest does not say that something else happened.
        """
        session = self._session
        replayed = {(row.case_id, row.repeat): row for row in found.rows}
        pairs = [(row, replayed[row.case_id, row.repeat]) for row in recorded]
        other = [(before, after) for before, after in pairs if before.trace_digests != after.trace_digests]
        if not other:
            return

        async def looked() -> tuple[UndeclaredRead, ...]:
            for rows, profile in zip(zip(*other, strict=True), (session.accepted.profile, candidate), strict=True):
                await session.restore_traces(replace(found, rows=rows), session.validation, profile)
            return find_undeclared_reads(other, session.trace)

        hidden: tuple[UndeclaredRead, ...] = await session.record(
            "audit", tuple[UndeclaredRead, ...], looked, request=[[row.case_id, row.repeat] for row, _ in other]
        )
        for each in hidden:
            if each.node_id not in self.unsure:
                self.unsure |= {each.node_id}
                session.report(
                    f"node {each.node_id!r} gave a different output in case {each.case_id!r} although none of its "
                    "recorded inputs changed: it reads an undeclared surface or is non-deterministic. Its cases will "
                    "always be re-run"
                )


def _by_case(rows: Iterable[CaseRow]) -> dict[str, list[CaseRow]]:
    return {case_id: list(group) for case_id, group in groupby(rows, key=attrgetter("case_id"))}


def _may_stand(record: Evaluation, touched: frozenset[str]) -> bool:
    """Whether a candidate may be held against a record that nothing was decided on yet.

    It may if all cases are run again: then the record chose none. Or if the cache replays what was recorded up to the
    first patched read, which is not so for runs that asked nothing through the gateway.
    """
    of_touched = [row for row in record.rows if row.case_id in touched]
    return len(of_touched) == len(record.rows) or all(map(_is_replayed, of_touched))


def _is_replayed(row: CaseRow) -> bool:
    return row.measured.paid_calls + row.measured.cache_hits > 0


def _parted(rows: Iterable[CaseRow]) -> tuple[list[CaseRow], list[CaseRow]]:
    """Runs that the cache replays for nothing, and runs that would have to be executed again."""
    free: list[CaseRow] = []
    kept: list[CaseRow] = []
    for row in rows:
        (free if _is_replayed(row) else kept).append(row)
    return free, kept
