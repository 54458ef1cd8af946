"""The diff of a surface, sentence by sentence, since a prompt is often one long line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from itertools import zip_longest

from rich.table import Table
from rich.text import Text

from promptiter.value_text import describe_value
from traces.model import Json
from traces.text import one_line

CONTEXT = 1
"""Number of unchanged sentences shown around a change."""


def diff_table(before: Json, after: Json) -> Table:
    """The removed (-) and added (+) sentences, with their context."""
    old, new = _sentences(describe_value(before)), _sentences(describe_value(after))
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True, width=1)
    table.add_column(overflow="fold")
    for number, group in enumerate(SequenceMatcher(a=old, b=new, autojunk=False).get_grouped_opcodes(CONTEXT)):
        if number:
            table.add_row(Text("…", "dim"), "")
        for sign, line in _lines(group, old, new):
            table.add_row(Text(sign, _STYLES[sign]), line)
    return table


def _lines(
    group: Sequence[tuple[str, int, int, int, int]], old: Sequence[str], new: Sequence[str]
) -> Iterator[tuple[str, Text]]:
    for what, old_start, old_end, new_start, new_end in group:
        removed, added = old[old_start:old_end], new[new_start:new_end]
        if what == "equal":
            yield from ((" ", _line(line, " ")) for line in removed)
            continue
        yield from (("-", _line(line, "-", other)) for line, other in zip_longest(removed, added[: len(removed)]))
        yield from (("+", _line(line, "+", other)) for line, other in zip_longest(added, removed[: len(added)]))


def _line(line: str, sign: str, other: str | None = None) -> Text:
    """A sentence; words that its counterpart does not have are bold."""
    if other is None:
        return Text(one_line(line), _STYLES[sign])
    words, theirs = _WORD.findall(line), _WORD.findall(other)
    shown = Text()
    for what, start, end, _, _ in SequenceMatcher(a=words, b=theirs, autojunk=False).get_opcodes():
        shown.append(one_line("".join(words[start:end])), _STYLES[sign] if what == "equal" else f"bold {_STYLES[sign]}")
    return shown


_STYLES = {" ": "dim", "-": "red", "+": "green"}
_WORD = re.compile(r"\s*\S+|\s+$")
_END_OF_SENTENCE = re.compile(r"(?<=[.!?])[ \t]+(?=\S)")


def _sentences(text: str) -> list[str]:
    return [sentence for line in text.splitlines() for sentence in _END_OF_SENTENCE.split(line)]
