from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.runs.recorded_baseline import (
    REPEATS_APART,
    RecordedBaseline,
    TriedEdit,
    identify_edit,
    load_recorded_baseline,
)
from promptiter.structure import Limits, Node, StructureSnapshot, Surface

NOW = datetime(2026, 11, 16, 9, 30, tzinfo=UTC)


def make_structure(*names: str, text: str = "Answer.", limits: Limits | None = None) -> StructureSnapshot:
    return StructureSnapshot(
        nodes=tuple(Node(id=name) for name in names),
        surfaces=tuple(
            Surface(node_id=name, type="instruction", value=text, limits=limits or Limits()) for name in names
        ),
    )


def record(structure: StructureSnapshot, earlier: RecordedBaseline | None = None) -> RecordedBaseline:
    return RecordedBaseline.start(Profile.baseline(structure), structure, now=NOW, earlier=earlier)


def make_edit(edit_id: str, gain: float = 0.0) -> TriedEdit:
    return TriedEdit(edit_id=edit_id, surfaces=("a#instruction",), answer="improved", gain=gain, tried_at="")


def test_what_was_recorded_is_read_back(tmp_path: Path) -> None:
    assert load_recorded_baseline(tmp_path) is None
    recorded = record(make_structure("a", "b")).add(make_edit("1"))
    recorded.save(tmp_path / "try")
    assert load_recorded_baseline(tmp_path / "try") == recorded


def test_an_edit_in_the_code_is_the_difference_from_the_recorded_texts() -> None:
    recorded, edited = record(make_structure("a")), make_structure("a", text="Answer well.")
    before = recorded.build_profile(edited)
    [change] = before.changes(Profile.baseline(edited), edited)
    assert (change.before, change.after) == ("Answer.", "Answer well.")
    assert recorded.build_profile(make_structure("a")).overrides == {}


def test_surfaces_that_came_or_went_are_named_and_have_no_recorded_value() -> None:
    recorded, changed = record(make_structure("a", "b")), make_structure("a", "c", text="New.")
    assert recorded.find_structure_changes(changed) == ("b#instruction", "c#instruction")
    assert recorded.build_profile(changed).overrides == {"a#instruction": "Answer."}


def test_a_recorded_text_that_is_no_longer_allowed_is_refused_with_what_to_do() -> None:
    strict = make_structure("a", text="Hi.", limits=Limits(max_chars=3))
    with pytest.raises(SetupError, match=r"does not fit the agent any more: .*a#instruction.*; pass --record"):
        record(make_structure("a")).build_profile(strict)


def test_a_new_recording_has_other_repeats_and_no_edits() -> None:
    first = record(make_structure("a")).add(make_edit("1"))
    second = record(make_structure("a"), first)
    assert (second.first_repeat, second.tried) == (first.first_repeat + REPEATS_APART, ())


def test_an_edit_is_kept_once_with_its_latest_answer_and_counts_again_with_new_answers() -> None:
    recorded = record(make_structure("a")).add(make_edit("1", 0.1)).add(make_edit("2"))
    same = recorded.add(make_edit("1", 0.2), has_new_answers=False)
    assert [(each.edit_id, each.gain) for each in same.tried] == [("2", 0.0), ("1", 0.2)]
    assert same.trials == 2
    assert same.add(make_edit("1", 0.3)).trials == 3


def test_edits_are_told_apart_by_their_new_values() -> None:
    structure = make_structure("a")
    before = Profile.baseline(structure)
    texts = ("Answer well.", "Answer well.", "Answer badly.")
    same, again, other = (
        identify_edit(before.changes(Profile.of(structure, {"a#instruction": text}), structure)) for text in texts
    )
    assert same == again != other


def test_a_recording_is_old_after_a_day() -> None:
    recorded = record(make_structure("a"))
    assert not recorded.is_old(NOW + timedelta(hours=23))
    assert recorded.is_old(NOW + timedelta(hours=25))
    assert (
        replace(recorded, recorded_at=(NOW + timedelta(hours=2)).isoformat()).is_old(NOW + timedelta(hours=25)) is False
    )
