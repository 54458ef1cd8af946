"""RunProgress: a run as people watch it, on standard error. One line for each stage that ended.

On a terminal the current stage is shown below these lines: the round, cases done, the score so far, what was spent, and
an estimate of the time left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from promptiter.backprop.record import GradientsMerged, LossesAttributed, PatchesWritten
from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.stats.final_test import FinalTestResult
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event, Phase
from promptiter.runlog.payloads import (
    AblationFinished,
    CandidateDecided,
    CandidateProposed,
    CaseFinished,
    EvaluationFinished,
    EvaluationStarted,
    FinalTestFinished,
    RoundStarted,
    RunStarted,
    StopDecided,
)
from promptiter.stages.contracts import AggregateResult
from promptiter.wording import dollars, join_names, plural
from traces.text import one_line

NAMED = 4
"""Surfaces named in a line; the others are counted."""

MOST_RERUN = 24
"""Cases that a round runs again between train and validation, at most."""

FEWEST_CASES = 3
"""Case runs needed for an estimate of the time left."""

FINAL_TEST_RUNS = 4
"""Runs of each validation case in a typical final test: two profiles, two repeats."""

LABEL = 12
"""Columns of the label of a line."""


class RunProgress:
    """An Observer that shows a run on a console: `with RunProgress() as progress: ...`.

    `spent` gives what calls of models have cost so far.
    """

    def __init__(
        self,
        console: Console | None = None,
        *,
        spent: Callable[[], Spending] = lambda: NOTHING,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console = console or Console(stderr=True, highlight=False)
        self._spent = spent
        self._clock = clock
        self._began = clock()
        self._now = _ProgressState()
        self._live: Live | None = None

    def __enter__(self) -> RunProgress:
        self._began = self._clock()
        if self.console.is_terminal:
            self._live = Live(self, console=self.console, transient=True, refresh_per_second=8)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
            self.console.print()

    def __rich__(self) -> RenderableType:
        seconds = self._clock() - self._began
        return Group(self._now.bar(), self._now.figures(self._spent(), seconds))

    async def observe(self, event: Event) -> None:
        """Show one event; most change only what is shown below the lines."""
        line = self._now.take(event)
        if line is not None:
            self._print(line)

    def catch_up(self, events: Iterable[Event]) -> None:
        """Take in the events of a run that is resumed, and say where it continues."""
        last = None
        for last in events:
            self._now.take(last)
        if last is None:
            return
        self._now.all_runs = 0  # how fast they were is not known
        where = f"in round {last.round}, after event {last.seq}" if last.round else f"after event {last.seq}"
        self.say(Text("the run is finished; nothing left to do" if is_finished(last) else f"resuming {where}", "bold"))

    def say(self, line: Text | str) -> None:
        """Print a line above the current stage."""
        self.console.print(line, soft_wrap=not self.console.is_terminal)

    def _print(self, line: _Line) -> None:
        """A label and a text; on a terminal wrapped lines of the text are indented."""
        label = Text(f"{line.label:<{LABEL}}" if line.label else "", "bold")
        if not self.console.is_terminal:
            self.say(Text.assemble(label, line.text))
            return
        grid = Table.grid()
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        grid.add_row(label, line.text)
        self.console.print(grid)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to something else, such as a question to the user; that time does not count."""
        live, began = self._live, self._clock()
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            self._began += self._clock() - began
            if live is not None and self._live is live:
                live.start()


@dataclass(frozen=True, slots=True)
class _Line:
    """What a stage that ended is worth: its name, and what came of it."""

    label: str
    text: Text


