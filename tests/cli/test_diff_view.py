from __future__ import annotations

import io

from rich.console import Console

from promptiter.cli.views.diff import diff_table
from traces.model import Json


def shown(before: Json, after: Json, *, width: int = 60) -> list[str]:
    file = io.StringIO()
    Console(file=file, width=width).print(diff_table(before, after))
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_one_long_line_is_compared_sentence_by_sentence() -> None:
    before = "You sort mail. Be kind! Name the city. Sign with your name. Stay calm."
    after = "You sort mail. Be kind! Name the city and the date. Sign with your name. Stay calm."
    assert shown(before, after) == [
        "  Be kind!",
        "- Name the city.",
        "+ Name the city and the date.",
        "  Sign with your name.",
    ]


def test_changes_far_apart_leave_a_gap() -> None:
    before = "\n".join("abcdefgh")
    assert shown(before, before.replace("a", "A").replace("h", "H")) == [
        "- a",
        "+ A",
        "  b",
        "…",
        "  g",
        "- h",
        "+ H",
    ]


def test_long_sentences_are_wrapped_below_themselves() -> None:
    assert shown("", "Always name the order id and the purchase date.", width=30) == [
        "+ Always name the order id and",
        "  the purchase date.",
    ]


def test_words_that_differ_stand_out() -> None:
    file = io.StringIO()
    Console(file=file, width=60, force_terminal=True, color_system="standard").print(
        diff_table("Name the city.", "Name the old city.")
    )
    assert "\x1b[1;32m old\x1b[0m" in file.getvalue()


def test_other_values_are_compared_as_json() -> None:
    assert shown([1, 2], [1, 3]) == ["    1,", "-   2", "+   3", "  ]"]


def test_control_characters_of_a_prompt_do_not_reach_the_terminal() -> None:
    assert shown("a", "b\x1b[2J") == ["- a", "+ b [2J"]
