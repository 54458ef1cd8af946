"""Descriptions of runs: the state of those that have not begun, how one ended, and why one cannot be continued."""

from __future__ import annotations

from promptiter.errors import ChangedInputsError, PromptiterError, RequestError
from promptiter.manager.app import PreparedRun
from promptiter.profile import Profile
from promptiter.runlog.results import RunMeasured, RunResult
from promptiter.runs.outcome import classify_result
from promptiter.structure import StructureSnapshot
from promptiter.wording import plural, shorten


def describe_queued(run_id: str, prepared: PreparedRun) -> RunResult:
    """The state of a run that has not begun."""
    checked = prepared.checked
    start = checked.request.initial_profile or Profile.baseline(checked.snapshot)
    return RunResult(
        status="queued",
        verdict="no_evidence",
        structure=checked.snapshot,
        targets=tuple(sorted(checked.targets)),
        objective=checked.request.objective,
        shape=checked.shape,
        goal=checked.request.goal,
        initial_profile=start,
        accepted_profile=start,
        working_profile=start,
        measured=RunMeasured(run_id=run_id),
    )


def describe_refusal(error: Exception) -> tuple[str, ...]:
    """Why a run cannot be continued, one sentence for each reason, for those who may have no command line here."""
    match error:
        case ChangedInputsError():
            return tuple(f"its inputs have changed: {each}" for each in error.changes)
        case RequestError():
            return tuple(error.problems)
        case PromptiterError():
            return (str(error),)
    return (f"{type(error).__name__}: {error}",)


def describe_end(result: RunResult) -> str:
    """How a run ended, for the log, in the words of `promptiter runs`: `succeeded: improved, 3 rounds, 12 s`."""
    if result.status == "running":
        return "was interrupted; the next server continues it"
    took = f"{plural(len(result.rounds), 'round')}, {result.measured.duration_s:.0f} s"
    outcome = classify_result(result)
    if result.status == "succeeded" and outcome != "stopped":
        return f"succeeded: {outcome.replace('_', ' ')}, {took}"
    return f"{outcome}: {took}" if result.error is None else f"{outcome}: {shorten(result.error)}, {took}"


def describe_refused(run_id: str, structure: StructureSnapshot, error: str) -> RunResult:
    """The state of a run that has not begun, and cannot begin any more."""
    start = Profile.baseline(structure)
    return RunResult(
        status="failed",
        verdict="no_evidence",
        structure=structure,
        targets=(),
        objective="mean_score",
        initial_profile=start,
        accepted_profile=start,
        working_profile=start,
        error=error,
        measured=RunMeasured(run_id=run_id),
    )
