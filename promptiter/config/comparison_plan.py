"""The plan of a comparison: which searches, seeds and budget, and whether all have the same task.

A comparison is a folder. Its plan is stored there before the first run, and the same command continues it:

    comparisons/backprop-gepa/
      plan.json           searches, seeds, budget
      backprop/seed-0/    where the folder of one run is, as `promptiter run` writes it
      comparison.json, comparison.html
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.config.build import build_run
from promptiter.config.configured_run import ConfiguredRun
from promptiter.config.file import FILE_NAME as CONFIG_NAME
from promptiter.config.file import read_config
from promptiter.config.policies import build_goal
from promptiter.engine.engine import DEFAULT_SEARCH
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.result import Objective
from promptiter.forecast.forecast import forecast_run
from promptiter.runs.comparison_wording import describe_budget
from promptiter.runs.directory import check_folder
from promptiter.runs.forecast_file import Forecast
from promptiter.runs.header import build_header
from promptiter.runs.task_differences import find_task_differences
from promptiter.wording import path_from_here
from traces.files import write_atomically
from traces.model import Json

PLAN = "plan.json"
SEEDS = 10
FOLDER = "comparisons"

SEED_STEP = 1_000
"""How far apart the seeds are: a search adds the number of its phase to the seed, and no two runs should share one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSearch:
    """A configuration in a comparison: its name there, the kind of its search, and the forecast of one run."""

    name: str
    config: Path
    search: str
    forecast: Forecast


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonPlan:
    """What a comparison runs: each search with each of the `seeds`.

    `budget` are the caps of each run; `settings` override all configurations.
    """

    folder: Path
    searches: tuple[PlannedSearch, ...]
    seeds: tuple[int, ...]
    budget: Mapping[str, float]
    objective: Objective
    is_in_place: bool = False
    settings: Mapping[str, Json] = field(default_factory=dict)
    environ: Mapping[str, str] | None = None

    def locate(self, search: PlannedSearch, seed: int) -> Path:
        """The folder that the run of a seed is created in. Each has its own, so that no run knows of another."""
        return self.folder / search.name / f"seed-{seed}"

    def load(self, search: PlannedSearch, seed: int) -> ConfiguredRun:
        """Build the run of a seed."""
        settings = _list_settings(self.settings, seed=seed, folder=self.locate(search, seed))
        return build_run(read_config(search.config, settings=settings, environ=self.environ), environ=self.environ)


class StoredResult(BaseModel):
    """A result that was shown: for how many seeds, and the digest of the runs that it was computed from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seeds: int
    runs: str


class StoredPlan(BaseModel):
    """plan.json. `results` are those that were shown and could claim something, the earliest first."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_version: int = 1
    searches: dict[str, str]
    seeds: int
    budget: dict[str, float] = {}
    results: tuple[StoredResult, ...] = ()


