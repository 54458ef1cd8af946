"""Builds the rows of trials.jsonl from a run of coordinate descent: its trials, their train and hold-out figures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import fmean

from promptiter.backprop.trial_record import (
    LossFigures,
    PhaseStarted,
    Trial,
    TrialDetails,
    TrialFinished,
    TrialMeasured,
    measure_loss,
)
from promptiter.evaluation.result import Evaluation, get_best_value
from promptiter.evaluation.stats.power import noise_bar
from promptiter.policies.pairing import pair_scores
from promptiter.policies.sigma_gain import average_sweeps
from promptiter.runlog.events import Event
from promptiter.runlog.payloads import EvaluationFinished, EvaluationStarted
from promptiter.runlog.results import CandidateResult, RoundResult, RunResult
from promptiter.runs.decisions import rebuild_evidence
from promptiter.runs.layout_000.rows import NONE, ReportSummary, StudyState, Sweeps, TrialDecision, TrialRow
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialTimes:
    """When each trial ended, and each evaluation began and ended, in seconds of the run's working time, by number."""

    ended: dict[int, float] = field(default_factory=dict)
    spans: dict[int | None, tuple[float, float]] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        """Note the time of an event of a trial or an evaluation."""
        at, payload = event.measured.elapsed_s, event.payload
        if isinstance(payload, EvaluationStarted):
            self.spans[payload.evaluation] = at, at
        elif isinstance(payload, EvaluationFinished):
            self.spans[payload.evaluation] = self.spans[payload.evaluation][0], at
        elif isinstance(payload, TrialFinished):
            self.ended[payload.trial.number] = at
        elif isinstance(payload, PhaseStarted):
            self.ended.setdefault(0, at)

    def measure(self, evaluations: Iterable[int | None]) -> float:
        """The seconds from the start to the end of these evaluations, one after the other."""
        spans = [self.spans.get(number, (0.0, 0.0)) for number in evaluations]
        return round(sum(ended - began for began, ended in spans), 3)


def name_candidate(number: int) -> str:
    """The file of a candidate, from the folder of the run."""
    return f"candidates/iter-{number:02}.yaml"


