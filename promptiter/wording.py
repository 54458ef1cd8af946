"""Wording: counts, lists, dollars and paths as people write them, for messages, reports and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from traces.text import one_line


def plural(count: int, noun: str, plural_noun: str = "") -> str:
    """`1 case`, `2 cases`, `1,200 cases`."""
    return f"{count:,} {noun if count == 1 else plural_noun or f'{noun}s'}"


def join_names(names: Sequence[str], *, limit: int | None = None) -> str:
    """`a, b and 3 more`: at most `limit` names, the others counted."""
    if limit is None or len(names) <= limit:
        return ", ".join(names)
    return f"{', '.join(names[:limit])} and {len(names) - limit:,} more"


def join_sentences(texts: Iterable[str]) -> str:
    """`Say why. Be brief`, `say why; be brief`: a semicolon between texts, unless the first ends a sentence."""
    joined = ""
    for text in dict.fromkeys(each.strip() for each in texts):
        if text:
            gap = "" if not joined else " " if joined.endswith((".", "!", "?", "…")) else "; "
            joined += gap + text
    return joined


def format_score(score: float | None) -> str:
    """`0.500`, or `unscored`."""
    return "unscored" if score is None else f"{score:.3f}"


def dollars(amount: float) -> str:
    """`$0`, `under $0.0001`, `$0.0312`, `$1.25`: to the cent from a dollar on, below to a hundredth of a cent."""
    if 0 < amount < 0.0001:
        return "under $0.0001"
    return "$0" if amount == 0 else f"${amount:.2f}" if amount >= 1 else f"${amount:.4f}"


def count_model_calls(calls: int, *, cached: int) -> str:
    """`72 model calls`, or, if the cache answered all of them, `0 model calls (72 cached)`."""
    return plural(calls, "model call") + (f" ({cached:,} cached)" if cached and not calls else "")


def describe_tokens(tokens: int, *, calls: int, uncounted: int) -> str:
    """`5,200 tokens + 3 calls of unknown usage`, as far as they are known."""
    if not uncounted:
        return f"{tokens:,} tokens"
    return (
        "tokens unknown" if uncounted == calls else f"{tokens:,} tokens + {plural(uncounted, 'call')} of unknown usage"
    )


def count_unknown_costs(*, unpriced: int, uncounted: int) -> str:
    """` + 2 calls of unknown usage + 1 call of unknown price`, or nothing. A call without usage has no cost either."""
    by_usage = min(unpriced, uncounted)
    counts = {"usage": by_usage, "price": unpriced - by_usage}
    return "".join(f" + {plural(count, 'call')} of unknown {what}" for what, count in counts.items() if count)


def escape_markdown(text: str) -> str:
    """Text on one line of Markdown, or in a cell of a table, where nothing of it is markup."""
    shown = one_line(text)
    for letter in "\\|`*_[]#~":
        shown = shown.replace(letter, f"\\{letter}")
    return shown.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def path_from_here(path: Path) -> Path:
    """A path as a person in the current folder writes it."""
    absolute, here = path.absolute(), Path.cwd()
    return absolute.relative_to(here) if absolute.is_relative_to(here) else absolute


def shorten(value: object, *, limit: int = 120) -> str:
    """The `repr` of a value: whole if it is short, otherwise its beginning and its length.

    A class, a function or an object whose `repr` would be an address is described: `the class MinGain`.
    """
    if inspect.isclass(value):
        return f"the class {value.__name__}"
    if inspect.isroutine(value):
        return f"the function {value.__name__}"
    if type(value).__repr__ is object.__repr__:
        return f"an object of class {type(value).__name__}"
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text):,} characters)"


MAX_FIGURES = 4
"""Maximum number of figures that a line names; the others are in the details."""


def format_figures(figures: Mapping[str, float]) -> str:
    """What a scorer measured, in its own units: `score 0.4, length_tokens 41`."""
    shown = [f"{name} {value:.6g}" for name, value in figures.items()][:MAX_FIGURES]
    return ", ".join(shown)
