"""RunProgress: a run as people watch it, on standard error. One line for each stage that ended.

On a terminal what is going on stands below these lines: the round, the stage, cases done, the score so far, what was
spent, and how long it can still take.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from promptiter.llm.ledger import NOTHING, Spending
from promptiter.runlog.event_log import is_finished
from promptiter.runlog.events import Event, Phase
from traces.model import Json
from traces.text import one_line

NAMED = 4
"""So many surfaces are named in a line; the others are counted."""

MOST_RERUN = 24
"""Between train and validation a round runs at most so many cases again."""

FEWEST_CASES = 3
"""Before so many cases are done, nobody knows how long the others take."""


class RunProgress:
    """An Observer that shows a run on a console, for use with `with`. `spent` says what was spent so far."""

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
        self._now = _Now()
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
        """Take note of an event, and say what it ends."""
        line = self._now.take(event)
        if line is not None:
            self.say(line)

    def catch_up(self, events: Iterable[Event]) -> None:
        """Learn where a run stands that goes on, and say so."""
        last = None
        for last in events:
            self._now.take(last)
        if last is None:
            return
        self._now.all_runs = 0  # how fast they were is not known
        where = f"after event {last.seq}, in round {last.round}" if last.round else f"after event {last.seq}"
        self.say(Text("the run has ended; nothing is left to do" if is_finished(last) else f"going on {where}", "bold"))

    def say(self, line: Text | str) -> None:
        """Print a line above what is going on."""
        self.console.print(line, soft_wrap=not self.console.is_terminal)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the terminal to somebody else, as to a person who is asked something; their time does not count."""
        live, began = self._live, self._clock()
        if live is not None:
            live.stop()
        try:
            yield
        finally:
            self._began += self._clock() - began
            if live is not None and self._live is live:
                live.start()


