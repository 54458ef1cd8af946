"""Sessions: each run of a case has a key of its own, so that calls over HTTP are counted under the right case.

    async with open_session(context) as session:
        ... run the agent with session.environment ...

The calls of a session are made by the gateway that is active where it was opened, whichever process or thread sends
them.
"""

from __future__ import annotations

import asyncio
import errno
import os
import secrets
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass
from typing import Protocol, TypeAlias
from urllib.parse import urlsplit

from promptiter.endpoint.hosting import EndpointHost, RunningServer
from promptiter.endpoint.http_messages import HttpAnswer, HttpRequest, RefusedRequestError
from promptiter.endpoint.routes import answer_request
from promptiter.errors import FATAL_ERRORS, SetupError
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, ModelReply, ModelRequest, Role
from promptiter.llm.redaction import SESSION_PREFIX, Redactor
from promptiter.outages import is_outage
from promptiter.references import is_reference
from traces import Failure
from traces.model import Json

LOOPBACK = ("127.0.0.1", "localhost", "::1")
BLOCKED_S = 60.0
"""How long the event loop that makes calls may be busy. Code that waits there for an answer would wait forever."""
_BLOCKED = (
    "the event loop of the run has been blocked for {seconds:g} s; if an async function calls a synchronous client, "
    "use the async client (AsyncOpenAI, AsyncAnthropic), or make the function a plain `def`"
)
_REFERENCE = (
    "{name!r} would import Python code, which a request must not; give it a name under models in promptiter.yaml, such "
    "as clerk: {{model: {name}}}, and ask for that name"
)


class SessionContext(Protocol):
    """What a session belongs to; a RunContext is one."""

    @property
    def case_id(self) -> str: ...
    @property
    def repeat(self) -> int: ...
    @property
    def turn(self) -> int: ...
    @property
    def role(self) -> Role: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointCall:
    """One model call that came through the endpoint. `node` is the one that its header names, or empty."""

    node: str
    request: ModelRequest
    reply: ModelReply | None
    error: Failure | None
    start_ns: int
    end_ns: int
    number: int = 0
    """Which of the equal calls of the session this is."""
    conversation: str = ""
    """Which conversation the call belongs to, as its header says, or empty."""


OnCall: TypeAlias = Callable[[EndpointCall], None]
"""Called when a call has ended, in the thread of the server; must not block."""


