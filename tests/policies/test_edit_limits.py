from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.policies.edit_limits import EditLimits, count_changed_lines
from promptiter.profile import Profile, SurfaceChange
from promptiter.structure import Node, StructureSnapshot, Surface

FILES = StructureSnapshot(
    nodes=(Node(id="workspace"),),
    surfaces=tuple(
        Surface(node_id="workspace", type="file", part=part, value="one\ntwo\nthree\n") for part in ("a.md", "b.md")
    ),
)
BASELINE = Profile.baseline(FILES)


def changed(**texts: str) -> Profile:
    return Profile.of(FILES, {f"workspace#file.{name}.md": text for name, text in texts.items()})


@pytest.mark.parametrize(
    ("limits", "candidate", "excess"),
    [
        (EditLimits(max_files=1), changed(a="one\n"), None),
        (
            EditLimits(max_files=1),
            changed(a="one\n", b="one\n"),
            "it changes 2 files (workspace#file.a.md, workspace#file.b.md), and at most 1 may change",
        ),
        (EditLimits(max_changed_lines=2), changed(a="one\n"), None),
        (EditLimits(max_changed_lines=1), changed(a="one\n"), "it changes 2 lines, and at most 1 may change"),
        (EditLimits(max_changed_lines=2), changed(a="1\ntwo\n3\n"), None),
        (
            EditLimits(max_changed_lines=2),
            changed(a="1\ntwo\n3\n", b="zero\none\ntwo\nthree\n"),
            "it changes 3 lines, and at most 2 may change",
        ),
        (EditLimits(max_changed_lines=1), changed(a="one\ntwo\nthree"), None),
        (EditLimits(), changed(a="", b=""), None),
    ],
)
def test_a_candidate_that_changes_too_much_is_named_with_what_it_changes(
    limits: EditLimits, candidate: Profile, excess: str | None
) -> None:
    assert limits.find_excess(BASELINE, candidate, FILES) == excess
    assert limits.find_excess(candidate, candidate, FILES) is None


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_lines_that_change_are_between_the_difference_and_the_sum(before: list[str], after: list[str]) -> None:
    texts = ["\n".join(each) for each in (before, after)]
    lines = count_changed_lines([SurfaceChange("n#file.a", *texts)])
    counts = [len(text.splitlines()) for text in texts]
    assert abs(counts[0] - counts[1]) <= lines <= sum(counts)
    assert (lines == 0) == (texts[0] == texts[1])


def test_a_value_that_is_not_text_counts_as_one_line() -> None:
    assert count_changed_lines([SurfaceChange("n#parameter.k", 3, 5)]) == 1


@pytest.mark.parametrize("options", [{"max_files": 0}, {"max_changed_lines": 0}, {"max_files": 1.5}])
def test_limits_are_whole_numbers(options: dict[str, Any]) -> None:
    with pytest.raises(SetupError, match="give a whole number of at least 1"):
        EditLimits(**options)
