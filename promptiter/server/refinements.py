"""Refinements at a server: they run in the background, and their sessions are files of the run, or of its copy.

So they survive a restart of the server. A refinement that a server did not finish is listed as interrupted.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from promptiter.concurrency import run_in_thread
from promptiter.config.refine_section import RefineSection
from promptiter.config.refinement import ConfiguredRefinement, build_case_refinement
from promptiter.config.refinement_settings import REFINEMENT, RefinementSettings
from promptiter.errors import RequestError, SetupError
from promptiter.manager import App as ManagerApp
from promptiter.manager import Manager
from promptiter.manager.app import ConfiguredApp, PreparedRun
from promptiter.runs.store import RunView
from promptiter.server.errors import HttpError
from promptiter.server.refine_bodies import (
    RefinementListBody,
    RefinementState,
    StartedRefinement,
    StartedRefinementBody,
    read_refine_body,
)
from promptiter.server.refined_copies import RefinedCopies
from promptiter.tasks.refine.run_folder import COMPLETION, read_run
from promptiter.tasks.refine.run_seeds import REFINED
from promptiter.tasks.refine.seeds import find_sessions
from promptiter.tasks.refine.sessions import RefinementSession, list_chain
from traces.model import Json

logger = logging.getLogger(__name__)

MOST_AT_ONCE = 4
"""Refinements that run at the same time; more are refused."""
NO_FOLDER = (
    "this app has no project folder, where the refinements of its runs could be kept; copy the run with "
    "`promptiter export RUN --server URL --to FOLDER`, and refine the copy with `promptiter refine FOLDER`"
)
NO_CASES = (
    "the run has a scorer instead of cases, and its files are refined by a program, which a request cannot name; use "
    "`promptiter refine RUN --command COMMAND` where the run is"
)
NO_COPY = "the server cannot keep a copy of the run, which refinements need; its log says why"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """A refinement in this process."""

    app: str
    run_id: str
    task: asyncio.Task[None]


@dataclass(eq=False)
class Refinements:
    """The refinements of a server. Those in this process are known by the folder of their seed."""

    manager: Manager
    running: dict[Path, _Running] = field(default_factory=dict)
    is_closed: bool = False

    @property
    def copies(self) -> RefinedCopies:
        return RefinedCopies(self.manager)

    async def start(self, app: str, run_id: str, body: Json) -> StartedRefinementBody:
        """Start a refinement in the background. HttpError or RequestError if it cannot start."""
        view = await self.manager.view(run_id, app=app)
        result = await self.manager.get(run_id, app=app)
        if result.status in ("queued", "running"):
            raise HttpError(409, f"the run {run_id!r} is {result.status}; refine it when it has ended")
        folder = self.copies.find(app, view)
        if folder is None:
            raise HttpError(409, NO_FOLDER)
        managed = self.manager.apps[app]
        models = await run_in_thread(lambda: list_models(managed))
        given, settings = read_refine_body(body, models=models)
        if self.is_closed:
            raise HttpError(503, "the server is stopping; ask the next one")
        try:
            await self.copies.update(view, folder)
        except (OSError, SetupError) as error:
            logger.warning("the run %s cannot be copied to %s: %s", run_id, folder, error)
            raise HttpError(503, NO_COPY) from error
        configured = await run_in_thread(lambda: _build(managed, view, folder, settings, given.case))
        home, case = configured.seed.home, configured.seed.case
        self._check_room(home, run_id)
        for warning in configured.warnings:
            logger.warning("%s", warning)
        begun: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._work(configured, begun))
        self.running[home] = _Running(app=app, run_id=run_id, task=task)
        task.add_done_callback(lambda _: self.running.pop(home, None))
        started = StartedRefinement(session_id=await begun, run_id=run_id, case="" if case is None else case.id)
        return StartedRefinementBody(refinement=started, warnings=list(configured.warnings))

    async def list_all(self, app: str, run_id: str) -> RefinementListBody:
        """The refinements of a run, oldest first."""
        view = await self.manager.view(run_id, app=app)
        folder, running = self.copies.find(app, view), set(self.running)
        if folder is None:
            return RefinementListBody(refinements=[])
        found = await run_in_thread(lambda: sorted(_read(folder, run_id, running), key=lambda each: each.started_at))
        return RefinementListBody(refinements=found)

    async def forget(self, run_ids: Collection[str], *, app: str | None = None) -> None:
        """Remove the copies of runs that were deleted, with their refinements."""
        apps = list(self.manager.apps) if app is None else [app]
        await run_in_thread(lambda: self.copies.remove(apps, run_ids))

    def check_idle(self, app: str, run_id: str) -> None:
        """HttpError if a run is being refined, so that it cannot be deleted or continued."""
        if self.is_running(app, run_id):
            raise HttpError(409, f"the run {run_id!r} is being refined; wait until that has ended")

    def is_running(self, app: str, run_id: str) -> bool:
        """Whether a run is being refined here."""
        return any((each.app, each.run_id) == (app, run_id) for each in self.running.values())

    async def close(self) -> None:
        """Cancel what runs. The sessions say so."""
        self.is_closed = True
        tasks = [each.task for each in self.running.values()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _check_room(self, home: Path, run_id: str) -> None:
        if home in self.running:
            raise HttpError(409, f"this case of the run {run_id!r} is being refined; wait until that has ended")
        if len(self.running) >= MOST_AT_ONCE:
            raise HttpError(429, f"{MOST_AT_ONCE} refinements are running already", headers={"Retry-After": "30"})

    async def _work(self, configured: ConfiguredRefinement, begun: asyncio.Future[str]) -> None:
        """Refine to the end. A failure before the beginning is that of the request."""

        def begin(session_id: str) -> None:
            if not begun.done():
                begun.set_result(session_id)

        try:
            notify = partial(logger.info, "refinement of %s: %s", configured.seed.home.name)
            await configured.refine(notify=notify, on_begin=begin)
        except Exception as error:
            logger.exception("a refinement failed")
            if not begun.done():
                begun.set_exception(error)
        finally:
            if not begun.done():
                begun.set_exception(HttpError(503, "the refinement could not start; the log of the server says why"))


def list_models(app: ManagerApp) -> frozenset[str]:
    """The models that a request to an app may name: those of its agent and of its promptiter.yaml."""
    surfaces = [each for each in app.describe().surfaces if each.type == "model"]
    found = {str(each.value) for each in surfaces} | {name for each in surfaces for name in each.limits.choices}
    if isinstance(app, ConfiguredApp):
        config = app.config
        found |= {*config.models.settings, *config.refine.models, *config.refine.tiers.build().models}
        found |= set(config.models.registered)
    return frozenset(found)


def _build(
    app: ManagerApp, view: RunView, folder: Path, settings: RefinementSettings, case_id: str | None
) -> ConfiguredRefinement:
    """Build a refinement; blocking. HttpError or RequestError if the run cannot be refined."""
    section = app.config.refine if isinstance(app, ConfiguredApp) else RefineSection()
    try:
        prepared: PreparedRun = app.rebuild(view.header)
        _check_has_cases(prepared)
        return build_case_refinement(
            folder,
            engine=prepared.engine,
            checked=prepared.checked,
            section=section,
            settings=settings,
            case_id=case_id,
        )
    except SetupError as error:
        problems = error.problems if isinstance(error, RequestError) else [str(error)]
        hidden = f"{folder.absolute()}/"
        shown = (each.replace(hidden, "").replace(str(folder), folder.name) for each in problems)
        raise RequestError(shown, subject=REFINEMENT) from error


def _check_has_cases(prepared: PreparedRun) -> None:
    if prepared.checked.request.scorer is not None:
        raise RequestError([NO_CASES])


def _read(folder: Path, run_id: str, running: set[Path]) -> Iterator[RefinementState]:
    for file in folder.glob(f"{REFINED}/*/{COMPLETION}"):
        home = file.parent
        case = read_run(home).run_id.removeprefix(f"{run_id}:")
        sessions = find_sessions(home).read_all()
        for session in sessions:
            is_last = session is sessions[-1]
            yield _describe(session, case, is_running=home in running and is_last)


def _describe(session: RefinementSession, case: str, *, is_running: bool) -> RefinementState:
    has_ended = session.completed_at is not None
    given = session.model_dump(exclude={"iterations"})
    return RefinementState(
        **given,
        iterations=session.iterations,
        case=case,
        status="ended" if has_ended else "running" if is_running else "interrupted",
        chain=list(list_chain(session)),
    )
