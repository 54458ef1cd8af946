"""Agents in JavaScript that tests start, kill and start again."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "node_agent"


class NodeProgram:
    """A program that serves an agent: `node PROGRAM ... PORT`. It keeps its port when it is started again."""

    def __init__(self, *command: str | Path) -> None:
        if shutil.which("node") is None:
            pytest.skip("Node.js is not installed: apt-get install nodejs")
        self.port = _find_free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self._command = ["node", *map(str, command), str(self.port)]
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until it listens."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == f"Serving on {self.address}\n"

    def kill(self) -> None:
        """End it with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()


@contextmanager
def serve_node(*command: str | Path) -> Iterator[NodeProgram]:
    """A program that serves an agent while the block runs."""
    program = NodeProgram(*command)
    program.start()
    try:
        yield program
    finally:
        program.kill()


def _find_free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
