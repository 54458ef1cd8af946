"""The runs of production that failed: by feedback, by metrics, or without either by their errors.

recorded runs ─▶ select_runs ─▶ runs to judge (a forecast can be made) ─▶ find_failures ─▶ failed runs, grouped
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import get_args

from promptiter.backprop.loss import can_be_blamed
from promptiter.engine.interrupts import Interrupt
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.metric import Metric
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import Profile
from promptiter.structure import TEXT_TYPES, StructureSnapshot
from promptiter.tasks.failure_groups import FailureGroup, describe_failure, group_failures, sample_failures
from promptiter.tasks.recorded_agent import CompletedMetric, FeedbackMetric, JudgedRun, RecordedAgent, RunOutcome
from promptiter.tasks.recorded_structure import RecordedStructure, recover_structure
from promptiter.tasks.run_tally import RunTally, SurfaceVersion, has_read, list_given_up
from promptiter.tasks.surface_matching import Matching, match_surfaces, rename_structure, rename_trace
from traces import ExecutionTrace, Step, to_structure
from traces.model import digest

MOST_BLAMED = 100
"""Maximum number of failed runs that are blamed. Of more, a sample has some of every group of failures."""

USER_STOP = "user_stop"
"""Why work ended before its time, if not because of a cap of the budget."""

Notify = Callable[[], None]
"""Called for each run that was judged, or whose failure was blamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsToJudge:
    """Recorded runs with the names of the live agent, before anything is spent on them, and what will judge them.

    They may be a sample of the runs that were read, whose number is `seen`. Runs with one of these `outcomes` are
    judged already, and the `tally` has their number; there is none if metrics decide.
    """

    structure: StructureSnapshot
    runs: tuple[JudgedRun, ...]
    metrics: tuple[Metric, ...]
    seen: int
    outcomes: tuple[RunOutcome, ...] = get_args(RunOutcome)
    tally: RunTally | None = None
    guessed_edges: frozenset[tuple[str, str]] = frozenset()
    matching: Matching | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRuns:
    """The runs of production that failed, judged and grouped, before anything is spent on their blame.

    `seen`, `judged` and `failed` are numbers of runs; `runs` and `groups` may be a sample of them. `stop_reason` is
    the cap of the budget, or `user_stop`, that ended the judging early.
    """

    structure: StructureSnapshot
    evaluation: Evaluation
    cases: EvalSet
    runs: Mapping[str, JudgedRun]
    seen: int
    judged: int
    failed: int
    groups: tuple[FailureGroup, ...]
    sample: frozenset[str]
    left_out: Mapping[str, int]
    versions: Mapping[str, tuple[SurfaceVersion, ...]]
    guessed_edges: frozenset[tuple[str, str]] = frozenset()
    matching: Matching | None = None
    notes: tuple[str, ...] = ()
    stop_reason: str | None = None


def select_runs(
    runs: Sequence[JudgedRun],
    *,
    metrics: Sequence[Metric] = (),
    live: StructureSnapshot | None = None,
    recorded: RecordedStructure | None = None,
    tally: RunTally | None = None,
    notes: Sequence[str] = (),
) -> RunsToJudge:
    """The runs that feedback and `metrics` can judge; without either, all: their errors judge them.

    With the structure of the `live` agent, what the traces show gets the names that it has there. If the runs are a
    sample, `recorded` is the structure that all traces show, and `tally` counts all runs.
    """
    tally = tally or RunTally(runs)
    recorded = recorded or recover_structure(to_structure(each.trace for each in runs))
    structure, guessed, matching = recorded.snapshot, recorded.guessed, None
    surfaces: dict[str, str] = {}
    digests = {surface_id: digest(text) for surface_id, text in recorded.templates.items()}
    if digests:
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
    outcomes: tuple[RunOutcome, ...] = ("failed", "outage", "good") if has_feedback else get_args(RunOutcome)
    asked = tuple(each for each in runs if metrics or each.outcome in outcomes)
    judges: list[Metric] = [*([FeedbackMetric(asked)] if has_feedback else []), *metrics]
    return RunsToJudge(
        structure=structure,
        runs=asked,
        metrics=tuple(judges or [CompletedMetric()]),
        seen=tally.count(*get_args(RunOutcome)),
        outcomes=outcomes,
        tally=None if metrics else tally.rename(surfaces, digests),
        guessed_edges=guessed,
        matching=matching,
        notes=tuple(notes),
    )


