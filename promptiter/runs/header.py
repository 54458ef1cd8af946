"""run.json: the inputs of a run. Written once, before the first event, and never changed.

A run resumes only with the inputs it started with (see changed_inputs). Inputs are hashed part by part (each case,
each surface), so that an error can name the part that changed.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable, Mapping
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from promptiter.agents.runner import name_runner
from promptiter.engine.engine import Engine
from promptiter.engine.request_checks import CheckedRequest
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.metrics.judge import JudgeMetric
from promptiter.evaluation.scorer import as_scorer
from promptiter.llm.models import ConfiguredModel
from promptiter.llm.redaction import MASK, Redactor
from promptiter.llm.secret import is_secret_name
from promptiter.policies.combine import describe_policy
from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import SCHEMA_VERSION
from promptiter.structure import StructureSnapshot
from traces import digest
from traces.files import write_atomically
from traces.model import Json

FILE_NAME = "run.json"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Versions(_Record):
    """The versions a run was started with: for information, a run resumes with other versions too."""

    promptiter: str
    python: str
    litellm: str


class HeaderStructure(_Record):
    """The agent: hashes of its shape, of its shape and values, and of the value of each surface."""

    structure_id: str
    baseline_id: str
    surfaces: dict[str, str]


class HeaderSet(_Record):
    """An eval set: the hash of each case, in order."""

    id: str
    content_digest: str
    cases: dict[str, str]


class Configuration(_Record):
    """The configuration of a run: the file, the settings of the command line, and the document that both add up to.

    `files` are the other files that were read, by configuration key, and `code` is the agent's module; a header stores
    their hashes, and the absolute path of `file`.
    """

    file: str
    settings: dict[str, Json] = Field(default_factory=dict, repr=False)  # may hold a secret; a header masks it
    document: dict[str, Json] = Field(default_factory=dict, repr=False)
    files: dict[str, str] = Field(default_factory=dict)
    code: str | None = None


class PythonParts(_Record):
    """What a run that Python began is built from: parts by name, or as the arguments of their classes.

    `folders` are those that their modules are imported from. `problems` are parts without a name, each with advice;
    then nothing is packed.
    """

    packed: dict[str, Json] = Field(default_factory=dict, repr=False)
    folders: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()


class RunHeader(_Record):
    """The inputs of a run, without secrets. A run was started with a `configuration`, or from Python with `parts`.

    A run of a Manager belongs to an `app`; `overlay` is what its request changed about the app.

    `request` holds the settings that every run has, policies as the code that creates them. `models` holds the settings
    that the agent's models report: a forecast uses only runs with the same ones. `judges` are the definitions of the
    metrics that are judges.
    """

    schema_version: int = SCHEMA_VERSION
    run_id: str
    created_at: str
    versions: Versions
    request: dict[str, Json]
    app: str = ""
    configuration: Configuration | None = None
    overlay: dict[str, Json] | None = Field(default=None, repr=False)
    parts: PythonParts | None = None
    structure: HeaderStructure
    models: dict[str, Json] = Field(default_factory=dict)
    train: HeaderSet
    validation: HeaderSet
    test: HeaderSet | None = None
    judges: dict[str, str] = Field(default_factory=dict)

    @property
    def nameless_parts(self) -> tuple[str, ...]:
        """The parts without a name, each with advice: `promptiter resume` cannot build this run again."""
        if self.configuration is not None or self.overlay is not None:
            return ()
        return ("it was started by an older version",) if self.parts is None else self.parts.problems

    @property
    def notes(self) -> tuple[str, ...]:
        """What the user should know about this run before it is interrupted."""
        if not self.nameless_parts:
            return ()
        return ("`promptiter resume` cannot continue this run, only RunDirectory.resume can", *self.nameless_parts)


def build_header(
    engine: Engine,
    checked: CheckedRequest,
    *,
    run_id: str,
    created_at: datetime,
    configuration: Configuration | None = None,
) -> RunHeader:
    """Build the header of a run that is about to start."""
    redactor = engine.evaluator.gateway.redactor
    return RunHeader(
        run_id=run_id,
        created_at=created_at.isoformat(timespec="seconds"),
        versions=Versions(
            promptiter=version("promptiter"), python=platform.python_version(), litellm=version("litellm")
        ),
        request=cast("dict[str, Json]", redactor.redact_json(_request_settings(engine, checked))),
        configuration=None if configuration is None else _mask_configuration(configuration, redactor),
        structure=_header_structure(checked.snapshot),
        models=model_settings(engine),
        train=_header_set(checked.train),
        validation=_header_set(checked.validation),
        test=None if checked.test is None else _header_set(checked.test),
        judges={each.name: each.definition for each in checked.evaluator.metrics if isinstance(each, JudgeMetric)},
    )


def model_settings(engine: Engine) -> dict[str, Json]:
    """The settings that the agent's models report, by model name, without secrets."""
    gateway = engine.evaluator.gateway
    names = {str(surface.value) for surface in engine.describe().surfaces if surface.type == "model"}
    models = {name: gateway.model(name) for name in sorted(names)}
    settings = {name: dict(each.settings) for name, each in models.items() if isinstance(each, ConfiguredModel)}
    return cast("dict[str, Json]", gateway.redactor.redact_json(settings))


