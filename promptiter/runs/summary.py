"""RunSummary: one run as plain data. `promptiter run` and `promptiter show` render it.

`read_summary` needs only the folder of the run, so it works while the run is in progress and after the configuration
or the agent has changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.evaluation.mean_usage import average_usage
from promptiter.evaluation.result import Evaluation
from promptiter.llm.ledger import NOTHING, TOOL, LedgerSnapshot, Spending
from promptiter.llm.models import any_simulated
from promptiter.policies.paired_runs import describe_runs
from promptiter.policies.verdict import Verdict
from promptiter.profile import Profile
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.results import RunMeasured, RunResult, RunShape, SearchNote
from promptiter.runs.blame_summary import BlameReason, BlameSummary
from promptiter.runs.candidate_pool import PoolSummary
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.runs.event_file import EventFile
from promptiter.runs.folder_store import read_ledger
from promptiter.runs.header import read_header
from promptiter.runs.judge_checks import describe_judges, read_checks
from promptiter.runs.lock import find_holder
from promptiter.runs.next_commands import RESUMING, Command, RunAddress, suggest_commands
from promptiter.runs.outcome import SAVINGS, Outcome, classify_result, explain_outcome, write_headline
from promptiter.runs.round_summary import (
    EvaluationSummary,
    RejectionSummary,
    RoundSummary,
    find_candidate,
    summarize_evaluation,
    summarize_rounds,
)
from promptiter.runs.trial_phases import DescentSummary
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureChange:
    """A figure before and after; None is unknown or unscored. `limit` is the threshold of a metric."""

    name: str
    before: float | None
    after: float | None
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeSummary:
    """How one surface changed, and why: the signals behind its accepted patches."""

    surface_id: str
    before: Json
    after: Json
    reasons: tuple[BlameReason, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSummary:
    """What a run has spent. `functions` are those that are judges or teachers, `unpriced` models without a price."""

    models: Spending = NOTHING
    tools: Spending = NOTHING
    functions: Spending = NOTHING
    by_role: Mapping[str, Spending] = field(default_factory=dict)
    duration_s: float = 0.0
    case_runs: int = 0
    cached_case_runs: int = 0
    is_simulated: bool = False
    unpriced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run, finished or not.

    `score` is the objective of the baseline and of the best candidate, as measured by the final test if there was one,
    and `test_score` the same on the test set. `candidate` are the figures of that candidate, adopted or not. `obstacle`
    says why a gain is not shown for new cases, and what to do. `changes` are the adopted changes if `adopted`,
    otherwise those accepted so far. `validation` and `failing` describe the validation cases under the accepted
    profile, `test_baseline` and `test` the test set under both profiles of the final test. `case_history` says how
    often the cases were used before. `initial_digest` is the profile that the first candidates were made from. `notes`
    are events of the search before its first round, `pool` the candidates that a search such as GEPA keeps,
    `descent` the phases of coordinate descent. Changes of the `removed` surfaces were accepted, then dropped because
    they contributed nothing. `judges` are notes about judges that were not compared with people, or agree poorly with
    them.
    """

    run_id: str
    agent: str
    folder: Path | None
    outcome: Outcome
    verdict: Verdict
    headline: str
    shape: RunShape = "two_sets"
    reason: str = ""
    obstacle: str = ""
    score: FigureChange | None = None
    test_score: FigureChange | None = None
    baseline: EvaluationSummary | None = None
    candidate: EvaluationSummary | None = None
    validation: EvaluationSummary | None = None
    failing: tuple[str, ...] = ()
    test_baseline: EvaluationSummary | None = None
    test: EvaluationSummary | None = None
    metrics: tuple[FigureChange, ...] = ()
    per_run: tuple[FigureChange, ...] = ()
    evidence: tuple[str, ...] = ()
    case_history: tuple[str, ...] = ()
    adopted: bool = False
    changes: tuple[ChangeSummary, ...] = ()
    removed: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()
    unchanged: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()
    initial_digest: str = ""
    notes: tuple[SearchNote, ...] = ()
    rounds: tuple[RoundSummary, ...] = ()
    pool: PoolSummary = field(default_factory=PoolSummary)
    descent: DescentSummary = field(default_factory=DescentSummary)
    blame: tuple[BlameSummary, ...] = ()
    no_blame: str = ""
    rejections: tuple[RejectionSummary, ...] = ()
    stopped: str = ""
    costs: CostSummary = CostSummary()
    problems: tuple[str, ...] = ()
    judges: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()


