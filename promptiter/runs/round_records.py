"""A run in AgentOptimizer's words: its rounds as RoundRecords, and its result as an OptimizeResult."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean

from promptiter.backprop.iteration_record import Iteration, SearchStopChecked, get_iteration, get_reflection
from promptiter.backprop.record import SEARCH_ROLES
from promptiter.engine.metric_calls import count_calls
from promptiter.evaluation.result import Evaluation
from promptiter.llm.ledger import NOTHING, LedgerSnapshot
from promptiter.profile import Profile
from promptiter.runlog.events import Event
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runs.optimize_result import FinishReason, OptimizeResult, OptimizeStatus, RoundRecord
from promptiter.structure import StructureSnapshot

STOP_REASONS: Mapping[str, str] = {
    "required_metrics": "required_metrics_passing",
    "target_score": "score_threshold",
    "max_metric_calls": "budget_exhausted",
    "max_evaluations": "budget_exhausted",
    "max_calls": "budget_exhausted",
    "max_tokens": "budget_exhausted",
    "max_usd": "budget_exhausted",
    "max_failures": "budget_exhausted",
    "deadline": "timeout",
    "patience": "no_improvement",
    "user_stop": "user_requested_stop",
    "test_now": "user_requested_stop",
    "exhausted": "completed",
    "max_rounds": "completed",
}
"""AgentOptimizer's stop reasons, by ours. Those of a search or of a custom stopper have the same name in both."""

LATER_PHASES = frozenset(("ablation", "final_test", "test"))
"""Phases after the search, which belong to no round."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundTimes:
    """When each round began and ended, in seconds of the run's working time, by number."""

    began: dict[int, float] = field(default_factory=dict)
    ended: dict[int, float] = field(default_factory=dict)

    @staticmethod
    def read(events: Iterable[Event]) -> RoundTimes:
        times = RoundTimes()
        for event in events:
            times.note(event)
        return times

    def note(self, event: Event) -> None:
        """Note the time of an event of a round."""
        if event.round and event.phase not in LATER_PHASES:
            self.began.setdefault(event.round, event.measured.elapsed_s)
            self.ended[event.round] = event.measured.elapsed_s


def build_result(
    result: RunResult,
    *,
    algorithm: str,
    names: Mapping[str, str],
    times: RoundTimes,
    budget: int | None = None,
    run_folder: str = "",
) -> OptimizeResult:
    """The result of a run. `names` are those of the prompts, by surface; `budget` is max_metric_calls."""
    rounds = build_rounds(result, names=names, times=times, budget=budget)
    status = find_status(result)
    before = read_prompts(result.initial_profile, result.structure, names)
    after = before if status == "FAILED" else read_prompts(result.accepted_profile, result.structure, names)
    baseline = result.baseline
    accepted = baseline if after == before else result.accepted
    rates = [(each.pass_rate if each is not None else None) or 0.0 for each in (baseline, accepted)]
    calls, usage = _sum_stages(result.measured.spent)
    return OptimizeResult(
        status=status,
        finish_reason=_find_finish_reason(status, is_changed=after != before, rate=rates[1]),
        stop_reason=None if status == "FAILED" else find_stop_reason(result),
        error_message=_find_error(result, status),
        algorithm=algorithm,
        baseline_pass_rate=rates[0],
        best_pass_rate=rates[1],
        pass_rate_improvement=rates[1] - rates[0],
        baseline_metric_breakdown=_break_down(baseline),
        best_metric_breakdown=_break_down(accepted),
        metric_thresholds={} if baseline is None else dict(baseline.thresholds),
        per_metric_best_candidates=_find_best_by_metric(result),
        baseline_prompts=before,
        best_prompts=after,
        total_rounds=len(rounds),
        rounds=rounds,
        total_reflection_lm_calls=calls,
        total_token_usage=usage,
        duration_seconds=result.measured.duration_s,
        started_at=result.measured.started_at,
        finished_at=_add_seconds(result.measured.started_at, result.measured.duration_s),
        total_metric_calls=count_metric_calls(result),
        rounds_accepted=sum(each.accepted for each in rounds),
        merge_rounds_total=sum(each.kind == "merge" for each in rounds),
        proposals_total=sum(bool(each.candidate_prompts) for each in rounds),
        verdict=result.verdict,
        run_folder=run_folder,
    )


