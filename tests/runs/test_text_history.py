from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from promptiter.profile import PatchEdit, PatchEvidence, SurfacePatch
from promptiter.runs.text_history import TextHistory


def make_patch(value: str, *edits: PatchEdit) -> SurfacePatch:
    evidence = PatchEvidence(cases=("all",))
    return SurfacePatch(surface_id="a#instruction", value=value, reason="whole", evidence=evidence, edits=edits)


def make_edit(before: str, after: str, case: str = "") -> PatchEdit:
    evidence = PatchEvidence(cases=(case,) if case else ())
    return PatchEdit(before=before, after=after, reason=f"for {case}" if case else "", evidence=evidence)


def trace(text: str, *patches: SurfacePatch) -> list[tuple[str, str, list[tuple[int, tuple[str, ...], bool]]]]:
    """The hunks of some patches, each with the change, the cases and the uncertainty of its origins."""
    history = TextHistory(text)
    for number, patch in enumerate(patches):
        history.apply(patch, change=number)
    return [
        (hunk.before, hunk.after, [(each.change, each.evidence.cases, each.is_whole) for each in origins])
        for hunk, origins in history.hunks()
    ]


def test_each_hunk_is_traced_to_its_edit() -> None:
    patch = make_patch("Be calm. Answer. Be kind.", make_edit("", "Be calm.", "a"), make_edit("", "Be kind.", "b"))
    assert trace("Answer.", patch) == [("", "Be calm.", [(0, ("a",), False)]), ("", "Be kind.", [(0, ("b",), False)])]


def test_a_passage_that_is_changed_again_has_the_evidence_of_both_rounds() -> None:
    first = make_patch("Answer. Keep dates.", make_edit("", "Keep dates.", "a"))
    second = make_patch("Answer. Keep ISO dates. Sign.", make_edit("Keep dates.", "Keep ISO dates. Sign.", "b"))
    assert trace("Answer.", first, second) == [
        ("", "Keep ISO dates. Sign.", [(0, ("a",), False), (1, ("b",), False)]),
    ]


def test_a_later_round_does_not_touch_the_evidence_of_other_passages() -> None:
    first = make_patch("Answer. Keep dates.", make_edit("", "Keep dates.", "a"))
    second = make_patch("Be calm. Answer. Keep dates.", make_edit("", "Be calm.", "b"))
    assert trace("Answer.", first, second) == [
        ("", "Be calm.", [(1, ("b",), False)]),
        ("", "Keep dates.", [(0, ("a",), False)]),
    ]


def test_a_removed_sentence_and_what_comes_in_its_place_later_are_one_hunk() -> None:
    first = make_patch("One. Three.", make_edit("Two.", "", "a"))
    second = make_patch("One. Zwei. Three.", make_edit("", "Zwei.", "b"))
    assert trace("One. Two. Three.", first) == [("Two.", "", [(0, ("a",), False)])]
    assert trace("One. Two. Three.", first, second) == [("Two.", "Zwei.", [(0, ("a",), False), (1, ("b",), False)])]


def test_what_a_later_round_takes_back_is_not_a_hunk() -> None:
    first = make_patch("Answer. Keep dates.", make_edit("", "Keep dates.", "a"))
    assert trace("Answer.", first, make_patch("Answer.", make_edit("Keep dates.", "", "b"))) == []


def test_the_only_hunk_of_a_patch_has_all_of_its_evidence() -> None:
    assert trace("Answer.", make_patch("Answer. Be kind.")) == [("", "Be kind.", [(0, ("all",), False)])]


def test_hunks_that_no_edit_explains_have_the_evidence_of_the_whole_patch() -> None:
    patch = make_patch("Be calm. Answer. Be kind.", make_edit("", "Be calm.", "a"), make_edit("", "Be kind."))
    assert trace("Answer.", patch) == [("", "Be calm.", [(0, ("a",), False)]), ("", "Be kind.", [(0, ("all",), True)])]


def test_an_edit_within_a_sentence_belongs_to_the_hunk_with_both_of_its_texts() -> None:
    patch = make_patch("Keep ids and dates. Skip times and dates.", make_edit("ids", "ids and dates", "a"))
    found = trace("Keep ids. Skip times.", patch)
    assert found == [("Keep ids. Skip times.", "Keep ids and dates. Skip times and dates.", [(0, ("a",), False)])]
    [first, _, second] = [*trace("Keep ids. Go. Skip times.", make_patch("Keep all ids. Go. Skip all times.")), None]
    assert first != second


@given(st.lists(st.lists(st.sampled_from("ABCDE"), max_size=6), min_size=2, max_size=5))
def test_every_hunk_has_an_origin_or_none_at_all(texts: list[list[str]]) -> None:
    """Whatever patches do: no hunk is lost, and origins are patches of the text."""
    initial, *values = [" ".join(f"{letter}." for letter in letters) for letters in texts]
    patches = [make_patch(value) for value in values]
    for _, _, origins in trace(initial, *patches):
        assert {change for change, _, _ in origins} <= set(range(len(patches)))
