"""RunOverlay: what a request may change about the run of an app, on top of its promptiter.yaml or its engine.

Eval sets, metrics, judges and teachers are named by ids that the app registers; cases and the initial profile may be
given inline. A request never names a file, a module or a model, and its caps cannot exceed those of the app.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError

from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.config.build import build_run
from promptiter.config.configured_run import ConfiguredRun
from promptiter.config.eval_sets import PAIR, SetsByKey, load_eval_sets
from promptiter.config.fields import Above0, Count, Names, Section
from promptiter.config.file import ParsedConfig, RunConfig, read_document
from promptiter.config.problems import Problems
from promptiter.config.sections import Acceptance, Caps, StopConditions
from promptiter.engine.request import SETS
from promptiter.errors import RequestError, SetupError, nearest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.evalset import build_eval_set, load_eval_set
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from promptiter.user_files import Location, describe_problems
from promptiter.wording import join_names, shorten
from traces.model import Json

T = TypeVar("T")

MAX_SETS = 100
"""The most eval sets of one kind."""
MAX_REPEATS = 100
"""The most runs of each case."""


class InlineSet(Section):
    """Cases in a request, as rows of an eval set file."""

    id: Annotated[str, Field(min_length=1, max_length=200)] = "inline"
    """The name of the set."""
    cases: Annotated[list[dict[str, Any]], Field(min_length=1, repr=False)]
    """The cases: `{"id": ..., "input": ..., "expected": ...}`."""


def _to_sets(value: Json) -> Json:
    return [value] if isinstance(value, str | dict) else value


Sets = Annotated[
    tuple[Annotated[str, Field(min_length=1)] | InlineSet, ...],
    Field(max_length=MAX_SETS),
    BeforeValidator(_to_sets, json_schema_input_type=str | InlineSet | list[str | InlineSet]),
]


class OverlayEvaluation(Section):
    """How cases are run."""

    repeats: Annotated[int, Field(strict=True, ge=1, le=MAX_REPEATS)] | None = None
    """Runs of each case."""
    concurrency: Count | None = None
    """Cases run at the same time; at most as many as in the app."""
    case_timeout_s: Above0 | None = None
    """Time limit of one run of a case."""


def _to_values(value: Json) -> Json:
    """`{"overrides": [{"surface_id": ..., "value": ...}]}` as values by surface id."""
    if not isinstance(value, dict) or not isinstance(overrides := value.get("overrides"), list):
        return value
    for each in overrides:
        if not isinstance(each, dict) or each.keys() != {"surface_id", "value"}:
            raise ValueError("overrides must be objects with surface_id and value")
        if not isinstance(each["surface_id"], str):
            found = shorten(each["surface_id"])
            raise ValueError(f"the surface_id of an override must be a string, not {found}")  # noqa: TRY004 - pydantic
    kept = {key: each for key, each in value.items() if key != "overrides"}
    return {**kept, "values": {each["surface_id"]: each["value"] for each in overrides}}


class InlineProfile(Section):
    """A profile in a request."""

    structure_id: str | None = None
    """The structure that it is for, if it should be checked."""
    values: dict[str, Any] = Field(default_factory=dict, repr=False)
    """The values by surface id."""


def _limit_sweeps(given: Acceptance) -> Acceptance:
    sigma = given.sigma_gain
    if sigma is not None and max(sigma.repeats, sigma.folds) > MAX_REPEATS:
        raise ValueError(f"sigma_gain: give at most {MAX_REPEATS} repeats and folds")
    return given


class RunOverlay(Section):
    """What a request may change about the run of an app. Everything else is as the app has it."""

    train: Sets = ()
    """Eval sets whose failures are traced to their causes: ids, or cases."""
    validation: Sets = ()
    """Eval sets on which candidates are compared."""
    cases: Sets = ()
    """Instead of `train` and `validation`: eval sets for both."""
    test: Sets = ()
    """Eval sets that the search never sees."""
    metrics: str | None = None
    """The id of registered metrics."""
    judge: str | None = None
    """The id of a registered judge."""
    teacher: str | None = None
    """The id of a registered teacher."""
    targets: Annotated[Names, Field(max_length=1000)] | None = None
    """The surfaces that may change."""
    initial_profile: Annotated[InlineProfile, BeforeValidator(_to_values)] | None = None
    """The profile to start from."""
    acceptance: Annotated[Acceptance, AfterValidator(_limit_sweeps)] | None = None
    """Which candidates are accepted."""
    stop: StopConditions | None = None
    """When the search ends."""
    max_rounds: Annotated[int, Field(strict=True, ge=0)] | None = None
    """Maximum number of rounds."""
    budget: Caps = Caps()
    """Hard caps; at most those of the app."""
    evaluation: OverlayEvaluation = OverlayEvaluation()
    """How cases are run."""
    seed: Annotated[int, Field(strict=True)] | None = None
    """Random seed."""

    def to_json(self) -> dict[str, Json]:
        """What was given, as it is stored."""
        return self.model_dump(mode="json", exclude_unset=True)


_PLAIN = ("targets", "acceptance", "stop", "max_rounds", "seed")
"""Keys that mean the same in the file."""


def read_overlay(given: Mapping[str, Json]) -> RunOverlay:
    """Check what a request gives. A RequestError lists every problem."""
    try:
        return RunOverlay.model_validate(dict(given))
    except ValidationError as error:
        raise RequestError(describe_problems(error, RunOverlay, Location("run"))) from error


def build_overlaid_run(
    below: ParsedConfig,
    overlay: RunOverlay,
    *,
    environ: Mapping[str, str] | None = None,
    base: ConfiguredRun | None = None,
    hosts: AgentHosts | None = None,
) -> ConfiguredRun:
    """Build the run of a configuration with what a request changes. A RequestError lists every problem.

    The file itself is not read again. `base` is another run of it, whose agent and models this one shares.
    """
    problems: list[str] = []
    settings = _choose_settings(below.config, overlay, problems)
    sets = _choose_sets(below, overlay, problems)
    if problems:
        raise RequestError(problems)
    assert below.file is not None, "it was read from a file"
    parsed = read_document(below.document, file=below.file, settings=settings, environ=environ)
    return _build(parsed, overlay, sets, environ=environ, base=base, hosts=hosts)


def rebuild_overlaid_run(
    parsed: ParsedConfig, overlay: RunOverlay, *, environ: Mapping[str, str] | None = None
) -> ConfiguredRun:
    """Build the run of a request again, from a configuration that has its settings already."""
    problems: list[str] = []
    sets = _choose_sets(parsed, overlay, problems)
    if problems:
        raise RequestError(problems)
    return _build(parsed, overlay, sets, environ=environ)


def _build(
    parsed: ParsedConfig,
    overlay: RunOverlay,
    sets: SetsByKey | None,
    *,
    environ: Mapping[str, str] | None,
    base: ConfiguredRun | None = None,
    hosts: AgentHosts | None = None,
) -> ConfiguredRun:
    given = overlay.initial_profile
    start = None if given is None else partial(build_inline_profile, given)
    run = build_run(parsed, environ=environ, sets=sets, start=start, base=base, hosts=hosts)
    return replace(run, overlay=overlay.to_json())


def _choose_settings(config: RunConfig, overlay: RunOverlay, problems: list[str]) -> dict[str, Json]:
    """The settings on top of the file that a request stands for."""
    given = overlay.model_dump(mode="json", exclude_none=True, exclude_unset=True)
    settings: dict[str, Json] = {key: given[key] for key in _PLAIN if key in given}
    for key in ("budget", "evaluation"):
        if key in given:
            settings[key] = given[key]
            problems += find_excess(key, getattr(config, key), given[key])
    server = config.server
    for key, known in (("metrics", server.metrics), ("judge", server.judges), ("teacher", server.teachers)):
        if key in given:
            found = look_up(key, given[key], known, problems)
            settings[key] = str(found) if isinstance(found, Path) else found
    return settings


def find_excess(section: str, allowed: object, given: Mapping[str, Json]) -> Iterator[str]:
    """Problems with figures above those of the app. Repeats are not capped by it."""
    for name, value in given.items():
        limit = getattr(allowed, name) if (section, name) != ("evaluation", "repeats") else None
        if limit is not None and value > limit:
            yield f"{section}.{name}: is {value}, and the app allows at most {limit}"


def look_up(key: str, name: str, known: Mapping[str, T], problems: list[str]) -> T | None:
    """What the app registers under a name; None if there is no such name, which is added to the problems."""
    if name not in known:
        names = f"; it has {join_names(list(known), limit=5)}" if known else "; none is registered"
        noun = key if key in ("metrics", "judge", "teacher") else "eval set"
        problems.append(f"{key}: the app has no {noun} {shorten(name)}{nearest(name, list(known)) or names}")
        return None
    return known[name]


def _choose_sets(below: ParsedConfig, overlay: RunOverlay, problems: list[str]) -> SetsByKey | None:
    """The eval sets of the run; None for those of the file."""
    if not any(getattr(overlay, key) for key in SETS):
        return None
    own = load_eval_sets(Problems(below, [])) or {}
    return choose_sets(overlay, own, below.config.server.eval_sets, problems)


def choose_sets(
    overlay: RunOverlay, own: SetsByKey, others: Mapping[str, EvalSet | Path], problems: list[str]
) -> SetsByKey:
    """The eval sets of a request: of the app's `own`, or of `others` by id. What it leaves out is as in the app."""
    known: dict[str, EvalSet | Path] = {each.id: each for sets in own.values() for each in sets}
    known.update(others)
    given = {key: getattr(overlay, key) for key in SETS if getattr(overlay, key)}
    chosen = {key: _load_sets(key, sets, known, problems) for key, sets in given.items()}
    if "cases" in chosen and not chosen.keys().isdisjoint(PAIR):
        problems.append("cases: are used as train and validation set; give either cases or the two sets")
    kept = SETS if not given else ("test",) if "cases" in chosen else (*PAIR, "test")
    return {**{key: own[key] for key in kept if key in own}, **chosen}


