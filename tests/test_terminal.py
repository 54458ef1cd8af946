"""Control characters of texts are shown on a terminal, not obeyed."""

from __future__ import annotations

import io
import re
from collections.abc import Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from promptiter.terminal import SafeConsole, show_controls

HOSTILE = "\x1b]0;pwned\x07\x1b[2J\x9b31m\x08\x7f\u202egnp"
OWN_SEQUENCES = re.compile(r"\x1b\[[0-9;]*m")
"""Colors, which the console writes itself."""


def find_controls(printed: str) -> list[str]:
    return [each for each in OWN_SEQUENCES.sub("", printed) if not each.isprintable() and each not in "\n\t"]


@given(st.text())
def test_no_text_keeps_a_control_character(text: str) -> None:
    shown = show_controls(text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)
    assert orjson.loads(show_controls(orjson.dumps(text).decode())) == text


@pytest.mark.parametrize(
    "show",
    [str, Text, lambda text: Text(text, "red"), Panel, lambda text: Text.assemble((text, "bold"), text)],
)
def test_a_console_shows_control_characters_in_whatever_it_prints(show: Callable[[str], object]) -> None:
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(show(HOSTILE))  # type: ignore[arg-type]
    file = io.StringIO()
    console = SafeConsole(file=file, force_terminal=True, width=200)
    console.print(table)
    console.print(show(HOSTILE), markup=False)
    assert find_controls(file.getvalue()) == []
    assert "\\u001b]0;pwned" in file.getvalue()
    assert OWN_SEQUENCES.search(file.getvalue()), "its own colors stay"
