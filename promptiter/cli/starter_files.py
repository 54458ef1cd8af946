"""Writes the files of a starter, for `promptiter init` and `promptiter task init`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

from promptiter.cli.output import echo
from promptiter.errors import SetupError
from traces.files import write_atomically


def write_starter(folder: Path, files: Mapping[str, bytes], *, force: bool, command: str) -> None:
    """Write the files, by path, into a folder, and print the command to run next.

    Existing files are only overwritten by `force`; without it, they raise SetupError.
    """
    taken = [path for path in files if (folder / path).exists()]
    if taken and not force:
        raise SetupError(f"{str(folder)!r} already has {', '.join(taken)}; choose another folder, or pass --force")
    for path, content in files.items():
        _write(folder / path, content)
    echo(f"written to {folder}/")
    for path in files:
        echo(f"  {path}")
    echo("\nnow run it:\n")
    echo(f"  {command}" if folder == Path() else f"  {command} {shlex.quote(str(folder))}")


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{str(path.parent)!r} cannot be created: {error.strerror or error}") from error
    with write_atomically(path) as file:
        file.write(content)