async def find_failures(
    selected: RunsToJudge,
    *,
    evaluator: Evaluator,
    most: int = MOST_BLAMED,
    notify: Notify = lambda: None,
    interrupt: Interrupt | None = None,
) -> FailedRuns:
    """Judge the runs, and group those that failed. If the budget ends, or a person interrupts, the others are left out.

    `most` failed runs are sampled, some of every group.
    """
    interrupt, notes = interrupt or Interrupt(), list(selected.notes)
    cases = EvalSet(id="production", cases=tuple(each.as_case() for each in selected.runs))
    judge = evaluator.with_options(replace(evaluator.options, repeats=1)).with_weights({})
    judge = judge.with_metrics(selected.metrics)
    judge = judge.with_gateway(evaluator.gateway.stopping_on(lambda: interrupt.reason))
    agent, profile = RecordedAgent(selected.structure, selected.runs), Profile.baseline(selected.structure)
    rows: list[CaseRow] = []
    stop_reason: str | None = None
    try:
        async with aclosing(judge.stream_rows(agent, cases, profile)) as finished:
            async for row in finished:
                rows.append(row)
                notify()
    except BudgetEndedError as ended:
        stop_reason = ended.cap
        notes.append(f"{ended.message}; {len(rows):,} of {len(cases.cases):,} runs were judged")
    except asyncio.CancelledError:  # the second Ctrl-C
        if interrupt.reason is None:
            raise
    if stop_reason is None and len(rows) < len(cases.cases):
        stop_reason = USER_STOP
        notes.append(f"{interrupt.reason}: {len(rows):,} of {len(cases.cases):,} runs were judged")
    row_of = {row.case_id: row for row in rows}
    by_id = {each.id: each for each in selected.runs if each.id in row_of}
    evaluation = judge.build_evaluation((row_of[case_id] for case_id in by_id), cases, profile)
    failed = [row for row in evaluation.rows if not has_passed(row)]
    blamable = [row for row in failed if can_be_blamed(row)]
    failed_ids = {row.case_id for row in blamable}
    tally, judged = selected.tally, len(by_id)
    left_out: Counter[str] = Counter()
    if tally is not None:
        judged = tally.count(*selected.outcomes)
        left_out["no feedback"] = selected.seen - judged
        left_out["outages and timeouts"] = tally.count("outage")
    else:
        tally = RunTally()
        for each in by_id.values():
            tally.add(each.trace, "failed" if each.id in failed_ids else "good")
        left_out["not in the sample that was judged"] = selected.seen - len(selected.runs)
        left_out["not judged before the end"] = len(selected.runs) - judged
        left_out["outages and timeouts"] = sum(not can_be_blamed(row) for row in failed if row.error is not None)
        left_out["not scored"] = sum(not can_be_blamed(row) for row in failed if row.error is None)
    versions = tally.list_versions(selected.structure, selected.outcomes)
    given_up = list_given_up(versions)
    current = [row for row in blamable if not has_read(by_id[row.case_id].trace, given_up)]
    count = tally.count("failed")
    if current:
        left_out["an older version of a text"] = tally.count("failed", reading=given_up)
        count -= left_out["an older version of a text"]
    elif blamable:
        notes.append("no run with the latest version of the texts has failed: these failures may be fixed already")
    taken = current or blamable
    if len(taken) < count:
        notes.append(f"what failed is said for a random sample of {len(taken):,} of {count:,} failed runs")
    groups = group_failures([describe_failure(row, by_id[row.case_id].trace) for row in taken])
    return FailedRuns(
        structure=selected.structure,
        evaluation=evaluation,
        cases=cases,
        runs=by_id,
        seen=selected.seen,
        judged=judged,
        failed=count,
        groups=groups,
        sample=sample_failures(groups, most),
        left_out={reason: count for reason, count in left_out.items() if count},
        versions=versions,
        guessed_edges=selected.guessed_edges,
        matching=selected.matching,
        notes=tuple(notes),
        stop_reason=stop_reason,
    )


def has_passed(row: CaseRow) -> bool:
    """Whether nothing was found wrong with a run. A metric that could not score it says nothing."""
    scored = [score for score in row.scores if score.is_scored]
    return row.error is None and bool(scored) and all(score.passed for score in scored)


def _read_templates(trace: ExecutionTrace, digests: Mapping[str, str]) -> ExecutionTrace:
    """The trace as if its steps had read the template of each text that was filled in for them."""

    def read(step: Step) -> Step:
        if step.surface_reads is None or digests.keys().isdisjoint(step.surface_reads):
            return step
        return replace(step, surface_reads={name: digests.get(name, seen) for name, seen in step.surface_reads.items()})

    return replace(trace, steps=tuple(map(read, trace.steps)))