def _load_sets(
    key: str, given: Sequence[str | InlineSet], known: Mapping[str, EvalSet | Path], problems: list[str]
) -> tuple[EvalSet, ...]:
    loaded: list[EvalSet] = []
    for each in given:
        try:
            if isinstance(each, InlineSet):
                loaded.append(build_eval_set(each.id, each.cases))
                continue
            found = look_up(key, each, known, problems)
            if found is not None:
                loaded.append(load_eval_set(found) if isinstance(found, Path) else found)
        except SetupError as error:
            problems.append(f"{key}: {error}")
    return tuple(loaded)


def build_inline_profile(given: InlineProfile, snapshot: StructureSnapshot) -> Profile:
    """The profile of a request. Raises SetupError if it is for another structure, or a value does not fit.

    A model is one of the surface's choices, or the one that it has: a request cannot bring in another.
    """
    for surface in snapshot.surfaces:
        value = given.values.get(surface.id, surface.value)
        if surface.type == "model" and value != surface.value and value not in surface.limits.choices:
            known = join_names([repr(each) for each in dict.fromkeys((surface.value, *surface.limits.choices))])
            raise SetupError(f"the model of {surface.id!r} is {shorten(value)}; a request may name only {known}")
    if given.structure_id is not None:
        Profile(structure_id=given.structure_id, overrides=given.values).check(snapshot)
    return Profile.of(snapshot, given.values)
