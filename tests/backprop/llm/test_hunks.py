from __future__ import annotations

from promptiter.backprop.llm.hunks import NamedChange, build_edits, find_hunks
from promptiter.stages.contracts import SignalPoint

BEFORE = "You answer customers.\nLeave out numbers. Be brief.\n\n- Use ISO dates.\n- Sign with a name."
POINTS = (
    SignalPoint(text="keep numbers", case_ids=("c1", "c2"), gradient_ids=("g1", "g2")),
    SignalPoint(text="no names", case_ids=("c3",), gradient_ids=("g3",)),
)


def test_hunks_are_the_sentences_and_lines_that_differ() -> None:
    after = "You answer customers.\nCopy order numbers. Be brief.\n\n- Use ISO dates.\n"
    assert find_hunks(BEFORE, after) == [("Leave out numbers.", "Copy order numbers."), ("- Sign with a name.", "")]
    assert find_hunks(BEFORE, BEFORE.replace("\n\n", "\n")) == []


def test_each_hunk_has_the_evidence_of_the_points_that_its_changes_name() -> None:
    after = BEFORE.replace("Leave out numbers.", "Copy order  numbers.").replace("\n- Sign with a name.", " Smile.")
    changes = [
        NamedChange("Copy order numbers.", (1,)),
        NamedChange("Sign with a name.", (2, 9)),
        NamedChange(" ", (1,)),
    ]
    edits = build_edits(BEFORE, after, changes, POINTS)
    assert [(each.reason, each.evidence.cases, each.evidence.gradients) for each in edits] == [
        ("keep numbers", ("c1", "c2"), ("g1", "g2")),
        ("no names", ("c3",), ("g3",)),
    ]


def test_a_hunk_that_no_change_names_has_no_evidence_of_its_own() -> None:
    [edit] = build_edits("Be brief.", "Be brief. Be kind.", [NamedChange("something else", (1,))], POINTS)
    assert (edit.after, edit.reason, edit.evidence.cases) == ("Be kind.", "", ())
