"""Kills, signals and second processes: the baseline is in place or can be restored, byte for byte."""

from __future__ import annotations

import codecs
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.in_place.saved_baseline import restore
from promptiter.sources import FileSource

pytestmark = pytest.mark.slow

BASELINES = {"a.md": codecs.BOM_UTF8 + b"Be brief.\r\n" * 500, "b.md": "größer\n".encode("utf-16")}
SURFACES = {"bot#instruction": "a.md", "bot#skill": "b.md"}
CANDIDATES = 5

WORK = """
    import asyncio, os, signal, sys, time
    from pathlib import Path
    from promptiter.agents.base import CaseInput
    from promptiter.agents.in_place.agent import InPlaceAgent
    from promptiter.profile import Profile
    from promptiter.sources import FileSource

    folder = Path(sys.argv[1])
    files = [folder / "prompts" / "a.md", folder / "prompts" / "b.md"]
    sources = {"bot#instruction": FileSource(files[0]), "bot#skill": FileSource(files[1])}

    def answer(question):
        return [source.read() for source in sources.values()]

    agent = InPlaceAgent(answer, sources, state_folder=folder / "state")

    async def run(text):
        wanted = [text * 1000, text]
        snapshot = agent.describe()
        profile = Profile.of(snapshot, dict(zip(sources, wanted)))
        done = await agent.run(CaseInput(text=""), profile)
        assert done.data == wanted, (done.error, text)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "prompts").mkdir()
    for name, raw in BASELINES.items():
        (tmp_path / "prompts" / name).write_bytes(raw)
        (tmp_path / "prompts" / name).chmod(0o640)
    return tmp_path


def start(folder: Path, body: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Start a program that has an in-place agent, and wait until it says that it is ready."""
    program = textwrap.dedent(WORK) + textwrap.dedent(body)
    started = subprocess.Popen(
        [sys.executable, "-c", program, str(folder), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(Path.cwd())},
    )
    assert started.stdout is not None
    assert started.stdout.readline() == b"ready\n", started.communicate()[1].decode()
    return started


def wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """The exit code; a failure shows what it wrote to standard error."""
    _, errors = process.communicate(timeout=60)
    assert b"Traceback" not in errors, errors.decode()
    return process.returncode


def prompts(folder: Path) -> dict[str, bytes]:
    """All files in the folder of the prompts, hidden ones too."""
    return {each.name: each.read_bytes() for each in (folder / "prompts").iterdir()}


def assert_whole(folder: Path) -> None:
    """Each file holds the baseline or one candidate, never a part of it."""
    whole = {FileSource(folder / "prompts" / name).decode(raw) for name, raw in BASELINES.items()}
    whole |= {str(number) * times for number in range(CANDIDATES) for times in (1, 1000)}
    for name in BASELINES:
        assert FileSource(folder / "prompts" / name).read() in whole


SWITCHING = f"""
    async def main():
        print("ready", flush=True)
        number = 0
        while True:
            if number % 7 == 6:
                await agent.aclose()
            await run(str(number % {CANDIDATES}))
            number += 1
    asyncio.run(main())
"""


