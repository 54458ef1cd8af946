"""Rebuilds: a command that prepares a tool for a value of one of its settings, such as an index with other chunks.

It runs when a value is first used, once per value: a mark on disk says that it succeeded, so that later runs, and other
processes, do not run it again. `{value}` in the command is the value.
"""

from __future__ import annotations

import shlex
import subprocess
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from promptiter.errors import AgentError, SetupError
from traces import digest
from traces.files import write_atomically
from traces.model import Json

FOLDER = Path(".promptiter") / "rebuilds"
"""Where the marks are, in the folder of agent.yaml."""


@dataclass(frozen=True)
class Rebuild:
    """The command of one setting, which runs in the folder of agent.yaml."""

    command: str
    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        if "{value}" not in self.command:
            raise SetupError(f"rebuild is {self.command!r}, which does not use {{value}}; write the value into it")

    def prepare(self, value: Json) -> None:
        """Run the command for a value, unless it has succeeded before. AgentError if it fails."""
        mark = self.folder / FOLDER / digest([self.command, value])[:16]
        with self._lock:
            if mark.exists():
                return
            arguments = [part.replace("{value}", str(value)) for part in shlex.split(self.command)]
            try:
                done = subprocess.run(arguments, cwd=self.folder, capture_output=True, text=True, check=False)
            except OSError as error:
                raise AgentError(f"rebuild: {arguments[0]!r} cannot be started: {error.strerror or error}") from error
            if done.returncode:
                tail = (done.stderr or done.stdout).strip()[-500:]
                raise AgentError(f"rebuild: {shlex.join(arguments)} exited with {done.returncode}: {tail}")
            mark.parent.mkdir(parents=True, exist_ok=True)
            with write_atomically(mark) as file:
                file.write(f"{shlex.join(arguments)}\n".encode())


def with_rebuilds(function: Callable[..., Any], rebuilds: Mapping[str, Rebuild]) -> Callable[..., Any]:
    """A function of a tool that first prepares what its settings need."""

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        for setting, rebuild in rebuilds.items():
            rebuild.prepare(named.get(setting))
        return function(*arguments, **named)

    return call
