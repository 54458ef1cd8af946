"""Less obvious ways out of a copy: links to what is hidden, folders above what is protected, and unusual calls."""

from __future__ import annotations

import asyncio
import ctypes
import socket
import tempfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from promptiter.sandbox import CopyPlan, Sandbox
from tests.sandbox.observation import Surroundings, run_python, run_shell
from tests.sandbox.test_hostile_commands import attack, run_into_quota

pytestmark = pytest.mark.slow


async def test_what_is_hidden_has_no_other_name(protection: Sandbox, surroundings: Surroundings) -> None:
    root, outside = surroundings.workspace, surroundings.outside
    (root / "real.py").write_text("SECRET")
    (root / "link.py").symlink_to("real.py")
    (root / "hard link.py").hardlink_to(root / "holdout.py")
    (outside / "elsewhere.py").write_text("SECRET")
    (root / "shared").symlink_to(outside)
    code = """
def read(path):
    if "SECRET" not in open(path).read():
        raise ValueError(path)
for name in ("real.py", "link.py", "holdout.py", "hard link.py", "shared/elsewhere.py"):
    attempt(name, read, name)
    attempt("absolute " + name, read, f"{workspace}/{name}")
attempt("outside", read, outside + "/elsewhere.py")
"""
    hidden = ("link.py", "holdout.py", "shared/elsewhere.py")
    assert await attack(protection, surroundings, code, hidden=hidden) == []
    async with protection.open(CopyPlan(root=root, hidden=hidden)) as copy:
        assert (await copy.list_changes()).paths == ()
        await copy.reveal()
        names = "real.py link.py holdout.py 'hard link.py' shared/elsewhere.py"
        after = await run_shell(copy, f"cat {names}")
        assert (await copy.list_changes()).paths == ()
    assert after.stdout.count(b"SECRET") == 5


@pytest.mark.parametrize("protection", ["namespaces"], indirect=True)
async def test_a_folder_that_only_the_plan_has_cannot_be_swapped(protection: Sandbox, workspace: Path) -> None:
    files = {"checks/deep/score.py": "print(1)", "checks/deep/other.py": "", "checks/sibling": "x"}
    plan = CopyPlan(root=workspace, files=files, protected=("checks/deep/score.py", "checks/deep/other.py"))
    script = "mv checks moved; mv checks/deep checks/moved; rm -rf checks; ls checks/deep; echo x > checks/new"
    async with protection.open(plan) as copy:
        finished = await run_shell(copy, script)
        assert await copy.find_tampering() == ()
        assert await copy.read("checks/new", max_bytes=10) == b"x\n"
    assert finished.stdout == b"other.py\nscore.py\n"


async def test_calls_with_impossible_arguments_are_refused(sandbox: Sandbox, workspace: Path) -> None:
    code = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
never = ctypes.c_void_p(0xFFFFFFFFFFFFFF00)
assert libc.chmod(never, 0) == -1
assert libc.utimensat(-100, b"prompt.md", never, 0) == -1
libc.utimensat(-100, b"prompt.md", (ctypes.c_long * 4)(1 << 62, 0, 1 << 62, 0), 0)
libc.utimensat(-100, b"prompt.md", (ctypes.c_long * 4)(-1 << 63, 5, 0, 7), 0)
print("still here")
"""
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        assert (await run_python(copy, code)).stdout == b"still here\n"
        assert (await run_shell(copy, "echo next")).stdout == b"next\n"


async def test_keys_of_the_user_cannot_be_changed(protection: Sandbox, surroundings: Surroundings) -> None:
    code = """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
add, request, control = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}[platform.machine()]
def call(*arguments):
    if libc.syscall(*arguments) < 0:
        raise OSError(ctypes.get_errno(), "key")
for ring in (-3, -4, -5):
    attempt(f"add to {ring}", call, add, b"user", b"promptiter-test", b"x", ctypes.c_size_t(1), ring)
    attempt(f"clear {ring}", call, control, 7, ring)
"""
    assert await attack(protection, surroundings, code) == []


async def test_shared_memory_of_others(protection: Sandbox, surroundings: Surroundings) -> None:
    """A number is all that a command needs to use memory that another process of the user shares."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    number = libc.shmget(0, 4096, 0o600)
    assert number >= 0
    memory = libc.shmat(number, None, 0)
    try:
        code = f"""
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p
def change():
    memory = libc.shmat({number}, None, 0)
    if memory == ctypes.c_void_p(-1).value:
        raise OSError(ctypes.get_errno(), "shmat")
    ctypes.memmove(memory, b"evil", 4)
def remove():
    if libc.shmctl({number}, 0, None):
        raise OSError(ctypes.get_errno(), "shmctl")
attempt("change", change)
attempt("remove", remove)
"""
        assert await attack(protection, surroundings, code) == []
        assert ctypes.string_at(memory, 4) == bytes(4)
    finally:
        libc.shmdt(ctypes.c_void_p(memory))
        assert libc.shmctl(number, 0, None) == 0


async def test_datagrams_to_services(protection: Sandbox, surroundings: Surroundings) -> None:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir=Path.home(), prefix="promptiter-test-"))
        service = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        service.bind(f"{folder}/service")
        service.setblocking(False)
        code = f"""
def send(kind):
    first, second = socket.socketpair(socket.AF_UNIX, kind | socket.SOCK_CLOEXEC)
    first.sendto(b"evil", {folder + "/service"!r})
attempt("datagram", send, socket.SOCK_DGRAM)
attempt("raw", send, socket.SOCK_RAW)
"""
        assert await attack(protection, surroundings, code) == []
        with pytest.raises(BlockingIOError):
            service.recv(1)


async def test_sockets_that_were_renamed(protection: Sandbox, surroundings: Surroundings) -> None:
    """The kernel knows only the name that a socket got first."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/run", prefix="promptiter-test-"))
        except PermissionError:
            pytest.skip("this user cannot write to /run")
        service = stack.enter_context(socket.socket(socket.AF_UNIX))
        service.bind(f"{folder}/new")
        service.listen()
        await asyncio.to_thread(Path(folder, "new").rename, f"{folder}/service")
        code = f'attempt("path", lambda: socket.socket(socket.AF_UNIX).connect({folder + "/service"!r}))'
        assert await attack(protection, surroundings, code) == []


async def test_deleted_files_and_folders_count_towards_the_quota(protection: Sandbox, workspace: Path) -> None:
    deleted = """
import os, time
files = []
for number in range(32):
    files.append(open("deleted", "wb"))
    os.unlink("deleted")
    files[-1].write(bytes(1 << 20))
    files[-1].flush()
time.sleep(30)
"""
    folders = """
import os, time
for number in range(100_000):
    os.mkdir(str(number))
time.sleep(30)
"""
    async with protection.open(CopyPlan(root=workspace, disk_bytes=8 << 20)) as copy:
        assert await run_into_quota(copy, deleted)
        assert await run_into_quota(copy, folders)
