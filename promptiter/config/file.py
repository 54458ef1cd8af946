"""promptiter.yaml: a run in one file. This module reads and checks it; `promptiter.api` builds the run.

    agent: my_agent:agent
    train: data/train.jsonl
    validation: data/validation.jsonl
    metrics: metrics.json

Paths are relative to the file. A null value counts as missing. All problems are reported at once, with their places.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from promptiter.config.renamed_keys import drop_key, find_renamed_keys
from promptiter.config.sections import (
    Acceptance,
    BudgetCaps,
    CacheEntry,
    Chance,
    EvaluationSection,
    File,
    Files,
    FinalTestEntry,
    FinalTestSection,
    Flag,
    GoalEntry,
    Goals,
    HintEntry,
    LossPlacementEntry,
    MetricsEntry,
    Models,
    Names,
    Section,
    Shares,
    Stop,
)
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.evaluation.result import Objective
from promptiter.user_files import Location, describe_problems
from traces.model import Json

FILE_NAME = "promptiter.yaml"


class RunConfig(Section):
    """The whole file. The cases are in `train` and `validation`; in `cases`, for both; or in `data`, which is split.

    The search never sees the `test` cases; only the final test does. `final_test: false` skips that test.
    """

    agent: str = ""
    train: Files = ()
    validation: Files = ()
    cases: Files = ()
    test: Files = ()
    data: Files = ()
    split: Shares = Shares()
    metrics: MetricsEntry = None
    models: Models = Models()
    teacher: str | None = None
    judge: str | None = None
    targets: Names | None = None
    initial_profile: File | None = None
    objective: Objective = "mean_score"
    goal: GoalEntry = Goals()
    acceptance: Acceptance = Acceptance()
    final_test: FinalTestEntry = FinalTestSection()
    alpha: Chance = 0.05
    stop: Stop | None = None
    max_rounds: Annotated[int, Field(strict=True, ge=0)] = 4
    budget: BudgetCaps = BudgetCaps()
    evaluation: EvaluationSection = EvaluationSection()
    loss_placements: tuple[LossPlacementEntry, ...] = ()
    hints: tuple[HintEntry, ...] = ()
    seed: Annotated[int, Field(strict=True)] = 0
    cache: CacheEntry = "memory"
    runs: Annotated[File, Field(validate_default=True)] = Path("runs")
    keep_traces: Literal["all", "failed", "none"] = "all"
    python_path: Annotated[Files, Field(validate_default=True)] = (Path(),)
    review: Flag = False
    as_json: Annotated[Flag, Field(alias="json")] = False
    quiet: Flag = False


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
    """Read a configuration file, or the promptiter.yaml in a folder, and collect its problems.

    `settings` override the file and have its shape. `environ` has the values of `${VAR}`; by default it is os.environ.
    """
    file = Path(path)
    file = file / FILE_NAME if file.is_dir() else file
    return read_document(read_file(file), file=file, settings=settings, environ=environ)


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
            error, RunConfig, Location(source), is_secret=lambda keys: keys[:1] == ("models",)
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


def read_file(file: Path) -> dict[str, Json]:
    """The content of a configuration file, unchecked."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except OSError as error:
        hint = "; `promptiter init` writes one" if isinstance(error, FileNotFoundError) else ""
        raise SetupError(f"{file}: cannot be read: {error.strerror or error}{hint}") from error
    except UnicodeDecodeError as error:
        raise SetupError(f"{file}: invalid UTF-8 at byte {error.start}; save it as UTF-8") from error
    value = read_yaml(text, file=os.fspath(file))
    if not isinstance(value, dict):
        raise SetupError(f"{file}: must be a mapping of keys such as `agent: my_agent:agent`, got {value!r:.40}")
    return {key: each if key == "metrics" else _drop_nulls(each) for key, each in value.items() if each is not None}


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
