"""ProgressState: where a run is according to its events, and how to show that."""

from __future__ import annotations

from dataclasses import dataclass, field
from statistics import fmean

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from promptiter.backprop.iteration_record import TextsProposed
from promptiter.backprop.record import (
    NO_BLAME,
    GradientsMerged,
    LossesAttributed,
    PatchesWritten,
    VariantsWritten,
    describe_dropped,
    describe_no_blame,
    describe_unmerged,
)
from promptiter.backprop.trial_record import PhaseEnded, PhaseStarted, TrialFinished
from promptiter.evaluation.result import CaseRow
from promptiter.llm.ledger import Spending
from promptiter.observers.candidate_labels import CandidateLabels
from promptiter.observers.progress_wording import (
    describe_cases,
    describe_patches,
    describe_phase_end,
    describe_phase_start,
    describe_texts,
    describe_trial_result,
    list_names,
    name_blamed,
)
from promptiter.policies.figures import average_figures
from promptiter.runlog.events import Event, Payload, Phase
from promptiter.runlog.payloads import (
    AblationFinished,
    BudgetEnded,
    CandidateDecided,
    CandidateProposed,
    CaseFinished,
    EvaluationFinished,
    EvaluationStarted,
    FinalTestBegun,
    FinalTestFinished,
    RoundCompleted,
    RoundStarted,
    RunCompleted,
    RunStarted,
    StopDecided,
)
from promptiter.wording import dollars, format_figures, format_score, plural
from traces.text import one_line

MAX_RERUN = 24
"""Maximum number of cases that a round runs again between train and validation."""

MIN_CASE_RUNS = 3
"""Minimum number of case runs for an estimate of the time left."""

FINAL_TEST_RUNS = 4
"""Runs of each validation case in a typical final test: two profiles, two repeats."""


NOTHING_LEFT = "the search has nothing left to try"


@dataclass(frozen=True, slots=True)
class ProgressLine:
    """A line about a stage that ended: a label, and the result."""

    label: str
    text: Text


