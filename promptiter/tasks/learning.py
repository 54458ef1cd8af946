"""Learning from production: recorded runs that failed become patches of the texts behind the failures.

Nothing is run. The blame of each failure is carried back over its recorded steps, and a patch is written for each text
that enough failures come from. Which runs failed: see `failed_runs`. Whether the patches help is for the live agent to
show: see `learned_patches`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from promptiter.backprop.backward_pass import (
    BackwardPass,
    as_attributor,
    count_cases,
    describe_failed_attribution,
    group_by_surface,
)
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.lint import Linter
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.patch_writing import PatchWriter, collect_patches
from promptiter.backprop.record import PatchesWritten, TraceBlame
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.engine.interrupts import Interrupt
from promptiter.errors import BudgetEndedError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.result import CaseRow
from promptiter.profile import PatchSet, Profile
from promptiter.registry import OFFLINE_STAGES
from promptiter.stages.contracts import AggregateResult, Aggregator, Attributor, Backwarder, SurfaceGradient
from promptiter.stages.losses import CaseLoss
from promptiter.stages.optimizer import Optimizer
from promptiter.structure import TEXT_TYPES, StructureSnapshot
from promptiter.tasks.failed_runs import USER_STOP, FailedRuns, Notify, has_passed
from promptiter.tasks.lessons import Lessons, SurfaceLesson

MOST_PASSING = 100
"""Maximum number of runs without a failure that the stages may compare with."""

CHUNK = 16
"""Runs that are blamed before progress is reported, and at most lost if the budget ends."""


async def learn(
    found: FailedRuns,
    *,
    evaluator: Evaluator,
    backwarder: Backwarder | Attributor | None = None,
    aggregator: Aggregator | None = None,
    optimizer: Optimizer | None = None,
    live: StructureSnapshot | None = None,
    notify: Notify = lambda: None,
    interrupt: Interrupt | None = None,
) -> Lessons:
    """Blame the sampled failures, and write a patch for each text with enough evidence.

    With the structure of the `live` agent, patches change its texts as they are now. Stages default to those that need
    no model. If the budget ends, or a person interrupts, the lessons are those of what was blamed until then.
    """
    interrupt = interrupt or Interrupt()
    traces, losses = await _select_traces(found, evaluator)
    work = BackwardPass(
        structure=found.structure,
        profile=Profile.baseline(found.structure),
        targets=frozenset(each.id for each in found.structure.surfaces if each.type in TEXT_TYPES),
        traces=traces,
        redact=evaluator.gateway.redactor.redact_text,
    )
    attributor, target = as_attributor(backwarder), live or found.structure
    notes, stop_reason = list(found.notes), found.stop_reason
    blames: list[TraceBlame] = []
    signals: tuple[AggregateResult, ...] = ()
    weak: tuple[AggregateResult, ...] = ()
    written = PatchesWritten()
    gradients: dict[str, tuple[SurfaceGradient, ...]] = {}
    with evaluator.gateway.active():
        try:
            for first in range(0, len(losses), CHUNK):
                if interrupt.reason is not None:
                    break
                chunk = losses[first : first + CHUNK]
                blames += await work.attribute(chunk, attributor)
                for _ in chunk:
                    notify()
        except BudgetEndedError as error:
            stop_reason = error.cap
            notes.append(f"{error.message}; {len(blames)} of {len(losses)} failed runs were blamed")
        except asyncio.CancelledError:  # the second Ctrl-C
            if interrupt.reason is None:
                raise
        if interrupt.reason is not None:
            stop_reason = USER_STOP
            notes.append(f"{interrupt.reason}: {len(blames)} of {len(losses)} failed runs were blamed; no patches")
            aggregator, optimizer = None, None
        if problem := describe_failed_attribution(blames, attributor):
            notes.append(problem)
        gradients = group_by_surface(blames)
        try:
            merged = await work.merge(
                gradients,
                aggregator or SupportAggregator(),
                failed_cases=count_cases(losses),
                all_cases=len(losses),
            )
            signals, weak = merged.signals, merged.below_support
            wanted = [] if interrupt.reason else [each for each in signals if each.surface_id in target.surface_ids]
            writer = PatchWriter(
                optimizer=optimizer or OFFLINE_STAGES.get("optimizer")(),
                structure=target,
                profile=Profile.baseline(target),
                traces=traces,
                linter=Linter(traces.cases),
                redact=work.redact,
            )
            written = collect_patches(await writer.write(wanted, gradients))
            notes += written.notes
        except BudgetEndedError as error:
            stop_reason = error.cap
            notes.append(f"{error.message}; patches are missing")
        except asyncio.CancelledError:
            if interrupt.reason is None:
                raise
            stop_reason = USER_STOP
            notes.append(f"{interrupt.reason}: patches are missing")
    if not gradients and interrupt.reason is None:
        notes += await work.explain_no_blame(losses)
    return Lessons(
        structure=target,
        recorded=found.structure,
        guessed_edges=found.guessed_edges,
        runs=found.seen,
        judged=found.judged,
        failed=found.failed,
        sampled=len(losses),
        blamed=len({blame.case_id for blame in blames if blame.gradients}),
        left_out=found.left_out,
        groups=found.groups,
        surfaces=tuple(_list_lessons(signals, weak, gradients, found, live)),
        patches=_order_by_evidence(written.patches, signals),
        refused=written.refused,
        matching=found.matching,
        notes=tuple(dict.fromkeys(notes)),
        learned_from=found.sample,
        stop_reason=stop_reason,
    )


async def _select_traces(found: FailedRuns, evaluator: Evaluator) -> tuple[JudgedTraces, Sequence[CaseLoss]]:
    """The traces of the sampled failures and of some runs that passed, and the losses of the former."""
    rows: list[CaseRow] = [row for row in found.evaluation.rows if row.case_id in found.sample]
    passing = [row for row in found.evaluation.rows if has_passed(row)]
    rows += passing[-MOST_PASSING:]
    kept = {row.case_id for row in rows}
    cases = EvalSet(id=found.cases.id, cases=tuple(each for each in found.cases.cases if each.id in kept))
    evaluation = replace(found.evaluation, rows=tuple(rows))
    read = evaluator.trace_store.get
    losses = await extract_losses(evaluation, cases, read)
    return JudgedTraces(judge_traces(evaluation, cases, read, losses=losses)), losses


def _list_lessons(
    supported: Sequence[AggregateResult],
    weak: Sequence[AggregateResult],
    gradients: Mapping[str, tuple[SurfaceGradient, ...]],
    found: FailedRuns,
    live: StructureSnapshot | None,
) -> list[SurfaceLesson]:
    lessons = []
    for signal in (*supported, *weak):
        times = [start for each in signal.case_ids if (start := found.runs[each].run.started_ns) is not None]
        guessed = {each.case_id for each in gradients[signal.surface_id] if each.trust < 1.0}
        lessons.append(
            SurfaceLesson(
                surface_id=signal.surface_id,
                evidence=signal.support,
                case_ids=signal.case_ids,
                guessed=len(guessed),
                text=signal.text,
                first_ns=min(times, default=None),
                last_ns=max(times, default=None),
                versions=found.versions.get(signal.surface_id, ()),
                is_patchable=live is None or signal.surface_id in live.surface_ids,
                is_supported=signal in supported,
            )
        )
    return sorted(lessons, key=lambda lesson: (-lesson.evidence, lesson.surface_id))


def _order_by_evidence(patches: PatchSet, signals: Sequence[AggregateResult]) -> PatchSet:
    support = {signal.surface_id: signal.support for signal in signals}
    return PatchSet(tuple(sorted(patches, key=lambda patch: (-support[patch.surface_id], patch.surface_id))))