def plan_comparison(
    configs: Sequence[str | os.PathLike[str]],
    *,
    seeds: int = SEEDS,
    budget: Mapping[str, Json] | None = None,
    folder: str | os.PathLike[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ComparisonPlan:
    """Read the configurations, and check that they have one task and one budget. Nothing is spent or written.

    RequestError lists all differences. By default the folder is `comparisons/NAMES` beside the `runs` of the first.
    """
    files = [each / CONFIG_NAME if each.is_dir() else each for each in map(Path, configs)]
    if len(files) < 2:
        raise SetupError("a comparison needs at least two configurations, such as backprop.yaml and gepa.yaml")
    if twice := [file for file, count in Counter(map(Path.resolve, files)).items() if count > 1]:
        raise SetupError(f"{str(path_from_here(twice[0]))!r} is given twice; give each configuration once")
    names = _name_searches(files)
    settings: dict[str, Json] = {"budget": dict(budget)} if budget else {}
    base = read_config(files[0], environ=environ).config.runs.parent / FOLDER / "-".join(names)
    path = Path(folder) if folder is not None else base
    check_folder(path)
    loaded = [_load(file, _list_settings(settings, seed=0, folder=path), environ) for file in files]
    try:
        _check_tasks(names, loaded)
        return ComparisonPlan(
            folder=path.absolute(),
            searches=tuple(
                PlannedSearch(
                    name=name, config=file.absolute(), search=_name_search(each), forecast=_forecast(each, file)
                )
                for name, file, each in zip(names, files, loaded, strict=True)
            ),
            seeds=tuple(range(0, seeds * SEED_STEP, SEED_STEP)),
            budget=_list_caps(loaded[0]),
            objective=loaded[0].request.objective,
            is_in_place=any(isinstance(each.engine.agent, InPlaceAgent) for each in loaded),
            settings=settings,
            environ=environ,
        )
    finally:
        for each in loaded:
            each.gateway.cache.close()


def open_plan(plan: ComparisonPlan) -> StoredPlan:
    """Create the folder of the comparison, or check that it is of the same one. SetupError if it is not."""
    wanted = StoredPlan(
        searches={each.name: os.path.relpath(each.config, plan.folder) for each in plan.searches},
        seeds=len(plan.seeds),
        budget=dict(plan.budget),
    )
    file = plan.folder / PLAN
    if not file.exists():
        store_plan(plan.folder, wanted)
        return wanted
    try:
        stored = StoredPlan.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        raise SetupError(f"{str(file)!r} cannot be read ({error}); choose another --folder") from error
    advice = "choose another --folder, or remove that one"
    if stored.searches != wanted.searches:
        raise SetupError(f"{str(plan.folder)!r} compares {', '.join(stored.searches.values())}; {advice}")
    if stored.budget != wanted.budget:
        raise SetupError(
            f"{str(plan.folder)!r} was started with this budget of each run: {describe_budget(stored.budget)}; "
            f"now it is {describe_budget(wanted.budget)}; {advice}"
        )
    current = stored.model_copy(update={"seeds": len(plan.seeds)})
    store_plan(plan.folder, current)
    return current


def store_plan(folder: Path, plan: StoredPlan) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with write_atomically(folder / PLAN) as file:
        file.write(orjson.dumps(plan.model_dump(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _list_settings(settings: Mapping[str, Json], *, seed: int, folder: Path) -> dict[str, Json]:
    """The settings of a run: no shared cache or artifacts, and nothing is reviewed or applied."""
    alone: dict[str, Json] = {"cache": "memory", "output_dir": None, "review": False, "apply": False, "require": None}
    return {**settings, **alone, "seed": seed, "runs": str(folder.absolute()), "quiet": True, "json": False}


def _load(file: Path, settings: Mapping[str, Json], environ: Mapping[str, str] | None) -> ConfiguredRun:
    return build_run(read_config(file, settings=settings, environ=environ), environ=environ)


def _name_searches(files: Sequence[Path]) -> list[str]:
    """The stem of each file, or that of its folder if the stems are the same, numbered if need be."""
    stems = [each.stem for each in files]
    if len(set(stems)) < len(stems):
        stems = [each.absolute().parent.name or each.stem for each in files]
    names: list[str] = []
    for stem in stems:
        names.append(
            stem if stem not in names else next(new for at in count(2) if (new := f"{stem}-{at}") not in names)
        )
    return names


def _name_search(run: ConfiguredRun) -> str:
    if run.config.search is not None:
        return run.config.search.name
    goal = build_goal(run.config.goal).kind
    return DEFAULT_SEARCH if goal == "score" else goal


def _list_caps(run: ConfiguredRun) -> dict[str, float]:
    given = run.config.budget.model_dump(exclude_none=True)
    return {name: float(value) for name, value in given.items() if not isinstance(value, bool)}


def _check_tasks(names: Sequence[str], loaded: Sequence[ConfiguredRun]) -> None:
    """Raise if anything but the search differs between the first configuration and another."""
    now = datetime.now(UTC)
    headers = [
        build_header(each.engine, each.checked, run_id="", created_at=now, configuration=each.configuration)
        for each in loaded
    ]
    problems = []
    for name, header, run in zip(names[1:], headers[1:], loaded[1:], strict=True):
        found = find_task_differences(headers[0], header)
        caps, others = _list_caps(loaded[0]), _list_caps(run)
        if caps != others:
            found.append(f"budget: {describe_budget(caps)} and {describe_budget(others)}; set one with --budget")
        problems += [f"{names[0]} and {name} are not the same task: {each}" for each in found]
    if problems:
        raise RequestError(problems)


def _forecast(run: ConfiguredRun, file: Path) -> Forecast:
    """The forecast of one run, based on earlier runs of the project."""
    return forecast_run(run.engine, run.checked, runs=read_config(file).config.runs)