def read_summary(folder: str | os.PathLike[str], *, address: RunAddress | None = None) -> RunSummary:
    """Summarize the run in a folder; SetupError if it cannot be read or has not begun.

    With an `address`, the folder is a copy of a run that is elsewhere.
    """
    return summarize_stored(read_result(folder), Path(folder), address=address)


def read_result(folder: str | os.PathLike[str]) -> RunResult:
    """The result of the run in a folder, or the run so far; SetupError if it cannot be read or has not begun."""
    path = Path(folder)
    read_header(path)
    journal = EventFile(path / JOURNAL)
    last = journal.last()
    if last is None:
        raise SetupError(f"the run {str(path)!r} has recorded nothing yet; `promptiter resume {path}` starts it")
    result = fold_lazily(journal)
    if last.type != "run_completed":
        duration_s, spent = last.measured.elapsed_s, read_ledger(path)
        result = replace(result, measured=replace(result.measured, duration_s=duration_s, spent=spent))
    return result


def summarize_stored(result: RunResult, folder: Path, *, address: RunAddress | None = None) -> RunSummary:
    """Summarize the result that was read from a folder."""
    header = read_header(folder)
    summary = summarize(result, folder, is_held=find_holder(folder) is not None, address=address)
    if result.is_final or not header.nameless_parts:
        return summary
    commands = tuple(each for each in summary.commands if each.purpose not in RESUMING)
    return replace(summary, problems=(*summary.problems, *header.notes), commands=commands)


def summarize(
    result: RunResult, folder: Path | None = None, *, is_held: bool = False, address: RunAddress | None = None
) -> RunSummary:
    """Summarize a result. `is_held`: a process is working on the run. See `read_summary` for the address."""
    outcome, search = classify_result(result, is_held=is_held), summarize_rounds(result)
    changed = result.changes or result.initial_profile.changes(result.working_profile, result.structure)
    candidate, shown = find_candidate(result), {change.surface_id for change in changed}
    changes = tuple(
        ChangeSummary(
            surface_id=change.surface_id,
            before=change.before,
            after=change.after,
            reasons=search.reasons.get(change.surface_id, ()),
        )
        for change in changed
    )
    return RunSummary(
        run_id=result.run_id,
        agent=result.structure.name or "agent",
        folder=folder if address is None or address.place == "folder" else None,
        outcome=outcome,
        verdict=result.verdict,
        headline=write_headline(result, outcome),
        shape=result.shape,
        reason=explain_outcome(result, outcome),
        obstacle="" if result.conclusion is None else result.conclusion.obstacle,
        score=_score(result),
        test_score=_test_score(result),
        baseline=summarize_evaluation(result.baseline),
        candidate=summarize_evaluation(candidate),
        validation=summarize_evaluation(result.accepted),
        failing=_failing(result.accepted),
        test_baseline=_summarize_test(result, result.initial_profile),
        test=_summarize_test(result, result.working_profile),
        metrics=_metrics(result.baseline, candidate or result.accepted),
        per_run=_per_run(result),
        evidence=_evidence(result),
        case_history=result.case_history.describe(),
        adopted=bool(result.changes) and result.conclusion is not None,
        changes=changes,
        removed=result.ablation.dropped if result.ablation is not None else (),
        targets=result.targets,
        unchanged=tuple(surface_id for surface_id in result.targets if surface_id not in shown),
        unread=result.unread_surfaces,
        initial_digest=result.initial_profile.digest,
        notes=result.notes,
        rounds=search.rounds,
        pool=search.pool,
        descent=search.descent,
        blame=search.blame,
        no_blame=search.no_blame,
        rejections=search.rejections,
        stopped=result.stop.text if result.stop is not None and result.stop.stop else "",
        costs=summarize_costs(result.measured.spent, result.measured),
        problems=(*result.problems, *search.problems),
        judges=_describe_judges(result, folder),
        commands=() if folder is None else suggest_commands(result, outcome, address or RunAddress.of_folder(folder)),
    )


