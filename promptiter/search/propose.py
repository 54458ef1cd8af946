"""PatchProposer: one patch per signal, recorded, and reviewed if there is a reviewer.

It is the second half of a pass: `BackpropRounds` gives it the report of `BlameFinder` and validates what it proposes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.lint import Linter
from promptiter.backprop.patch_writing import (
    PatchAttempt,
    PatchWriter,
    collect_patches,
    describe_total_failure,
    lint_patch,
)
from promptiter.backprop.record import PatchesWritten, StagesMeasured, VariantsWritten
from promptiter.concurrency import run_together
from promptiter.engine.review import BatchReviewer, Review, ReviewRequest
from promptiter.engine.session import Session
from promptiter.policies.edit_limits import EditLimits
from promptiter.profile import PatchEdit, Profile, SurfacePatch
from promptiter.search.blame import BlameReport, extract_case_losses
from promptiter.search.rejections import Rejections
from promptiter.search.session_examples import SessionExamples
from promptiter.search.stage_failures import StageFailures
from promptiter.search.stage_models import find_prices
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.optimizer import Optimizer, Rejection
from promptiter.structure import Surface
from promptiter.text_diff import find_hunks
from promptiter.wording import shorten
from traces.model import Json

EMPHASES = (
    "",
    "State the general rule behind the points briefly, rather than each case of it.",
    "Change as little as possible: only what would have prevented these failures.",
    "Say step by step what to do, with the most important rule first.",
)
"""How the variants of a patch differ. The first is what a single patch is asked for with."""

ONLY_REPEATS = "the optimizer only repeats values that were rejected"
"""Why no patch is asked for."""


class PatchProposer:
    """Proposes the patches of one run. `rejected` holds what was tried or refused so far; optimizers see it.

    A signal that was answered with rejected values only, although the optimizer was told, is not asked about again.
    Few-shot examples of a blamed node are patched with what is blamed there, unless the search chooses the surfaces.
    The `teacher` is a model that runs train cases of which no run passes, before examples are selected.
    """

    def __init__(
        self,
        session: Session,
        optimizer: Optimizer,
        *,
        failures: StageFailures,
        adds_examples: bool = True,
        teacher: str | None = None,
    ) -> None:
        self.rejected = Rejections()
        self._session = session
        self._optimizer = optimizer
        self._failures = failures
        self._ledger = session.evaluator.gateway.ledger
        self._linter = Linter(session.train.cases)
        self.examples = SessionExamples(session, teacher=teacher)
        self._adds_examples = adds_examples
        self._exhausted: set[tuple[str, str, str]] = set()
        self._limits = session.request.edit_limits or EditLimits()

    @property
    def max_changed_lines(self) -> int | None:
        """How many lines a candidate may change."""
        return self._limits.max_changed_lines

    def keep_to_limit(self, surface_ids: Sequence[str], *, patched: Collection[str] = ()) -> list[str]:
        """As many of these surfaces as a candidate may change that changes the `patched` ones already.

        Those with the fewest rejections come first, so that every surface has its turn.
        """
        if self._limits.max_files is None:
            return list(surface_ids)
        new = [each for each in surface_ids if each not in patched]
        new.sort(key=lambda each: len(self.rejected.for_surface(each)))
        chosen = {*patched, *new[: max(0, self._limits.max_files - len(patched))]}
        return [each for each in surface_ids if each in chosen]

    async def propose(
        self, report: BlameReport, *, unseen: Collection[str] = (), patched: Collection[str] = ()
    ) -> PatchesWritten:
        """Propose patches for the blamed surfaces; the result also has what was refused.

        Few-shot examples do not show the `unseen` cases, by which they are judged next. Where a candidate may change
        only some surfaces, those that it has `patched` count.
        """
        report, notes = self._select_signals(await self._add_examples(report, unseen), patched)
        if not report.signals:
            return PatchesWritten(blamed_in=report.round, notes=notes)
        key = [report.profile.digest, [signal.surface_id for signal in report.signals], self.rejected.count]
        result = await self._session.record(PatchesWritten, lambda: self._propose(report, unseen), request=key)
        if result.patches or result.refused:
            self._failures.mark_working("optimizer")
        self._remember(report, (result,))
        return result

    async def propose_variants(
        self, report: BlameReport, *, width: int, patched: Collection[str] = ()
    ) -> tuple[PatchesWritten, ...]:
        """Propose several sets of patches from the same evidence, each with another emphasis. Equal ones count once.

        If several are returned, call `choose` with one of them. With a reviewer there is only one.
        """
        if width == 1 or self._session.reviewer is not None:
            return (await self.propose(report, patched=patched),)
        open_signals, _ = self._select_signals(await self._add_examples(report), patched)
        if not open_signals.signals:
            return (await self.propose(report, patched=patched),)
        report = open_signals
        key = [report.profile.digest, [each.surface_id for each in report.signals], self.rejected.count, width]
        found = await self._session.record(VariantsWritten, lambda: self._propose_variants(report, width), request=key)
        if any(each.patches or each.refused for each in found.variants):
            self._failures.mark_working("optimizer")
        self._remember(report, found.variants)
        distinct: dict[str, PatchesWritten] = {}
        for each in found.variants:
            if each.patches:
                distinct.setdefault(each.patches.digest, each)
        if len(distinct) > 1:
            return tuple(distinct.values())
        [only] = distinct.values() or found.variants[:1]
        return (await self.choose(only),)

    async def choose(self, variant: PatchesWritten) -> PatchesWritten:
        """Record which of several variants the round continues with."""
        return await self._session.note(variant)

    async def _add_examples(self, report: BlameReport, unseen: Collection[str] = ()) -> BlameReport:
        """The report with the examples of blamed nodes among the signals, once its runs can be made examples of."""
        await self.examples.add_report(report)
        report = self.examples.add_signals(report) if self._adds_examples else report
        if any(each.surface_id in self.examples.surface_ids for each in report.signals):
            await self.examples.ask_teacher(report.profile, without=unseen)
        return report

    def _select_signals(self, report: BlameReport, patched: Collection[str]) -> tuple[BlameReport, tuple[str, ...]]:
        """The report with the signals that are worth a question and keep to the limit, and a note for the exhausted."""
        asked = tuple(each for each in report.signals if _identify(report, each) not in self._exhausted)
        left_out = [each.surface_id for each in report.signals if each not in asked]
        chosen = self.keep_to_limit([each.surface_id for each in asked], patched=patched)
        asked = tuple(each for each in asked if each.surface_id in chosen)
        return replace(report, signals=asked), tuple(f"{surface_id}: {ONLY_REPEATS}" for surface_id in left_out)

    def _remember(self, report: BlameReport, written: Sequence[PatchesWritten]) -> None:
        """Add what was refused to the rejections, and note the signals that were answered with repetitions only.

        A value that changes nothing was refused for the profile of the report, and is worth a try on top of another.
        """
        refused = [rejection for each in written for rejection in each.refused]
        current = {each.surface_id: report.profile.value(each.surface_id, self._session.snapshot) for each in refused}
        self.rejected.add(each for each in refused if str(each.value).split() != str(current[each.surface_id]).split())
        patched = {surface_id for each in written for surface_id in each.patches.surface_ids}
        last = {each.surface_id: each.kind for each in refused}
        for signal in report.signals:
            if signal.surface_id not in patched and last.get(signal.surface_id) == "repeated":
                self._exhausted.add(_identify(report, signal))

    async def _propose_variants(self, report: BlameReport, width: int) -> VariantsWritten:
        before = self._ledger.snapshot()
        attempts = await run_together(self._write(report, emphasis) for emphasis in EMPHASES[:width])
        everything = [attempt for each in attempts for attempt in each]
        self._failures.handle("optimizer", describe_total_failure(everything, self._optimizer))
        return VariantsWritten(
            variants=tuple(replace(collect_patches(each), blamed_in=report.round) for each in attempts),
            measured=StagesMeasured.between(before, self._ledger.snapshot()),
        )

    async def _propose(self, report: BlameReport, unseen: Collection[str]) -> PatchesWritten:
        before = self._ledger.snapshot()
        attempts = await self._write(report, unseen=unseen)
        measured = StagesMeasured.between(before, self._ledger.snapshot())
        self._failures.handle("optimizer", describe_total_failure(attempts, self._optimizer))
        reviewed = await self.review(attempts, report.signals, report.profile)
        return replace(collect_patches(reviewed), blamed_in=report.round, measured=measured)

    async def _write(
        self, report: BlameReport, emphasis: str = "", *, unseen: Collection[str] = ()
    ) -> list[PatchAttempt]:
        session = self._session
        await session.restore_traces(report.evaluation, report.eval_set, report.profile)
        tried = {signal.surface_id: await self._collect_rejections(signal.surface_id) for signal in report.signals}
        writer = PatchWriter(
            optimizer=self._optimizer,
            structure=session.snapshot,
            profile=report.profile,
            traces=report.traces,
            linter=self._linter,
            redact=session.redact,
            find_rejected=lambda surface_id: tried[surface_id],
            emphasis=emphasis,
            find_prices=lambda surface: find_prices(surface, session.evaluator.gateway),
            examples=self.examples.build_writer(without=unseen),
            max_changed_lines=self.max_changed_lines,
        )
        return await writer.write(report.signals, report.gradients)

    async def _collect_rejections(self, surface_id: str) -> tuple[Rejection, ...]:
        """The rejections of a surface; the value of the last rejected candidate with what failed with it."""
        session, rerun = self._session, self.rejected.rerun
        rejected = self.rejected.for_surface(surface_id)
        if rerun is None or not rejected:
            return rejected
        value = rerun.candidate.value(surface_id, session.snapshot)
        if not any(each.value == value for each in rejected):
            return rejected
        losses = await extract_case_losses(session, rerun.evaluation, rerun.cases, rerun.candidate)
        traces = JudgedTraces(judge_traces(rerun.evaluation, rerun.cases, session.trace, losses=losses))
        failing = await traces.collect_node_failures(session.snapshot.surface(surface_id).node_id)
        return tuple(replace(each, failing=failing) if each.value == value else each for each in rejected)

    async def review(
        self, attempts: list[PatchAttempt], signals: Sequence[AggregateResult], profile: Profile
    ) -> list[PatchAttempt]:
        """The attempts as a reviewer approved, edited or vetoed their patches. Without one they stay as they are.

        There is one signal per attempt. This is part of recorded work.
        """
        reviewer = self._session.reviewer
        if reviewer is None:
            return attempts
        requests = [
            self._make_request(each.patch, signal, profile)
            for each, signal in zip(attempts, signals, strict=True)
            if each.patch is not None
        ]
        if isinstance(reviewer, BatchReviewer):
            answers = await reviewer.review_batch(requests) if requests else []
        else:
            answers = [await reviewer.review(each) for each in requests]
        decided = iter([self._follow(*each) for each in zip(requests, answers, strict=True)])
        return [each if each.patch is None else _decide(each, next(decided)) for each in attempts]

    def _make_request(self, patch: SurfacePatch, signal: AggregateResult, profile: Profile) -> ReviewRequest:
        surface = profile.surface(patch.surface_id, self._session.snapshot)

        def find_problem(value: Json) -> str:
            refused = self._lint_edit(replace(patch, value=value), surface)
            return "" if refused is None else refused.reason

        return ReviewRequest(surface=surface, patch=patch, signal=signal, find_problem=find_problem)

    def _follow(self, request: ReviewRequest, answer: Review) -> SurfacePatch | Rejection:
        """The patch as the reviewer wants it, or why it is not tried."""
        surface, patch = request.surface, request.patch
        if answer.action == "veto":
            reason = f"vetoed in review: {answer.reason or 'no reason given'}"
            return Rejection(surface_id=surface.id, value=patch.value, reason=reason, kind="vetoed")
        if answer.action == "approve":
            return patch
        remark = f"edited in review: {answer.reason}" if answer.reason else "edited in review"
        edited = replace(
            patch,
            value=answer.value,
            reason=f"{patch.reason} ({remark})",
            edits=_list_edits(patch, surface.value, answer.value, remark),
        )
        return self._lint_edit(edited, surface) or edited

    def _lint_edit(self, edited: SurfacePatch, surface: Surface) -> Rejection | None:
        return lint_patch(self._linter, edited, surface, rules=("limits", "placeholder", "no_op", "empty"))


def _decide(attempt: PatchAttempt, answer: SurfacePatch | Rejection) -> PatchAttempt:
    if isinstance(answer, Rejection):
        return replace(attempt, patch=None, refused=(*attempt.refused, answer))
    return replace(attempt, patch=answer)


def _list_edits(patch: SurfacePatch, before: Json, after: Json, remark: str) -> tuple[PatchEdit, ...]:
    """The hunks of a value that a reviewer edited: those of the patch as they were, the others are the reviewer's."""
    written = PatchEdit(before=shorten(before), after=shorten(after), reason=remark, is_reviewed=True)
    if not (isinstance(before, str) and isinstance(patch.value, str) and isinstance(after, str)):
        return (replace(written, evidence=patch.evidence),)
    proposed = {(hunk.before, hunk.after) for hunk in find_hunks(before, patch.value)}
    known = patch.edits
    if not known and len(proposed) == 1:
        known = tuple(PatchEdit(before=a, after=b, reason=patch.reason, evidence=patch.evidence) for a, b in proposed)
    return known + tuple(
        replace(written, before=hunk.before, after=hunk.after)
        for hunk in find_hunks(before, after)
        if (hunk.before, hunk.after) not in proposed
    )


def _identify(report: BlameReport, signal: AggregateResult) -> tuple[str, str, str]:
    return report.profile.digest, signal.surface_id, signal.text
