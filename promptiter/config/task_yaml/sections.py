"""The keys of task.yaml. Unknown keys are errors."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from promptiter.policies.figure_gain import Direction, Operator
from promptiter.sandbox.sandbox import WantedKind
from promptiter.user_files import FileObject

Count = Annotated[int, Field(ge=1)]
Above0 = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[str, Field(min_length=1)]
Texts = list[Text]
CommandLine = Text | Texts
"""A command as one text, which is split as a shell would, or as a list of arguments."""


class ArtifactsBlock(FileObject):
    """`artifacts`: the files that may change."""

    include: Annotated[Texts, Field(min_length=1)]
    """Paths and patterns, relative to the workspace: `*` stays in a folder, `**` does not."""
    exclude: Texts = Field(default_factory=list)
    """Paths and patterns of files that may not change, also if they are included."""
    max_files_per_iteration: Count | None = None
    """How many files one candidate may change."""


class MutationBlock(FileObject):
    """`mutation`: who edits, and how much."""

    mode: Literal["direct_edit", "command", "function"] = "direct_edit"
    """`direct_edit`: a model, or without one simple rules. `command`: any program, such as a coding agent. `function`:
    a function of yours.
    """
    allowed_file_types: Texts = Field(default_factory=list)
    """Endings of file names, such as `.md`; by default all."""
    max_changed_lines: Count | None = None
    """How many lines one candidate may add and remove."""
    model: Text | None = None
    """The model that edits, with `direct_edit`."""
    command: CommandLine | None = None
    """The program, with `command`: it edits the files of its folder, and README.md there says what is wanted."""
    function: Text | None = None
    """The function as `module:attr`, with `function`."""
    timeout_seconds: Above0 = 900.0
    """Time limit of the command."""

    @field_validator("allowed_file_types")
    @classmethod
    def _check_types(cls, value: list[str]) -> list[str]:
        for each in value:
            if not each.startswith("."):
                raise ValueError(f"{each!r} is not an ending of a file name; write {'.' + each!r}")
        return value

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        needed = {"command": self.command, "function": self.function}
        if self.mode in needed and needed[self.mode] is None:
            raise ValueError(f"the mode {self.mode!r} needs the key {self.mode!r}")
        for key, given in needed.items():
            if given is not None and key != self.mode:
                raise ValueError(f"{key} is only for the mode {key!r}, and the mode is {self.mode!r}")
        if self.model is not None and self.mode != "direct_edit":
            raise ValueError(f"model is only for the mode 'direct_edit', and the mode is {self.mode!r}")
        return self


class CommandBlock(FileObject):
    """A command, and how it is run."""

    command: CommandLine | None = None
    """The command: one text, or a list of arguments."""
    cwd: Text = "."
    """The folder it runs in, relative to the workspace."""
    timeout_seconds: Above0 = 300.0
    """Time limit."""
    max_output_bytes: Count = 10_000_000
    """How much it may print."""
    shell: bool = False
    """Let a shell read the command."""
    environment: dict[str, str] = Field(default_factory=dict, repr=False)
    """Variables for it. `${VAR}` is read from the environment."""
    inherit: Texts | None = None
    """Names of variables that it gets from this process; `*` is all of them."""


class RunnerBlock(CommandBlock):
    """`runner`: the command that executes a candidate."""

    traces: Texts = Field(default_factory=list)
    """Files that it writes traces to, in the format of OpenTelemetry."""


class ParseBlock(FileObject):
    """`parse`: where the figures are in what a scorer prints."""

    format: Literal["json"] = "json"
    """The format of the output."""
    score_field: Text = "score"
    """The score: a name, or a path such as `result.score`."""
    metrics_field: Text = "metrics"
    """More figures by name."""
    cases_field: Text = "cases"
    """Cases with their results; those that failed tell the editor what to do."""


class ScorerBlock(CommandBlock):
    """`scorer`: what turns the outcome into figures: a command that prints JSON, or a Python function."""

    type: Literal["command", "python"] = "command"
    """A command that prints JSON, or a Python function."""
    function: Text | None = None
    """The function as `module:attr`, with the type `python`. It gets the folder, and what the runner printed."""
    metric: Text | None = None
    """The name of its score; by default the primary metric."""
    parse: ParseBlock = ParseBlock()
    """Where the figures are in what it prints."""

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        wanted, other = ("command", "function") if self.type == "command" else ("function", "command")
        if getattr(self, wanted) is None:
            raise ValueError(f"a scorer of the type {self.type!r} needs the key {wanted!r}")
        if getattr(self, other) is not None:
            raise ValueError(f"{other} is not for the type {self.type!r}; remove one of both")
        return self


class HoldoutBlock(ScorerBlock):
    """`holdout`: a scorer that the search never sees, as the test set of the run."""

    cases: Annotated[Texts, Field(min_length=1)] = Field(default_factory=lambda: ["holdout"])
    """Its cases. A command that contains `{case}` runs once for each; otherwise it prints a score for each."""
    files: Texts = Field(default_factory=list)
    """Files and folders that nothing else may see."""


class JudgeBlock(FileObject):
    """A judge: a model, and the rubrics it judges by."""

    model: Text
    """The model."""
    metric: Text | None = None
    """The name of its figure; by default `judge`, or `judge_2` and so on. `judges` is the mean of all."""
    rubric: Text | None = None
    """The file with the rubrics, relative to task.yaml; by default rubric.md."""
    subject: Literal["artifacts", "output"] = "artifacts"
    """What is judged: the files, or what runner and scorers printed."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Options of its calls, such as `temperature`."""


