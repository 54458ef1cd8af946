from __future__ import annotations

from promptiter.backprop.llm.hunks import NamedChange, build_edits
from promptiter.stages.contracts import SignalPoint

BEFORE = "You answer customers.\nLeave out numbers. Be brief.\n\n- Use ISO dates.\n- Sign with a name."
POINTS = (
    SignalPoint(text="keep numbers", case_ids=("c1", "c2"), gradient_ids=("g1", "g2")),
    SignalPoint(text="no names", case_ids=("c3",), gradient_ids=("g3",)),
)


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


def test_all_hunks_answer_the_only_point_of_a_signal() -> None:
    edits = build_edits("Be brief.", "Smile. Be brief. Be kind.", [], POINTS[:1])
    assert [(each.after, each.reason, each.evidence.cases) for each in edits] == [
        ("Smile.", "keep numbers", ("c1", "c2")),
        ("Be kind.", "keep numbers", ("c1", "c2")),
    ]
