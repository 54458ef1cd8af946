"""What tests look at: files with everything that can be changed about them, and processes by a mark."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from promptiter.agents.black_box.process import FinishedProcess, ProcessLimits
from promptiter.sandbox import PrivateCopy

PATH = os.environ["PATH"]
PYTHON = (sys.executable, "-I", "-S", "-c")
QUICK = ProcessLimits(timeout_s=20, grace_s=0.3)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Folders that must stay as they are."""

    outside: Path
    workspace: Path

    def describe(self) -> dict[str, Any]:
        """Content, mode, owner, times and links of everything."""
        found = {}
        for folder in (self.outside, self.workspace):
            for path in [folder, *sorted(folder.rglob("*"))]:
                status = path.lstat()
                content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
                owner = (status.st_mode, status.st_uid, status.st_gid, status.st_nlink)
                found[str(path)] = (content, *owner, status.st_size, status.st_mtime_ns, _read_attributes(path))
        return found


def _read_attributes(path: Path) -> tuple[str, ...]:
    return () if path.is_symlink() else tuple(sorted(os.listxattr(path)))


@dataclass(frozen=True, slots=True)
class Mark:
    """A variable by which processes of a test are found, whatever became of their parents."""

    value: str

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": PATH, "PROMPTITER_TEST_MARK": self.value}

    def find_processes(self) -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.value.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
        return found


def make_mark() -> Mark:
    return Mark(uuid4().hex)


async def run_python(
    copy: PrivateCopy, code: str, *arguments: str, mark: Mark | None = None, limits: ProcessLimits = QUICK
) -> FinishedProcess:
    """Run Python code in a copy."""
    environment = mark.environment if mark else {"PATH": PATH}
    return await copy.run((*PYTHON, code, *arguments), environment=environment, limits=limits)


async def run_shell(copy: PrivateCopy, script: str, *, limits: ProcessLimits = QUICK) -> FinishedProcess:
    """Run a shell script in a copy."""
    return await copy.run(("/bin/sh", "-c", script), environment={"PATH": PATH}, limits=limits)


async def wait_until(condition: Callable[[], bool], *, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)
