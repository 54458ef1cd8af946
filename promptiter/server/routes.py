"""The routes of the HTTP API: what each does with the Manager.

With `application` and `parameters`, all that imports fastapi.
"""

from __future__ import annotations

import asyncio
from datetime import datetime
from importlib.metadata import version
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from promptiter.concurrency import run_in_thread
from promptiter.errors import UnknownAppError
from promptiter.manager import App as ManagerApp
from promptiter.manager import Manager
from promptiter.policies.verdict import Verdict
from promptiter.runlog.results import RunResult
from promptiter.runs.run_list import MAX_PAGE, ListedRun, ListedStatus, RunQuery
from promptiter.server.bodies import (
    CURSOR,
    HealthBody,
    ListedRunBody,
    ResultBody,
    RunListBody,
    StructureBody,
    TraceBody,
    describe_structure,
    read_run_body,
)
from promptiter.server.errors import HttpError
from promptiter.server.limits import Limits, Rates, read_json
from promptiter.server.measures import Measures
from promptiter.server.openapi import (
    ARCHIVE,
    CHANGE_ERRORS,
    EVENTS,
    KNOWN_RESULT,
    METRICS,
    NO_REPORT,
    NO_RESULT,
    READ_ERRORS,
    REFINE_BODY,
    REFINE_ERRORS,
    REPORT,
    RUN_BODY,
    RUN_ERRORS,
    TOKEN_ERRORS,
    WAIT_ERRORS,
)
from promptiter.server.parameters import MAX_NUMBER, MAX_VALUES, Cursor, EventNumber, Time, find_unknown
from promptiter.server.refine_bodies import RefinementListBody, StartedRefinementBody
from promptiter.server.refinements import Refinements
from promptiter.server.responses import ResultResponse, StreamResponse, encode_result
from promptiter.server.run_files import RunFiles
from promptiter.server.stream import stream_events
from promptiter.server.tokens import Scope, Tokens
from traces.documents import to_json


