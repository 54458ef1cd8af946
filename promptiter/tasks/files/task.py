"""FileTask: what a task.yaml asks for, checked and with absolute paths. `promptiter.config.task_yaml` builds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from promptiter.agents.black_box.command import INHERITED
from promptiter.policies.figure_gain import Bound, Direction, Operator, Side
from promptiter.sandbox.plan import MEBIBYTE
from promptiter.sandbox.sandbox import WantedKind

CASE = "{case}"
"""In the command of a hold-out scorer: the name of the case."""

ALL_JUDGES = "judges"
"""The figure that is the mean of all judges."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCommand:
    """A command, where it runs in the workspace, its limits, and its variables. No shell reads the arguments."""

    arguments: tuple[str, ...]
    cwd: str = "."
    timeout_s: float = 300.0
    max_output_bytes: int = 10_000_000
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # it may hold a secret
    inherit: tuple[str, ...] = INHERITED


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFields:
    """Where score, metrics and cases are in the JSON of a scorer: names, or paths such as `result.score`."""

    score: str = "score"
    metrics: str = "metrics"
    cases: str = "cases"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskScorer:
    """A command that prints JSON, or a Python function as `module:attr`.

    `metric` names its score. If the task does not say so (`is_named`) and one of its metrics has this name, that metric
    is the figure, and the score is called `score`.
    """

    command: TaskCommand
    function: str = ""
    metric: str = ""
    is_named: bool = False
    fields: OutputFields = OutputFields()

    @property
    def name(self) -> str:
        return self.function or " ".join(self.command.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskJudge:
    """A model that judges artifacts, or what the runner printed, by rubrics. `metric` names its figure."""

    metric: str
    model: str
    rubrics: tuple[str, ...]
    rubric_file: Path
    subject: Literal["artifacts", "output"] = "artifacts"
    options: Mapping[str, object] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHoldout:
    """A scorer that the search never sees. `cases` are its parts; `files` are hidden until the runner has ended."""

    scorer: TaskScorer
    cases: tuple[str, ...]
    files: tuple[str, ...] = ()

    @property
    def runs_per_case(self) -> bool:
        """Whether the command names its case, so that it runs once for each."""
        return any(CASE in each for each in self.scorer.command.arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskObjective:
    """The figure to improve. `scale` are the figures that count as 0 and 1 on the scale of scores."""

    metric: str
    direction: Direction = "maximize"
    min_gain: float = 0.0
    scale: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskConstraint:
    """A bound of a figure, compared as `Bound` does."""

    metric: str
    op: Operator
    value: float

    def holds(self, figure: float) -> bool:
        return Bound(self.metric, self.op, self.value).is_met(figure)

    def __str__(self) -> str:
        return f"{self.metric} {self.op} {self.value:g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskTieBreaker:
    metric: str
    better: Side


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskGuards:
    """Checks of the artifacts against reward hacking. Each that is given is a figure with a bound."""

    max_characters: int | None = None
    max_growth: float | None = None
    max_keyword_share: float | None = None
    max_repeated_share: float | None = None
    required_sections: tuple[str, ...] = ()
    required_texts: tuple[str, ...] = ()
    forbidden_texts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifacts:
    """Which files may change: patterns relative to the workspace, and endings of names (none: all)."""

    include: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSandbox:
    """How a private copy is isolated, and what it may use."""

    kind: WantedKind = "auto"
    disk_bytes: int = 512 * MEBIBYTE
    processes: int = 256
    memory_bytes: int | None = None
    network: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A file task. `folder` is that of its file, `root` the workspace.

    No command may see `logs`. Those that run before the hold-out scorer do not see its files either, nor modules
    `compiled` from them, nor the `repositories` that have their history.
    """

    id: str
    folder: Path
    root: Path
    artifacts: Artifacts
    objectives: tuple[TaskObjective, ...]
    description: str = ""
    prompt: str = ""
    runner: TaskCommand | None = None
    traces: tuple[str, ...] = ()
    scorers: tuple[TaskScorer, ...] = ()
    judges: tuple[TaskJudge, ...] = ()
    holdout: TaskHoldout | None = None
    constraints: tuple[TaskConstraint, ...] = ()
    tie_breakers: tuple[TaskTieBreaker, ...] = ()
    guards: TaskGuards = TaskGuards()
    protected: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    sandbox: TaskSandbox = TaskSandbox()

    @property
    def hidden(self) -> tuple[str, ...]:
        """Relative paths that neither an editor nor the runner may see."""
        return (*(self.holdout.files if self.holdout is not None else ()), *self.compiled, *self.logs)

    @property
    def primary(self) -> TaskObjective:
        return self.objectives[0]

    @property
    def named_figures(self) -> tuple[str, ...]:
        """The figures that decide about a candidate, each once."""
        named = [each.metric for each in self.objectives]
        named += [each.metric for each in self.constraints]
        named += [each.metric for each in self.tie_breakers]
        return tuple(dict.fromkeys(named))