def kill_at_random(folder: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    found = 0
    for number in range(kills):
        process = start(folder, SWITCHING)
        time.sleep(chance.uniform(0.0, 0.25))
        process.kill()
        process.communicate()
        assert_whole(folder)
        found += prompts(folder) != BASELINES
        if number % 3 == 2:  # the next start restores too
            sources = {surface_id: FileSource(folder / "prompts" / name) for surface_id, name in SURFACES.items()}
            InPlaceAgent(lambda question: question, sources, state_folder=folder / "state").describe()
        else:
            assert all(each.is_settled for each in restore(folder / "state"))
        assert prompts(folder) == BASELINES
        assert [each.name for each in (folder / "state").iterdir()] == ["in_place.lock"]
    assert found > kills / 3, "too few kills came while a candidate was in place"


@pytest.mark.long
def test_a_kill_at_a_random_moment_leaves_a_state_that_restore_can_repair(folder: Path) -> None:
    kill_at_random(folder, kills=6, seed=1)


@pytest.mark.long
def test_forty_kills_at_random_moments_leave_a_state_that_restore_can_repair(folder: Path) -> None:
    kill_at_random(folder, kills=40, seed=2)


EVERY_LINE = """
    import promptiter.sources.file
    from promptiter.agents.in_place import saved_baseline, saved_value, source_lock
    from promptiter.agents.in_place.source_lock import FolderLock
    from promptiter.agents.in_place.saved_baseline import SavedBaseline, restore

    os.fsync = lambda _: None  # only needed for power failures, and slow
    every, offset = int(sys.argv[2]), int(sys.argv[3])
    state = folder / "state"
    saved = SavedBaseline(state)
    modules = (source_lock, saved_baseline, saved_value, promptiter.sources.file)
    watched = {module.__file__ for module in modules}
    baselines = {file: file.read_bytes() for file in files}
    texts = {"bot#instruction": "0" * 1000, "bot#skill": "1"}

    def switch_and_restore():
        baseline = saved.read(sources)
        with FolderLock(state).hold():
            saved.hold(sources, baseline=baseline, wanted=texts)
            saved.hold(sources, baseline=baseline, wanted={"bot#skill": "2"})
            saved.restore(sources)

    def die_at(line):
        left = line

        def trace(frame, event, _):
            nonlocal left
            if frame.f_code.co_filename not in watched:
                return None
            if event == "line":
                left -= 1
                if not left:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)

    def beside(folder):
        return sorted(each.name for each in folder.iterdir())

    restore(state)
    print("ready", flush=True)
    line, changed = 1 + offset, 0
    while True:
        child = os.fork()
        if not child:
            die_at(line)
            switch_and_restore()
            os._exit(0)
        if not os.waitpid(child, 0)[1]:
            break
        changed += any(file.read_bytes() != raw for file, raw in baselines.items())
        assert all(each.is_settled for each in restore(state)), line
        for file, raw in baselines.items():
            assert file.read_bytes() == raw, line
        assert beside(folder / "prompts") == ["a.md", "b.md"], (line, beside(folder / "prompts"))
        assert beside(state) in ([], ["in_place.lock"]), (line, beside(state))
        line += every
    assert line > 500 and changed * every > 100, (line, changed)
"""


@pytest.mark.parametrize(
    "every", [pytest.param(41, id="every 41st line"), pytest.param(1, id="every line", marks=pytest.mark.long)]
)
def test_a_kill_at_any_line_of_a_switch_or_restore_is_repaired_by_restore(folder: Path, every: int) -> None:
    (folder / "state").mkdir()
    process = start(folder, EVERY_LINE, str(every), str(random.Random(7).randrange(every)))
    _, errors = process.communicate(timeout=500)
    assert process.returncode == 0, errors.decode()


def test_two_processes_take_turns_and_see_their_own_profiles_only(folder: Path) -> None:
    body = """
    async def main():
        print("ready", flush=True)
        async with agent:
            for number in range(25):
                await run(f"{sys.argv[2]}{number}")
                await asyncio.sleep(0.001 * (number % 3))
    asyncio.run(main())
    """
    processes = [start(folder, body, name) for name in ("first", "second")]
    assert [wait_for_exit(process) for process in processes] == [0, 0]
    assert prompts(folder) == BASELINES
    assert restore(folder / "state") == []


def test_a_process_continues_when_the_other_is_killed(folder: Path) -> None:
    killed = start(folder, SWITCHING)
    body = """
    async def main():
        print("ready", flush=True)
        while not (folder / "killed").exists():
            await run("9")
        await run("9")
        await agent.aclose()
    asyncio.run(main())
    """
    other = start(folder, body)
    time.sleep(0.1)
    killed.kill()
    killed.communicate()
    (folder / "killed").touch()
    assert wait_for_exit(other) == 0
    assert prompts(folder) == BASELINES


WAITING = """
    async def main():
        await run("3")
        print("ready", flush=True)
        await asyncio.sleep(60)
"""


PLAIN = f"{WAITING}    asyncio.run(main())"
OPENED = f"""{WAITING}
    async def opened():
        async with agent:
            await main()

    asyncio.run(opened())
"""
CAUGHT = f"""{WAITING}
    try:
        asyncio.run(main())
    except KeyboardInterrupt:
        sys.exit(4)
"""


@pytest.mark.parametrize(
    ("body", "number", "code"),
    [
        (PLAIN, signal.SIGTERM, 143),
        (PLAIN, signal.SIGHUP, 129),
        (OPENED, signal.SIGTERM, 143),
        (CAUGHT, signal.SIGINT, 4),
    ],
    ids=["SIGTERM", "SIGHUP", "SIGTERM inside async with", "SIGINT"],
)
def test_a_signal_ends_the_program_with_the_baseline_in_place(
    folder: Path, body: str, number: signal.Signals, code: int
) -> None:
    process = start(folder, body)
    assert prompts(folder)["b.md"] == "3".encode("utf-16")
    process.send_signal(number)
    assert wait_for_exit(process) == code
    assert prompts(folder) == BASELINES


def test_the_baseline_is_restored_when_the_program_ends(folder: Path) -> None:
    process = start(folder, "asyncio.run(run('3'))\nprint('ready', flush=True)")
    assert wait_for_exit(process) == 0
    assert prompts(folder) == BASELINES


def test_a_signal_does_not_interrupt_a_restore(folder: Path) -> None:
    body = """
    asyncio.run(run("3"))
    restore = agent._saved.restore

    def slowly(*given, **options):
        print("ready", flush=True)
        time.sleep(0.5)
        done = restore(*given, **options)
        print("restored", flush=True)
        return done

    agent._saved.restore = slowly
    agent.close()
    print("not reached")
    """
    process = start(folder, body)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert output == b"restored\n"
    assert process.returncode == 143
    assert prompts(folder) == BASELINES


def test_a_program_with_its_own_sigterm_keeps_it(folder: Path) -> None:
    body = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
    asyncio.run(run("3"))
    print("ready", flush=True)
    time.sleep(60)
    """
    process = start(folder, body)
    process.send_signal(signal.SIGTERM)
    assert wait_for_exit(process) == 5
    assert prompts(folder) == BASELINES


def test_a_fork_leaves_the_baseline_to_its_parent(folder: Path) -> None:
    body = """
    asyncio.run(run("3"))
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == 0
        assert files[1].read_bytes() == "3".encode("utf-16")
        print("ready", flush=True)
    """
    assert wait_for_exit(start(folder, body)) == 0
    assert prompts(folder) == BASELINES


SWITCHING_ALWAYS = f"""
    async def main():
        await run("0")
        print("ready", flush=True)
        number = 0
        while True:  # an agent that fails is a result for promptiter
            try:
                await asyncio.gather(*(run(str(number % {CANDIDATES})) for _ in range(3)))
            except (Exception, SystemExit):
                pass
            number += 1
    asyncio.run(main())
"""


@pytest.mark.long
def test_sigterm_at_any_moment_ends_the_program_with_the_baseline_in_place(folder: Path) -> None:
    chance = random.Random(5)
    for _ in range(8):
        process = start(folder, SWITCHING_ALWAYS)
        time.sleep(chance.uniform(0.0, 0.15))
        process.send_signal(signal.SIGTERM)
        assert wait_for_exit(process) == 143
        assert prompts(folder) == BASELINES


SWITCHING_UNTIL_EDITED = f"""
    from promptiter.errors import EditedSourceError

    async def main():
        await run("0")
        print("ready", flush=True)
        number = 0
        while True:
            try:
                await run(str(number % {CANDIDATES}))
            except EditedSourceError:
                print("edited", flush=True)
                return
            except AssertionError:
                pass  # the agent has read the edit
            number += 1
    asyncio.run(main())
"""


@pytest.mark.long
@pytest.mark.parametrize("how", ["write", "replace"])
def test_an_edit_at_any_moment_is_kept(folder: Path, how: str) -> None:
    chance = random.Random(6)
    file = folder / "prompts" / "a.md"
    for number in range(5):
        process = start(folder, SWITCHING_UNTIL_EDITED)
        time.sleep(chance.uniform(0.0, 0.1))
        edit = f"an edit {number}".encode()
        if how == "write":
            file.write_bytes(edit)
        else:
            (folder / "new").write_bytes(edit)
            (folder / "new").replace(file)
        output, _ = process.communicate(timeout=60)
        assert output == b"edited\n"
        assert file.read_bytes() == edit
        restore(folder / "state", force=True)
        assert prompts(folder) == BASELINES
