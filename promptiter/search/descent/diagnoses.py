"""Diagnoses and edits of textual trials: by a critic and an applier, or by the stages of backpropagation.

Without a critic, what the backward pass blames a text for is its diagnosis; without an applier, the optimizer stage
writes the new text. Both are recorded, so that a resumed run does not ask again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import unified_diff
from functools import partial

from promptiter.backprop.iteration_record import score_cases
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.lint import Linter
from promptiter.backprop.patch_writing import PatchAttempt, lint_patch
from promptiter.backprop.record import StagesMeasured
from promptiter.backprop.stage_calls import call_or_error, call_stage
from promptiter.backprop.trial_record import AppliedEdit, TextsDiagnosed, TextsEdited
from promptiter.concurrency import run_together
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.profile import PatchEvidence, PatchSet, SurfacePatch
from promptiter.search.blame import BlameFinder, BlameReport
from promptiter.search.case_records import build_case_records
from promptiter.search.descent.trials import TrainedProfile
from promptiter.search.propose import PatchProposer
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.diagnosis import (
    Applier,
    ApplyRequest,
    Critic,
    DiagnoseRequest,
    Diagnosis,
    RejectedTrial,
    TextEdit,
)
from promptiter.stages.optimizer import Rejection
from promptiter.structure import Surface


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosed:
    """The diagnoses of some texts, by surface, or the problem why there is none."""

    diagnoses: Mapping[str, Diagnosis] = field(default_factory=dict)
    problem: str = ""
    stages: StagesMeasured = field(default_factory=StagesMeasured)


@dataclass(frozen=True, slots=True, kw_only=True)
class Edited:
    """New texts as patches, with a description of each edit, or the problem why there is none."""

    patches: PatchSet = field(default_factory=PatchSet)
    edits: tuple[AppliedEdit, ...] = ()
    problem: str = ""
    is_exhausted: bool = False
    stages: StagesMeasured = field(default_factory=StagesMeasured)


class Diagnoses:
    """Diagnoses and edits of one run. `remember` adds what was rejected; the next diagnosis of the text shows it."""

    def __init__(
        self,
        session: Session,
        *,
        critic: Critic | None,
        applier: Applier | None,
        finder: BlameFinder,
        patcher: PatchProposer,
        failures_shown: int,
        rejections_shown: int,
    ) -> None:
        self._session = session
        self._critic = critic
        self._applier = applier
        self._finder = finder
        self._patcher = patcher
        self._failures_shown = failures_shown
        self._rejections_shown = rejections_shown
        self._linter = Linter(session.train.cases)
        self._rejected: defaultdict[str, list[RejectedTrial]] = defaultdict(list)
        self._blame: BlameReport | None = None

    async def find_blamed(self, base: TrainedProfile) -> tuple[str, ...] | None:
        """The blamed surfaces, the most promising first; None if a critic decides what is wrong."""
        if self._critic is not None:
            return None
        report = await self._find_blame(base)
        return tuple(dict.fromkeys(each.surface_id for each in (*report.signals, *report.weak)))

    def explain_no_blame(self) -> str:
        """Why the last failures are blamed on nothing."""
        return "nothing is blamed" if self._blame is None else self._blame.no_blame

    async def diagnose(self, base: TrainedProfile, surface_ids: Sequence[str]) -> Diagnosed:
        """Diagnose these texts of a profile."""
        if self._critic is None:
            report = await self._find_blame(base)
            signals = {each.surface_id: each for each in (*report.weak, *report.signals)}
            return Diagnosed(
                diagnoses={each: _diagnose_signal(signals[each]) for each in surface_ids if each in signals}
            )
        return await self._ask_critic(self._critic, base, surface_ids)

    async def edit(self, base: TrainedProfile, diagnoses: Mapping[str, Diagnosis]) -> Edited:
        """Write new texts as the diagnoses say."""
        if self._applier is None:
            return await self._write_by_optimizer(base, diagnoses)
        return await self._ask_applier(self._applier, base, diagnoses)

    def remember(self, diagnoses: Mapping[str, Diagnosis], patches: PatchSet, reason: str) -> None:
        """Remember a trial that was not accepted."""
        texts = {each.surface_id: str(each.value) for each in patches}
        for surface_id, diagnosis in diagnoses.items():
            self._rejected[surface_id].append(
                RejectedTrial(diagnosis=diagnosis, text=texts.get(surface_id), reason=reason)
            )
        if patches:
            self._patcher.rejected.add_candidate(patches, reason)

    def forget(self) -> None:
        """Forget the rejected values: on top of another profile they may be tried again. Ideas are kept."""
        self._patcher.rejected.forget_all_but_vetoes()

    async def _find_blame(self, base: TrainedProfile) -> BlameReport:
        if self._blame is None or self._blame.profile.digest != base.profile.digest:
            session = self._session
            self._blame = await self._finder.find(base.evaluation, session.train, base.profile, phase="train")
        return self._blame

    async def _ask_critic(self, critic: Critic, base: TrainedProfile, surface_ids: Sequence[str]) -> Diagnosed:
        session = self._session

        async def work() -> TextsDiagnosed:
            failing = self._select_failing(base)
            await session.restore_traces(base.evaluation, session.train, base.profile)
            before = session.evaluator.gateway.ledger.snapshot()
            calls = [self._diagnose_text(critic, base, each, surface_ids, failing) for each in surface_ids]
            answers = await run_together(calls)
            measured = StagesMeasured.between(before, session.evaluator.gateway.ledger.snapshot())
            problems = [f"{name}: {error}" for name, (_, error) in zip(surface_ids, answers, strict=True) if error]
            found = {name: each for name, (each, _) in zip(surface_ids, answers, strict=True) if each is not None}
            return TextsDiagnosed(diagnoses=found, problem="; ".join(problems), measured=measured)

        key = [base.profile.digest, list(surface_ids), self._count_rejected(surface_ids)]
        found = await session.record(TextsDiagnosed, work, request=key, phase="train")
        return Diagnosed(diagnoses=found.diagnoses, problem=found.problem, stages=found.measured)

    async def _diagnose_text(
        self, critic: Critic, base: TrainedProfile, surface_id: str, together: Sequence[str], failing: EvalSet
    ) -> tuple[Diagnosis | None, str | None]:
        session = self._session
        surface = base.profile.surface(surface_id, session.snapshot)
        records = await build_case_records(
            base.evaluation,
            failing,
            session.trace,
            node_id=surface.node_id,
            scores=score_cases(base.evaluation, session.request.objective),
            history={},
        )
        descriptions = {node.id: node.description for node in session.snapshot.nodes}
        request = DiagnoseRequest(
            surface=surface,
            failing=records,
            rejected=self._list_rejected(surface_id),
            together=self._list_others(base, surface_id, together),
            node_description=descriptions.get(surface.node_id, ""),
            criteria=base.evaluation.criteria,
        )
        return await call_or_error(partial(call_stage, critic.diagnose, request, returns=Diagnosis), session.redact)

    def _select_failing(self, base: TrainedProfile) -> EvalSet:
        """Some of the train cases that fail, the first ones."""
        failed = {case.case_id for case in base.evaluation.cases if case.is_scored and not case.passed}
        cases = [case for case in self._session.train.cases if case.id in failed]
        return replace(self._session.train, cases=tuple(cases[: self._failures_shown]))

    async def _ask_applier(self, applier: Applier, base: TrainedProfile, diagnoses: Mapping[str, Diagnosis]) -> Edited:
        session, names = self._session, [*diagnoses]

        async def work() -> TextsEdited:
            before = session.evaluator.gateway.ledger.snapshot()
            answers = await run_together(self._edit_text(applier, base, each, diagnoses) for each in names)
            measured = StagesMeasured.between(before, session.evaluator.gateway.ledger.snapshot())
            attempts = [attempt for attempt, _ in answers]
            signals = [_build_signal(name, diagnoses[name]) for name in names]
            reviewed = await self._patcher.review(attempts, signals, base.profile)
            texts = {each.patch.surface_id: str(each.patch.value) for each in reviewed if each.patch is not None}
            problems = [each.note or each.refused[0].reason for each in reviewed if each.patch is None]
            edits = {name: edit for name, (_, edit) in zip(names, answers, strict=True) if edit is not None}
            return TextsEdited(
                edits={name: replace(edits[name], new_text=session.redact(text)) for name, text in texts.items()},
                refused=tuple(refused for each in reviewed for refused in each.refused),
                problem="; ".join(problems),
                measured=measured,
            )

        key = [base.profile.digest, names, self._count_rejected(names), session.round]
        found = await session.record(TextsEdited, work, request=key, phase="train")
        self._patcher.rejected.add(found.refused)
        patches = [
            SurfacePatch(
                surface_id=name,
                value=each.new_text,
                reason=each.rationale or each.summary or diagnoses[name].suggested_change_direction or "applied edit",
                evidence=PatchEvidence(cases=diagnoses[name].citations),
            )
            for name, each in found.edits.items()
        ]
        return self._describe(base, PatchSet(tuple(patches)), found.edits, problem=found.problem, stages=found.measured)

    async def _edit_text(
        self, applier: Applier, base: TrainedProfile, surface_id: str, diagnoses: Mapping[str, Diagnosis]
    ) -> tuple[PatchAttempt, TextEdit | None]:
        session = self._session
        surface = base.profile.surface(surface_id, session.snapshot)
        request = ApplyRequest(
            surface=surface,
            diagnosis=diagnoses[surface_id],
            rejected=self._list_rejected(surface_id),
            together=self._list_others(base, surface_id, tuple(diagnoses)),
        )
        edit, error = await call_or_error(partial(call_stage, applier.apply, request, returns=TextEdit), session.redact)
        if edit is None:
            return PatchAttempt(note=f"{surface_id}: {error}", has_failed=True), None
        patch = SurfacePatch(
            surface_id=surface_id,
            value=edit.new_text,
            reason=edit.rationale or "applied edit",
            evidence=PatchEvidence(cases=diagnoses[surface_id].citations),
        )
        refused = lint_patch(self._linter, patch, surface, tried=self._patcher.rejected.for_surface(surface_id))
        return (PatchAttempt(patch=patch) if refused is None else PatchAttempt(refused=(refused,))), edit

    async def _write_by_optimizer(self, base: TrainedProfile, diagnoses: Mapping[str, Diagnosis]) -> Edited:
        report = await (self._find_blame(base) if self._critic is None else self._build_report(base))
        known = {each.surface_id: each for each in (*report.weak, *report.signals)}
        signals = tuple(known.get(name) or _build_signal(name, each) for name, each in diagnoses.items())
        gradients = {each.surface_id: report.gradients.get(each.surface_id, ()) for each in signals}
        written = await self._patcher.propose(replace(report, signals=signals, weak=(), gradients=gradients))
        problem = "; ".join((*(_describe_refusal(each) for each in written.refused), *written.notes))
        patches = PatchSet(tuple(each for each in written.patches if each.surface_id in diagnoses))
        found = self._describe(base, patches, {}, problem=problem, stages=written.measured)
        is_exhausted = not patches and not written.refused
        return replace(found, is_exhausted=is_exhausted)

    async def _build_report(self, base: TrainedProfile) -> BlameReport:
        """A report without blame, for an optimizer that follows the diagnosis of a critic."""
        session = self._session
        traces = JudgedTraces(judge_traces(base.evaluation, session.train, session.trace, losses=()))
        return BlameReport(
            round=session.round,
            profile=base.profile,
            evaluation=base.evaluation,
            eval_set=session.train,
            traces=traces,
            gradients={},
        )

    def _describe(
        self,
        base: TrainedProfile,
        patches: PatchSet,
        edits: Mapping[str, TextEdit],
        *,
        problem: str,
        stages: StagesMeasured,
    ) -> Edited:
        snapshot = self._session.snapshot
        described = []
        for each in patches:
            before = str(base.profile.value(each.surface_id, snapshot))
            added, removed = count_lines(before, str(each.value))
            edit = edits.get(each.surface_id) or TextEdit(new_text="", rationale=each.reason)
            described.append(
                AppliedEdit(
                    surface_id=each.surface_id,
                    edit_type=edit.edit_type,
                    rationale=edit.rationale,
                    summary=edit.summary,
                    lines_added=added,
                    lines_removed=removed,
                )
            )
        return Edited(patches=patches, edits=tuple(described), problem=problem, stages=stages)

    def _list_rejected(self, surface_id: str) -> tuple[RejectedTrial, ...]:
        shown = self._rejections_shown
        return tuple(self._rejected[surface_id][-shown:]) if shown else ()

    def _count_rejected(self, surface_ids: Sequence[str]) -> list[int]:
        return [len(self._rejected[each]) for each in surface_ids]

    def _list_others(self, base: TrainedProfile, surface_id: str, together: Sequence[str]) -> tuple[Surface, ...]:
        snapshot = self._session.snapshot
        return tuple(base.profile.surface(each, snapshot) for each in together if each != surface_id)


def count_lines(before: str, after: str) -> tuple[int, int]:
    """How many lines a new text adds and removes."""
    lines = [*unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0)][2:]
    return sum(each.startswith("+") for each in lines), sum(each.startswith("-") for each in lines)


def _diagnose_signal(signal: AggregateResult) -> Diagnosis:
    """The blame of a text as a diagnosis. Its confidence is that of the blame, over the cases behind it."""
    cases = len(signal.case_ids)
    confidence = 1.0 if not cases or not signal.support else min(1.0, signal.support / cases)
    return Diagnosis(
        failing_pattern=signal.text,
        suggested_change_direction=signal.text,
        confidence=round(confidence, 6),
        citations=signal.case_ids,
    )


def _build_signal(surface_id: str, diagnosis: Diagnosis) -> AggregateResult:
    """A diagnosis as the signal of a text."""
    parts = (diagnosis.failing_pattern, diagnosis.root_cause_hypothesis, diagnosis.suggested_change_direction)
    text = "\n".join(dict.fromkeys(each for each in parts if each))
    avoid = "".join(f"\nAvoid: {each}" for each in diagnosis.avoid)
    return AggregateResult(surface_id=surface_id, text=text + avoid, case_ids=diagnosis.citations)


def _describe_refusal(refused: Rejection) -> str:
    return f"{refused.surface_id}: {refused.reason}"
