"""Commands are ended as a whole, and what they write is bounded."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from promptiter.agents.black_box.process import (
    ProcessLimits,
    describe_exit,
    find_start_problem,
    run_process,
    select_environment,
)
from promptiter.errors import CommandError, SetupError

pytestmark = pytest.mark.slow

ENVIRONMENT = select_environment(("PATH",))
STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0:
        break
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(60)
"""


def is_alive(pid: int) -> bool:
    """Whether a process runs. A zombie, which only its parent can remove, does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


async def wait_until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        await asyncio.sleep(0.01)


def read_pids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()] if file.exists() else []


async def test_input_output_exit_code_and_variables() -> None:
    code = "import os, sys; print(sys.stdin.read(), os.environ['A'], sorted(os.environ)); sys.exit(3)"
    finished = await run_process((sys.executable, "-Sc", code), environment={"A": "ä"}, stdin=b"hello")
    assert finished.stdout.decode().startswith("hello ä ['A'")
    assert "PATH" not in finished.stdout.decode()
    assert finished.code == 3
    assert describe_exit(("/bin/bot", "--x"), finished) == "the command 'bot' ended with exit code 3"


async def test_a_command_that_does_not_read_its_input_is_no_problem() -> None:
    finished = await run_process(("true",), environment=ENVIRONMENT, stdin=b"x" * 10_000_000)
    assert finished.code == 0


@pytest.mark.parametrize("how", ["timeout", "cancel"])
async def test_the_whole_group_is_ended_even_if_it_ignores_sigterm(tmp_path: Path, how: str) -> None:
    pids = tmp_path / "pids"
    limits = ProcessLimits(timeout_s=1.0 if how == "timeout" else 60.0, grace_s=0.2)
    command = (sys.executable, "-Sc", STUBBORN, str(pids))
    running = asyncio.create_task(run_process(command, environment=ENVIRONMENT, limits=limits))
    await wait_until(lambda: len(read_pids(pids)) == 3 or running.done())
    if how == "cancel":
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    else:
        with pytest.raises(CommandError, match="did not end in 1 s"):
            await running
    await wait_until(lambda: not any(map(is_alive, read_pids(pids))))


RUNS_STUBBORN = """
import asyncio, sys
from promptiter.agents.black_box.process import run_process, select_environment

async def main():
    quick = [run_process(("true",), environment=select_environment(("PATH",))) for _ in range(3)]
    await asyncio.gather(*quick, run_process(sys.argv[1:], environment=select_environment(("PATH",))))

asyncio.run(main())
"""


async def test_the_commands_of_a_killed_process_are_ended(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    command = (sys.executable, "-c", RUNS_STUBBORN, sys.executable, "-Sc", STUBBORN, str(pids))
    process = await asyncio.create_subprocess_exec(*command)
    await wait_until(lambda: len(read_pids(pids)) == 3)
    process.kill()
    await process.wait()
    await wait_until(lambda: not any(map(is_alive, read_pids(pids))))


KILLED_AT_A_START = """
import asyncio, os, signal, sys
from promptiter.agents.black_box import process

