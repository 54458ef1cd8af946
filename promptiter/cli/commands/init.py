"""`promptiter init`: write a starter project."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from promptiter.cli.starter_files import write_starter


def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where to write it; created if needed.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
) -> None:
    """Write a starter project that runs as it is, offline.

    It has a promptiter.yaml with its schema for editors, an agent, eval sets and metrics, and needs no key and no
    network.
    """
    from promptiter.config.schema import FILE_NAME, read_schema

    starter = {str(path): content for path, content in _list_files(files("promptiter") / "starter", PurePosixPath())}
    starter[FILE_NAME] = read_schema()
    write_starter(folder, starter, force=force, command="promptiter run")


def _list_files(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield the files of the starter in order, folders last."""
    for item in sorted(folder.iterdir(), key=lambda item: (item.is_dir(), item.name)):
        if item.is_file():
            yield below / item.name, item.read_bytes()
        elif item.name != "__pycache__":
            yield from _list_files(item, below / item.name)