@dataclass(slots=True)
class _Now:
    """Where a run stands, as its events tell."""

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
    is_for_score: bool = True

    def take(self, event: Event) -> Text | None:
        """The line that an event is worth, if any."""
        self.round, self.phase = event.round, event.phase
        match event.type:
            case "run_started":
                return self._start(event.data)
            case "round_started":
                self.runs_in_round = 0
            case "evaluation_started":
                self._begin(event)
            case "case":
                self._count(event.data["row"])
            case "evaluation_finished":
                return self._finish(event)
            case "backward":
                self.stage = "merging the blame"
            case "aggregation":
                return self._blame(event.data["value"]["signals"])
            case "patches":
                return self._patch(event.data["value"])
            case "decision":
                return self._decide(event.data["value"])
            case "candidate":
                self.tried, self.candidate = event.data["profile_digest"], None
            case "ablation" if event.data["value"]["dropped"]:
                return self._line(f"taken out, no worse without: {_listed(event.data['value']['dropped'])}")
            case "final_test":
                return self._claim(event.data["value"])
            case "stop":
                return self._stop(event.data["value"]["reasons"])
            case _:
                pass
        return None

    @property
    def _place(self) -> str:
        if self.phase in ("ablation", "final_test", "test"):
            return "final_test"
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
        parts.append(f"{spent.calls} calls")
        parts.append("cost unknown" if spent.cost_usd is None else f"${spent.cost_usd:.4f}")
        parts.append(_clock(seconds))
        if (left := self._at_most_left_s(seconds)) is not None:
            parts.append(f"at most {_clock(left)} left")
        return Text("  ".join(parts), "dim", no_wrap=True, overflow="ellipsis")

    def _at_most_left_s(self, seconds: float) -> float | None:
        """If all rounds are needed, each with all it can run, as fast as so far."""
        if self.all_runs < FEWEST_CASES:
            return None
        train, validation = self.sizes
        a_round = (train + min(MOST_RERUN, 2 * train) + validation) * self.repeats
        at_most = validation * self.repeats + self.max_rounds * a_round
        done = self.runs_in_round
        if self.round:
            done = validation * self.repeats + (self.round - 1) * a_round + min(self.runs_in_round, a_round)
        return max(0, at_most - done) * seconds / self.all_runs

    def _start(self, data: Json) -> Text:
        self.max_rounds, self.sizes = data["max_rounds"], (data["train"][2], data["validation"][2])
        self.is_for_score = "goal" not in data or data["goal"]["kind"] == "score"
        count, test = len(data["targets"]), data.get("test")
        sealed = "" if test is None else f"{test[2]} sealed, "
        return Text.assemble(
            (one_line(data["structure"].get("name") or "agent"), "bold"),
            f"  {self.sizes[0]} train and {self.sizes[1]} validation cases, {sealed}"
            f"{count} surface{'s' * (count != 1)} may change",
        )

    def _begin(self, event: Event) -> None:
        self.stage = (_RUNNING if self.is_for_score else _SCREENING).get(event.phase, "running cases")
        self.profile = event.data.get("profile_digest", "")
        if event.phase == "baseline":
            self.first = self.kept = self.profile
        self.cases, self.runs = event.data["cases"], event.data["runs"]
        self.repeats = max(1, self.runs // max(1, self.cases))
        self.runs_done, self.values = 0, []

    def _count(self, row: Json) -> None:
        self.runs_done += 1
        self.all_runs += 1
        self.runs_in_round += 1
        scores = [score["value"] for score in row["scores"] if score["value"] is not None]
        if scores:
            self.values.append(sum(scores) / len(scores))

    def _finish(self, event: Event) -> Text:
        mean, rate, failed = (event.data[name] for name in ("mean_score", "pass_rate", "errored_fraction"))
        then = _THEN.get(event.phase, "deciding") if self.is_for_score else "deciding"
        self.runs, self.values, self.stage = 0, [], then
        if event.phase == "validation" and self.profile == self.tried and self.candidate is None:
            self.candidate = mean
        if event.phase == "baseline":
            self.baseline = self.best = mean
        told = f"mean score {_figure(mean)}, {round((rate or 0) * self.cases)} of {self.cases} cases pass"
        told += f", {failed:.0%} could not be run or scored" if failed else ""
        return self._line(f"{self._what(event.phase)}: {told}")

    def _what(self, phase: Phase) -> str:
        """What was run."""
        if phase in ("final_test", "test"):
            who = "baseline" if self.profile == self.first else "what was kept"
            return f"{who}, {'test cases' if phase == 'test' else 'fresh repeats'}"
        if phase == "validation" and self.profile == self.kept:
            return "validation, accepted profile once more"
        return (_RAN if self.is_for_score else _SCREENED).get(phase, "cases")

    def _blame(self, signals: Json) -> Text:
        self.stage = "writing patches"
        blamed = [f"{signal['surface_id']} ({_cases(len(signal['case_ids']))})" for signal in signals]
        return self._line(f"blame: {_listed(blamed) or 'no surface'}")

    def _patch(self, value: Json) -> Text:
        told = f"patches: {_listed([patch['surface_id'] for patch in value['patches']['patches']]) or 'none'}"
        told += f", {len(value['refused'])} refused" if value["refused"] else ""
        told += f", {len(value['notes'])} without one" if value["notes"] else ""
        return self._line(told)

    def _decide(self, value: Json) -> Text:
        if value["accepted"]:
            self.best, self.kept = self.candidate, self.tried
            return self._line(f"accepted: {value['reason']}", "green")
        return self._line(f"rejected: {value['reason']}", "yellow")

    def _stop(self, reasons: Json) -> Text | None:
        told = "; ".join(reason["text"] for reason in reasons)
        return self._line(f"stop: {told}") if told else None

    def _claim(self, claim: Json) -> Text:
        return self._line(f"{claim['scope']}: {claim['reason']}", "green" if claim["outcome"] == "shown" else "yellow")

    def _line(self, text: str, style: str = "") -> Text:
        name = self._place
        return Text.assemble((f"{name:<10}", "bold"), (one_line(text), style))


_RUNNING = {
    "baseline": "validating the baseline",
    "train": "running the train cases",
    "rerun": "re-running failed cases",
    "train_again": "comparing on train",
    "validation": "validating the candidate",
    "ablation": "looking for parts that do no good",
    "final_test": "running both profiles afresh",
    "test": "running the test cases",
}
_RAN = {
    "baseline": "validation",
    "train": "train",
    "rerun": "failed train cases, patched",
    "train_again": "train, compared",
    "validation": "validation",
    "ablation": "with some parts only",
}
_SCREENING = {**_RUNNING, "rerun": "trying it on train cases"}
_SCREENED = {**_RAN, "rerun": "train cases with less"}
_THEN = {"train": "finding what is to blame", "rerun": "finding what is to blame"}


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:NAMED])
    return f"{shown} and {len(names) - NAMED} more" if len(names) > NAMED else shown


def _cases(count: int) -> str:
    return f"{count} case{'s' * (count != 1)}"


def _figure(value: Json) -> str:
    return "unscored" if value is None else f"{value:.3f}"


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
