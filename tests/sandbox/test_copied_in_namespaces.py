"""Where an overlay is refused, a copy is mounted over the original. Here by overlays on overlays, two at most."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from promptiter.sandbox import Sandbox

pytestmark = pytest.mark.slow

PROGRAM = """
import asyncio, os, tempfile
from pathlib import Path
from promptiter.errors import CommandError
from promptiter.sandbox import CopyPlan, find_sandbox
from promptiter.sandbox.supervisor.mounts import make_private
from promptiter.sandbox.supervisor.syscalls import CLONE_NEWNS, CLONE_NEWUSER, mount, unshare
uid, gid = os.getuid(), os.getgid()
unshare(CLONE_NEWUSER | CLONE_NEWNS)
for name, text in (("setgroups", "deny"), ("uid_map", f"0 {uid} 1"), ("gid_map", f"0 {gid} 1")):
    Path("/proc/self", name).write_text(text)
make_private()
mount(b"tmpfs", b"/mnt", b"tmpfs")
for name in ("lower", "first", "second", "upper1", "work1", "upper2", "work2"):
    Path("/mnt", name).mkdir()
Path("/mnt/lower/file").write_text("content")
Path("/mnt/lower/holdout").write_text("SECRET")
for lower, merged, number in (("lower", "first", 1), ("first", "second", 2)):
    options = f"lowerdir=/mnt/{lower},upperdir=/mnt/upper{number},workdir=/mnt/work{number},userxattr"
    mount(b"overlay", f"/mnt/{merged}".encode(), b"overlay", 0, options.encode())

async def main():
    root, environment = Path("/mnt/second"), {"PATH": "/usr/bin:/bin"}
    plan = CopyPlan(root=root, files={"a": "b"}, hidden=("holdout",), protected=("file",), disk_bytes=4 << 20)
    async with find_sandbox("namespaces").open(plan) as copy:
        script = "cat a file holdout; echo x > file; echo y > new; pwd"
        finished = await copy.run(["/bin/sh", "-c", script], environment=environment)
        assert finished.stdout == b"bcontent/mnt/second\\n", finished
        assert (await copy.list_changes()).paths == ("new",)
        assert await copy.find_tampering() == ()
        await copy.reveal()
        assert (await copy.run(["cat", "holdout"], environment=environment)).stdout == b"SECRET"
        script = "for i in 1 2 3 4 5; do head -c 1000000 /dev/zero > $i; done; sleep 60"
        try:
            await copy.run(["/bin/sh", "-c", script], environment=environment)
        except CommandError as error:
            assert "bytes to its copy" in str(error)
        else:
            raise AssertionError("the quota was exceeded")
    assert sorted(os.listdir(root)) == ["file", "holdout"]
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("promptiter-")]

asyncio.run(main())
"""


@pytest.mark.parametrize("protection", ["namespaces"], indirect=True)
def test_a_copy_is_mounted_where_an_overlay_is_refused(
    protection: Sandbox, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert protection.kind == "namespaces"
    environment = {**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("temporary"))}
    command = [sys.executable, "-c", PROGRAM]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert finished.returncode == 0, finished.stderr
