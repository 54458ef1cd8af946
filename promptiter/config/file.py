"""promptiter.yaml: a run in one file. This module reads and checks it; `promptiter.api` builds the run.

    agent: my_agent:agent
    train: data/train.jsonl
    validation: data/validation.jsonl
    metrics: metrics.json

Paths are relative to the file. A null value counts as missing. All problems are reported at once, with their places.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from promptiter.config.agent_section import AgentEntry, AgentSection
from promptiter.config.agent_yaml.conversion import convert_agent_yaml
from promptiter.config.agent_yaml.document import is_agent_yaml
from promptiter.config.fields import (
    Amount,
    CacheEntry,
    Chance,
    File,
    Files,
    Flag,
    MetricsEntry,
    Names,
    Part,
    PartEntry,
    Parts,
    ReviewEntry,
    Section,
)
from promptiter.config.model_sections import Models, find_declared_settings
from promptiter.config.optimizer_json.conversion import convert_optimizer_json, is_optimizer_json
from promptiter.config.refine_section import RefineSection
from promptiter.config.renamed_keys import drop_key, find_renamed_keys
from promptiter.config.sections import (
    Acceptance,
    BudgetCaps,
    EditLimitsEntry,
    EvaluationSection,
    FinalTestEntry,
    FinalTestSection,
    GoalEntry,
    Goals,
    HintEntry,
    LossPlacementEntry,
    PenaltiesSection,
    ServerSection,
    Shares,
    SourceItem,
    Stop,
)
from promptiter.config.stages_section import StageEntry, Stages, StagesEntry
from promptiter.config.task_yaml.conversion import convert_task_yaml
from promptiter.config.task_yaml.document import FILE_NAME as TASK_FILE_NAME
from promptiter.config.task_yaml.document import is_task_yaml
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.evaluation.metrics.metric_files import MetricsFile
from promptiter.evaluation.result import Objective
from promptiter.user_files import Location, describe_problems, read_text
from promptiter.wording import shorten
from traces.model import Json

FILE_NAME = "promptiter.yaml"
_MAY_BE_SECRET = frozenset(("options", "environment", "headers", "body"))

WITH_NULLS = ("metrics", "weights")
"""Keys below which null does not count as missing, but is checked."""


class RunConfig(Section):
    """The configuration of a run. Paths are relative to the file, and `null` means "not set"."""

    agent: AgentEntry = AgentSection()
    """The agent: `module:attr`, or a function, a command or a service."""
    python_path: Annotated[Files, Field(validate_default=True)] = (Path(),)
    """Folders to import the agent and your other code from."""
    train: Files = ()
    """Eval sets whose failures are traced to their causes."""
    validation: Files = ()
    """Eval sets on which candidates are compared."""
    cases: Files = ()
    """Instead of `train` and `validation`: eval sets for both. The verdict is then only about these cases."""
    scorer: Part | None = None
    """Instead of eval sets and metrics: a function that scores a whole profile, as `module:attr`; `task`: the commands
    of the agent's task.yaml.
    """
    test: Files = ()
    """Eval sets that the search never sees; the final test uses them to check whether a gain holds for new cases."""
    data: Files = ()
    """Instead of `train`, `validation` and `test`: eval sets to split."""
    split: Shares = Shares()
    """How to split `data`."""
    metrics: MetricsEntry = None
    """A metrics file, or the metrics themselves."""
    weights: dict[str, Amount] = Field(default_factory=dict)
    """The weight of each metric in the mean score, by name."""
    penalties: PenaltiesSection = PenaltiesSection()
    """What cost and latency add to the loss. Only for the objective `weighted_loss`."""
    models: Models = Models()
    """Settings of models, by name."""
    stages: StagesEntry = Stages()
    """The models that find the cause of failures and write patches, or stages of your own."""
    search: Part | None = None
    """The search algorithm: `backprop`, one of an installed package, or your own as `module:attr`. By default the one
    for the goal.
    """
    teacher: str | None = None
    """A model, or an agent or function as `module:attr`, that writes missing references."""
    judge: str | None = None
    """A model, or an agent or function as `module:attr`, that judges instead of those of the metrics."""
    targets: Names | None = None
    """The surfaces that may change. By default those that the search is for."""
    initial_profile: File | None = None
    """A profile to start from, instead of the baseline."""
    objective: Objective = "mean_score"
    """What is optimized: `mean_score`, `pass_rate` (of cases) or `weighted_loss` (1 minus the mean score, within 0 and
    1, plus the penalties).
    """
    goal: GoalEntry = Goals()
    """`score`, `fewer_tokens` or `cheaper`."""
    acceptance: Acceptance = Acceptance()
    """Which candidates are accepted."""
    edit_limits: EditLimitsEntry = EditLimitsEntry()
    """How much a candidate may differ from the profile that it was made from: `max_files`, `max_changed_lines`."""
    final_test: FinalTestEntry = FinalTestSection()
    """The test at the end. `false` adopts what was accepted without a test."""
    alpha: Chance = 0.05
    """The chance that the final test reports an improvement that is not there. Its blocks share it: of 0.05, they get
    0.01, 0.005, 0.015 and 0.02.
    """
    stop: Stop | None = None
    """When the search ends. Without this key: at a perfect score, or after three rounds without an accepted
    candidate, unless the search ends by itself. If you set it, only what you list applies, besides `max_rounds`.
    """
    max_rounds: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Maximum number of rounds. 0 only runs the baseline. Without this key: 4, or as many as the search has, if it ends
    by itself, such as coordinate descent.
    """
    budget: BudgetCaps = BudgetCaps()
    """Hard caps."""
    evaluation: EvaluationSection = EvaluationSection()
    """How cases are run."""
    executor: Part | None = None
    """Where cases are run: `local`, `thread`, `process`, or your own as `module:attr`."""
    observers: Parts = ()
    """Watchers of the run's events: `jsonl`, `mlflow`, `opentelemetry`, `tensorboard`, `wandb`, or your own as
    `module:attr`.
    """
    loss_placements: tuple[LossPlacementEntry, ...] = ()
    """Nodes that failures of a metric belong to."""
    hints: tuple[HintEntry, ...] = ()
    """What you know about failing cases."""
    seed: Annotated[int, Field(strict=True)] = 0
    """Random seed. Two seeds are two samples of every model answer, also in a shared cache."""
    cache: CacheEntry = "memory"
    """A `.sqlite`, `.db` or `.jsonl` file of model answers that runs share."""
    runs: Annotated[File, Field(validate_default=True)] = Path("runs")
    """Where the folders of runs are created."""
    keep_traces: Literal["all", "failed", "none"] = "all"
    """Which traces are kept after the run: `all`, `failed` or `none`."""
    keep_best_only: Flag = False
    """After the run, keep only its result, report, journal and adopted profile: no answers, traces or other candidates.
    """
    layout: Literal["000", "001"] | None = None
    """`001`: also write the artifacts of AgentOptimizer. `000`: those of HoloDeck's optimizer."""
    output_dir: File | None = None
    """Where `layout` writes them; by default into the folder `layout_001` of the run, or `results/optimizer/RUN` beside
    agent.yaml.
    """
    review: ReviewEntry = None
    """Decide on each patch before it is tried: `ask` at the terminal, or wait for a `file` in the run's folder."""
    sources: dict[str, SourceItem] = Field(default_factory=dict)
    """Where `promptiter apply` writes new values, by surface: a file, `prompts.md#Heading`, `config.yaml:field`,
    `agent.py:NAME`, or a source of your own as `module:attr`. A text that is in one place only is found without it.
    """
    apply: Flag = False
    """Apply an improvement at the end of the run, as `promptiter apply` does."""
    as_json: Annotated[Flag, Field(alias="json")] = False
    """Print the result as JSON."""
    quiet: Flag = False
    """Print one line."""
    require: Literal["unseen"] | None = None
    """`unseen`: exit with code 8 unless the gain is shown for new cases (`improved`)."""
    refine: RefineSection = RefineSection()
    """How `promptiter refine` improves one finished result."""
    server: ServerSection = ServerSection()
    """What requests to `promptiter serve` may name."""

    @property
    def parts(self) -> tuple[PartEntry | StageEntry, ...]:
        """All parts that the file names."""
        alone = (self.search, self.executor, self.scorer)
        return (*(each for each in alone if each is not None), *self.observers, *self.stages.given.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedConfig:
    """A configuration as far as it could be read. `broken` are the keys that were skipped because of a problem.

    `document` is the content of the file with the `settings` on top, unchecked.
    """

    config: RunConfig
    file: Path | None = None
    document: Mapping[str, Json] = field(default_factory=dict, repr=False)  # it may contain a secret
    settings: Mapping[str, Json] = field(default_factory=dict, repr=False)
    problems: tuple[str, ...] = ()
    broken: frozenset[str] = frozenset()


def read_config(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ParsedConfig:
    """Read a configuration file, or the one in a folder, and collect its problems.

    `settings` override the file and have its shape. `environ` has the values of `${VAR}`; by default it is os.environ.
    """
    file = find_config_file(Path(path))
    return read_document(read_file(file, environ=environ), file=file, settings=settings, environ=environ)


def find_config_file(place: Path) -> Path:
    """The configuration in a folder: its promptiter.yaml, or a task.yaml if only that exists. A file is itself."""
    if not place.is_dir():
        return place
    file, task = place / FILE_NAME, place / TASK_FILE_NAME
    return task if task.is_file() and not file.exists() else file


def read_document(
    given: Mapping[str, Json],
    *,
    file: Path,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ParsedConfig:
    """Read a configuration from the content of a file. Paths are relative to that file."""
    settings = settings or {}
    merged = merge_settings(given, settings)
    source = os.fspath(file)
    renamed = find_renamed_keys(merged)
    document = reduce(drop_key, renamed, merged)
    problems = [f"{source}: {'.'.join(old)} is now called {new}; rename it" for old, new in renamed.items()]
    broken = {key for old, new in renamed.items() for key in (old[0], new.partition(".")[0])}
    context = {"folder": file.parent.absolute(), "environ": os.environ if environ is None else environ}
    try:
        config = RunConfig.model_validate(document, context=context)
    except ValidationError as error:
        problems += describe_problems(
            error,
            RunConfig,
            Location(source),
            is_secret=lambda keys: keys[:1] == ("models",) or not _MAY_BE_SECRET.isdisjoint(keys),
            sections={
                ("metrics",): MetricsFile,
                **{("models", name): each for name, each in find_declared_settings(_list_models(document)).items()},
            },
        )
        broken |= {str(each["loc"][0]) for each in error.errors(include_url=False)}
        kept = {key: value for key, value in document.items() if key not in broken}
        config = RunConfig.model_validate(kept, context=context)
    return ParsedConfig(
        config=config,
        file=file,
        document=merged,
        settings=settings,
        problems=tuple(problems),
        broken=frozenset(broken),
    )


def _list_models(document: Mapping[str, Json]) -> Iterable[str]:
    models = document.get("models")
    return models if isinstance(models, Mapping) else ()


def read_file(file: Path, *, environ: Mapping[str, str] | None = None) -> dict[str, Json]:
    """The content of a configuration file, unchecked; that of another tool or task as keys of promptiter.yaml."""
    text = read_text(file, missing="; `promptiter init` writes one")
    value = read_yaml(text, file=os.fspath(file))
    if not isinstance(value, dict):
        raise SetupError(f"{file}: must be a mapping of keys such as `agent: my_agent:agent`, got {shorten(value)}")
    if is_optimizer_json(value):
        return convert_optimizer_json(value, file=file, environ=os.environ if environ is None else environ)
    if is_agent_yaml(value):
        return convert_agent_yaml(value, file=file)
    if is_task_yaml(value):
        return convert_task_yaml(value, file=file, environ=os.environ if environ is None else environ)
    given = {key: each for key, each in value.items() if each is not None}
    return {key: each if key in WITH_NULLS else _drop_nulls(each) for key, each in given.items()}


def _drop_nulls(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _drop_nulls(each) for key, each in value.items() if each is not None}
    return [_drop_nulls(each) for each in value] if isinstance(value, list) else value


def merge_settings(document: Mapping[str, Json], settings: Mapping[str, Json]) -> dict[str, Json]:
    """A document with settings on top, merged mapping by mapping."""
    both = dict(document)
    for key, value in settings.items():
        below = both.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            value = merge_settings(below, value)
        both[key] = value
    return both