def build_rounds(
    result: RunResult, *, names: Mapping[str, str], times: RoundTimes, budget: int | None = None
) -> list[RoundRecord]:
    """The records of all rounds of a run, finished or in progress."""
    builder = RoundBuilder(times=times, budget=budget)
    return [builder.build(each, result, names=names) for each in result.rounds]


class RoundBuilder:
    """Builds the records of a run's rounds, one after the other. `budget` is max_metric_calls."""

    def __init__(self, *, times: RoundTimes, budget: int | None = None) -> None:
        self._times = times
        self._budget = budget
        self._used: int | None = None

    def build(self, each: RoundResult, run: RunResult, *, names: Mapping[str, str]) -> RoundRecord:
        """The record of the next round. `run` may be without its rounds."""
        if self._used is None:
            self._used = count_calls(one for one in run.evaluations if one.phase == "baseline")
        self._used += count_calls(each.all_evaluations)
        return _build_round(each, run, names=names, times=self._times, used=self._used, budget=self._budget)


def count_metric_calls(result: RunResult) -> int:
    """The cases that the run evaluated, repeats counted once; rows that were known cost none."""
    return count_calls((*result.evaluations, *(each for one in result.rounds for each in one.all_evaluations)))


def find_stop_reason(result: RunResult) -> str | None:
    """Why the search ended, in AgentOptimizer's words; a search or a custom stopper may say more than the run."""
    kind = result.stop_reason
    if kind == "exhausted":
        notes = [*result.notes, *(note for each in result.rounds for note in each.notes)]
        asked = [str(note.data.get("reason", "")) for note in notes if note.type == SearchStopChecked.event_type]
        kind = next((reason for reason in reversed(asked) if reason), kind)
    return None if kind is None else STOP_REASONS.get(kind, kind)


def find_status(result: RunResult) -> OptimizeStatus:
    """Whether a run succeeded. One that the user stopped, and that can be resumed, is canceled."""
    if result.status == "failed" or (result.verdict == "invalid_eval" and result.status == "succeeded"):
        return "FAILED"
    is_stopped = result.stop is not None and result.stop.is_user_stop and not result.is_final
    return "SUCCEEDED" if result.status == "succeeded" and not is_stopped else "CANCELED"


def name_prompts(result: RunResult) -> dict[str, str]:
    """The names of the prompts by surface, in the order in which they were registered.

    A prompt has the name of its node, as in a TargetPrompt; other surfaces have their id.
    """
    targets = frozenset(result.targets)
    ids = (surface.id for surface in result.structure.surfaces if surface.id in targets)
    return {each: each.removesuffix("#instruction") for each in ids}


def read_prompts(profile: Profile, structure: StructureSnapshot, names: Mapping[str, str]) -> dict[str, str]:
    """The texts of the prompts under a profile, by name."""
    return {name: str(profile.value(surface_id, structure)) for surface_id, name in names.items()}