def write_header(folder: str | os.PathLike[str], header: RunHeader) -> Path:
    """Write run.json into the folder of a run, atomically. SetupError if the folder already has one.

    Paths are relative to the folder, so that a project can be moved.
    """
    path = Path(folder) / FILE_NAME
    header = _map_paths(header, lambda file: os.path.relpath(file, Path(folder).resolve()))
    if path.exists():
        raise SetupError(f"{str(path)!r} already exists, and the header of a run never changes; resume that run")
    with write_atomically(path) as file:
        file.write(orjson.dumps(header.model_dump(mode="json"), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        file.flush()
        os.fsync(file.fileno())
    return path


def read_header(folder: str | os.PathLike[str]) -> RunHeader:
    """Read the header of a run; SetupError if the folder is not a run or its header is unusable."""
    path = Path(folder) / FILE_NAME
    try:
        raw = path.read_bytes()
    except FileNotFoundError as error:
        raise SetupError(f"{os.fspath(folder)!r} is not a run: it has no {FILE_NAME}") from error
    except OSError as error:
        raise SetupError(f"{str(path)!r} cannot be read: {error.strerror or error}; restore it from a copy") from error
    return _map_paths(parse_header(raw, where=repr(str(path))), lambda file: _locate(Path(folder), file))


def parse_header(raw: bytes, *, where: str) -> RunHeader:
    """Parse a header as it is stored; SetupError, which names `where`, if this release cannot use it."""
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise SetupError(f"{where} cannot be read: {error}; restore it from a copy") from error
    schema_version = document.get("schema_version") if isinstance(document, dict) else None
    if schema_version != SCHEMA_VERSION:
        raise SetupError(
            f"{where} has schema_version {schema_version!r}, and this release reads {SCHEMA_VERSION}; "
            "use the release that wrote it, or start a new run"
        )
    try:
        return RunHeader.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise SetupError(f"{where} is not a valid run header: {place}: {first['msg']}") from error


def _locate(folder: Path, file: str) -> str:
    """The path of a file that a header names, from where the folder is, or from where a link to the folder is."""
    link = folder.absolute()
    found = [os.path.normpath(place / file) for place in (folder.resolve(), link.parent.resolve() / link.name)]
    return next((path for path in found if Path(path).exists()), found[0])


def _map_paths(header: RunHeader, change: Callable[[str], str]) -> RunHeader:
    configuration, parts = header.configuration, header.parts
    if configuration is not None:
        configuration = configuration.model_copy(update={"file": change(configuration.file)})
    if parts is not None:
        parts = parts.model_copy(update={"folders": tuple(map(change, parts.folders))})
    return header.model_copy(update={"configuration": configuration, "parts": parts})


def mask_secrets(config: Json, redactor: Redactor, *, key: str = "") -> Json:
    """A configuration that is safe to store: `${VAR}` stays; secrets and everything in `headers` become `***`.

    Everything below a secret's name is masked, numbers too.
    """
    if isinstance(config, Mapping):
        is_secret = _is_secret(key)
        return {
            redactor.redact_known(str(name)): mask_secrets(value, redactor, key=key if is_secret else str(name))
            for name, value in config.items()
        }
    if isinstance(config, list | tuple):
        return [mask_secrets(value, redactor, key=key) for value in config]
    if config is None or isinstance(config, bool) or (isinstance(config, str) and _VARIABLES_ONLY.fullmatch(config)):
        return config
    if _is_secret(key):
        return MASK
    if not isinstance(config, str):
        return config
    [masked] = cast("dict[str, Json]", redactor.redact_json({key: config})).values()
    return masked


def _is_secret(key: str) -> bool:
    return key.lower().endswith("headers") or is_secret_name(key)


def _mask_configuration(configuration: Configuration, redactor: Redactor) -> Configuration:
    settings, document = (
        cast("dict[str, Json]", mask_secrets(each, redactor))
        for each in (configuration.settings, configuration.document)
    )
    files = {name: _file_digest(path) for name, path in sorted(configuration.files.items())}
    code = None if configuration.code is None else _file_digest(configuration.code)
    file = str(Path(configuration.file).resolve())
    return Configuration(file=file, settings=settings, document=document, files=files, code=code)


_VARIABLES_ONLY = re.compile(r"(?:Bearer |Basic |Token )?(?:\$\{[A-Za-z_][A-Za-z0-9_]*\})+")


def _request_settings(engine: Engine, checked: CheckedRequest) -> dict[str, Json]:
    request, evaluator = checked.request, checked.evaluator
    teacher, options = request.teacher, evaluator.options
    return {
        "seed": evaluator.seed,
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
        "max_rounds": request.round_limit,
        **({} if request.max_metric_calls is None else {"max_metric_calls": request.max_metric_calls}),
        "targets": list(checked.targets),
        "initial_profile": None if request.initial_profile is None else request.initial_profile.digest,
        "scorer": None if request.scorer is None else as_scorer(request.scorer).name,
        "teacher": teacher if isinstance(teacher, str | None) else name_runner(teacher),
        "judge": request.judge if isinstance(request.judge, str | None) else name_runner(request.judge),
        "protected": sorted(request.protected),
        **({} if request.edit_limits is None else {"edit_limits": to_plain(request.edit_limits)}),
        "loss_placements": [to_plain(each) for each in request.loss_placements],
        "hints": [to_plain(each) for each in request.hints],
        "metrics": {metric.name: [type(metric).__name__, metric.threshold] for metric in evaluator.metrics},
        "weights": dict(evaluator.weights),
        **({"penalties": to_plain(evaluator.penalties)} if evaluator.penalties else {}),
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