process.guard.add = lambda group: os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(process.run_process(("touch", sys.argv[1]), environment=process.select_environment(("PATH",))))
"""


async def test_a_command_that_the_guard_does_not_know_yet_is_not_started(tmp_path: Path) -> None:
    touched = tmp_path / "touched"
    command = (sys.executable, "-c", KILLED_AT_A_START, str(touched))
    process = await asyncio.create_subprocess_exec(*command)
    assert await process.wait() == -signal.SIGKILL
    await asyncio.sleep(0.2)
    assert not touched.exists()


async def test_the_variables_of_a_command_are_those_that_were_given() -> None:
    code = "import os, sys; sys.stdout.write(' '.join(sorted({*os.environ} - {'_'})))"  # bash sets it in any case
    given = {"A": "1", "PWD": "/somewhere", "LC_ALL": "C.UTF-8"}  # Python sets one itself without it
    finished = await run_process((sys.executable, "-Sc", code), environment=given)
    assert finished.stdout == b"A LC_ALL PWD"


async def test_children_that_are_left_behind_are_ended() -> None:
    code = "import os, time\nif (pid := os.fork()) == 0: time.sleep(60)\nprint(pid, flush=True)"
    limits = ProcessLimits(grace_s=0.2)
    finished = await run_process((sys.executable, "-Sc", code), environment=ENVIRONMENT, limits=limits)
    assert finished.code == 0
    await wait_until(lambda: not is_alive(int(finished.stdout)))


@pytest.mark.parametrize(("stream", "name"), [(1, "standard output"), (2, "standard error")])
async def test_output_beyond_the_limit_ends_the_command(stream: int, name: str) -> None:
    code = f"import os\nwhile True: os.write({stream}, b'x' * 1000)"
    limits = ProcessLimits(max_output_bytes=5_000, grace_s=0.2)
    with pytest.raises(CommandError, match=f"wrote more than 5,000 bytes to {name}"):
        await run_process((sys.executable, "-Sc", code), environment=ENVIRONMENT, limits=limits)


async def test_output_up_to_the_limit_is_kept() -> None:
    limits = ProcessLimits(max_output_bytes=5)
    finished = await run_process(("printf", "12345"), environment=ENVIRONMENT, limits=limits)
    assert finished.stdout == b"12345"


async def test_a_long_error_output_is_shown_by_its_end() -> None:
    code = "import sys; sys.stderr.write('x' * 5000 + ' the end'); sys.exit(1)"
    finished = await run_process((sys.executable, "-Sc", code), environment=ENVIRONMENT)
    message = describe_exit(("bot",), finished)
    assert message.startswith("the command 'bot' ended with exit code 1: … xxx")
    assert message.endswith("the end")
    assert len(message) < 2100


async def test_a_signal_is_named() -> None:
    finished = await run_process(("sh", "-c", "kill -9 $$"), environment=ENVIRONMENT)
    assert describe_exit(("sh",), finished) == "the command 'sh' was ended by SIGKILL"


@pytest.mark.parametrize(
    ("command", "cwd", "kind", "message"),
    [
        (("no-such-program",), None, SetupError, "'no-such-program' cannot be started: it is not in PATH; install it"),
        (("./no-such-program",), None, SetupError, "the file does not exist; install it, or name it with its path"),
        (("/etc",), None, SetupError, "cannot be started: it is a folder"),
        (("/etc/passwd",), None, SetupError, "cannot be started: it is not executable; run `chmod"),
        (("true",), Path("/no/such/folder"), SetupError, "the folder '/no/such/folder' does not exist"),
        (("true", "a\0b"), None, CommandError, "contains a NUL character"),
        (("true", "a\ud800b"), None, CommandError, "half of a surrogate pair"),
        (("true", "x" * 10_000_000), None, CommandError, "are too long; pass long texts as files"),
    ],
)
async def test_a_command_that_cannot_be_started(
    command: tuple[str, ...], cwd: Path | None, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        await run_process(command, environment=ENVIRONMENT, cwd=cwd)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#!/no/such/program\n", "its first line names an interpreter that does not exist"),
        ("echo hello\n", "begin it with a line such as #!/bin/sh"),
    ],
)
async def test_a_script_without_an_interpreter_cannot_be_started(tmp_path: Path, text: str, message: str) -> None:
    script = tmp_path / "bot"
    script.write_text(text)
    script.chmod(0o700)
    with pytest.raises(SetupError, match=message):
        await run_process(("./bot",), environment=ENVIRONMENT, cwd=tmp_path)


def test_a_program_is_looked_for_where_it_will_be_started(tmp_path: Path) -> None:
    (tmp_path / "bot").write_text("#!/bin/sh\n")
    (tmp_path / "bot").chmod(0o700)
    assert find_start_problem(("./bot",), environment={}, cwd=tmp_path) is None
    assert find_start_problem(("bot",), environment={"PATH": str(tmp_path)}, cwd=None) is None
    assert find_start_problem(("bot",), environment=ENVIRONMENT, cwd=tmp_path) is not None
    assert find_start_problem(("true",), environment={}, cwd=None) is None  # the default path of the system


def test_limits_must_be_above_0() -> None:
    with pytest.raises(SetupError, match="timeout_s must be above 0, got 0"):
        ProcessLimits(timeout_s=0)


def test_variables_are_chosen_by_name() -> None:
    assert select_environment(("A",), {"A": "1", "B": "2"}) == {"A": "1"}
    assert select_environment(("*",), {"A": "1", "B": "2"}) == {"A": "1", "B": "2"}