class Routes:
    """The routes of a server, and what they share: rates, measures, streams."""

    def __init__(self, manager: Manager, tokens: Tokens | None, limits: Limits) -> None:
        self.manager = manager
        self.tokens = tokens
        self.limits = limits
        self.rates = Rates(limits.requests_per_minute)
        self.measures = Measures()
        self.files = RunFiles()
        self.refinements = Refinements(manager)
        self.streams = 0

    def allow(self, scope: Scope) -> Any:
        """A dependency that lets requests with this scope through."""

        async def check(request: Request) -> None:
            app = request.path_params.get("app")
            client = request.client.host if request.client is not None else ""
            visible = None
            if self.tokens is not None:
                token = self.tokens.check(request.headers.get("authorization"), scope, app)
                client, visible = token.name, token.apps
            request.state.apps = [name for name in self.manager.apps if visible is None or name in visible]
            self.rates.take(client)
            if app is not None:
                known = [each.alias for each in request.scope["route"].dependant.query_params]
                if problems := find_unknown(list(request.query_params), known):
                    raise HttpError(422, "; ".join(problems))

        return Depends(check)

    def build_router(self) -> APIRouter:
        """The routes of one app."""
        router = APIRouter(prefix="/{app}")
        read, run, admin = self.allow("read"), self.allow("run"), self.allow("admin")
        runs, one = "/async-runs", "/async-runs/{run_id}"
        seen: dict[str, Any] = {"dependencies": [read], "responses": READ_ERRORS}
        started: dict[str, Any] = {"dependencies": [run], "openapi_extra": RUN_BODY, "response_model": ResultBody}
        changed: dict[str, Any] = {"dependencies": [run], "responses": CHANGE_ERRORS, "response_model": ResultBody}
        router.get("/structure", response_model=StructureBody, **seen)(self.get_structure)
        router.post("/runs", responses=RUN_ERRORS | WAIT_ERRORS, **started)(self.run)
        router.post(runs, status_code=201, responses=RUN_ERRORS, **started)(self.start_run)
        router.get(runs, response_model=RunListBody, **seen)(self.list_runs)
        router.get(one, dependencies=[read], responses=READ_ERRORS | KNOWN_RESULT, response_model=ResultBody)(
            self.get_run
        )
        router.delete(one, dependencies=[admin], responses=CHANGE_ERRORS, status_code=204, response_class=Response)(
            self.delete_run
        )
        router.post(f"{one}/cancel", status_code=202, **changed)(self.cancel_run)
        router.post(f"{one}/resume", status_code=202, **changed)(self.resume_run)
        router.post(f"{one}/stop", status_code=202, **changed)(self.stop_run)
        router.post(
            f"{one}/refine",
            status_code=202,
            dependencies=[run],
            responses=REFINE_ERRORS,
            openapi_extra=REFINE_BODY,
            response_model=StartedRefinementBody,
        )(self.refine_run)
        router.get(f"{one}/refinements", response_model=RefinementListBody, **seen)(self.list_refinements)
        router.get(
            f"{one}/result",
            dependencies=[read],
            responses=READ_ERRORS | KNOWN_RESULT | NO_RESULT,
            response_model=ResultBody,
        )(self.get_result)
        router.get(f"{one}/events", dependencies=[read], responses=READ_ERRORS | EVENTS, response_class=Response)(
            self.get_events
        )
        router.get(f"{one}/traces/{{digest}}", response_model=TraceBody, **seen)(self.get_trace)
        made: dict[str, Any] = {"dependencies": [read], "response_class": Response}
        router.get(f"{one}/report", responses=READ_ERRORS | NO_REPORT | REPORT, **made)(self.get_report)
        router.get(f"{one}/archive", responses=READ_ERRORS | ARCHIVE, **made)(self.get_archive)
        return router

    def build_service_router(self) -> APIRouter:
        """The routes of the server as a whole."""
        router = APIRouter()
        degraded: dict[int | str, dict[str, Any]] = {
            503: {"description": "The store cannot be used for now.", "model": HealthBody}
        }
        router.get("/health", response_model=HealthBody, responses=degraded)(self.get_health)
        router.head("/health", include_in_schema=False)(self.get_health)
        router.get("/", include_in_schema=False)(self.get_root)
        router.get(
            "/metrics",
            dependencies=[self.allow("admin")],
            responses=TOKEN_ERRORS | METRICS,
            response_class=PlainTextResponse,
        )(self.get_metrics)
        return router

    async def get_structure(self, app: str) -> Response:
        """What may change about the agent of an app."""
        found = await run_in_thread(self.find_app(app).describe)
        return JSONResponse({"structure": describe_structure(found)})

    async def run(self, app: str, request: Request) -> Response:
        """Start a run, and wait for its result."""
        started = await self.begin(app, request)
        place = request.url_for("get_run", app=app, run_id=started.run_id).path
        try:
            async with asyncio.timeout(self.limits.run_timeout_s):
                result = await self.manager.wait(started.run_id, app=app)
        except TimeoutError as error:
            raise HttpError(
                504,
                f"the run takes longer than {self.limits.run_timeout_s:g} s and continues: GET {place}",
            ) from error
        if result.status in ("queued", "running"):
            raise HttpError(503, f"the server is stopping; another one continues the run: GET {place}")
        return ResultResponse(await self.manager.get_encoded(started.run_id, app=app))

    async def start_run(self, app: str, request: Request) -> Response:
        """Start a run, and return its state: queued."""
        result = await self.begin(app, request)
        place = request.url_for("get_run", app=app, run_id=result.run_id).path
        return ResultResponse(await encode_result(result), 201, headers={"Location": place})

    async def begin(self, app: str, request: Request) -> RunResult:
        self.find_app(app)
        body = await read_json(request, self.limits)
        return await self.manager.start(await run_in_thread(lambda: read_run_body(body)), app=app)

    async def list_runs(
        self,
        app: str,
        status: Annotated[list[ListedStatus], Query(max_length=MAX_VALUES)] = [],  # noqa: B006 - FastAPI copies it
        verdict: Annotated[list[Verdict], Query(max_length=MAX_VALUES)] = [],  # noqa: B006
        created_from: Time | None = None,
        created_before: Time | None = None,
        text: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=MAX_PAGE)] = 50,
        cursor: Cursor | None = None,
    ) -> RunListBody:
        """The runs of an app, newest first."""
        query = RunQuery(
            statuses=tuple(dict.fromkeys(status)),
            verdicts=tuple(dict.fromkeys(verdict)),
            created_from=_format_time(created_from),
            created_before=_format_time(created_before),
            text=text,
            limit=limit,
            cursor=None if cursor is None else cursor.removeprefix(CURSOR),
        )
        page = await self.manager.list(query, app=app)
        following = None if page.next_cursor is None else f"{CURSOR}{page.next_cursor}"
        return RunListBody(runs=[_describe(each) for each in page.runs], next_cursor=following)

    async def get_run(self, app: str, run_id: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        """The state of a run: its result so far."""
        return ResultResponse(await self.manager.get_encoded(run_id, app=app), known=if_none_match)

    async def get_result(self, app: str, run_id: str, if_none_match: Annotated[str, Header()] = "") -> Response:
        """The result of a run that has ended; 409 before that."""
        result = await self.manager.get_encoded(run_id, app=app)
        if result.status in ("queued", "running"):
            raise HttpError(409, f"the run {run_id!r} is {result.status}; it has no result yet")
        return ResultResponse(result, known=if_none_match)

    async def cancel_run(self, app: str, run_id: str) -> Response:
        """Cancel a run. Its finished rounds stay."""
        return ResultResponse(await encode_result(await self.manager.cancel(run_id, app=app)), 202)

    async def resume_run(self, app: str, run_id: str) -> Response:
        """Continue a run that was cancelled, stopped or interrupted, or that failed."""
        self.refinements.check_idle(app, run_id)
        return ResultResponse(await encode_result(await self.manager.resume(run_id, app=app)), 202)

    async def stop_run(self, app: str, run_id: str) -> Response:
        """Stop a run after the work in progress. It can be resumed."""
        return ResultResponse(await encode_result(await self.manager.stop(run_id, app=app)), 202)

    async def refine_run(self, app: str, run_id: str, request: Request) -> StartedRefinementBody:
        """Refine the output of one case of a run that has ended, in the background."""
        self.find_app(app)
        return await self.refinements.start(app, run_id, await read_json(request, self.limits))

    async def list_refinements(self, app: str, run_id: str) -> RefinementListBody:
        """The refinements of a run, also those of earlier servers."""
        self.find_app(app)
        return await self.refinements.list_all(app, run_id)

    async def get_report(self, app: str, run_id: str, request: Request) -> Response:
        """The report of a run, finished or in progress, as an HTML page without scripts."""
        view = await self.manager.view(run_id, app=app)
        return await self.files.make_report(view, url=str(request.base_url).rstrip("/"), app=app)

    async def get_archive(self, app: str, run_id: str, traces: bool = True) -> Response:
        """A copy of a run as a zip file: its header, its events and, if wanted, its traces."""
        return await self.files.make_archive(await self.manager.view(run_id, app=app), traces=traces)

    async def delete_run(self, app: str, run_id: str) -> Response:
        """Delete a run that is not in progress."""
        self.refinements.check_idle(app, run_id)
        await self.manager.delete(run_id, app=app)
        await self.refinements.forget([run_id], app=app)
        return Response(status_code=204)

    async def get_events(
        self,
        app: str,
        run_id: str,
        after: Annotated[int, Query(ge=-1, le=MAX_NUMBER)] = -1,
        last_event_id: EventNumber = "",
    ) -> Response:
        """The events of a run as they happen (server-sent events), from the one after a number on."""
        if self.streams >= self.limits.max_streams:
            raise HttpError(429, f"more than {self.limits.max_streams} streams", headers={"Retry-After": "5"})
        self.streams += 1  # at once: others come while this one waits
        try:
            await self.manager.find_run(run_id, app=app)  # 404 before the stream begins
        except BaseException:
            self.end_stream()
            raise
        seen = int(last_event_id) if last_event_id else after
        return StreamResponse(stream_events(self.manager, app, run_id, after=seen), on_end=self.end_stream)

    def end_stream(self) -> None:
        self.streams -= 1

    async def get_trace(self, app: str, run_id: str, digest: str) -> Response:
        """One trace of a run, by its digest."""
        trace = await self.manager.get_trace(run_id, digest, app=app)
        return Response(to_json(trace), media_type="application/json")

    async def get_health(self, response: Response) -> HealthBody:
        """Whether the server works."""
        apps = [] if self.tokens is not None else sorted(self.manager.apps)
        if not self.manager.problems:
            return HealthBody(status="ok", apps=apps, version=version("promptiter"))
        response.status_code = 503
        error = "the store cannot be used for now, so runs wait; the log of the server says why"
        return HealthBody(status="degraded", apps=apps, version=version("promptiter"), error=error)

    async def get_root(self, request: Request) -> Response:
        """Where the description of the API is."""
        return JSONResponse({"name": "promptiter", "version": version("promptiter"), "api": request.app.openapi_url})

    async def get_metrics(self, request: Request) -> str:
        """Measures in the text format of Prometheus, of the apps that the token is for."""
        apps = request.state.apps
        return self.measures.render(
            [each for each in self.manager.count_works() if each[0] in apps],
            [each for each in self.manager.count_ended() if each[0] in apps],
        )

    def find_app(self, name: str) -> ManagerApp:
        apps = self.manager.apps
        if name not in apps:
            raise UnknownAppError(f"unknown app {name!r}")
        return apps[name]


def _describe(run: ListedRun) -> ListedRunBody:
    return ListedRunBody(**{name: getattr(run, name) for name in ListedRunBody.model_fields})


def _format_time(time: datetime | None) -> str:
    return "" if time is None else time.isoformat(timespec="seconds")
