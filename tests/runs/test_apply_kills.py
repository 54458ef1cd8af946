"""Kills during apply and revert, at every line that touches a file: afterwards everything is old or everything new."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from promptiter.agents.in_place.saved_baseline import restore
from promptiter.errors import ApplyError
from promptiter.runs.apply import apply_result, revert_result
from promptiter.sources.place import open_place
from tests.runs.apply_world import PLACES, make_result, read_files, write_project

pytestmark = pytest.mark.slow

WORK = """
    import os, signal, sys
    from pathlib import Path
    from promptiter.agents.in_place import saved_baseline, saved_value, source_lock
    from promptiter.agents.in_place.saved_baseline import restore
    from promptiter.runs import applied_files, apply as apply_module
    from promptiter.runs.apply import apply_result, recover, revert_result
    from promptiter.runs.place_search import Project
    from promptiter.sources import file
    from promptiter.sources.place import open_place
    from tests.runs.apply_world import FILES, PLACES, make_result, read_files

    os.fsync = lambda _: None  # only needed for power failures, and slow
    folder, every, offset = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    project = Project(folder=folder, roots=(folder,), excluded=(folder / "runs",))
    run, state, result = folder / "runs" / "one", folder / ".promptiter", make_result()
    watched = {each.__file__ for each in (saved_baseline, saved_value, source_lock, applied_files, apply_module, file)}
    sources = {name: open_place(place, folder=folder) for name, place in PLACES.items()}
    old = read_files(folder)

    def apply():
        return apply_result(result, run, project=project, sources=sources)

    def revert():
        return revert_result(run, run_id="one", project=project)

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

    def repair(number):
        if number % 2:
            assert all(each.is_settled for each in restore(state)), number
        else:
            recover(folder)  # as the next command does

    def list_beside():
        return sorted(str(each.relative_to(folder)) for each in folder.rglob("*") if "runs" not in each.parts)

    apply()
    new = read_files(folder)
    assert all(new[name] != old[name] for name in FILES)
    revert()
    assert read_files(folder) == old
    names = list_beside()
    counts = {}
    for work, start, goal in ((apply, old, new), (revert, new, old)):
        line, seen = 1 + offset, {"torn": 0, "start": 0, "goal": 0}
        while True:
            child = os.fork()
            if not child:
                die_at(line)
                work()
                os._exit(0)
            is_killed = os.waitpid(child, 0)[1] != 0
            seen["torn"] += read_files(folder) not in (start, goal)
            repair(line)
            now = read_files(folder)
            assert now in (start, goal), (work.__name__, line)
            assert list_beside() == names, (line, list_beside())
            seen["start" if now == start else "goal"] += 1
            if not is_killed:
                break
            if now == goal:
                (revert if work is apply else apply)()
                assert read_files(folder) == start
            line += every
        assert read_files(folder) == goal
        counts[work.__name__] = (line, seen)
    for lines, seen in counts.values():
        assert lines > 200 and seen["start"] and seen["goal"] and seen["torn"] * every > 50, counts
    print(counts)
"""


@pytest.mark.parametrize(
    "every", [pytest.param(37, id="every 37th line"), pytest.param(1, id="every line", marks=pytest.mark.long)]
)
def test_a_kill_at_any_line_leaves_all_old_or_all_new_after_the_next_command(tmp_path: Path, every: int) -> None:
    write_project(tmp_path)
    offset = random.Random(5).randrange(every)
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(WORK), str(tmp_path), str(every), str(offset)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), *sys.path])},
        timeout=280,
    )
    assert done.returncode == 0, done.stderr


def test_a_failing_write_rolls_everything_back_and_the_error_lists_what_it_could_not_check(tmp_path: Path) -> None:
    project = write_project(tmp_path)
    sources = {name: open_place(place, folder=tmp_path) for name, place in PLACES.items()}
    before = read_files(tmp_path)
    obstacle = tmp_path / "prompts" / f".actor.md.promptiter-part.{os.getpid()}-{threading.get_ident()}"
    obstacle.mkdir()
    with pytest.raises(ApplyError, match=r"actor\.md' cannot be written: Is a directory; not restored: .*actor\.md"):
        apply_result(make_result(), tmp_path / "runs" / "one", project=project, sources=sources)
    assert read_files(tmp_path) == before
    obstacle.rmdir()
    assert [each.outcome for each in restore(tmp_path / ".promptiter")] == ["unchanged"]
    assert revert_result(tmp_path / "runs" / "one", run_id="one", project=project).state == "unchanged"