def summarize_costs(spent: LedgerSnapshot, measured: RunMeasured | None = None) -> CostSummary:
    """Separate the spending on models from that on tools and functions, and add case runs and time."""
    measured = measured or RunMeasured()
    models = LedgerSnapshot(tuple(entry for entry in spent.entries if not entry.model.startswith(TOOL)))
    by_model = models.by_model()
    others = [entry for entry in spent.entries if entry.model.startswith(TOOL)]
    tools = LedgerSnapshot(tuple(entry for entry in others if entry.role == "agent"))
    functions = LedgerSnapshot(tuple(entry for entry in others if entry.role != "agent"))
    return CostSummary(
        models=models.total,
        tools=tools.total,
        functions=functions.total,
        by_role=models.by_role(),
        duration_s=measured.duration_s,
        case_runs=measured.case_runs,
        cached_case_runs=measured.case_runs - measured.paid_case_runs,
        is_simulated=any_simulated(by_model),
        unpriced=tuple(name for name, each in by_model.items() if each.unpriced_calls > each.uncounted_calls),
    )


def _score(result: RunResult) -> FigureChange | None:
    """The objective before and after."""
    conclusion, before, after = result.conclusion, result.baseline_score, result.accepted_score
    if conclusion is not None and conclusion.results:
        before, after = conclusion.before, conclusion.after
    is_tried = result.working_profile != result.initial_profile
    return None if before is None else _compare(result, before, after if is_tried else None)


def _test_score(result: RunResult) -> FigureChange | None:
    """The objective on the test set before and after; None if it was not run."""
    conclusion = result.conclusion
    if conclusion is None or conclusion.test_before is None:
        return None
    return _compare(result, conclusion.test_before, conclusion.test_after)


def _compare(result: RunResult, before: float, after: float | None) -> FigureChange:
    """A loss is negative as an objective; it is shown as a positive number."""
    if result.objective == "weighted_loss":
        before, after = abs(before), None if after is None else abs(after)
    return FigureChange(name=result.objective.replace("_", " "), before=before, after=after)


def _summarize_test(result: RunResult, profile: Profile) -> EvaluationSummary | None:
    """The test set under a profile; None if the run has none or did not come to it."""
    found = (each for each in result.evaluations if each.phase == "test" and each.profile_digest == profile.digest)
    return summarize_evaluation(next(found, None))


def _failing(evaluation: Evaluation | None) -> tuple[str, ...]:
    return () if evaluation is None else tuple(case.case_id for case in evaluation.cases if not case.passed)


def _metrics(before: Evaluation | None, after: Evaluation | None) -> tuple[FigureChange, ...]:
    if before is None or after is None:
        return ()
    return tuple(
        FigureChange(name=name, before=before.metric_means.get(name), after=mean, limit=after.thresholds[name])
        for name, mean in after.metric_means.items()
    )


def _per_run(result: RunResult) -> tuple[FigureChange, ...]:
    """The mean usage of one case run, for goals that reduce it."""
    if result.goal.kind not in SAVINGS or result.baseline is None or result.accepted is None:
        return ()
    before, after = average_usage(result.baseline), average_usage(result.accepted)
    return (
        FigureChange(name="tokens", before=before.tokens, after=after.tokens),
        FigureChange(name="input tokens", before=before.input_tokens, after=after.input_tokens),
        FigureChange(name="dollars", before=before.usd, after=after.usd),
    )


def _evidence(result: RunResult) -> tuple[str, ...]:
    conclusion = result.conclusion
    if conclusion is None or not conclusion.tried:
        return ()
    return *conclusion.reasons, *describe_runs(conclusion.runs)


def _describe_judges(result: RunResult, folder: Path | None) -> tuple[str, ...]:
    """Notes about the judges that the evidence rests on; none without a final test."""
    if folder is None or not _evidence(result):
        return ()
    try:
        return describe_judges(read_header(folder).judges, read_checks(folder.parent))
    except SetupError:  # the header is reported elsewhere
        return ()
