"""Learning from production: recorded runs that failed become patches of the texts behind the failures.

Nothing is run. The runs are judged by feedback, by metrics or by their errors; the blame of each failure is carried
back over its recorded steps, and a patch is written for each text that enough failures come from. Whether the patches
help is for the live agent to show: see `learned_patches`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from promptiter.backprop.backward_pass import (
    BackwardPass,
    as_attributor,
    count_cases,
    describe_failed_attribution,
    group_by_surface,
)
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.backprop.lint import Linter
from promptiter.backprop.loss import can_be_blamed, extract_losses
from promptiter.backprop.patch_writing import PatchWriter, collect_patches
from promptiter.backprop.record import PatchesWritten, TraceBlame
from promptiter.backprop.support_aggregator import SupportAggregator
from promptiter.engine.interrupts import Interrupt
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.metric import Metric
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import PatchSet, Profile
from promptiter.registry import OFFLINE_STAGES
from promptiter.stages.contracts import AggregateResult, Aggregator, Attributor, Backwarder, SurfaceGradient
from promptiter.stages.losses import CaseLoss
from promptiter.stages.optimizer import Optimizer
from promptiter.structure import TEXT_TYPES, StructureSnapshot
from promptiter.tasks.failure_groups import FailureGroup, describe_failure, group_failures, sample_failures
from promptiter.tasks.lessons import Lessons, SurfaceLesson
from promptiter.tasks.recorded_agent import CompletedMetric, FeedbackMetric, JudgedRun, RecordedAgent
from promptiter.tasks.recorded_structure import (
    RecordedStructure,
    SurfaceVersion,
    count_versions,
    has_read,
    list_given_up,
    recover_structure,
)
from promptiter.tasks.surface_matching import Matching, match_surfaces, rename_structure, rename_trace
from traces import ExecutionTrace, Step, to_structure
from traces.model import digest

MOST_BLAMED = 100
"""Maximum number of failed runs that are blamed. Of more, a sample has some of every group of failures."""

MOST_PASSING = 100
"""Maximum number of runs without a failure that the stages may compare with."""

CHUNK = 16
"""Runs that are blamed before progress is reported, and at most lost if the budget ends."""

Notify = Callable[[], None]
"""Called for each failed run that was blamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRuns:
    """The runs of production that failed, judged and grouped, before anything is spent on their blame."""

    structure: StructureSnapshot
    evaluation: Evaluation
    cases: EvalSet
    runs: Mapping[str, JudgedRun]
    groups: tuple[FailureGroup, ...]
    sample: frozenset[str]
    left_out: Mapping[str, int]
    versions: Mapping[str, tuple[SurfaceVersion, ...]]
    guessed_edges: frozenset[tuple[str, str]] = frozenset()
    matching: Matching | None = None
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> int:
        return sum(len(group.case_ids) for group in self.groups)


