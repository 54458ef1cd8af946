from __future__ import annotations

import csv
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.runs.layout_000.rows import (
    StudyState,
    Sweeps,
    TrialDecision,
    TrialRow,
    read_rows,
    write_rows,
    write_trajectory,
)


def build(number: int, loss: float, *, held: float | None = None, accepted: bool = False, axis: str = "a") -> TrialRow:
    return TrialRow(
        trial_id=number,
        timestamp="2026-05-16T14:22:08Z",
        cycle=int(number > 0),
        phase="numeric" if number else "baseline",
        axis_target=axis,
        repeats=2,
        train=Sweeps(loss=loss, loss_std=0.01, trial_usd=0.5, duration_sec=3.0),
        holdout=None if held is None else Sweeps(loss=held, trial_usd=0.25, duration_sec=1.5),
        decision=TrialDecision(
            accepted=accepted,
            outcome="accepted" if accepted else "noise",
            reason="r",
            noise_bar=0.02,
            holdout_mean=held,
        ),
        study_state=StudyState(cycle=1, phase="numeric"),
        stages_usd=0.01,
    )


ROWS = [
    build(0, 0.5, held=0.6, accepted=True),
    build(1, 0.45, axis="a, b"),
    build(2, 0.4, held=0.55, accepted=True),
]


def test_rows_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "trials.jsonl").write_bytes(write_rows(ROWS))
    assert read_rows(tmp_path) == ROWS


def test_a_folder_without_rows_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetupError, match=r"trials\.jsonl cannot be read"):
        read_rows(tmp_path)


def test_the_table_has_the_best_after_each_decision_and_the_cost_of_the_whole_trial() -> None:
    table = list(csv.DictReader(write_trajectory(ROWS).decode().splitlines()))
    assert [row["best_train"] for row in table] == ["0.5", "0.5", "0.4"]
    assert [row["best_holdout"] for row in table] == ["0.6", "0.6", "0.55"]
    assert [row["holdout_mean"] for row in table] == ["0.6", "", "0.55"]
    assert [row["trial_usd"] for row in table] == ["0.7600", "0.5100", "0.7600"]
    assert [row["duration_sec"] for row in table] == ["4.5", "3.0", "4.5"]
    assert [row["noise_bar"] for row in table] == ["—", "0.02", "0.02"]
    assert table[1]["axis_target"] == "a, b"


def test_an_unknown_cost_is_left_out() -> None:
    row = ROWS[1].model_copy(update={"stages_usd": None})
    assert row.trial_usd is None
    [written] = csv.DictReader(write_trajectory([row]).decode().splitlines())
    assert written["trial_usd"] == ""


def test_the_rationales_are_those_of_every_text_that_a_trial_changed() -> None:
    critics = [{"axis": name, "failing_pattern": f"{name} is\nvague"} for name in ("a", "b")]
    appliers = [{"axis": name, "diff_summary": f"{name} is longer"} for name in ("a", "b")]
    one: dict[str, object] = {"critic": critics[0], "applier": appliers[0]}
    row = ROWS[1].model_copy(update={"proposal_source": one})
    assert row.rationales == [("pattern", "a is vague"), ("edit", "a is longer")]
    row = ROWS[1].model_copy(update={"proposal_source": one | {"critics": critics, "appliers": appliers}})
    assert row.rationales == [
        *(("pattern of a", "a is vague"), ("edit of a", "a is longer")),
        *(("pattern of b", "b is vague"), ("edit of b", "b is longer")),
    ]
    assert ROWS[0].rationales == []
