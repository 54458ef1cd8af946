"""run.json: what a run was asked for. Written once, before its first event, and never changed.

A run goes on only with the inputs that it began with: `differences` says in words what changed since. What is hashed
is hashed by its parts (each case, each surface), so that the part can be named.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from fnmatch import fnmatchcase
from importlib.metadata import version
from pathlib import Path
from typing import cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptiter.engine.engine import Engine
from promptiter.engine.request_checks import check_request
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.llm.models import ConfiguredModel
from promptiter.llm.redaction import MASK, Redactor
from promptiter.llm.secret import is_secret_name
from promptiter.policies.combine import describe_policy
from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import SCHEMA_VERSION
from promptiter.runlog.results import RunRequest
from promptiter.structure import StructureSnapshot
from traces import digest
from traces.files import write_atomically
from traces.model import Json

FILE_NAME = "run.json"

FREE = (
    *("quiet", "json", "review", "runs", "cache", "keep_traces", "evaluation.concurrency", "budget.*"),
    *("models.*.api_key", "models.*.requests_per_minute", "models.*.tokens_per_minute"),
    *("models.*.timeout_s", "models.*.latency_s"),
)
"""Keys of a configuration that say how a run is done, not what is asked for: they may change before it goes on."""

NAMED = 5
"""So many cases or surfaces that changed are told by name."""


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Versions(_Record):
    """What the run was started with. For people: another version is no reason to refuse."""

    promptiter: str
    python: str
    litellm: str


class HeaderStructure(_Record):
    """The agent: the hash of its shape, of its values too, and of each surface's value."""

    structure_id: str
    baseline_id: str
    surfaces: dict[str, str]


class HeaderSet(_Record):
    """An eval set: the hash of each case, in its order."""

    id: str
    content_digest: str
    cases: dict[str, str]


class Configuration(_Record):
    """What a configured run was configured by: the file, what the command line said on top, and both together.

    A path of the header is relative to the run's folder, so that a project can be moved. `files` are other files that
    were read, by the key that names them; `code` is the module of the agent. In a header both are hashes.
    """

    file: str
    settings: dict[str, Json] = Field(default_factory=dict, repr=False)  # may hold a secret, until it is in a header
    document: dict[str, Json] = Field(default_factory=dict, repr=False)
    files: dict[str, str] = Field(default_factory=dict)
    code: str | None = None