class RowBuilder:
    """Builds the rows of a run, round by round. `names` are the paths of axes, by surface.

    A decision rests on the first `repeats` sweeps of the hold-out (None: on all). Without a hold-out, the run validates
    on its train cases, and no row has hold-out figures.
    """

    def __init__(
        self,
        names: Mapping[str, str],
        *,
        accept_sigma: float | None,
        repeats: int | None = None,
        has_holdout: bool = True,
    ) -> None:
        self.times = TrialTimes()
        self._has_holdout = has_holdout
        self._names, self._accept_sigma, self._repeats = names, accept_sigma, repeats
        self._run: RunResult
        self._evaluations: dict[int | None, Evaluation] = {}
        self._has_begun = False
        self._best = 0

    def build(self, each: RoundResult, run: RunResult) -> Iterator[TrialRow]:
        """The rows of the trials in a round. `run` is the run after it, without its rounds."""
        details = each.details
        if not isinstance(details, TrialDetails):
            return
        self._run = run
        if details.started is not None and not self._has_begun:
            self._has_begun = True
            yield self._build_baseline(details.started, each.evaluations)
        self._evaluations |= {one.number: one for one in (*run.evaluations, *each.all_evaluations)}
        candidates = {one.profile.digest: one for one in each.candidates}
        for trial in details.trials:
            yield self._build_trial(trial, candidates.get(trial.candidate or ""))
        accepted = run.working_profile.digest  # later candidates are compared with this profile only
        self._evaluations = {key: one for key, one in self._evaluations.items() if one.profile_digest == accepted}

    def _build_baseline(self, started: PhaseStarted, evaluations: Iterable[Evaluation]) -> TrialRow:
        validated = (one for one in self._run.evaluations if one.phase == "baseline")
        baseline = next(validated, None) if self._has_holdout else None
        holdout = None if baseline is None else measure_loss(baseline, self._run.objective)
        train = next((one for one in evaluations if one.number == started.first.evaluation), None)
        return TrialRow(
            trial_id=0,
            timestamp=self._find_time(0),
            cycle=0,
            phase="baseline",
            candidate_path=name_candidate(0),
            repeats=len(started.first.runs),
            train=self._describe(started.first, train, started.measured.cost_usd, [started.first.evaluation]),
            holdout=None if baseline is None else self._describe_holdout(holdout, baseline, [baseline]),
            decision=TrialDecision(
                train_mean=started.first.mean,
                train_std=started.first.std,
                holdout_mean=None if holdout is None else holdout.mean,
                accepted=True,
                outcome="baseline",
                reason="the baseline",
            ),
            study_state=StudyState(cycle=0, phase="baseline"),
        )

    def _build_trial(self, trial: Trial, candidate: CandidateResult | None) -> TrialRow:
        before = self._best
        evaluations = () if candidate is None else candidate.evaluations
        train = None
        if trial.train is not None:
            train = next((one for one in evaluations if one.number == trial.train.evaluation), None)
        validation = candidate.validation if candidate is not None and self._has_holdout else None
        holdout = None if validation is None else measure_loss(validation, self._run.objective)
        if trial.is_accepted:
            self._best = trial.number
        numeric = trial.numeric
        return TrialRow(
            trial_id=trial.number,
            timestamp=self._find_time(trial.number),
            cycle=trial.cycle,
            phase=trial.phase,
            phase_trial=trial.place,
            axis_target=", ".join(self._name(each) for each in trial.changed or trial.surfaces) or NONE,
            baseline_before_path=name_candidate(before),
            proposal_source=self._describe_source(trial),
            candidate_path=name_candidate(trial.number) if trial.is_accepted else None,
            repeats=len(trial.before.runs),
            train=self._describe(
                trial.train, train, trial.measured.cost_usd, [] if trial.train is None else [trial.train.evaluation]
            ),
            holdout=None if validation is None else self._describe_holdout(holdout, validation, evaluations),
            decision=self._describe_decision(trial, candidate, holdout),
            study_state=StudyState(
                cycle=trial.cycle,
                phase=trial.phase,
                numeric_study_id=None if numeric is None else numeric.study_id,
                tpe_n_observations_this_study=None if numeric is None else numeric.observations,
                best_trial_id=self._best,
            ),
            stages_usd=trial.measured.stages.cost_usd,
        )

    def _compare_holdout(self, candidate: CandidateResult | None) -> tuple[list[float], list[float]] | None:
        """The hold-out losses that a decision rests on: of the accepted profile and the candidate, sweep by sweep.

        They may differ from those of earlier rows, because the accepted profile is often run on new repeats.
        """
        record = None if candidate is None or not self._has_holdout else candidate.evidence
        if record is None or not record.accepted:
            return None
        evaluations = {number: one for number, one in self._evaluations.items() if number is not None}
        evidence = rebuild_evidence(record, evaluations)
        cases = pair_scores(evidence.accepted, evidence.candidate, evidence.objective)
        repeats = min((case.repeats for case in cases), default=0)
        if not repeats:
            return None
        best = get_best_value(evidence.objective)
        before, after = average_sweeps(cases, repeats if self._repeats is None else min(repeats, self._repeats))
        return [best - value for value in before], [best - value for value in after]

    def _describe_decision(
        self, trial: Trial, candidate: CandidateResult | None, holdout: LossFigures | None
    ) -> TrialDecision:
        train, before, sigma = trial.train, trial.before, self._accept_sigma
        mean = None if holdout is None else holdout.mean
        best = regression = bar = None
        if (compared := self._compare_holdout(candidate)) is not None:
            best, mean = (round(fmean(losses), 12) + 0.0 for losses in compared)
            regression = round(mean - best, 12)
            bar = None if sigma is None else noise_bar(*compared, sigma=sigma)
        decided = None if candidate is None else candidate.decision
        return TrialDecision(
            best_train_mean_before=before.mean,
            train_mean=None if train is None else train.mean,
            train_std=None if train is None else train.std,
            train_improvement=trial.gain,
            pooled_train_std=None if train is None else (train.std**2 + before.std**2) ** 0.5,
            accept_sigma=sigma,
            noise_bar=trial.noise_bar,
            improvement_clears_noise=_clears(trial),
            holdout_mean=mean,
            best_holdout_mean_before=best,
            holdout_regression=regression,
            holdout_noise_bar=bar,
            holdout_within_noise=None if regression is None or bar is None else regression <= bar + 1e-12,
            accepted=trial.is_accepted,
            outcome=trial.outcome,
            reason=trial.reason if decided is None else decided.reason,
        )

    def _describe_source(self, trial: Trial) -> dict[str, Json]:
        source: dict[str, Json] = {"kind": trial.phase}
        if (point := trial.numeric) is not None:
            source = {
                "kind": "numeric",
                "numeric_study_id": point.study_id,
                "params": {self._name(name): value for name, value in point.params.items()},
                "tpe_quantile": point.quantile,
                "candidates_evaluated": point.candidates_evaluated,
                "selected_candidate_score": point.score,
                "expected_improvement": point.expected_improvement,
                "axis_marginals": {
                    self._name(name): {"value": each.value, "good_density": each.good, "bad_density": each.bad}
                    for name, each in point.axes.items()
                },
            }
        proposal = trial.textual
        if proposal is None:
            return source
        for name, diagnosis in proposal.diagnoses.items():
            found: dict[str, Json] = {
                "model": proposal.critic,
                "axis": self._name(name),
                "failing_pattern": diagnosis.failing_pattern,
                "root_cause_hypothesis": diagnosis.root_cause_hypothesis,
                "suggested_change_direction": diagnosis.suggested_change_direction,
                "confidence": diagnosis.confidence,
                "citations": list(diagnosis.citations),
                "avoid": list(diagnosis.avoid),
            }
            source.setdefault("critic", found)
            source.setdefault("critics", []).append(found)
        for edit in proposal.edits:
            written: dict[str, Json] = {
                "model": proposal.applier,
                "axis": self._name(edit.surface_id),
                "rationale": edit.rationale,
                "edit_type": edit.edit_type,
                "diff_summary": edit.summary,
                "diff_lines_added": edit.lines_added,
                "diff_lines_removed": edit.lines_removed,
            }
            source.setdefault("applier", written)
            source.setdefault("appliers", []).append(written)
        for several in ("critics", "appliers"):
            if len(source.get(several, ())) < 2:
                source.pop(several, None)
        return source

    def _describe_holdout(
        self, figures: LossFigures | None, validation: Evaluation, evaluations: Iterable[Evaluation]
    ) -> Sweeps:
        numbers = [each.number for each in evaluations if each.phase in ("validation", "baseline")]
        return self._describe(figures, validation, TrialMeasured.of(validation).cost_usd, numbers)

    def _describe(
        self,
        figures: LossFigures | None,
        evaluation: Evaluation | None,
        cost_usd: float | None,
        numbers: Iterable[int | None],
    ) -> Sweeps:
        """The sweeps of evaluations with these numbers."""
        duration = self.times.measure(numbers)
        if figures is None:
            return Sweeps(duration_sec=duration, trial_usd=cost_usd)
        components = {name: mean for name, mean in figures.metrics.items() if mean is not None}
        return Sweeps(
            report_summary=ReportSummary(
                pass_rate=None if figures.pass_rate is None else 100 * figures.pass_rate, average_scores=components
            ),
            loss_components=components,
            penalty_components={} if evaluation is None else _find_penalties(evaluation),
            loss=figures.mean,
            loss_std=figures.std,
            loss_runs=figures.runs,
            errored_runs_excluded=figures.errored,
            duration_sec=duration,
            trial_usd=cost_usd,
        )

    def _name(self, surface_id: str) -> str:
        return self._names.get(surface_id, surface_id)

    def _find_time(self, number: int) -> str:
        started = self._run.measured.started_at
        if not started:
            return ""
        at = datetime.fromisoformat(started) + timedelta(seconds=self.times.ended.get(number, 0.0))
        return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def _clears(trial: Trial) -> bool | None:
    if trial.gain is None or trial.noise_bar is None:
        return None
    return trial.gain > 0 and trial.gain >= trial.noise_bar - 1e-12


def _find_penalties(evaluation: Evaluation) -> dict[str, float]:
    """What cost and latency add to the mean loss."""
    penalties, cases = evaluation.penalties, len(evaluation.rows_by_case)
    if not penalties or not cases:
        return {}
    by_case = evaluation.rows_by_case.values()
    costs = (penalties.of_costs([row.usage.cost_usd for row in rows], cases=cases) for rows in by_case)
    waits = (penalties.of_durations([row.measured.duration_s for row in rows]) for rows in by_case)
    return {"cost_per_usd": sum(costs) / cases, "latency_per_sec": sum(waits) / cases}
