from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from traces import Blob, Snapshot
from traces.text import cut, cut_at_word, cut_middle, format_duration, one_line, preview


def test_durations_read_well() -> None:
    assert [format_duration(ns) for ns in (900, 2_500_000, 1_234_000_000, 125 * 10**9)] == [
        "1 µs",
        "2 ms",
        "1.23 s",
        "2 min 05 s",
    ]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("planner", "planner"),
        ("worker_with_a_long_name", "worker_…ame"),
        ("worker_with_a_long_name[3]", "worker_…[3]"),
        ("worker_with_a_long_name[3]~12", "work…[3]~12"),
        ("worker_with_a_long_name ×1,234", "wor… ×1,234"),
    ],
)
def test_names_are_cut_in_the_middle(name: str, shown: str) -> None:
    assert cut_middle(name, 11) == shown


@given(st.text(), st.integers(1, 40))
def test_cut_text_is_short_enough(text: str, limit: int) -> None:
    assert len(cut(text, limit)) <= limit
    assert len(cut_at_word(text, limit)) <= limit
    assert len(cut_middle(text, limit)) <= limit


@given(st.text())
def test_one_line_can_be_printed(text: str) -> None:
    assert one_line(text).isprintable()
    assert len(one_line(text)) == len(text)


def test_previews_show_data_as_json() -> None:
    assert preview(Snapshot(data={"a": [None, True], "b": "é"})) == '{"a": [null, true], "b": "é"}'
    assert preview(Snapshot(text="two\n  lines")) == "two lines"
    assert preview(Snapshot(text="x" * 500), 10) == "xxxxxxxxx…"
    assert preview(Snapshot(blobs=(Blob("ab", 2_000, "image/png"),))) == "image/png, 2,000 bytes"
    assert preview(Snapshot()) == ""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("It asks for", "It asks for"),
        ("It asks for the total", "It asks for …"),
        ("It asks for; the total", "It asks for …"),
        ("Donaudampfschifffahrt on time", "Donaudampfschi…"),
    ],
)
def test_a_text_is_cut_after_a_word(text: str, shown: str) -> None:
    assert cut_at_word(text, 15) == shown
