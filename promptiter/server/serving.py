"""Serves the HTTP API with uvicorn, until a signal ends it. Runs in progress are left so that they can be continued.

The first SIGINT or SIGTERM closes the manager: no run is started, and those in progress finish the calls that they have
made. Meanwhile requests are answered, then streams end. The second signal does not wait for calls. Both exit with 0.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

from promptiter.errors import SetupError
from promptiter.manager import Manager
from promptiter.runs.run_list import RunQuery
from promptiter.server.limits import Limits
from promptiter.server.retention import Retention
from promptiter.server.tokens import Tokens

if TYPE_CHECKING:
    from promptiter.server.refinements import Refinements

SIGNALS = (signal.SIGINT, signal.SIGTERM)
BACKLOG = 2048
LOOPBACK = ("localhost", "127.0.0.1", "::1")
"""The names of this machine, from itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """How a server is reached, by whom, and within which limits."""

    host: str = "127.0.0.1"
    port: int = 8788
    tokens: Tokens | None = None
    limits: Limits = field(default_factory=Limits)
    cors_origins: Sequence[str] = ()
    retention: Retention = field(default_factory=Retention)

    def check(self) -> None:
        """Raise SetupError if everyone on the network could use the server."""
        if self.tokens is None and not is_loopback(self.host):
            raise SetupError(
                f"{self.host!r} can be reached from other machines, and there are no tokens: make some with "
                "`promptiter token`, and pass --tokens FILE"
            )


async def serve(
    manager: Manager,
    options: ServerOptions,
    *,
    on_start: Callable[[str], None] = lambda _: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until `stop` is set. The manager is closed then.

    `on_start` is called with the address once requests are accepted.
    """
    try:
        from promptiter.server.application import create_application
        from promptiter.server.connections import build_server
    except ImportError as error:
        raise SetupError(
            f"a server needs fastapi and uvicorn ({error}); run: pip install 'promptiter[server]'"
        ) from error

    options.check()
    for name in manager.apps:  # such as a database that must be upgraded is reported before anything is served
        await manager.list(RunQuery(limit=1), app=name)
    application = create_application(
        manager,
        tokens=options.tokens,
        limits=options.limits,
        cors_origins=options.cors_origins,
        hosts=(*LOOPBACK, options.host) if options.tokens is None else None,
    )
    listening = _listen(options.host, options.port)
    server = build_server(application)
    server.capture_signals = _capture_nothing  # type: ignore[method-assign]  # it would raise them again at the end
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    stopping = stop or asyncio.Event()

    async def supervise() -> None:
        while not server.started:  # noqa: ASYNC110 - uvicorn has no event to wait for
            await asyncio.sleep(0.02)
        on_start(f"http://{shown}:{port}")
        await stopping.wait()
        try:
            await manager.close()
        finally:
            server.should_exit = True

    supervising = asyncio.create_task(supervise())
    refinements: Refinements = application.state.refinements
    pruning = asyncio.create_task(
        options.retention.keep_pruning(manager, is_in_use=refinements.is_running, on_deleted=refinements.forget)
    )
    try:
        await asyncio.sleep(0)  # Ctrl-C during the imports ends it here, before uvicorn begins and reports an error
        with _on_signals(stopping, lambda: manager.close(timeout_s=0)):
            await server.serve(sockets=[listening])
    finally:
        supervising.cancel()
        pruning.cancel()
        listening.close()


@contextmanager
def _on_signals(stopping: asyncio.Event, hurry: Callable[[], Coroutine[Any, Any, None]]) -> Iterator[None]:
    """In this block the first signal stops the server, the second hurries, and a third ends the process at once."""
    if threading.current_thread() is not threading.main_thread():  # only there Python gets signals
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    # What nohup or a script ignores stays ignored.
    before = {number: handler for number, handler in handlers.items() if handler is not signal.SIG_IGN}
    hurrying: list[asyncio.Task[None]] = []

    def handle() -> None:
        if not stopping.is_set():
            stopping.set()
            return
        hurrying.append(asyncio.create_task(hurry()))
        restore()

    def restore() -> None:
        for number, handler in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)

    for number in before:
        loop.add_signal_handler(number, handle)
    try:
        yield
    finally:
        restore()


@contextmanager
def _capture_nothing() -> Iterator[None]:
    yield


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _listen(host: str, port: int) -> socket.socket:
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise SetupError(f"{host}:{port} cannot be used: {error.strerror or error}; choose another --port") from error
