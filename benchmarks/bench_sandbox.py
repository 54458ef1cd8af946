"""What a candidate costs in a private copy of a large workspace, besides what its commands do.

The workspace has 10,000 files of 200 kB, 2 GB in all, with real content, not sparse. A candidate is: open a copy with
one changed file, run `true`, list the changes, read one file, close. Goal: less than 1 s with an overlay. Beside it:
the sandbox of a machine without user namespaces, which copies (by reflinks, where the file system has them), and
`shutil.copytree` with removal.

    python -m benchmarks.bench_sandbox [--quick]
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median

from benchmarks.measure import format_goal
from promptiter.errors import SetupError
from promptiter.sandbox import CopyPlan, Sandbox, find_sandbox
from promptiter.sandbox.supervisor.copying import reflink

FILES, FOLDERS, FILE_BYTES = 10_000, 100, 200_000
GOAL_S = 1.0
TRIES = 5
STEPS = ("open", "run", "changes", "read", "close")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the files, without goals")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="promptiter-bench-") as folder:
        report(Path(folder), quick=arguments.quick)


def report(folder: Path, *, quick: bool) -> None:
    root, files = folder / "workspace", FILES // 10 if quick else FILES
    make_workspace(root, files)
    has_reflinks = "reflinks" if can_reflink(folder) else "no reflinks on this file system"
    print(f"{files:,} files, {files * FILE_BYTES / 1e9:.1f} GB, {has_reflinks}; the median of {TRIES} tries, in ms\n")
    print(f"{'':34}{''.join(f'{step:>9}' for step in STEPS)}{'total':>9}")
    total_s = 0.0
    for sandbox in find_sandboxes():
        os.sync()  # the disk is not busy with what was written before
        tries = TRIES if sandbox.kind == "namespaces" else 1
        rows = [asyncio.run(measure_candidate(sandbox, root)) for _ in range(tries)]
        steps = [median(column) for column in zip(*rows, strict=True)]
        print(
            f"{sandbox.description[:33]:34}{''.join(f'{step * 1000:9.0f}' for step in steps)}{sum(steps) * 1000:9.0f}"
        )
        if sandbox.kind == "namespaces":
            total_s = sum(steps)
    os.sync()
    print(f"{'shutil.copytree, rmtree':34}{'':45}{measure_seconds(lambda: copy_plainly(root, folder)) * 1000:9.0f}\n")
    if total_s and not quick:
        print(format_goal("a candidate with an overlay, in seconds", total_s, GOAL_S))


def can_reflink(folder: Path) -> bool:
    """Whether files of a folder can be copied without copying their content."""
    with (
        tempfile.TemporaryFile(dir=folder) as first,
        tempfile.TemporaryFile(dir=folder) as second,
    ):
        first.write(b"0" * 4096)
        first.flush()
        return reflink(first.fileno(), second.fileno())


def make_workspace(root: Path, files: int) -> None:
    content = bytes(range(250)) * (FILE_BYTES // 250)
    for number in range(files):
        file = root / f"folder-{number % FOLDERS}" / f"file-{number}"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    (root / "prompt.md").write_text("Be kind.\n")


def find_sandboxes() -> list[Sandbox]:
    found = []
    for kind in ("namespaces", "landlock"):
        try:
            found.append(find_sandbox(kind))
        except SetupError as error:
            print(error)
    return [*found, find_sandbox("none")]


async def measure_candidate(sandbox: Sandbox, root: Path) -> list[float]:
    """Seconds of each step."""
    times = [time.perf_counter()]
    async with sandbox.open(CopyPlan(root=root, files={"prompt.md": "Be short.\n"})) as copy:
        times.append(time.perf_counter())
        await copy.run(("true",), environment={"PATH": "/usr/bin:/bin"})
        times.append(time.perf_counter())
        await copy.list_changes()
        times.append(time.perf_counter())
        await copy.read("prompt.md", max_bytes=1000)
        times.append(time.perf_counter())
    times.append(time.perf_counter())
    return [end - start for start, end in pairwise(times)]


def copy_plainly(root: Path, folder: Path) -> None:
    shutil.copytree(root, folder / "copy")
    shutil.rmtree(folder / "copy")


def measure_seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