@dataclass(slots=True)
class _ProgressState:
    """Where a run is, according to its events."""

    round: int = 0
    phase: Phase = "start"
    max_rounds: int = 0
    stage: str = "starting"
    cases: int = 0
    runs: int = 0
    runs_done: int = 0
    values: list[float] = field(default_factory=list)
    baseline: float | None = None
    best: float | None = None
    sizes: tuple[int, int] = (0, 0)
    repeats: int = 1
    all_runs: int = 0
    runs_in_round: int = 0
    candidate: float | None = None
    profile: str = ""
    first: str = ""
    kept: str = ""
    tried: str = ""
    without: str = ""
    is_for_score: bool = True

    def take(self, event: Event) -> _Line | None:
        """The line to print for an event, if any."""
        self.round, self.phase = event.round, event.phase
        match event.payload:
            case RunStarted() as started:
                return self._start(started)
            case RoundStarted():
                self.runs_in_round = 0
            case EvaluationStarted() as started_evaluation:
                self._begin(started_evaluation)
            case CaseFinished(row=row):
                self._count(row)
            case EvaluationFinished() as finished:
                return self._finish(finished)
            case LossesAttributed():
                self.stage = "merging the blame"
            case GradientsMerged(signals=signals):
                return self._blame(signals)
            case PatchesWritten() as written:
                return self._patch(written)
            case CandidateDecided() as decided:
                return self._decide(decided)
            case CandidateProposed(profile_digest=digest):
                self.tried, self.candidate = digest, None
            case AblationFinished(ablation=ablation) if ablation.dropped:
                return self._line(f"removed, no worse without: {_names(ablation.dropped)}")
            case FinalTestFinished(result=result):
                return self._test(result)
            case StopDecided(decision=decision) if decision.stop:
                return self._line(f"stop: {decision.text}")
            case _:
                pass
        return None

    @property
    def _place(self) -> str:
        if self.phase in _LABELS:
            return _LABELS[self.phase]
        return f"round {self.round}" if self.round else "baseline"

    def bar(self) -> Table:
        """The round, the stage, and how far it is."""
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

    def figures(self, spent: Spending, seconds: float) -> Text:
        """The scores so far, what was spent, and the time."""
        parts = []
        if self.best is not None:
            parts.append(f"best {self.best:.3f} (baseline {_figure(self.baseline)})")
        parts.append(plural(spent.calls, "call"))
        parts.append(_cost(spent))
        parts.append(_clock(seconds))
        if (left := self._seconds_left(seconds)) is not None:
            parts.append(f"up to about {_clock(left)} left")
        return Text("  ".join(parts), "dim", no_wrap=True, overflow="ellipsis")

    def _seconds_left(self, seconds: float) -> float | None:
        """An estimate, as fast as so far, if all rounds are needed and a typical final test follows."""
        if self.all_runs < FEWEST_CASES or self.phase in _LABELS:
            return None
        train, validation = self.sizes
        a_round = (train + min(MOST_RERUN, 2 * train) + validation) * self.repeats
        whole = validation * self.repeats + self.max_rounds * a_round + FINAL_TEST_RUNS * validation
        done = self.runs_in_round
        if self.round:
            done = validation * self.repeats + (self.round - 1) * a_round + min(self.runs_in_round, a_round)
        return max(0, whole - done) * seconds / self.all_runs

    def _start(self, started: RunStarted) -> _Line:
        self.max_rounds, self.sizes = started.max_rounds, (started.train.cases, started.validation.cases)
        self.is_for_score = started.goal.kind == "score"
        sets = [f"{self.sizes[0]} train", f"{self.sizes[1]} validation"]
        sets += [f"{started.test.cases} test"] if started.test is not None else []
        text = Text.assemble(
            (one_line(started.structure.get("name") or "agent"), "bold"),
            f"  {', '.join(sets)} cases; {plural(len(started.targets), 'surface')} may change",
        )
        return _Line("", text)

    def _begin(self, started: EvaluationStarted) -> None:
        self.stage = (_RUNNING if self.is_for_score else _SCREENING).get(self.phase, "running cases")
        self.profile, self.without = started.profile_digest, _names(started.without)
        if self.without:
            self.stage = f"ablation without {self.without}"
        if self.phase == "baseline":
            self.first = self.kept = self.profile
        self.cases, self.runs = started.cases, started.runs
        self.repeats = max(1, self.runs // max(1, self.cases))
        self.runs_done, self.values = 0, []

    def _count(self, row: CaseRow) -> None:
        self.runs_done += 1
        self.all_runs += 1
        self.runs_in_round += 1
        scores = [score.value for score in row.scores if score.value is not None]
        if scores:
            self.values.append(sum(scores) / len(scores))

    def _finish(self, finished: EvaluationFinished) -> _Line:
        mean, failed = finished.mean_score, finished.errored_fraction
        then = _THEN.get(self.phase, "deciding") if self.is_for_score else "deciding"
        self.runs, self.values, self.stage = 0, [], then
        if self.phase == "validation" and self.profile == self.tried and self.candidate is None:
            self.candidate = mean
        if self.phase == "baseline":
            self.baseline = self.best = mean
        text = f"{_figure(mean)}, {round((finished.pass_rate or 0) * self.cases)}/{self.cases} pass"
        text += f", {failed:.0%} could not be run or scored" if failed else ""
        return self._line(f"{self._subject(self.phase)}: {text}")

    def _subject(self, phase: Phase) -> str:
        """What was evaluated."""
        if phase in ("final_test", "test"):
            return "baseline" if self.profile == self.first else "best"
        if phase == "ablation":
            return f"without {self.without}" if self.without else "with all changes"
        if phase == "validation" and self.profile == self.kept:
            return "validation of the accepted profile, repeated"
        return (_EVALUATED if self.is_for_score else _SCREENED).get(phase, "cases")

    def _blame(self, signals: Sequence[AggregateResult]) -> _Line:
        self.stage = "writing patches"
        blamed = [f"{signal.surface_id} ({plural(len(signal.case_ids), 'case')})" for signal in signals]
        return self._line(f"blame: {_names(blamed) or 'no surface'}")

    def _patch(self, written: PatchesWritten) -> _Line:
        text = f"patches: {_names([patch.surface_id for patch in written.patches]) or 'none'}"
        text += f", {len(written.refused)} refused" if written.refused else ""
        text += f", {len(written.notes)} surfaces without a patch" if written.notes else ""
        return self._line(text)

    def _decide(self, decided: CandidateDecided) -> _Line:
        decision = decided.decision
        if decision.accepted:
            self.best, self.kept = self.candidate, self.tried
            return self._line(f"accepted: {decision.reason}", "green")
        return self._line(f"rejected: {decision.reason}", "yellow")

    def _test(self, result: FinalTestResult) -> _Line:
        return self._line(f"{result.scope}: {result.reason}", "green" if result.is_shown else "yellow")

    def _line(self, text: str, style: str = "") -> _Line:
        return _Line(self._place, Text(one_line(text), style))


_LABELS: dict[Phase, str] = {"ablation": "ablation", "final_test": "final test", "test": "test set"}
"""What comes after the rounds."""

_RUNNING = {
    "baseline": "validating the baseline",
    "train": "running the train cases",
    "rerun": "running failed cases with the patches",
    "train_again": "comparing on train",
    "validation": "validating the candidate",
    "ablation": "running without some changes",
    "final_test": "running baseline and best again",
    "test": "running the test set",
}
_EVALUATED = {
    "baseline": "validation",
    "train": "train",
    "rerun": "failed train cases with the patches",
    "train_again": "train, compared",
    "validation": "validation",
}
_SCREENING = {**_RUNNING, "rerun": "trying the change on train cases"}
_SCREENED = {**_EVALUATED, "rerun": "train cases with the change"}
_THEN = {"train": "tracing the blame", "rerun": "tracing the blame"}


def _names(names: Sequence[str]) -> str:
    return join_names(names, limit=NAMED)


def _figure(value: float | None) -> str:
    return "unscored" if value is None else f"{value:.3f}"


def _cost(spent: Spending) -> str:
    if spent.cost_usd is None:
        return "cost unknown"
    return dollars(spent.cost_usd) + (" + unknown" if spent.unpriced_calls else "")


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
