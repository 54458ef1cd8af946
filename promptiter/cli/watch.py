"""`promptiter try --watch`: run the command again whenever a file of the project is saved.

Each time is a process of its own, so that it imports the code as it was saved. Twice a second, the files that a prompt
may be in are looked at: those beside promptiter.yaml and in the folders of `python_path`, and in folders below them;
and the eval sets of promptiter.yaml.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from promptiter.cli.output import echo
from promptiter.config.file import FILE_NAME, read_config

POLL_S = 0.5
"""Seconds between two looks at the files."""

SUFFIXES = frozenset(
    (".py", ".md", ".txt", ".yaml", ".yml", ".json", ".toml", ".prompt", ".j2", ".jinja", ".jinja2", ".tmpl", ".xml")
)
"""The types of files that a prompt may be in."""

_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages"))
_COMMAND = "from promptiter.cli import main; main()"


def watch_project(config: Path, *, files: Sequence[Path] = ()) -> None:
    """Run this command without --watch, and again after each change of the project or of these files, until Ctrl-C."""
    arguments = [each for each in sys.argv[1:] if each != "--watch"]
    folder = config if config.is_dir() else config.parent
    parsed = read_config(folder / FILE_NAME if config.is_dir() else config).config
    data = (*parsed.train, *parsed.validation, *parsed.cases, *parsed.test, *parsed.data)
    watched = WatchedFiles((folder, *parsed.python_path), (*files, *data), skipped=parsed.runs)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    is_repeated = False
    try:
        while True:
            before = watched.take_snapshot()
            _run([sys.executable, "-c", _COMMAND, *arguments])
            arguments = [each for each in arguments if each != "--record"]
            after = watched.take_snapshot()
            is_repeated = after != before and not is_repeated  # at most once, since the agent may write files itself
            if not is_repeated:
                echo(f"watching {folder.absolute()}; press Ctrl-C to end", err=True)
                while (now := watched.take_snapshot()) == after:
                    time.sleep(POLL_S)
                echo(f"{describe_change(after, now)}; trying again", err=True)
    except KeyboardInterrupt:
        echo(err=True)


def describe_change(before: Mapping[Path, str], after: Mapping[Path, str]) -> str:
    """`agent.py was saved`, `agent.py and 2 more were saved`."""
    names = sorted({file.name for file in {*before, *after} if before.get(file) != after.get(file)})
    more = f" and {len(names) - 1} more were" if len(names) > 1 else " was"
    return f"{names[0]}{more} saved"


class WatchedFiles:
    """The files in some folders that a prompt may be in, and other files."""

    def __init__(self, folders: Sequence[Path], files: Sequence[Path] = (), *, skipped: Path) -> None:
        self._folders = [folder.absolute() for folder in folders]
        self._files = [file.absolute() for file in files]
        self._skipped = skipped.absolute()
        self._digests: dict[Path, tuple[tuple[int, int], str]] = {}

    def take_snapshot(self) -> dict[Path, str]:
        """The hash of each file. A file that was saved without a change has the same hash."""
        found = {}
        for file in {*self._files, *(file for folder in self._folders for file in self._list_files(folder))}:
            try:
                found[file] = self._hash(file)
            except OSError:  # deleted or replaced just now; the next look sees the result
                continue
        return found

    def _hash(self, file: Path) -> str:
        state = file.stat()
        stamp = (state.st_mtime_ns, state.st_size)
        known = self._digests.get(file)
        if known is None or known[0] != stamp:
            known = self._digests[file] = (stamp, sha256(file.read_bytes()).hexdigest())
        return known[1]

    def _list_files(self, folder: Path) -> Iterator[Path]:
        for place, folders, files in os.walk(folder):
            here = Path(place)
            folders[:] = [name for name in folders if self._is_watched(here / name)]
            yield from (here / name for name in files if Path(name).suffix in SUFFIXES and not name.startswith("."))

    def _is_watched(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder.name in _SKIPPED or folder == self._skipped:
            return False
        return not (folder / "pyvenv.cfg").exists()


def _run(command: Sequence[str]) -> None:
    """Run the command. It gets Ctrl-C, too, and reports what it has measured; the watch continues."""
    with subprocess.Popen(command) as process:
        try:
            while process.poll() is None:
                try:
                    process.wait()
                except KeyboardInterrupt:
                    continue
        finally:
            if process.poll() is None:
                process.terminate()