class RunHeader(_Record):
    """The inputs of a run. `configuration`, in which files are hashes and nothing is secret, is None for one from code.

    `request` are the settings that every run has, policies as the code that makes them. `models` are the settings of
    the agent's models, as far as these report them: a forecast uses only runs with the same ones.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created_at: str
    versions: Versions
    request: dict[str, Json]
    configuration: Configuration | None = None
    structure: HeaderStructure
    models: dict[str, Json] = Field(default_factory=dict)
    train: HeaderSet
    validation: HeaderSet
    test: HeaderSet | None = None


def header_of(
    engine: Engine,
    request: RunRequest,
    *,
    run_id: str,
    created_at: datetime,
    configuration: Configuration | None = None,
) -> RunHeader:
    """The header of a run that is about to start; RequestError if it could not be served."""
    snapshot, redactor = engine.describe(), engine.evaluator.gateway.redactor
    checked = check_request(request, snapshot, engine.evaluator)
    return RunHeader(
        run_id=run_id,
        created_at=created_at.isoformat(timespec="seconds"),
        versions=Versions(
            promptiter=version("promptiter"), python=platform.python_version(), litellm=version("litellm")
        ),
        request=cast("dict[str, Json]", redactor.redact_json(_settings(engine, request, checked.targets))),
        configuration=None if configuration is None else _safe(configuration, redactor),
        structure=_header_structure(snapshot),
        models=model_settings(engine),
        train=_header_set(checked.train),
        validation=_header_set(checked.validation),
        test=None if checked.test is None else _header_set(checked.test),
    )


def model_settings(engine: Engine) -> dict[str, Json]:
    """The settings of the models that the agent names, as far as these report them; without secrets."""
    gateway = engine.evaluator.gateway
    names = {str(surface.value) for surface in engine.describe().surfaces if surface.type == "model"}
    models = {name: gateway.model(name) for name in sorted(names)}
    settings = {name: dict(each.settings) for name, each in models.items() if isinstance(each, ConfiguredModel)}
    return cast("dict[str, Json]", gateway.redactor.redact_json(settings))


def write_header(folder: str | os.PathLike[str], header: RunHeader) -> Path:
    """Write run.json into the folder of a run, whole or not at all. SetupError if the folder has one."""
    path = Path(folder) / FILE_NAME
    if path.exists():
        raise SetupError(f"{str(path)!r} is there already, and the header of a run is never changed; resume that run")
    with write_atomically(path) as file:
        file.write(orjson.dumps(header.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        file.flush()
        os.fsync(file.fileno())
    return path


def read_header(folder: str | os.PathLike[str]) -> RunHeader:
    """The header of a run; SetupError if the folder is none, or its header cannot be used."""
    path = Path(folder) / FILE_NAME
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise SetupError(f"{os.fspath(folder)!r} is no run: it has no {FILE_NAME}") from error
    except (OSError, orjson.JSONDecodeError) as error:
        told = (error.strerror if isinstance(error, OSError) else None) or error
        raise SetupError(f"{str(path)!r} cannot be read: {told}; bring it back from a copy") from error
    found = document.get("schema_version") if isinstance(document, dict) else None
    if found != SCHEMA_VERSION:
        raise SetupError(
            f"{str(path)!r} has schema_version {found!r}, and this release reads {SCHEMA_VERSION}; "
            "use the promptiter that wrote it, or start a new run"
        )
    try:
        return RunHeader.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise SetupError(f"{str(path)!r} is no header of a run: {where}: {first['msg']}") from error


def differences(header: RunHeader, other: RunHeader) -> list[str]:
    """What changed between two headers and makes them two runs, each in a sentence; empty if one may go on."""
    before, after = (each.configuration or Configuration(file="") for each in (header, other))
    found = [
        # What a configuration says is told once; the request follows from it.
        *(list(_changes(before.document, after.document, free=FREE)) or _changes(header.request, other.request)),
        *_changed_files(before.files, after.files),
        *_changed_structure(header.structure, other.structure),
        *_changed_set("train", header.train, other.train),
        *_changed_set("validation", header.validation, other.validation),
        *_changed_set("test", header.test or _NO_SET, other.test or _NO_SET),
    ]
    return list(dict.fromkeys(found))


def changed_code(header: RunHeader, other: RunHeader) -> str | None:
    """A word on the agent's module if it is not as it was; only what it does could tell whether that matters."""
    before, after = header.configuration, other.configuration
    if before is None or after is None or before.code == after.code or before.code is None:
        return None
    return (
        "the agent's module has changed since the run began; what was found before stays, so if the agent now does "
        "something else, start afresh"
    )


def without_secrets(config: Json, redactor: Redactor, *, key: str = "") -> Json:
    """A configuration as it may be written down: `${VAR}` stays, and what is secret or stands in `headers` is `***`.

    So is all that stands below a secret's name, numbers too.
    """
    if isinstance(config, Mapping):
        hides = _hides(key)
        return {
            redactor.redact_known(str(name)): without_secrets(value, redactor, key=key if hides else str(name))
            for name, value in config.items()
        }
    if isinstance(config, list | tuple):
        return [without_secrets(value, redactor, key=key) for value in config]
    if config is None or isinstance(config, bool) or (isinstance(config, str) and _VARIABLES_ONLY.fullmatch(config)):
        return config
    if _hides(key):
        return MASK
    if not isinstance(config, str):
        return config
    [safe] = cast("dict[str, Json]", redactor.redact_json({key: config})).values()
    return safe


def _hides(key: str) -> bool:
    return key.lower().endswith("headers") or is_secret_name(key)


def _safe(configuration: Configuration, redactor: Redactor) -> Configuration:
    """A configuration as it may be written down."""
    settings, document = (
        cast("dict[str, Json]", without_secrets(each, redactor))
        for each in (configuration.settings, configuration.document)
    )
    files = {name: _file_digest(path) for name, path in sorted(configuration.files.items())}
    code = None if configuration.code is None else _file_digest(configuration.code)
    return Configuration(file=configuration.file, settings=settings, document=document, files=files, code=code)


_VARIABLES_ONLY = re.compile(r"(?:Bearer |Basic |Token )?(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+")


