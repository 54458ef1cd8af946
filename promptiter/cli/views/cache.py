"""The contents of a cache of model answers, for people and for machines."""

from __future__ import annotations

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from promptiter.cli.output import json_text, new_table
from promptiter.llm.cache.maintenance import CacheContents
from promptiter.llm.ledger import Spending
from promptiter.runs.cost_wording import price
from promptiter.wording import path_from_here, plural
from traces.model import Json


def print_cache(screen: Console, contents: CacheContents) -> None:
    """Print the size of a cache, and for each role the number of answers, tokens and dollars."""
    screen.print(
        Text.assemble((str(path_from_here(contents.path)), "bold"), f"  {format_size(contents)}"), soft_wrap=True
    )
    if not contents.by_role:
        return
    table = new_table("role", ">answers", ">tokens", ">to pay again")
    rows = dict(contents.by_role) | ({"total": contents.total} if len(contents.by_role) > 1 else {})
    for role, spent in rows.items():
        table.add_row(role, f"{spent.calls:,}", _tokens(spent), price(spent), style="bold" if role == "total" else None)
    screen.print()
    screen.print(table)


def cache_as_json(contents: CacheContents) -> str:
    """The contents of a cache as JSON."""
    document = {
        "schema_version": 1,
        "path": str(contents.path),
        "bytes": contents.bytes,
        "by_role": {role: _figures(spent) for role, spent in contents.by_role.items()},
        "total": _figures(contents.total),
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


def format_size(contents: CacheContents) -> str:
    """`12 answers, 34.5 kB`."""
    return f"{plural(contents.total.calls, 'answer')}, {decimal(contents.bytes)}"


def _tokens(spent: Spending) -> str:
    return f"{spent.tokens:,}" + (f" and {spent.uncounted_calls:,} unknown" if spent.uncounted_calls else "")
