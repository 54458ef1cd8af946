"""The runs of a server, for commands, while it is restarted."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from promptiter.cli.served_runs import ServedRuns
from promptiter.errors import SetupError
from promptiter.runlog.events import Event
from promptiter.runs.run_list import RunQuery
from promptiter.server import patience
from promptiter.server.patience import log_wait

pytestmark = pytest.mark.slow


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_stream = self.path.partition("?")[0].endswith("/events")
        body = b'event: end\ndata: {"status":"succeeded"}\n\n' if is_stream else b'{"error": "it is back"}'
        self.send_response(200 if is_stream else 404)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", "text/event-stream" if is_stream else "application/json")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Restarts(logging.Handler):
    """A server that starts when a client waits for it."""

    def __init__(self) -> None:
        super().__init__()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.server: ThreadingHTTPServer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        assert "waiting for it" in record.getMessage()
        self.server = ThreadingHTTPServer(("127.0.0.1", self.port), Answers)
        Thread(target=self.server.serve_forever).start()

    def stop(self) -> None:
        if self.server is not None:
            self.server.shutdown()
            self.server.server_close()


@pytest.fixture
def restarts() -> Iterator[Restarts]:
    restarts, logger = Restarts(), logging.getLogger("promptiter.server.patience")
    logger.addHandler(restarts)
    yield restarts
    logger.removeHandler(restarts)
    restarts.stop()


@pytest.mark.parametrize("command", ["watch", "copy"])
def test_a_server_that_started_the_run_gets_all_the_patience(
    command: str, restarts: Restarts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client that started it is another one than those that follow it and copy its end."""
    monkeypatch.setattr(patience, "FIRST_PATIENCE_S", 0.0)
    place = ServedRuns(f"http://127.0.0.1:{restarts.port}", "desk")

    async def ignore(_: Event) -> None:
        pass

    if command == "watch":
        asyncio.run(place.watch("x", after=-1, observe=ignore, on_wait=log_wait))
    else:
        with pytest.raises(SetupError, match="it is back"):
            place.copy_run("x", tmp_path / "run", traces=False, patience_s=60.0)
    assert restarts.server is not None


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>My shop</title>")

    def log_message(self, *_: object) -> None:
        pass


def test_the_url_of_another_web_server_is_wrong_input() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        Thread(target=server.serve_forever).start()
        try:
            with pytest.raises(SetupError, match="answered with 'text/html' instead of application/json: it is not a"):
                ServedRuns(f"http://127.0.0.1:{server.server_port}", "desk").list_runs(RunQuery())
        finally:
            server.shutdown()
