"""A hidden file stays hidden where the workspace is mounted at a second place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from promptiter.sandbox import Sandbox

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, os, sys
from pathlib import Path
from promptiter.sandbox import CopyPlan, find_sandbox
from promptiter.sandbox.supervisor.mounts import make_private
from promptiter.sandbox.supervisor.syscalls import CLONE_NEWNS, CLONE_NEWUSER, mount, unshare
kind, root = sys.argv[1], Path(sys.argv[2])
uid, gid = os.getuid(), os.getgid()
unshare(CLONE_NEWUSER | CLONE_NEWNS)
for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
    Path("/proc/self", name).write_text(text)
make_private()
mount(b"tmpfs", b"/mnt", b"tmpfs")
Path("/mnt/second place").mkdir()
mount(bytes(root.parent), b"/mnt/second place", b"none", 4096)
assert "SECRET" in Path("/mnt/second place/workspace/holdout.py").read_text()

async def main():
    async with find_sandbox(kind).open(CopyPlan(root=root, hidden=("holdout.py",))) as copy:
        command = ["/bin/sh", "-c", "cat '/mnt/second place/workspace/'*.py"]
        finished = await copy.run(command, environment={"PATH": "/usr/bin:/bin"})
        print(finished.stdout.decode())

asyncio.run(main())
"""


def test_a_hidden_file_is_hidden_at_every_path(protection: Sandbox, workspace: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, protection.kind, str(workspace)]
    finished = subprocess.run(command, env=dict(os.environ), capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "print(1)\n\n"
