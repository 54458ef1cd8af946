from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.tasks.rubrics import list_rubrics, read_rubrics


@pytest.mark.parametrize(
    ("text", "rubrics"),
    [
        ("It is good.", ("It is good.",)),
        ("# Title\n\nText.\n\n- one\n* two\n+ three\n", ("one", "two", "three")),
        ("1. one\n2) two\n", ("one", "two")),
        ("- one\n  continued\n- [ ] two\n- [x] three\n", ("one continued", "two", "three")),
    ],
)
def test_the_items_of_lists_are_the_rubrics(tmp_path: Path, text: str, rubrics: tuple[str, ...]) -> None:
    (tmp_path / "rubric.md").write_text(text)
    assert list_rubrics(text) == read_rubrics(tmp_path / "rubric.md") == rubrics