async def find_failures(
    runs: Sequence[JudgedRun],
    *,
    evaluator: Evaluator,
    metrics: Sequence[Metric] = (),
    live: StructureSnapshot | None = None,
    most: int = MOST_BLAMED,
    recorded: RecordedStructure | None = None,
    unjudged: int = 0,
) -> FailedRuns:
    """Judge recorded runs by feedback and `metrics`, without either by their errors, and group those that failed.

    With the structure of the `live` agent, what the traces show gets the names that it has there. `recorded` is the
    structure that all traces show, if `unjudged` others were read; by default it is that of the runs.
    """
    recorded = recorded or recover_structure(to_structure(each.trace for each in runs))
    structure, guessed, matching = recorded.snapshot, recorded.guessed, None
    if recorded.templates:
        digests = {surface_id: digest(text) for surface_id, text in recorded.templates.items()}
        runs = [replace(each, trace=_read_templates(each.trace, digests)) for each in runs]
    if live is not None:
        matching = match_surfaces(structure, live)
        surfaces = {match.recorded: match.live for match in matching.matches}
        nodes = matching.rename_nodes(structure, live)
        runs = [replace(each, trace=rename_trace(each.trace, surfaces, nodes)) for each in runs]
        structure = rename_structure(structure, surfaces, nodes, live)
        guessed = frozenset((nodes.get(source, source), nodes.get(target, target)) for source, target in guessed)
    if not any(surface.type in TEXT_TYPES for surface in structure.surfaces):
        raise SetupError(
            "the traces show no prompt and no tool description, so nothing can be patched; switch on the capture of "
            "content where they are recorded (OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true)"
        )
    has_feedback = any(each.feedback is not None for each in runs)
    judges: list[Metric] = [*([FeedbackMetric(runs)] if has_feedback else []), *metrics] or [CompletedMetric()]
    asked = [each for each in runs if metrics or not has_feedback or each.is_judged]
    left_out = Counter({"no feedback": len(runs) - len(asked) + unjudged})
    by_id = {each.id: each for each in asked}
    cases = EvalSet(id="production", cases=tuple(each.as_case() for each in asked))
    judge = evaluator.with_metrics(judges)
    evaluation = await judge.evaluate(RecordedAgent(structure, asked), cases)
    failed = [row for row in evaluation.rows if not _has_passed(row)]
    left_out["outages and timeouts"] = sum(not can_be_blamed(row) for row in failed if row.error is not None)
    left_out["not scored"] = sum(not can_be_blamed(row) for row in failed if row.error is None)
    blamable = [row for row in failed if can_be_blamed(row)]
    failed_ids = {row.case_id for row in blamable}
    versions = count_versions([(each.trace, each.id in failed_ids) for each in asked], structure)
    given_up = list_given_up(versions)
    current = [row for row in blamable if not has_read(by_id[row.case_id].trace, given_up)]
    notes: tuple[str, ...] = ()
    if current:
        left_out["an older version of a text"] = len(blamable) - len(current)
    elif blamable:
        notes = ("no run with the latest version of the texts has failed: these failures may be fixed already",)
    taken = current or blamable
    groups = group_failures([describe_failure(row, by_id[row.case_id].trace) for row in taken])
    return FailedRuns(
        structure=structure,
        evaluation=evaluation,
        cases=cases,
        runs=by_id,
        groups=groups,
        sample=sample_failures(groups, most),
        left_out={reason: count for reason, count in left_out.items() if count},
        versions=versions,
        guessed_edges=guessed,
        matching=matching,
        notes=notes,
    )


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
    notes = list(found.notes)
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
            notes.append(f"{error}; {len(blames)} of {len(losses)} failed runs were blamed")
        if interrupt.reason is not None:
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
            notes.append(f"{error}; patches are missing")
    if not gradients and interrupt.reason is None:
        notes += await work.explain_no_blame(losses)
    return Lessons(
        structure=target,
        recorded=found.structure,
        guessed_edges=found.guessed_edges,
        runs=len(found.runs) + found.left_out.get("no feedback", 0),
        judged=len(found.runs),
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
    )


async def _select_traces(found: FailedRuns, evaluator: Evaluator) -> tuple[JudgedTraces, Sequence[CaseLoss]]:
    """The traces of the sampled failures and of some runs that passed, and the losses of the former."""
    rows: list[CaseRow] = [row for row in found.evaluation.rows if row.case_id in found.sample]
    passing = [row for row in found.evaluation.rows if _has_passed(row)]
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


def _read_templates(trace: ExecutionTrace, digests: Mapping[str, str]) -> ExecutionTrace:
    """The trace as if its steps had read the template of each text that was filled in for them."""

    def read(step: Step) -> Step:
        if step.surface_reads is None or digests.keys().isdisjoint(step.surface_reads):
            return step
        return replace(step, surface_reads={name: digests.get(name, seen) for name, seen in step.surface_reads.items()})

    return replace(trace, steps=tuple(map(read, trace.steps)))


def _has_passed(row: CaseRow) -> bool:
    """Whether nothing was found wrong with a run. A metric that could not score it says nothing."""
    scored = [score for score in row.scores if score.is_scored]
    return row.error is None and bool(scored) and all(score.passed for score in scored)
