"""Writes BEST again and again, and is killed at its first, second, third ... change of a file.

    python -m tests.tasks.refine.killed_writer HOME OLD NEW exchange|link

After each kill, the content of BEST is printed. The last line is `done`: the writer was not killed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from pathlib import Path

from promptiter.tasks.refine import best

CHANGES = frozenset(
    ("open", "os.rename", "os.replace", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.truncate", "os.chmod")
)


def main(home: Path, old: Path, new: Path, way: str) -> None:
    if way == "link":
        vars(best)["exchange_files"] = lambda _one, _other: False
    at = 0
    while True:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
        best.write_best(home, old, manifest(0.5, 1))
        best.write_best(home, old, manifest(0.4, 2))
        at += 1
        child = os.fork()
        if child == 0:
            kill_before(at)
            best.write_best(home, new, manifest(0.3, 3))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{describe(home)}\n")
        sys.stdout.flush()
        assert best.write_best(home, new, manifest(0.2, 4)), "the next writer is not in the way of a killed one"
        assert describe(home) == "new 0.2", describe(home)
        assert sum(path.name.startswith(".BEST.") for path in home.iterdir()) <= (2 if way == "link" else 1)
        if os.WIFEXITED(status):
            assert os.WEXITSTATUS(status) == 0
            sys.stdout.write("done\n")
            return


def kill_before(number: int) -> None:
    """Kill this process before its change of this number, whatever the change is."""
    seen = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        is_read = event == "open" and isinstance(arguments[2], int) and not arguments[2] & (os.O_WRONLY | os.O_RDWR)
        is_sync = event == "open" and isinstance(arguments[0], str | bytes) and Path(os.fsdecode(arguments[0])).is_dir()
        if event not in CHANGES or (is_read and not is_sync):
            return
        seen += 1
        if seen == number:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def manifest(loss: float, number: int) -> best.BestManifest:
    return best.BestManifest(
        best_run_id=f"run-{number}", best_loss=loss, seed_loss=1.0, session_id="refine_x", best_iter=number
    )


def describe(home: Path) -> str:
    """Whose files BEST has, and the loss of its manifest."""
    found = best.read_manifest(home)
    files = {path.name: path.read_text() for path in (home / "BEST").iterdir() if path.name != "manifest.json"}
    texts = sorted(set(files.values()))
    assert found is not None, files
    assert len(files) == 3, files
    return f"{' and '.join(texts)} {found.best_loss}"


if __name__ == "__main__":
    given = [Path(each) for each in sys.argv[1:4]]
    main(given[0], given[1], given[2], sys.argv[4])