class ObjectiveBlock(FileObject):
    """`objective`: the figure to improve."""

    primary_metric: Text = "score"
    """The figure to improve."""
    direction: Direction = "maximize"
    """Whether more or less is better."""
    min_gain: Amount | None = None
    """A smaller difference is a tie."""
    scale: tuple[Finite, Finite] | None = None
    """The figures that count as 0 and as 1 on the scale of scores, such as `[300, 0]` for seconds."""

    @model_validator(mode="before")
    @classmethod
    def _read_scale(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(value.get("scale"), list):
            return {**value, "scale": tuple(value["scale"])}
        return value

    @model_validator(mode="after")
    def _check_scale(self) -> Self:
        if self.scale is None:
            return self
        worst, best = self.scale
        if worst == best or (best > worst) != (self.direction == "maximize"):
            raise ValueError(
                f"scale is [{worst:g}, {best:g}], and the direction is {self.direction}; give the worst figure, then "
                "the best"
            )
        return self


class ConstraintBlock(FileObject):
    """A bound that a candidate must respect, whatever it scored."""

    metric: Text
    """The figure."""
    op: Operator
    """The comparison that must hold."""
    value: Finite | bool
    """What the figure is compared with. True and false count as 1 and 0."""


class TieBreakerBlock(FileObject):
    """What decides between equal scores: a figure that is better when it is `lower`, or `higher`."""

    lower: Text | None = None
    """A figure of which less is better."""
    higher: Text | None = None
    """A figure of which more is better."""

    @model_validator(mode="after")
    def _require_one(self) -> Self:
        if (self.lower is None) == (self.higher is None):
            raise ValueError("needs exactly one of lower and higher")
        return self


class PolicyBlock(FileObject):
    """`policy`: which candidates are kept."""

    keep_if: Literal["better_primary"] = "better_primary"
    """The primary metric must be better, or equal and the first tie-breaker that differs is better."""
    tie_breakers: list[TieBreakerBlock] = Field(default_factory=list)
    """What decides between equal scores, in order."""
    on_failure: Literal["discard", "stop"] = "discard"
    """What follows a crash: the next candidate, or the end of the search."""
    min_gain: Amount | None = None
    """A smaller difference of the primary metric is a tie."""


class TaskBudgetBlock(FileObject):
    """`budget`: when the run ends."""

    max_iterations: Annotated[int, Field(ge=0)] = 50
    """How many rounds."""
    max_failures: Count | None = None
    """How many crashes in total."""
    max_minutes: Above0 | None = None
    """A deadline."""
    max_usd: Above0 | None = None
    """Dollars for models."""
    max_calls: Count | None = None
    """Model calls."""
    max_tokens: Count | None = None
    """Tokens."""


class LoggingBlock(FileObject):
    """`logging`: where results are written, relative to task.yaml."""

    results_file: Text | None = "work/results.jsonl"
    """One row for each candidate. With `null`, it is not written."""
    candidate_dir: Text | None = "work/candidates"
    """The changed files of each candidate. With `null`, they are not written."""

    @model_validator(mode="before")
    @classmethod
    def _leave_out_nulls(cls, value: Any) -> Any:
        """Keep them: here, null is not the default."""
        return value


class GuardsBlock(FileObject):
    """`guards`: checks of the artifacts against reward hacking."""

    max_characters: Count | None = None
    """The length of all artifacts."""
    max_growth: Above0 | None = None
    """That length, in multiples of what it was."""
    max_keyword_share: Share | None = None
    """The share of the words of a file that the most frequent one may have."""
    max_repeated_share: Share | None = None
    """The share of phrases of four words that may repeat earlier ones."""
    required_sections: Texts = Field(default_factory=list)
    """Headings that must stay in the artifacts."""
    required_texts: Texts = Field(default_factory=list)
    """Texts that must stay in them."""
    forbidden_texts: Texts = Field(default_factory=list)
    """Regular expressions that must not match."""

    @field_validator("forbidden_texts")
    @classmethod
    def _check_patterns(cls, value: list[str]) -> list[str]:
        for each in value:
            try:
                re.compile(each)
            except re.error as error:
                raise ValueError(f"{each!r} is not a regular expression: {error}") from error
        return value


class SandboxBlock(FileObject):
    """`sandbox`: how commands are isolated, and what they may use."""

    kind: WantedKind = "auto"
    """`auto` is the best that this machine has."""
    disk_mb: Count = 512
    """How much a candidate may write."""
    processes: Count = 256
    """How many processes may run at a time."""
    memory_mb: Count | None = None
    """The address space of each process."""
    network: bool = True
    """Without it, model calls of the commands cannot reach the endpoint either."""


class SearchBlock(FileObject):
    """`search`: a search of promptiter, with its options."""

    name: Text
    """The name of the search, or `module:attr`."""
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Its options."""


class TaskFile(FileObject):
    """task.yaml."""

    id: Text
    """The name of the task."""
    description: str = ""
    """What the artifacts are for; editors and judges read it."""
    workspace: Text = "."
    """The folder of the files, relative to task.yaml. Commands run in private copies of it."""
    artifacts: ArtifactsBlock
    """The files that may change."""
    mutation: MutationBlock = MutationBlock()
    """Who edits, and how much."""
    runner: RunnerBlock | None = None
    """The command that executes a candidate."""
    scorer: ScorerBlock | list[ScorerBlock] = Field(default_factory=list)
    """One scorer, or several, whose figures are joined."""
    judges: JudgeBlock | list[JudgeBlock] = Field(default_factory=list)
    """Models that judge by the rubrics of rubric.md."""
    objective: ObjectiveBlock | list[ObjectiveBlock] = ObjectiveBlock()
    """One objective, or several, for a search along their Pareto front; the first decides what is kept."""
    constraints: list[ConstraintBlock] = Field(default_factory=list)
    """Bounds that a candidate must respect, whatever it scored."""
    guards: GuardsBlock = GuardsBlock()
    """Checks of the artifacts against reward hacking."""
    policy: PolicyBlock = PolicyBlock()
    """Which candidates are kept."""
    budget: TaskBudgetBlock = TaskBudgetBlock()
    """When the run ends."""
    logging: LoggingBlock = LoggingBlock()
    """Where results are written."""
    holdout: HoldoutBlock | None = None
    """A scorer that the search never sees."""
    protected: Texts = Field(default_factory=list)
    """Files that commands cannot change, besides the scripts of the commands: paths and patterns."""
    outputs: Texts = Field(default_factory=list)
    """Files that commands write, as paths or patterns: they are not protected, also if a command names them."""
    environment: dict[str, str] = Field(default_factory=dict, repr=False)
    """Variables for all commands. `${VAR}` is read from the environment."""
    inherit: Texts | None = None
    """Names of variables that all commands get from this process."""
    sandbox: SandboxBlock = SandboxBlock()
    """How commands are isolated."""
    repeats: Count = 1
    """How often each candidate is measured. With several, a difference within the spread of equal runs is a tie."""
    parallel: Count = 1
    """Candidates that are made and measured at the same time."""
    review: Literal["ask", "file"] | None = None
    """Approve each candidate before it is run: at the terminal, or with a file in the folder of the run."""
    history: Text | Texts = Field(default_factory=list)
    """results.jsonl of other tasks, which editors get to read."""
    search: Text | SearchBlock | None = None
    """Another search than `edits`, such as `gepa`."""
    models: Text | dict[str, Any] | None = Field(default=None, repr=False)
    """The model that edits, or the settings of models by name, as in promptiter.yaml."""
    branch: bool | Text = False
    """A git branch for each kept candidate: `true`, or the prefix of their names."""
    runs: Text = "runs"
    """The folder of runs, relative to task.yaml."""
    seed: int = 0
    """Random seed."""

    @model_validator(mode="after")
    def _require_figures(self) -> Self:
        if not self.scorers and not self.all_judges:
            raise ValueError("needs a scorer or judges; name the command that scores a candidate")
        if not self.objectives:
            raise ValueError("needs an objective; name its primary_metric")
        return self

    @property
    def scorers(self) -> list[ScorerBlock]:
        return self.scorer if isinstance(self.scorer, list) else [self.scorer]

    @property
    def all_judges(self) -> list[JudgeBlock]:
        return self.judges if isinstance(self.judges, list) else [self.judges]

    @property
    def objectives(self) -> list[ObjectiveBlock]:
        return self.objective if isinstance(self.objective, list) else [self.objective]

    @property
    def histories(self) -> list[str]:
        return self.history if isinstance(self.history, list) else [self.history]
