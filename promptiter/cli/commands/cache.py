"""`promptiter cache`: inspect and clear the answers that runs share."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.help import PlainCommand
from promptiter.cli.options import AsJson
from promptiter.cli.output import console, echo, write_text
from promptiter.errors import RequestError, SetupError
from promptiter.wording import path_from_here

app = typer.Typer(help="Inspect and clear the cache of model answers.", no_args_is_help=True)

CacheOrConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="CACHE",
        help="A cache (.jsonl, .sqlite, .db), or a promptiter.yaml or its folder that names one; by default the "
        "promptiter.yaml of this folder.",
    ),
]


@app.command(cls=PlainCommand)
def stats(
    cache: CacheOrConfig = None,
    as_json: AsJson = False,
) -> None:
    """Show what a cache holds: answers, tokens and cost, by role."""
    from promptiter.cli.views.cache import cache_as_json, print_cache
    from promptiter.llm.cache.maintenance import CacheContents, read_contents

    path = _find_cache(cache)
    contents = read_contents(path)
    if as_json:
        write_text(cache_as_json(contents or CacheContents(path=path, bytes=0)), None)
    elif contents is None:
        echo(f"nothing is cached yet: {path_from_here(path)}")
    else:
        print_cache(console(), contents)


@app.command(cls=PlainCommand)
def clear(
    cache: CacheOrConfig = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Remove all answers of a cache.

    They will be paid for again. Runs that are using the cache continue.
    """
    from promptiter.cli.views.cache import format_size
    from promptiter.llm.cache.call_log import FILE_NAME as CALLS
    from promptiter.llm.cache.maintenance import clear_cache, read_contents
    from promptiter.runs.cost_wording import price
    from promptiter.runs.header import FILE_NAME as RUN_HEADER

    path = _find_cache(cache).resolve()
    if path.name == CALLS and (path.parent / RUN_HEADER).exists():
        raise SetupError(
            f"{str(path)!r} belongs to the run {path.parent.name!r}, which could not be resumed without it; "
            "to remove the run, delete its folder"
        )
    contents = read_contents(path)
    if contents is None or not contents.total.calls:
        echo(f"nothing is cached yet: {path_from_here(path)}")
        return
    content = f"{format_size(contents)} in {path_from_here(path)} (to pay again: {price(contents.total)})"
    if not yes and not sys.stdin.isatty():
        raise SetupError(f"this would remove {content}; pass --yes to do it")
    echo(f"removing {content}")
    if not yes and not typer.confirm("Continue?"):
        echo("nothing removed")
        raise typer.Exit(1)
    clear_cache(path)


def _find_cache(cache: Path | None) -> Path:
    """The cache file: the one given, or the one that a configuration names."""
    from promptiter.config.file import FILE_NAME, read_config
    from promptiter.llm.cache.storage import SUFFIXES

    if cache is None and not Path(FILE_NAME).exists():
        raise SetupError(
            f"there is no {FILE_NAME} here: give a cache ({', '.join(SUFFIXES)}), or a {FILE_NAME} that names one"
        )
    where = cache or Path(FILE_NAME)
    if where.suffix in SUFFIXES and not where.is_dir():
        return where
    if not where.is_dir() and where.suffix not in (".yaml", ".yml"):
        suffixes = ", ".join(SUFFIXES)
        raise SetupError(f"{str(where)!r} is not a cache: give one ({suffixes}), or a {FILE_NAME} that names one")
    parsed = read_config(where)
    if "cache" in parsed.broken:
        raise RequestError(parsed.problems)
    if parsed.config.cache == "memory":
        file = where / FILE_NAME if where.is_dir() else where
        raise SetupError(
            f"{file} names no cache, so runs do not share answers; to share them, add "
            f"`cache: .promptiter/cache.sqlite` to it (the path is relative to the file)"
        )
    return Path(parsed.config.cache)
