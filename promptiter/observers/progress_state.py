"""ProgressState: where a run is according to its events, and how to show that."""

from __future__ import annotations

from dataclasses import dataclass, field

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from promptiter.llm.ledger import Spending
from promptiter.runlog.events import Event, Phase
from promptiter.wording import dollars, format_score, join_names, plural
from traces.model import Json
from traces.text import one_line

MAX_NAMED = 4
"""Maximum number of surfaces that a line names; the others are counted."""

MAX_RERUN = 24
"""Maximum number of cases that a round runs again between train and validation."""

MIN_CASE_RUNS = 3
"""Minimum number of case runs for an estimate of the time left."""

FINAL_TEST_RUNS = 4
"""Runs of each validation case in a typical final test: two profiles, two repeats."""


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
    initial_profile: str = ""
    accepted_profile: str = ""
    candidate_profile: str = ""
    without: str = ""
    is_for_score: bool = True

    def update(self, event: Event) -> ProgressLine | None:
        """Update the state, and return the line to print for the event, if any."""
        self.round, self.phase = event.round, event.phase
        match event.type:
            case "run_started":
                return self._start_run(event.data)
            case "round_started":
                self.runs_in_round = 0
            case "evaluation_started":
                self._start_evaluation(event)
            case "case":
                self._count_case(event.data["row"])
            case "evaluation_finished":
                return self._finish_evaluation(event)
            case "backward":
                self.stage = "merging the blame"
            case "aggregation":
                return self._show_blame(event.data["value"]["signals"])
            case "patches":
                return self._show_patches(event.data["value"])
            case "decision":
                return self._show_decision(event.data["value"])
            case "candidate":
                self.candidate_profile, self.candidate = event.data["profile_digest"], None
            case "ablation" if event.data["value"]["dropped"]:
                return self._line(f"removed, no loss without: {_names(event.data['value']['dropped'])}")
            case "final_test":
                return self._show_final_test(event.data["value"])
            case "stop":
                return self._show_stop(event.data["value"]["reasons"])
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

    def render_figures(self, spent: Spending, seconds: float) -> Text:
        """The scores so far, the cost, and the time."""
        parts = []
        if self.best is not None:
            parts.append(f"best {self.best:.3f} (baseline {format_score(self.baseline)})")
        parts.append(plural(spent.calls, "call"))
        parts.append(_cost(spent))
        parts.append(_clock(seconds))
        if (left := self._seconds_left(seconds)) is not None:
            parts.append(f"up to about {_clock(left)} left")
        return Text("  ".join(parts), "dim", no_wrap=True, overflow="ellipsis")

    def _seconds_left(self, seconds: float) -> float | None:
        """An estimate at the speed so far, if all rounds are needed and a typical final test follows."""
        if self.all_runs < MIN_CASE_RUNS or self.phase in _LABELS:
            return None
        train, validation = self.sizes
        a_round = (train + min(MAX_RERUN, 2 * train) + validation) * self.repeats
        whole = validation * self.repeats + self.max_rounds * a_round + FINAL_TEST_RUNS * validation
        done = self.runs_in_round
        if self.round:
            done = validation * self.repeats + (self.round - 1) * a_round + min(self.runs_in_round, a_round)
        return max(0, whole - done) * seconds / self.all_runs

    def _start_run(self, data: Json) -> ProgressLine:
        self.max_rounds, self.sizes = data["max_rounds"], (data["train"][2], data["validation"][2])
        self.is_for_score = "goal" not in data or data["goal"]["kind"] == "score"
        sets = [f"{self.sizes[0]} train", f"{self.sizes[1]} validation"]
        sets += [f"{data['test'][2]} test"] if data.get("test") is not None else []
        text = Text.assemble(
            (one_line(data["structure"].get("name") or "agent"), "bold"),
            f"  {', '.join(sets)} cases; {plural(len(data['targets']), 'surface')} may change",
        )
        return ProgressLine("", text)

    def _start_evaluation(self, event: Event) -> None:
        self.stage = (_RUNNING if self.is_for_score else _SCREENING).get(event.phase, "running cases")
        self.profile, self.without = event.data.get("profile_digest", ""), _names(event.data.get("without", []))
        if self.without:
            self.stage = f"ablation without {self.without}"
        if event.phase == "baseline":
            self.initial_profile = self.accepted_profile = self.profile
        self.cases, self.runs = event.data["cases"], event.data["runs"]
        self.repeats = max(1, self.runs // max(1, self.cases))
        self.runs_done, self.values = 0, []

    def _count_case(self, row: Json) -> None:
        self.runs_done += 1
        self.all_runs += 1
        self.runs_in_round += 1
        scores = [score["value"] for score in row["scores"] if score["value"] is not None]
        if scores:
            self.values.append(sum(scores) / len(scores))

    def _finish_evaluation(self, event: Event) -> ProgressLine:
        mean, rate, failed = (event.data[name] for name in ("mean_score", "pass_rate", "errored_fraction"))
        then = _NEXT_STAGE.get(event.phase, "deciding") if self.is_for_score else "deciding"
        self.runs, self.values, self.stage = 0, [], then
        if event.phase == "validation" and self.profile == self.candidate_profile and self.candidate is None:
            self.candidate = mean
        if event.phase == "baseline":
            self.baseline = self.best = mean
        text = f"{format_score(mean)}, {round((rate or 0) * self.cases)}/{self.cases} pass"
        text += f", {failed:.0%} could not be run or scored" if failed else ""
        return self._line(f"{self._subject(event.phase)}: {text}")

    def _subject(self, phase: Phase) -> str:
        """The name of what was evaluated."""
        if phase in ("final_test", "test"):
            return "baseline" if self.profile == self.initial_profile else "best"
        if phase == "ablation":
            return f"without {self.without}" if self.without else "with all changes"
        if phase == "validation" and self.profile == self.accepted_profile:
            return "validation of the accepted profile, repeated"
        return (_EVALUATED if self.is_for_score else _SCREENED).get(phase, "cases")

    def _show_blame(self, signals: Json) -> ProgressLine:
        self.stage = "writing patches"
        blamed = [f"{signal['surface_id']} ({plural(len(signal['case_ids']), 'case')})" for signal in signals]
        return self._line(f"blame: {_names(blamed) or 'no surface'}")

    def _show_patches(self, value: Json) -> ProgressLine:
        text = f"patches: {_names([patch['surface_id'] for patch in value['patches']['patches']]) or 'none'}"
        text += f", {len(value['refused'])} refused" if value["refused"] else ""
        text += f", {len(value['notes'])} surfaces without a patch" if value["notes"] else ""
        return self._line(text)

    def _show_decision(self, value: Json) -> ProgressLine:
        if value["accepted"]:
            self.best, self.accepted_profile = self.candidate, self.candidate_profile
            return self._line(f"accepted: {value['reason']}", "green")
        return self._line(f"rejected: {value['reason']}", "yellow")

    def _show_stop(self, reasons: Json) -> ProgressLine | None:
        text = "; ".join(reason["text"] for reason in reasons)
        return self._line(f"stop: {text}") if text else None

    def _show_final_test(self, result: Json) -> ProgressLine:
        return self._line(
            f"{result['scope']}: {result['reason']}", "green" if result["outcome"] == "shown" else "yellow"
        )

    def _line(self, text: str, style: str = "") -> ProgressLine:
        return ProgressLine(self._place, Text(one_line(text), style))


_LABELS: dict[Phase, str] = {"ablation": "ablation", "final_test": "final test", "test": "test set"}
"""The labels of phases after the rounds."""

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
_NEXT_STAGE = {"train": "tracing the blame", "rerun": "tracing the blame"}


def _names(names: list[str]) -> str:
    return join_names(names, limit=MAX_NAMED)


def _cost(spent: Spending) -> str:
    if spent.cost_usd is None:
        return "cost unknown"
    return dollars(spent.cost_usd) + (" + unknown" if spent.unpriced_calls else "")


def _clock(seconds: float) -> str:
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours}:{rest // 60:02}:{rest % 60:02}" if hours else f"{rest // 60}:{rest % 60:02}"