class EndpointSession:
    """The calls of one run of a case. Ends with the block that opened it; its key is refused from then on."""

    def __init__(
        self,
        context: SessionContext,
        gateway: Gateway,
        server: RunningServer,
        *,
        key: str | None = None,
        numbers_calls: bool = True,
        on_call: OnCall | None = None,
    ) -> None:
        self.key = key or f"{SESSION_PREFIX}{secrets.token_urlsafe(32)}"
        self.base_url = f"{server.address}/{self.key}/v1"
        self.fatal: BaseException | None = None
        """The error that ends the run, such as a spent budget, however the agent handled it."""
        self.conversations: dict[str, Json] = {}
        """The messages of each response of the Responses API, by its id."""
        self._server = server
        self._context = context
        self._gateway = gateway
        self._variables = copy_context()
        self._calls: list[EndpointCall] = []
        self._tasks: set[asyncio.Task[EndpointCall]] = set()
        self._taken: dict[tuple[str, str], set[int]] = {}
        self._is_open = True
        self._numbers_calls = numbers_calls
        self._on_call = on_call

    async def listen_at(self, address: str) -> str:
        """Let another machine call models at this address of this one. Returns its base URL for this session.

        On all interfaces, or on loopback only if the address is one, as it is behind a tunnel.
        """
        parts = urlsplit(address)
        port = parts.port or 80
        host = "127.0.0.1" if parts.hostname in LOOPBACK else "0.0.0.0"  # noqa: S104 - every call needs the key
        listening = asyncio.run_coroutine_threadsafe(self._server.server.listen(host, port), self._server.loop)
        try:
            await asyncio.wrap_future(listening)
        except OSError as error:
            why = "it is in use" if error.errno == errno.EADDRINUSE else error.strerror
            raise SetupError(
                f"the gateway cannot be served at {address!r}: port {port} cannot be used: {why}; give another one"
            ) from error
        return f"{address.rstrip('/')}/{self.key}/v1"

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment variables that lead the SDKs of OpenAI and Anthropic to this session."""
        root = self.base_url.removesuffix("/v1")
        given = {
            "OPENAI_BASE_URL": self.base_url,
            "OPENAI_API_BASE": self.base_url,
            "OPENAI_API_KEY": self.key,
            "ANTHROPIC_BASE_URL": root,
            "ANTHROPIC_API_KEY": self.key,
        }
        for name in ("NO_PROXY", "no_proxy"):  # a proxy cannot reach the loopback address of this machine
            if any(os.environ.get(each) for each in _PROXIES):
                given[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1")))
        return given

    @property
    def calls(self) -> list[EndpointCall]:
        """The calls that have ended, in the order in which they started."""
        return sorted(self._calls, key=lambda call: call.start_ns)

    @property
    def outages(self) -> list[Failure]:
        """The errors of calls that a service failed to answer. They say nothing about the agent.

        A call does not count if the agent later got an answer to the same messages, maybe from another model.
        """
        failed = [call for call in self.calls if call.error is not None and call.error.is_outage]
        return [call.error for call in failed if call.error is not None and not self.was_answered_later(call)]

    def was_answered_later(self, failed: EndpointCall) -> bool:
        """Whether the agent later got an answer to the same messages, maybe from another model."""
        return any(
            call.reply is not None
            and call.start_ns >= failed.end_ns
            and call.request.messages == failed.request.messages
            for call in self._calls
        )

    @property
    def redactor(self) -> Redactor:
        return self._gateway.redactor

    def raise_fatal(self) -> None:
        """Raise the error that ends the run, if a call failed with it."""
        if self.fatal is not None:
            raise self.fatal

    def list_models(self) -> Iterable[str]:
        """The names of the models that the gateway was given."""
        return self._gateway.pool.catalog.names()

    async def ask(self, request: ModelRequest, *, node: str = "", conversation: str = "") -> EndpointCall:
        """Answer a request through the gateway. Runs on the event loop of the server.

        If the client disconnects meanwhile, the call is finished: it is paid for, and its answer is stored. A client
        that asks again gets that answer, because its number is free again.
        """
        if not self._is_open:
            raise RefusedRequestError(401, "the run of this key has ended", kind="authentication_error")
        if is_reference(request.model) and request.model not in self._gateway.pool.catalog.names():
            raise RefusedRequestError(400, _REFERENCE.format(name=request.model), param="model")
        taken: set[int] = self._taken.setdefault((node, request.digest), set()) if self._numbers_calls else set()
        number = next(each for each in range(len(taken) + 1) if each not in taken)
        taken.add(number)
        call = self._make(request, node, number, conversation)
        task = asyncio.get_running_loop().create_task(call, context=self._variables.copy())
        self._tasks.add(task)
        task.add_done_callback(self._forget)
        try:
            return await asyncio.shield(task)
        except BaseException:
            taken.discard(number)
            raise

    def end(self) -> None:
        """Take no further calls."""
        self._is_open = False

    async def finish(self) -> None:
        """Wait until the calls in progress have ended. If that is cancelled, they are cancelled, and count as lost."""
        try:
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._join(), self._server.loop))
        except asyncio.CancelledError:
            self._server.loop.call_soon_threadsafe(self.cancel)
            raise

    async def _make(self, request: ModelRequest, node: str, number: int, conversation: str) -> EndpointCall:
        context, started = self._context, time.time_ns()
        site = CallSite(
            role=context.role,
            case_id=context.case_id or conversation,
            repeat=context.repeat,
            step_id=f"endpoint/{context.turn}/{node}",
            number=number,
        )
        reply, error = None, None
        try:
            await self._check_home()
            reply = await self._gateway.ask(request, site, node_id=node)
        except Exception as raised:
            if isinstance(raised, FATAL_ERRORS):
                self.fatal = self.fatal or raised
            message = self.redactor.redact_text(str(raised))
            error = Failure(type(raised).__name__, message, is_outage=is_outage(raised))
            raise
        finally:
            call = EndpointCall(
                node=node,
                request=request,
                reply=reply,
                error=error or (None if reply is not None else Failure("cancelled", "the run of the agent was ended")),
                start_ns=started,
                end_ns=time.time_ns(),
                number=number,
                conversation=conversation,
            )
            if self._on_call is None:
                self._calls.append(call)
            else:  # a gateway on its own may serve for weeks
                self._on_call(call)
        return call

    async def _check_home(self) -> None:
        if not await self._gateway.wait_until_free(BLOCKED_S):
            raise RefusedRequestError(400, _BLOCKED.format(seconds=BLOCKED_S))

    def _forget(self, task: asyncio.Task[EndpointCall]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # the client may be gone; the session has kept it

    async def _join(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    def cancel(self) -> None:
        """Cancel the calls under way, which count as lost. Runs on the event loop of the server."""
        for task in self._tasks:
            task.cancel()


_PROXIES = ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy")
_sessions: dict[str, EndpointSession] = {}
_running: ContextVar[EndpointSession | None] = ContextVar("promptiter_endpoint_session", default=None)


def find_session() -> EndpointSession | None:
    """The session that this code runs in, including its tasks and threads."""
    return _running.get()


async def _answer(request: HttpRequest) -> HttpAnswer:
    return await answer_request(request, _sessions.get)


_host = EndpointHost(_answer)


def add_session(make: Callable[[RunningServer], EndpointSession]) -> EndpointSession:
    """Add a session that lasts as long as the process; blocking."""
    session = make(_host.acquire())
    _sessions[session.key] = session
    return session


def list_sessions() -> list[EndpointSession]:
    """The sessions that take calls."""
    return list(_sessions.values())


@asynccontextmanager
async def open_session(context: SessionContext) -> AsyncIterator[EndpointSession]:
    """A session for one run of a case, through the active gateway. Its last calls are finished at the end.

    Raises the error that ends the run, such as a spent budget, however the agent handled it.
    """
    gateway = current_gateway()
    async with _host.hold() as server:
        session = EndpointSession(context, gateway, server)
        _sessions[session.key] = session
        before = _running.get()
        _running.set(session)
        try:
            yield session
        except Exception:
            session.raise_fatal()
            raise
        finally:
            _running.set(before)
            session.end()
            del _sessions[session.key]
            await session.finish()
        session.raise_fatal()
