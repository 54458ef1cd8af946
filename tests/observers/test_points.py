from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from promptiter.observers.points import Point, PointReader
from promptiter.runs.event_file import EventFile
from tests.observers.stopping import StopAt
from tests.worlds.starter import SmallShop

pytestmark = pytest.mark.slow


def read_points(runs: Path) -> list[Point]:
    [journal] = runs.glob("*/journal.jsonl")
    reader = PointReader()
    return [point for event in EventFile(journal).read() if (point := reader.read(event))]


def test_a_run_that_is_stopped_and_resumed_has_one_value_of_each_figure_per_round(tmp_path: Path) -> None:
    SmallShop().run(tmp_path, observers=(StopAt(30, tmp_path),))
    SmallShop().run(tmp_path)
    points = read_points(tmp_path)
    assert [point.facts["is_final"] for point in points if point.type == "run_completed"] == [False, True]
    assert set(Counter((name, point.round) for point in points for name in point.figures).values()) == {1}


def test_the_scores_of_a_run_that_was_stopped_are_facts(tmp_path: Path) -> None:
    result = SmallShop().run(tmp_path, observers=(StopAt(50, tmp_path),))
    [*_, end] = read_points(tmp_path)
    assert end.facts["result/best"] == result.accepted_score
    assert end.figures == {}
