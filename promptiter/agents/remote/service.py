"""AgentService: serves an agent of ours to a promptiter elsewhere, as `GET /structure` and `POST /runs`.

    app = AgentService(agent)   # an ASGI application: uvicorn bot:app

`promptiter agent serve bot:agent` serves one without further packages.
"""

from __future__ import annotations

import asyncio
import errno
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import orjson
from pydantic import ValidationError

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext, check_agent, restore_agent, run_agent
from promptiter.agents.failures import describe_error
from promptiter.agents.remote.gateway_model import build_gateway
from promptiter.agents.remote.messages import RunDocument, build_structure_document
from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest, RefusedRequestError
from promptiter.endpoint.http_server import MAX_BODY, HttpServer
from promptiter.endpoint.sessions import LOOPBACK
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message
from promptiter.profile import Profile
from traces.documents import to_json
from traces.errors import UnwritableTraceError
from traces.model import Json

Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class AgentService:
    """Answers the requests of the protocol with an agent. An instance is an ASGI application.

    `gateway` calls models for requests that do not say where to call them. With a `token`, callers must send it as
    `Authorization: Bearer ...`. Requests name the address that models are called at: without a token, serve the agent
    on an address that only you can reach.
    """

    def __init__(self, agent: Agent, *, gateway: Gateway | None = None, token: str | None = None) -> None:
        check_agent(agent)
        if token == "":
            raise SetupError("the token of an agent service is empty; give one that callers must know, or None")
        self.agent = agent
        self._gateway = gateway
        self._token = token

    @property
    def has_token(self) -> bool:
        """Whether callers must send a token."""
        return self._token is not None

    async def handle(self, request: HttpRequest) -> HttpAnswer:
        """Answer a request. An error of the agent is part of an answer with status 200."""
        try:
            self._authenticate(request)
            return await self._dispatch(request)
        except RefusedRequestError as error:
            return HttpAnswer.of_json({"error": {"message": str(error)}}, status=error.status)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of an ASGI server."""
        if scope["type"] == "lifespan":
            await _follow_lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"an agent is served over HTTP, not as {scope['type']!r}")
        headers = [(name.decode("latin-1").lower(), value.decode("latin-1")) for name, value in scope["headers"]]
        request = HttpRequest(
            method=scope["method"],
            path=scope["path"].removeprefix(scope.get("root_path", "")),
            headers=dict(headers),
            read_body=lambda: _read_body(receive),
        )
        answer = await self.handle(request)
        body = b"".join(answer.chunks)
        head = [(b"content-type", answer.content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": answer.status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    def _authenticate(self, request: HttpRequest) -> None:
        if self._token is None:
            return
        given = request.headers.get("authorization", "").encode()
        if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
            raise RefusedRequestError(HTTPStatus.UNAUTHORIZED, "send the token: Authorization: Bearer ...")

    async def _dispatch(self, request: HttpRequest) -> HttpAnswer:
        match request.method, request.path.rstrip("/"):
            case "GET", "/health":
                return HttpAnswer.of_json({"status": "ok"})
            case "GET", "/structure":
                return HttpAnswer.of_json(build_structure_document(self.agent.describe()))
            case "POST", "/runs":
                return await self._run(await request.read_body())
        message = f"{request.method} {request.path!r} is not served; there are GET /structure and POST /runs"
        raise RefusedRequestError(HTTPStatus.NOT_FOUND, message)

    async def _run(self, raw: bytes) -> HttpAnswer:
        try:
            document = RunDocument.model_validate_json(raw)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the body"
            raise RefusedRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, f"{place}: {first['msg']}") from None
        profile = self._build_profile(document)
        case = CaseInput(
            text=document.input.text,
            history=tuple(Message(each.role, each.content) for each in document.input.history),
            state=document.input.state,
        )
        context = RunContext(
            case_id=document.case_id,
            repeat=document.repeat,
            turn=document.turn,
            seed=document.seed,
            deadline_s=document.deadline_s,
        )
        with self._find_gateway(document).active():
            run = await self._run_agent(case, profile, context)
        return HttpAnswer.of_json({"run": _list_run(run)})

    def _build_profile(self, document: RunDocument) -> Profile:
        snapshot = self.agent.describe()
        if document.structure_id != snapshot.structure_id:
            message = f"the request is for the structure {document.structure_id[:12]!r}, and this agent has the "
            raise RefusedRequestError(
                HTTPStatus.CONFLICT, f"{message}structure {snapshot.structure_id[:12]!r}; ask for GET /structure again"
            )
        try:
            return Profile.of(snapshot, document.values)
        except SetupError as error:
            raise RefusedRequestError(HTTPStatus.UNPROCESSABLE_ENTITY, str(error)) from error

    def _find_gateway(self, document: RunDocument) -> Gateway:
        if document.models is not None:
            return build_gateway(document.models.base_url, document.models.api_key)
        return (self._gateway or Gateway()).for_run()

    async def _run_agent(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        try:
            return await run_agent(self.agent, case, profile, context)
        except Exception as error:  # noqa: BLE001 - what an agent raises is the error of its run
            return AgentRun(error=describe_error(error))


@asynccontextmanager
async def serve_agent(service: AgentService, *, host: str = "127.0.0.1", port: int = 0) -> AsyncIterator[str]:
    """Serve an agent on an address while the block runs. Returns the address. Files that it writes are restored.

    On loopback without a token, web pages in a browser of this machine are kept out.
    """
    server = HttpServer(_WithoutPages(service) if host in LOOPBACK and not service.has_token else service.handle)
    try:
        found = await server.start(host=host, port=port)
    except OSError as error:
        why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
        raise SetupError(
            f"port {port} of {host!r} cannot be used: {why}; give another port, or 0 for a free one"
        ) from error
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{found}"
    finally:
        await server.close()
        await restore_agent(service.agent)


@dataclass(frozen=True, slots=True)
class _WithoutPages:
    """Refuses requests of web pages: they have an `Origin`, or the `Host` is a name that leads to this machine."""

    service: AgentService

    async def __call__(self, request: HttpRequest) -> HttpAnswer:
        host = request.headers.get("host", "")
        if "origin" not in request.headers and (not host or _get_name(host) in LOOPBACK):
            return await self.service.handle(request)
        message = "without a token, the agent answers programs under its loopback address only"
        return HttpAnswer.of_json({"error": {"message": message}}, status=HTTPStatus.FORBIDDEN)


def _get_name(host: str) -> str | None:
    try:
        return urlsplit(f"//{host}").hostname
    except ValueError:
        return None


def _list_run(run: AgentRun) -> dict[str, Json]:
    """A run as the protocol has it, without what is unknown."""
    listed: dict[str, Json] = {"output": run.output}
    if run.data is not None:
        listed["data"] = run.data
    if run.error is not None:
        listed["error"] = asdict(run.error)
    if usage := {name: value for name, value in asdict(run.usage).items() if value is not None}:
        listed["usage"] = usage
    if run.trace is not None:
        try:
            listed["trace"] = orjson.Fragment(to_json(run.trace))
        except UnwritableTraceError as error:
            listed["error"] = asdict(describe_error(error))
    return listed


async def _read_body(receive: Receive) -> bytes:
    parts, size = [], 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise asyncio.CancelledError
        part = event.get("body", b"")
        size += len(part)
        if size > MAX_BODY:
            raise RefusedRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body has more than {MAX_BODY} bytes")
        parts.append(part)
        if not event.get("more_body"):
            return b"".join(parts)


async def _follow_lifespan(receive: Receive, send: Send) -> None:
    while (await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    await send({"type": "lifespan.shutdown.complete"})
