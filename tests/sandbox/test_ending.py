"""Every process of a copy is gone when a command has returned, however hard it tried to stay."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptiter.agents.black_box.process import ProcessLimits
from promptiter.errors import CommandError
from promptiter.sandbox import CopyPlan, Sandbox
from tests.sandbox.observation import PATH, PYTHON, QUICK, make_mark, run_python, wait_until

pytestmark = pytest.mark.slow

DETACH = """
import os, signal, sys, time
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
def detach():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.setsid()
            for fd in (0, 1, 2):
                os.close(fd)
            open("started", "w").write("x")
            time.sleep(600)
        os._exit(0)
detach()
while not os.path.exists("started"):
    time.sleep(0.01)
print("ready", flush=True)
"""


ALLOWED = """
allowed, writable = os.pipe()
os.write(writable, bytes({forks}))
os.set_blocking(allowed, False)
"""
"""Bytes to read before each fork: without an end to them, the tests beside this one could start nothing."""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files that has to be empty afterwards."""
    folder = Path(tempfile.mkdtemp(prefix="promptiter-test-", dir="/tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    left = [path.name for path in folder.iterdir()]
    for path in folder.iterdir():
        path.rmdir()
    folder.rmdir()
    assert left == []


def read_mounts() -> list[str]:
    return Path("/proc/self/mountinfo").read_text().splitlines()


async def test_detached_processes_are_ended(sandbox: Sandbox, workspace: Path) -> None:
    mark = make_mark()
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        finished = await run_python(copy, DETACH, mark=mark)
        assert finished.stdout == b"ready\n"
        assert mark.find_processes() == []


async def test_a_command_that_takes_too_long_is_ended_with_all_it_started(sandbox: Sandbox, workspace: Path) -> None:
    mark = make_mark()
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        code = DETACH + "print('working', file=sys.stderr, flush=True)\nwhile True: pass"
        with pytest.raises(CommandError, match=r"^the command 'python\S*' did not end in 1 s: working$"):
            await run_python(copy, code, mark=mark, limits=ProcessLimits(timeout_s=1, grace_s=0.2))
        assert mark.find_processes() == []
        assert (await run_python(copy, "print(1)")).stdout == b"1\n"


async def test_a_command_may_end_itself_after_sigterm(sandbox: Sandbox, workspace: Path) -> None:
    code = """
import signal, sys, time
def stop(*_):
    open("saved", "w").write("x")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
print("started", flush=True)
time.sleep(600)
"""
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        with pytest.raises(CommandError, match="did not end in 1 s"):
            await run_python(copy, code, limits=ProcessLimits(timeout_s=1, grace_s=20))
        assert await copy.read("saved", max_bytes=5) == b"x"


@pytest.mark.parametrize("stream", ["output", "error"])
async def test_a_flood_of_output_is_ended(sandbox: Sandbox, workspace: Path, stream: str) -> None:
    mark = make_mark()
    code = f"import os\nwhile True: os.write({1 if stream == 'output' else 2}, b'x' * 65536)"
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        limits = ProcessLimits(timeout_s=20, grace_s=0.3, max_output_bytes=100_000)
        with pytest.raises(CommandError, match=f"wrote more than 100,000 bytes to standard {stream}"):
            await run_python(copy, code, mark=mark, limits=limits)
        assert mark.find_processes() == []


async def test_output_of_children_that_end_soon_is_kept(sandbox: Sandbox, workspace: Path) -> None:
    code = "import os, time\nif os.fork() == 0:\n    time.sleep(0.2); print('child', flush=True)\n"
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        finished = await run_python(copy, code, limits=ProcessLimits(timeout_s=20, grace_s=10))
        assert finished.stdout == b"child\n"


async def test_a_fork_bomb(sandbox: Sandbox, workspace: Path) -> None:
    mark = make_mark()
    code = f"""
import os, signal, time
{ALLOWED.format(forks=500)}
signal.signal(signal.SIGTERM, signal.SIG_IGN)
end = time.monotonic() + 15
while time.monotonic() < end:
    try:
        os.read(allowed, 1)
        os.fork()
    except OSError:
        time.sleep(0.001)
"""
    async with sandbox.open(CopyPlan(root=workspace, processes=40)) as copy:
        try:
            await run_python(copy, code, mark=mark, limits=ProcessLimits(timeout_s=2, grace_s=0.2))
        except CommandError as error:
            ended = str(error)
        assert "started more than 40 processes" in ended or "did not end in 2 s" in ended
        assert mark.find_processes() == []
        assert (await run_python(copy, "print(1)")).stdout == b"1\n"


async def test_processes_that_start_others_while_they_are_killed(sandbox: Sandbox, workspace: Path) -> None:
    mark = make_mark()
    code = f"""
import os, signal, time
{ALLOWED.format(forks=5000)}
for number in (signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, signal.SIG_IGN)
for _ in range(8):
    if os.fork() == 0:
        while True:
            try:
                os.read(allowed, 1)
                if os.fork():
                    os._exit(0)
                os.setsid()
            except OSError:
                pass
time.sleep(0.3)
"""
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        await run_python(copy, code, mark=mark)
        assert mark.find_processes() == []


async def test_a_signal_that_ended_a_command(sandbox: Sandbox, workspace: Path) -> None:
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        finished = await run_python(copy, "import os; os.kill(os.getpid(), 11)")
        assert finished.code == -signal.SIGSEGV


async def test_cancellation_ends_the_command_and_the_copy(sandbox: Sandbox, workspace: Path) -> None:
    mark = make_mark()

    async def use() -> None:
        async with sandbox.open(CopyPlan(root=workspace)) as copy:
            await run_python(copy, DETACH + "time.sleep(600)", mark=mark)

    task = asyncio.create_task(use())
    await wait_until(lambda: len(mark.find_processes()) >= 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert mark.find_processes() == []


async def test_a_copy_works_on_after_a_cancelled_command(sandbox: Sandbox, workspace: Path) -> None:
    mark = make_mark()
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await run_python(copy, "import time; time.sleep(600)", mark=mark)
        assert mark.find_processes() == []
        assert (await run_python(copy, "print(1)")).stdout == b"1\n"


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.05, 0.15])
async def test_cancellation_while_a_copy_is_opened(sandbox: Sandbox, workspace: Path, delay_s: float) -> None:
    async def use() -> None:
        async with sandbox.open(CopyPlan(root=workspace)):
            await asyncio.sleep(600)

    task = asyncio.create_task(use())
    await asyncio.sleep(delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_twenty_copies_at_once(sandbox: Sandbox, workspace: Path) -> None:
    async def use(number: int) -> bytes:
        plan = CopyPlan(root=workspace, files={"prompt.md": str(number)}, processes=20)
        async with sandbox.open(plan) as copy:
            code = "text = open('prompt.md').read(); open('answer', 'w').write(text); print(text)"
            finished = await run_python(copy, code)
            assert (await copy.list_changes()).written == ("answer",)
            assert await copy.read("answer", max_bytes=10) == str(number).encode()
            return finished.stdout

    found = await asyncio.gather(*(use(number) for number in range(20)))
    assert found == [f"{number}\n".encode() for number in range(20)]
    assert not (workspace / "answer").exists()


async def test_errors_in_the_block_close_the_copy(sandbox: Sandbox, workspace: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        async with sandbox.open(CopyPlan(root=workspace)):
            raise ZeroDivisionError


async def test_a_supervisor_that_is_killed_takes_its_processes_along(sandbox: Sandbox, workspace: Path) -> None:
    """Without protection, a command can kill it. Its direct children end with it."""
    mark = make_mark()
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        running = asyncio.create_task(run_python(copy, "import time; time.sleep(600)", mark=mark))
        await wait_until(lambda: bool(mark.find_processes()))
        copy._supervisor._process.kill()
        with pytest.raises(CommandError, match="the supervisor of a private copy ended unexpectedly"):
            await running
        await wait_until(lambda: mark.find_processes() == [])


PROGRAM = """
import asyncio, sys
from pathlib import Path
from promptiter.agents.black_box.process import ProcessLimits
from promptiter.sandbox import CopyPlan, find_sandbox
async def main():
    async with find_sandbox(sys.argv[1]).open(CopyPlan(root=Path(sys.argv[2]))) as copy:
        await copy.run(sys.argv[3:], environment={"PATH": "/usr/bin:/bin", "PROMPTITER_TEST_MARK": VALUE})
asyncio.run(main())
"""


async def test_nothing_is_left_if_promptiter_is_killed(sandbox: Sandbox, workspace: Path, temporary: Path) -> None:
    """The temporary folder of a copy is removed by the next one."""
    mark, mounts = make_mark(), read_mounts()
    code = PROGRAM.replace("VALUE", repr(mark.value))
    command = (*PYTHON, DETACH + "time.sleep(600)")
    environment = {**os.environ, "TMPDIR": str(temporary)}
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, sandbox.kind, str(workspace), *command, env=environment, start_new_session=True
    )
    await wait_until(lambda: len(mark.find_processes()) >= 2)
    killed.kill()
    await killed.wait()
    await wait_until(lambda: mark.find_processes() == [])
    assert read_mounts() == mounts
    code = "from promptiter.agents.black_box.private_files import make_private_folder\nwith make_private_folder(): pass"
    end = time.monotonic() + 20
    while os.listdir(temporary):  # noqa: PTH208 - an async function may not use pathlib for it
        assert time.monotonic() < end
        after = await asyncio.create_subprocess_exec(sys.executable, "-c", code, env=environment)
        await after.wait()


async def test_the_command_line_has_no_traces_of_the_plan(sandbox: Sandbox, workspace: Path) -> None:
    """Secrets in variables are not on the command line of the supervisor, nor among its variables."""
    async with sandbox.open(CopyPlan(root=workspace)) as copy:
        environment = {"PATH": PATH, "API_KEY": "sk-secret"}
        code = "import os; print(open(f'/proc/{os.getppid()}/cmdline').read())"
        finished = await copy.run((*PYTHON, code), environment=environment, limits=QUICK)
        assert b"sk-secret" not in finished.stdout