@dataclass(slots=True)
class ProgressState:
    """The state of a run, updated by its events."""

    round: int = 0
    phase: Phase = "start"
    max_rounds: int = 0
    stage: str = "starting"
    no_blame: str = NO_BLAME
    evaluations: dict[int, EvaluationStarted] = field(default_factory=dict)
    rows: dict[int, list[CaseRow]] = field(default_factory=dict)
    runs: int = 0
    runs_done: int = 0
    values: list[float] = field(default_factory=list)
    baseline: float | None = None
    best: float | None = None
    sizes: tuple[int, int] = (0, 0)
    repeats: int = 1
    all_runs: int = 0
    runs_in_round: int = 0
    runs_of_rounds: list[int] = field(default_factory=list)
    candidates: dict[str, float | None] = field(default_factory=dict)
    labels: CandidateLabels = field(default_factory=CandidateLabels)
    initial_profile: str = ""
    accepted_profile: str = ""
    is_for_score: bool = True
    has_stopped: bool = False

    def update(self, event: Event) -> list[ProgressLine]:
        """Update the state, and return the lines to print for the event: mostly one or none."""
        self.round, self.phase = event.round, event.phase
        if isinstance(event.payload, VariantsWritten):
            return self._show_variants(event.payload)
        lines = [self._update(event.payload)]
        if isinstance(event.payload, GradientsMerged):
            unmerged = describe_unmerged((*event.payload.signals, *event.payload.below_support))
            lines.append(None if unmerged is None else self._line(unmerged, "yellow"))
        return [line for line in lines if line is not None]

    def _update(self, payload: Payload) -> ProgressLine | None:
        match payload:
            case RunStarted() as started:
                return self._start_run(started)
            case RoundStarted():
                self.runs_in_round, self.has_stopped = 0, False
            case RoundCompleted():
                self.runs_of_rounds.append(self.runs_in_round)
            case EvaluationStarted() as evaluation:
                self._start_evaluation(evaluation)
            case CaseFinished(evaluation=number, row=row):
                self._count_case(row)
                if row.figures:
                    self.rows.setdefault(number, []).append(row)
            case EvaluationFinished() as finished:
                return self._finish_evaluation(finished)
            case LossesAttributed(blames=blames):
                self.stage, self.no_blame = "merging the blame", describe_no_blame(blames)
                if dropped := sum(blame.dropped for blame in blames):
                    return self._line(describe_dropped(dropped), "yellow")
            case GradientsMerged() as merged:
                return self._show_blame(merged)
            case PatchesWritten() as written:
                return self._show_patches(written)
            case TextsProposed() as proposed:
                return self._line(describe_texts(proposed))
            case PhaseStarted() as started_phase:
                return self._line(describe_phase_start(started_phase), "bold")
            case TrialFinished(trial=trial):
                return self._line(describe_trial_result(trial), "green" if trial.is_accepted else "")
            case PhaseEnded(phase=phase):
                return self._line(describe_phase_end(phase))
            case CandidateDecided() as decided:
                return self._show_decision(decided)
            case CandidateProposed(profile_digest=digest):
                self.candidates[digest] = None
            case AblationFinished(ablation=ablation) if ablation.dropped:
                return self._line(f"removed, no loss without: {list_names(ablation.dropped)}")
            case FinalTestFinished(result=result):
                return self._line(f"{result.scope}: {result.reason}", "green" if result.is_shown else "yellow")
            case StopDecided(decision=decision) if decision.stop:
                return self._show_stop(decision.text)
            case BudgetEnded(message=message):
                return self._show_stop(message)
            case FinalTestBegun() if not self.has_stopped:
                return self._show_stop(NOTHING_LEFT)
            case RunCompleted(stop=stop) if stop is not None and not self.has_stopped:
                return self._show_stop(stop.text.partition(": ")[0])  # the end of the run says the rest
            case _:
                pass
        return None

    @property
    def _place(self) -> str:
        if self.phase in _LABELS:
            return _LABELS[self.phase]
        return f"round {self.round}" if self.round else "baseline"

    def render_bar(self) -> Table:
        """The round, the stage and its progress."""
        row = Table.grid(padding=(0, 2))
        for _ in range(5):
            row.add_column(no_wrap=True)
        name = f"round {self.round} of {self.max_rounds}" if self._place.startswith("round") else self._place
        progress = ProgressBar(total=self.runs or None, completed=self.runs_done, width=16, pulse=not self.runs)
        cells: list[RenderableType] = [Text(name, "bold"), Text(self.stage), progress]
        if self.runs:
            cells.append(Text(f"{self.runs_done}/{self.runs}"))
        if self.values:
            cells.append(Text(f"mean {sum(self.values) / len(self.values):.3f}"))
        row.add_row(*cells)
        return row

    def render_figures(self, spent: Spending | None, seconds: float) -> Text:
        """The scores so far, the cost, and the time."""
        parts = []
        if self.best is not None:
            parts.append(f"best {self.best:.3f} (baseline {format_score(self.baseline)})")
        if spent is not None:
            parts += [plural(spent.calls, "call"), _cost(spent)]
        parts.append(_clock(seconds))
        if (left := self._seconds_left(seconds)) is not None:
            parts.append(f"up to about {_clock(left)} left")
        return Text("  ".join(parts), "dim", no_wrap=True, overflow="ellipsis")

    def _seconds_left(self, seconds: float) -> float | None:
        """An estimate at the speed so far, if all rounds are needed and a typical final test follows.

        The rounds to come are like those that ended; before the first ends, like one that runs all train cases.
        """
        if self.all_runs < MIN_CASE_RUNS or self.phase in _LABELS:
            return None
        train, validation = self.sizes
        a_round: float = (train + min(MAX_RERUN, 2 * train) + validation) * self.repeats
        if self.runs_of_rounds:
            a_round = fmean(self.runs_of_rounds)
        whole = validation * self.repeats + self.max_rounds * a_round + FINAL_TEST_RUNS * validation
        done: float = self.runs_in_round
        if self.round:
            done = validation * self.repeats + (self.round - 1) * a_round + min(self.runs_in_round, a_round)
        return max(0, whole - done) * seconds / self.all_runs

    def _start_run(self, started: RunStarted) -> ProgressLine:
        self.max_rounds, self.sizes = started.max_rounds, (started.train.cases, started.validation.cases)
        self.is_for_score = started.goal.kind == "score"
        text = Text.assemble(
            (one_line(started.structure.get("name") or "agent"), "bold"),
            f"  {describe_cases(started)}; {plural(len(started.targets), 'surface')} may change",
        )
        return ProgressLine("", text)

    def _start_evaluation(self, started: EvaluationStarted) -> None:
        self.stage = (_RUNNING if self.is_for_score else _SCREENING).get(self.phase, "running cases")
        if started.without:
            self.stage = f"ablation without {list_names(started.without)}"
        if self.phase == "baseline":
            self.initial_profile = self.accepted_profile = started.profile_digest
            self.repeats = max(1, started.runs // max(1, started.cases))
        if not self.evaluations:
            self.runs = self.runs_done = 0
            self.values = []
        self.evaluations[started.evaluation] = started
        self.runs += started.runs
        if self.phase == "rerun":
            self.labels.start_evaluation(started.profile_digest)

    def _count_case(self, row: CaseRow) -> None:
        self.runs_done += 1
        self.all_runs += 1
        self.runs_in_round += 1
        scores = [score.value for score in row.scores if score.value is not None]
        if scores:
            self.values.append(sum(scores) / len(scores))

    def _finish_evaluation(self, finished: EvaluationFinished) -> ProgressLine | None:
        started = self.evaluations.pop(finished.evaluation, None)
        if started is None:
            return None
        mean, failed = finished.mean_score, finished.errored_fraction
        if not self.evaluations:
            then = _NEXT_STAGE.get(self.phase, "deciding") if self.is_for_score else "deciding"
            self.runs, self.values, self.stage = 0, [], then
        if self.phase == "validation" and self.candidates.get(started.profile_digest, 0.0) is None:
            self.candidates[started.profile_digest] = mean
        if self.phase == "baseline":
            self.baseline = self.best = mean
        measured = self.rows.pop(finished.evaluation, [])
        if self.phase != "baseline" and measured and all(row.origin == "kept" for row in measured):
            return None  # the search has measured the same candidate itself
        if measured and not failed:
            return self._line(f"{self._subject(started)}: {format_figures(average_figures(measured))}")
        text = f"{format_score(mean)}, {round((finished.pass_rate or 0) * started.cases)}/{started.cases} pass"
        text += f", {failed:.0%} could not be run or scored" if failed else ""
        return self._line(f"{self._subject(started)}: {text}")

    def _subject(self, started: EvaluationStarted) -> str:
        """The name of what was evaluated."""
        phase, profile = self.phase, started.profile_digest
        if phase in ("final_test", "test"):
            return "baseline" if profile == self.initial_profile else "best"
        if phase == "ablation":
            return f"without {list_names(started.without)}" if started.without else "with all changes"
        if phase == "validation" and profile == self.accepted_profile:
            return "validation of the accepted profile, repeated"
        if phase == "rerun" and (label := self.labels.find(profile)) is not None:
            return f"failed train cases with {label}"
        return (_EVALUATED if self.is_for_score else _SCREENED).get(phase, phase)

    def _show_stop(self, text: str) -> ProgressLine:
        self.has_stopped = True
        return self._line(f"stop: {text}")

    def _show_blame(self, merged: GradientsMerged) -> ProgressLine:
        self.stage = "writing patches"
        if merged.signals:
            return self._line(f"blame: {name_blamed(merged.signals)}")
        if merged.below_support:
            return self._line(f"blame: with little support: {name_blamed(merged.below_support)}")
        return self._line(f"blame: {self.no_blame}")

    def _show_variants(self, written: VariantsWritten) -> list[ProgressLine]:
        """Say what each of several candidates patches, or which other one it repeats."""
        return [
            self._line(f"{label}: {describe_patches(each) if same is None else f'the same texts as candidate {same}'}")
            for (label, same), each in zip(self.labels.add(written.variants), written.variants, strict=True)
        ]

    def _show_patches(self, written: PatchesWritten) -> ProgressLine | None:
        label = self.labels.choose(written)
        if label is None:
            return self._line(describe_patches(written))
        return self._line(f"chosen: {label}") if written.patches else None

    def _show_decision(self, decided: CandidateDecided) -> ProgressLine:
        validated = self.candidates.pop(decided.candidate, None) if decided.candidate is not None else None
        label = self.labels.find(decided.candidate)
        name = "" if label is None else f"{label} "
        if decided.decision.accepted and decided.candidate is not None:
            self.best, self.accepted_profile = validated, decided.candidate
            return self._line(f"{name}accepted: {decided.decision.reason}", "green")
        word = f"{name}rejected" if decided.candidate is not None else "no candidate"
        return self._line(f"{word}: {decided.decision.reason}", "yellow")

    def _line(self, text: str, style: str = "") -> ProgressLine:
        return ProgressLine(self._place, Text(one_line(text), style))


_LABELS: dict[Phase, str] = {"ablation": "ablation", "final_test": "final test", "test": "test set"}
"""The labels of phases after the rounds."""

_RUNNING = {
    "baseline": "validating the baseline",
    "train": "running the train cases",
    "rerun": "running failed cases with the patches",
    "repeat": "repeating cases with little support",
    "train_again": "comparing on train",
    "minibatch": "running the mini-batch with the parent",
    "child_minibatch": "running the mini-batch with the candidate",
    "frontier": "running the validation cases",
    "validation": "validating the candidate",
    "ablation": "running without some changes",
    "final_test": "running baseline and best again",
    "test": "running the test set",
}
_EVALUATED = {
    "baseline": "validation",
    "train": "train",
    "rerun": "failed train cases with the patches",
    "repeat": "failed train cases, repeated",
    "train_again": "train, compared",
    "minibatch": "mini-batch with the parent",
    "child_minibatch": "mini-batch with the candidate",
    "frontier": "validation, for the frontier",
    "validation": "validation",
    "candidates": "candidate",
}
_SCREENING = {**_RUNNING, "rerun": "trying the change on train cases"}
_SCREENED = {**_EVALUATED, "rerun": "train cases with the change"}
_NEXT_STAGE = {**dict.fromkeys(("train", "rerun", "repeat"), "tracing the blame"), "minibatch": "writing new texts"}


def _cost(spent: Spending) -> str:
    if spent.cost_usd is None:
        return "cost unknown"
    return dollars(spent.cost_usd) + (" + unknown" if spent.unpriced_calls else "")


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
