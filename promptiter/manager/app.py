"""App: an agent that a Manager optimizes, with everything that its runs need.

An app is an engine, or a promptiter.yaml. It prepares the runs that are asked for, and builds them again after a
restart, from what the store keeps of them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.runner import Runner
from promptiter.config.agent_files import ReadFiles, list_agent_files
from promptiter.config.build import build_run
from promptiter.config.engine_overlay import check_overlaid_request
from promptiter.config.file import FILE_NAME, RunConfig, read_config
from promptiter.config.overlay import RunOverlay, build_overlaid_run, read_overlay
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.runlog.events import Observer
from promptiter.runs.artifacts import KeepTraces
from promptiter.runs.header import Configuration, PythonParts, RunHeader
from promptiter.runs.python_parts import rebuild_request
from promptiter.structure import StructureSnapshot
from traces.model import Json

logger = logging.getLogger(__name__)

Overlay: TypeAlias = Mapping[str, Json]
"""What a request changes about the runs of an app; see `RunOverlay`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A run of an app that can begin or be resumed. `overlay` is what its request changed."""

    engine: Engine
    checked: CheckedRequest
    configuration: Configuration | None = None
    overlay: Overlay | None = None
    keep_traces: KeepTraces = "all"
    observers: tuple[Observer, ...] = ()


class App(Protocol):
    """An agent to optimize. The methods may block: a Manager calls them in threads."""

    @property
    def name(self) -> str:
        """The name of the app. Its runs are kept under it."""
        ...

    def describe(self) -> StructureSnapshot:
        """Return what may change about the agent."""
        ...

    def prepare(self, request: RunRequest | Overlay | None) -> PreparedRun:
        """Prepare a run that is asked for. Raises RequestError with every problem."""
        ...

    def rebuild(self, header: RunHeader) -> PreparedRun:
        """Prepare a run that began earlier. Raises SetupError if that is not possible any more."""
        ...


class EngineApp:
    """An app that is an engine. Its runs are asked for as RunRequest, or as what they change about `request`.

    Such changes may name `judges` and `teachers`, and eval sets by id: those of the `request` and `eval_sets`.
    """

    def __init__(
        self,
        engine: Engine,
        name: str = "default",
        *,
        request: RunRequest | None = None,
        eval_sets: Iterable[EvalSet] = (),
        judges: Mapping[str, Runner | str] | None = None,
        teachers: Mapping[str, Runner | str] | None = None,
        keep_traces: KeepTraces = "all",
    ) -> None:
        self.name = name
        self._engine = engine
        self._request = RunRequest() if request is None else request
        self._eval_sets = {each.id: each for each in eval_sets}
        self._judges = dict(judges or {})
        self._teachers = dict(teachers or {})
        self._keep_traces = keep_traces

    def describe(self) -> StructureSnapshot:
        return self._engine.describe()

    def prepare(self, request: RunRequest | Overlay | None) -> PreparedRun:
        if isinstance(request, RunRequest):
            return self._prepare(self._engine.check(request))
        overlay = read_overlay(request or {})
        checked = check_overlaid_request(
            self._engine,
            self._request,
            overlay,
            eval_sets=self._eval_sets,
            judges=self._judges,
            teachers=self._teachers,
        )
        return self._prepare(checked, _dump_overlay(overlay, self._engine))

    def rebuild(self, header: RunHeader) -> PreparedRun:
        if header.overlay is not None:
            return self.prepare(header.overlay)
        parts = header.parts or PythonParts(problems=("it was not started by a Manager",))
        return self._prepare(self._engine.check(rebuild_request(parts, self._engine)))

    def _prepare(self, checked: CheckedRequest, overlay: Overlay | None = None) -> PreparedRun:
        return PreparedRun(engine=self._engine, checked=checked, overlay=overlay, keep_traces=self._keep_traces)


class ConfiguredApp:
    """An app that is a promptiter.yaml. Its runs are asked for as what they change about the file.

    The file is read once: all runs have the settings, the agent and the models that it names then. Eval sets and
    metrics files are read for each run.

    If it names an agent that is a service, that must be at one of `allowed_agents`, each `host` or `host:port`. Without
    them it may be anywhere but at a link-local address.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        name: str | None = None,
        environ: Mapping[str, str] | None = None,
        allowed_agents: Iterable[str] | None = None,
    ) -> None:
        file = Path(path)
        self.file = file / FILE_NAME if file.is_dir() else file
        self._environ = environ
        self._hosts = AgentHosts.parse(allowed_agents)
        self._parsed = read_config(self.file, environ=environ)
        self._first = build_run(self._parsed, environ=environ, hosts=self._hosts)
        self._files = ReadFiles(self._list_files())
        self.name = name or self._first.config.server.app or self.file.absolute().parent.name

    @property
    def config(self) -> RunConfig:
        """The configuration, as it was read when the app was made."""
        return self._first.config

    def describe(self) -> StructureSnapshot:
        return self._first.engine.describe()

    def prepare(self, request: RunRequest | Overlay | None) -> PreparedRun:
        if isinstance(request, RunRequest):
            raise SetupError(f"the app {self.name!r} is configured by {str(self.file)!r}: give what to change about it")
        for changed in self._files.take_changed():
            logger.warning("%s has changed since the server started; restart it to use the new one", changed)
        overlay = read_overlay(request or {})
        try:
            run = build_overlaid_run(self._parsed, overlay, environ=self._environ, base=self._first, hosts=self._hosts)
        except RequestError as error:  # those who ask need not know where the project is
            folder = f"{self.file.absolute().parent}{os.sep}"
            raise RequestError(problem.replace(folder, "") for problem in error.problems) from error
        return PreparedRun(
            engine=run.engine,
            checked=run.checked,
            configuration=run.configuration,
            overlay=_dump_overlay(overlay, run.engine),
            keep_traces=run.config.keep_traces,
            observers=run.observers,
        )

    def rebuild(self, header: RunHeader) -> PreparedRun:
        if header.overlay is None:
            raise SetupError("it was not started by a Manager; `promptiter resume` continues it")
        return self.prepare(header.overlay)

    def _list_files(self) -> list[Path]:
        """The files that are read once."""
        try:
            return list_agent_files(self._first.config, file=self.file, structure=self.describe())
        except SetupError as error:
            logger.warning("edits of the agent of %s will not be noticed: %s", self.file, error)
            return [self.file]


def _dump_overlay(overlay: RunOverlay, engine: Engine) -> dict[str, Json]:
    """What a store keeps of a request, to build its run again. RequestError if that includes a secret of the app."""
    plain = overlay.to_json()
    if engine.evaluator.gateway.redactor.redact_known_json(plain) != plain:
        raise RequestError(["run: a case or value contains a secret of the app, which is not stored; leave it out"])
    return plain


def list_apps(apps: Engine | App | Mapping[str, Engine | App] | Sequence[App]) -> dict[str, App]:
    """The apps of a Manager by name. Raises SetupError if a name is given twice."""
    if isinstance(apps, Engine):
        return {"default": EngineApp(apps)}
    if isinstance(apps, Mapping):
        named = {name: EngineApp(each, name) if isinstance(each, Engine) else each for name, each in apps.items()}
    elif isinstance(apps, Sequence):
        named = {}
        for each in apps:
            if each.name in named:
                raise SetupError(f"two apps are called {each.name!r}; name one with `server: {{app: ...}}` in its file")
            named[each.name] = each
    else:
        named = {apps.name: apps}
    if not named:
        raise SetupError("a Manager needs an app: give an Engine, or apps by name")
    return named