def _build_round(
    each: RoundResult, result: RunResult, *, names: Mapping[str, str], times: RoundTimes, used: int, budget: int | None
) -> RoundRecord:
    candidate, iteration, reflection = each.candidate, _read_iteration(each), get_reflection(each)
    validation, decision = _find_validation(each, result), each.decision
    began = times.began.get(each.round, 0.0)
    changed = [surface_id for surface_id in names if surface_id in each.patches.surface_ids]
    named = [name for name in iteration.components if name in names] or changed
    parents, own = iteration.parent_scores, iteration.candidate_scores
    return RoundRecord(
        round=each.round,
        kind=iteration.kind,
        started_at=_add_seconds(result.measured.started_at, began),
        duration_seconds=max(0.0, times.ended.get(each.round, began) - began),
        optimized_field_names=[names[surface_id] for surface_id in named],
        candidate_prompts={} if candidate is None else read_prompts(candidate.profile, result.structure, names),
        accepted=decision is not None and decision.accepted,
        acceptance_reason="the round ended before a decision" if decision is None else decision.reason,
        per_field_diagnosis={
            names[patch.surface_id]: patch.reason for patch in each.patches if patch.surface_id in names
        },
        validation_pass_rate=(None if validation is None else validation.pass_rate) or 0.0,
        metric_breakdown=_break_down(validation),
        failed_case_ids=[] if validation is None else [case.case_id for case in validation.cases if not case.passed],
        train_minibatch_size=len(iteration.minibatch),
        train_subsample_parent_score=fmean(map(fmean, parents)) if parents and all(parents) else _train_score(each),
        train_subsample_candidate_score=fmean(own) if own else None,
        skip_reason=each.skipped or iteration.skipped or None,
        error_message=iteration.error or None,
        reflection_lm_calls=reflection.calls,
        round_token_usage=_count_tokens(reflection.input_tokens, reflection.output_tokens),
        budget_used=used,
        budget_total=budget,
    )


def _read_iteration(each: RoundResult) -> Iteration:
    """The iteration of a round; of another search than GEPA, what corresponds to it."""
    train = () if each.train is None else each.train.cases
    return get_iteration(each) or Iteration(number=each.round, minibatch=tuple(case.case_id for case in train))


def _find_validation(each: RoundResult, result: RunResult) -> Evaluation | None:
    """The validation of the candidate, or its evaluation on all validation cases that the search made itself."""
    if each.validation is not None or each.candidate is None or result.baseline is None:
        return each.validation
    wanted = {case.case_id for case in result.baseline.cases}
    found = (one for one in each.candidate.evaluations if {case.case_id for case in one.cases} == wanted)
    return next(found, None)


def _find_best_by_metric(result: RunResult) -> dict[str, list[int]]:
    """The candidates of a pool that are best at each metric, by their numbers; none if the search has no pool."""
    means = {} if result.baseline is None else {0: _break_down(result.baseline)}
    for each in result.rounds:
        iteration = get_iteration(each)
        if iteration is not None and iteration.pool_number is not None:
            means[iteration.pool_number] = _break_down(_find_validation(each, result))
    if len(means) < 2:
        return {}
    names = {name for known in means.values() for name in known}
    best = {name: max(known[name] for known in means.values() if name in known) for name in names}
    return {name: [number for number, known in means.items() if known.get(name) == best[name]] for name in sorted(best)}


def _train_score(each: RoundResult) -> float | None:
    return None if each.train is None else each.train.pass_rate


def _break_down(evaluation: Evaluation | None) -> dict[str, float]:
    means = {} if evaluation is None else evaluation.metric_means
    return {name: mean for name, mean in means.items() if mean is not None}


def _sum_stages(spent: LedgerSnapshot) -> tuple[int, dict[str, int]]:
    """The calls and tokens of the search itself: not those of the agent, of judges or of the simulated user."""
    own = sum((each.spent for each in spent.entries if each.role in SEARCH_ROLES), NOTHING)
    return own.calls + own.lost_calls, _count_tokens(own.input_tokens, own.output_tokens)


def _count_tokens(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt": prompt, "completion": completion, "total": prompt + completion}


def _find_finish_reason(status: OptimizeStatus, *, is_changed: bool, rate: float) -> FinishReason:
    if status == "FAILED":
        return "error"
    if rate >= 1.0:
        return "perfect_pass_rate"
    return "completed" if is_changed else "no_improvement"


def _find_error(result: RunResult, status: OptimizeStatus) -> str:
    if status != "FAILED":
        return ""
    return result.error or ("" if result.stop is None else result.stop.text)


def _add_seconds(started_at: str, seconds: float) -> str:
    if not started_at:
        return ""
    return (datetime.fromisoformat(started_at) + timedelta(seconds=seconds)).isoformat(timespec="seconds")
