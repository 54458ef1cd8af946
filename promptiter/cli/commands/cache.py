"""`promptiter cache`: look at the answers that runs share, and remove them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from promptiter.cli.output import console, json_text, write_text
from promptiter.errors import RequestError, SetupError

if TYPE_CHECKING:
    from promptiter.llm.cache.maintenance import CacheContents
    from promptiter.llm.ledger import Spending
    from traces.model import Json

app = typer.Typer(help="Look at the answers that runs share (the cache), and remove them.", no_args_is_help=True)

CacheOrConfig = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CACHE]",
        help="A cache (.jsonl, .sqlite, .db), or the promptiter.yaml, or its folder, whose `cache` it is; "
        "the promptiter.yaml of this folder by default.",
    ),
]


@app.command()
def stats(
    cache: CacheOrConfig = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, for machines.")] = False,
) -> None:
    """Say what a cache holds, by who asked: answers, tokens, and what it would cost to ask again."""
    from promptiter.llm.cache.maintenance import CacheContents, read_contents

    path = _path_of(cache)
    found = read_contents(path)
    if as_json:
        write_text(_as_json(found or CacheContents(path=path, bytes=0)), None)
    elif found is None:
        typer.echo(f"nothing is kept there yet: {_from_here(path)}")
    else:
        _print(found)


@app.command()
def clear(
    cache: CacheOrConfig = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Remove all answers of a cache: they are asked and paid for again. Runs that use it at the moment go on."""
    from promptiter.llm.cache.call_log import FILE_NAME as CALLS
    from promptiter.llm.cache.maintenance import clear_cache, read_contents
    from promptiter.runs.header import FILE_NAME as RUN_HEADER

    path = _path_of(cache).resolve()
    if path.name == CALLS and (path.parent / RUN_HEADER).exists():
        raise SetupError(
            f"{str(path)!r} belongs to the run {path.parent.name!r}, which could not be resumed without it; "
            "to be rid of the run, delete its folder"
        )
    found = read_contents(path)
    if found is None or not found.total.calls:
        typer.echo(f"nothing is kept there yet: {_from_here(path)}")
        return
    told = f"{_answers(found)} in {_from_here(path)} (to ask again: {_cost(found.total)})"
    if not yes and not sys.stdin.isatty():
        raise SetupError(f"this would remove {told}; say --yes to do it")
    typer.echo(f"removes {told}")
    if not yes and not typer.confirm("Go on?"):
        typer.echo("nothing was removed")
        raise typer.Exit(1)
    clear_cache(path)


def _path_of(cache: Path | None) -> Path:
    """The cache that is meant: the file itself, or the one that a configuration names."""
    from promptiter.config.file import FILE_NAME, read_config
    from promptiter.llm.cache.storage import SUFFIXES

    if cache is None and not Path(FILE_NAME).exists():
        raise SetupError(
            f"no {FILE_NAME} is here: name a cache ({', '.join(SUFFIXES)}), or a {FILE_NAME} that names it"
        )
    where = cache or Path(FILE_NAME)
    if where.suffix in SUFFIXES and not where.is_dir():
        return where
    if not where.is_dir() and where.suffix not in (".yaml", ".yml"):
        raise SetupError(f"cannot tell what {str(where)!r} is: give a cache ({', '.join(SUFFIXES)}), or a {FILE_NAME}")
    found = read_config(where)
    if "cache" in found.broken:
        raise RequestError(found.problems)
    if found.config.cache == "memory":
        file = where / FILE_NAME if where.is_dir() else where
        raise SetupError(
            f"{file} names no cache, so every run keeps its answers to itself; to share them between runs, write "
            f"`cache: .promptiter/cache.sqlite` into it (the path is relative to the file)"
        )
    return Path(found.config.cache)


def _print(found: CacheContents) -> None:
    from rich.table import Table
    from rich.text import Text

    screen = console()
    screen.print(Text.assemble((str(_from_here(found.path)), "bold"), f"  {_answers(found)}"), soft_wrap=True)
    if not found.by_role:
        return
    table = Table(box=None, header_style="dim", pad_edge=False)
    table.add_column("role")
    for name in ("answers", "tokens", "to ask again"):
        table.add_column(name, justify="right")
    rows = dict(found.by_role) | ({"total": found.total} if len(found.by_role) > 1 else {})
    for role, spent in rows.items():
        table.add_row(role, f"{spent.calls:,}", _tokens(spent), _cost(spent), style="bold" if role == "total" else None)
    screen.print()
    screen.print(table)


def _as_json(found: CacheContents) -> str:
    document = {
        "schema_version": 1,
        "path": str(found.path),
        "bytes": found.bytes,
        "by_role": {role: _figures(spent) for role, spent in found.by_role.items()},
        "total": _figures(found.total),
    }
    return json_text(document)


def _figures(spent: Spending) -> dict[str, Json]:
    return {
        "answers": spent.calls,
        "tokens": spent.tokens,
        "uncounted_answers": spent.uncounted_calls,
        "cost_usd": spent.cost_usd,
        "unpriced_answers": spent.unpriced_calls,
    }


def _answers(found: CacheContents) -> str:
    from rich.filesize import decimal

    count = found.total.calls
    return f"{count:,} answer{'s' * (count != 1)}, {decimal(found.bytes)}"


def _tokens(spent: Spending) -> str:
    return f"{spent.tokens:,}" + (f" and {spent.uncounted_calls:,} unknown" if spent.uncounted_calls else "")


def _cost(spent: Spending) -> str:
    if spent.cost_usd is None:
        return "unknown"
    return f"${spent.cost_usd:.4f}" + (f" and {spent.unpriced_calls:,} unknown" if spent.unpriced_calls else "")


def _from_here(path: Path) -> Path:
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
