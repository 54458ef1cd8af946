"""`promptiter init`: write a starter project."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from promptiter.cli.output import echo
from promptiter.errors import SetupError
from traces.files import write_atomically


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it; created if needed.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a starter project that runs as it is, offline.

    It has a promptiter.yaml with its schema for editors, an agent, eval sets and metrics, and needs no key and no
    network.
    """
    from promptiter.config.schema import FILE_NAME, read_schema

    starter = dict(_list_files(files("promptiter") / "starter", PurePosixPath()))
    starter[PurePosixPath(FILE_NAME)] = read_schema()
    taken = [str(path) for path in starter if (folder / path).exists()]
    if taken and not force:
        raise SetupError(f"{str(folder)!r} already has {', '.join(taken)}; choose another folder, or pass --force")
    for path, content in starter.items():
        _write(folder / path, content)
    echo(f"written to {folder}/")
    for path in starter:
        echo(f"  {path}")
    echo("\nnow run it:\n")
    echo("  promptiter run" if folder == Path() else f"  promptiter run {shlex.quote(str(folder))}")


def _list_files(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the files of the starter in order, folders last."""
    for item in sorted(folder.iterdir(), key=lambda item: (item.is_dir(), item.name)):
        if item.is_file():
            yield below / item.name, item.read_bytes()
        elif item.name != "__pycache__":
            yield from _list_files(item, below / item.name)


def _write(path: Path, content: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"{str(path.parent)!r} cannot be created: {error.strerror or error}") from error
    with write_atomically(path) as file:
        file.write(content)