def _settings(engine: Engine, request: RunRequest, targets: Sequence[str]) -> dict[str, Json]:
    evaluator, teacher = engine.evaluator, request.teacher
    options = request.evaluation or evaluator.options
    return {
        "seed": options.seed if request.seed is None else request.seed,
        "repeats": options.repeats,
        "max_errored_fraction": options.max_errored_fraction,
        "search": type(engine.search).__name__,
        "stages": {
            name: type(part).__name__
            for name, part in sorted(getattr(engine.search, "__dict__", {}).items())
            if name in ("attributor", "aggregator", "optimizer", "check")
        },
        "objective": request.objective,
        "alpha": request.alpha,
        "goal": to_plain(request.goal),
        "acceptance": describe_policy(request.acceptance),
        "final_test": None if request.final_test is None else describe_policy(request.final_test),
        "stop": None if request.stop is None else describe_policy(request.stop),
        "max_rounds": request.max_rounds,
        "targets": list(targets),
        "initial_profile": None if request.initial_profile is None else request.initial_profile.digest,
        "teacher": teacher if isinstance(teacher, str | None) else type(teacher).__name__,
        "judge": request.judge,
        "protected": sorted(request.protected),
        "loss_placements": [to_plain(each) for each in request.loss_placements],
        "hints": [to_plain(each) for each in request.hints],
        "metrics": {metric.name: [type(metric).__name__, metric.threshold] for metric in evaluator.metrics},
        "weights": dict(evaluator.weights),
    }


def _header_structure(snapshot: StructureSnapshot) -> HeaderStructure:
    values = {surface.id: digest(surface.value)[:16] for surface in snapshot.surfaces}
    return HeaderStructure(structure_id=snapshot.structure_id, baseline_id=snapshot.baseline_id, surfaces=values)


def _header_set(eval_set: EvalSet) -> HeaderSet:
    cases = {case.id: case.content_digest[:16] for case in eval_set.cases}
    return HeaderSet(id=eval_set.id, content_digest=eval_set.content_digest, cases=cases)


def _file_digest(path: str | os.PathLike[str]) -> str:
    try:
        return digest(Path(path).read_bytes())
    except OSError as error:
        raise SetupError(f"{os.fspath(path)!r} cannot be read: {error.strerror or error}") from error


def _changes(before: Mapping[str, Json], after: Mapping[str, Json], *, free: Sequence[str] = ()) -> Iterator[str]:
    """`stop.minutes was 30 and is now 60`, for each value that differs."""
    then, now = _leaves(before), _leaves(after)
    for path in dict.fromkeys((*then, *now)):
        was, is_now = then.get(path), now.get(path)
        if was == is_now or any(fnmatchcase(path, pattern) for pattern in free):
            continue
        if was is None:
            yield f"{path} is new: {_shown(is_now)}"
        elif is_now is None:
            yield f"{path} was {_shown(was)} and is gone"
        else:
            yield f"{path} was {_shown(was)} and is now {_shown(is_now)}"


def _leaves(tree: Mapping[str, Json], path: str = "") -> dict[str, Json]:
    """The values of a tree by their path, `stop.minutes`."""
    found: dict[str, Json] = {}
    for name, value in tree.items():
        found |= _leaves(value, f"{path}{name}.") if isinstance(value, Mapping) else {f"{path}{name}": value}
    return found


def _shown(value: Json) -> str:
    text = value if isinstance(value, str) else orjson.dumps(value).decode()
    return text if len(text) <= 60 else f"{text[:57]}…"


def _changed_files(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}):
        if name not in after:
            yield f"the file {name!r} is not used any more"
        elif name not in before:
            yield f"the file {name!r} was not used before"
        elif before[name] != after[name]:
            yield f"the file {name!r} was changed"


def _changed_structure(before: HeaderStructure, after: HeaderStructure) -> Iterator[str]:
    if before.structure_id != after.structure_id:
        gone = [repr(name) for name in before.surfaces if name not in after.surfaces]
        new = [repr(name) for name in after.surfaces if name not in before.surfaces]
        if gone:
            yield f"the agent has lost surfaces: {_listed(gone)}"
        if new:
            yield f"the agent has new surfaces: {_listed(new)}"
        if not gone and not new:
            yield "the agent has other nodes or edges, or surfaces of another type"
    for name in sorted(before.surfaces.keys() & after.surfaces.keys()):
        if before.surfaces[name] != after.surfaces[name]:
            yield f"the agent's own value of surface {name!r} was edited"


_NO_SET = HeaderSet(id="", content_digest="", cases={})


def _changed_set(name: str, before: HeaderSet, after: HeaderSet) -> Iterator[str]:
    if before.id != after.id:
        yield f"{name}: the eval set was {before.id!r} and is now {after.id!r}"
    changed = [
        *(f"case {each!r} is gone" for each in before.cases if each not in after.cases),
        *(f"case {each!r} is new" for each in after.cases if each not in before.cases),
        *(f"case {each!r} was changed" for each, was in before.cases.items() if was != after.cases.get(each, was)),
    ]
    if changed:
        yield f"{name}: {_listed(changed)}"
    elif list(before.cases) != list(after.cases):
        yield f"{name}: the cases stand in another order"


def _listed(parts: Sequence[str]) -> str:
    more = f", and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    return ", ".join(parts[:NAMED]) + more
