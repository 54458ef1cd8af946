from __future__ import annotations

from promptiter.text_diff import find_hunks, is_same_passage, split_passages

BEFORE = "You answer customers.\nLeave out numbers. Be brief.\n\n- Use ISO dates.\n- Sign with a name."


def test_hunks_are_the_sentences_and_lines_that_differ() -> None:
    after = "You answer customers.\nCopy order numbers. Be brief.\n\n- Use ISO dates.\n"
    assert [(each.before, each.after) for each in find_hunks(BEFORE, after)] == [
        ("Leave out numbers.", "Copy order numbers."),
        ("- Sign with a name.", ""),
    ]
    assert find_hunks(BEFORE, BEFORE.replace("\n\n", "\n")) == []


def test_a_hunk_knows_its_place_in_both_texts() -> None:
    [hunk] = find_hunks("One. Two. Three.", "One. Zwei. Drei. Three.")
    assert (hunk.old, hunk.new) == (range(1, 2), range(1, 3))
    assert "".join(split_passages("One. Zwei. Drei. Three.")[1:3]).strip() == hunk.after


def test_passages_are_the_same_if_one_holds_the_other() -> None:
    assert is_same_passage("be  kind", "Always be\nkind.")
    assert not is_same_passage("", "Be kind.")
    assert not is_same_passage("Be brief.", "Be kind.")
