from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.agents.archive_search import ArchiveSearch
from promptiter.errors import SetupError

ARCHIVE = ArchiveSearch(
    ("Apple 2008: revenue 10", "Apple 2009: revenue 12", "Entergy 2008: expenses 7", "Notes on revenues in general")
)


def test_the_best_documents_come_first() -> None:
    assert ARCHIVE("revenue of Apple in 2009", top_k=2)[0] == "Apple 2009: revenue 12"


def test_the_number_of_documents_is_limited() -> None:
    assert [len(ARCHIVE("Apple revenue", top_k=count)) for count in (1, 2, 9)] == [1, 2, 3]


def test_similar_spelling_finds_other_forms_of_a_word() -> None:
    only_words = ARCHIVE("revenues", semantic_weight=0.0)
    also_spelling = ARCHIVE("revenues", semantic_weight=0.5)
    assert only_words == ["Notes on revenues in general"]
    assert len(also_spelling) > 1


def test_bad_matches_can_be_left_out() -> None:
    assert ARCHIVE("Entergy expenses", min_score=0.9) == ["Entergy 2008: expenses 7"]


def test_documents_are_the_sections_of_files(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One\ntext\n\nmore\n# Two\nother\n")
    (tmp_path / "b.txt").write_text("first\n\nsecond\n")
    (tmp_path / "c.bin").write_bytes(b"\xff")
    assert ArchiveSearch.read(tmp_path).documents == ("# One\ntext\n\nmore", "# Two\nother", "first", "second")


def test_a_place_without_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match="has no text files"):
        ArchiveSearch.read(tmp_path / "filings.pdf")
