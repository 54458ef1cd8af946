from __future__ import annotations

import csv
import math
import re
from io import StringIO
from statistics import stdev
from xml.etree.ElementTree import fromstring

import pytest

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.runlog.results import RunResult
from promptiter.runs.report.charts import MOST_LABELS, MOST_POINTS, chart_trajectory, choose_points
from promptiter.runs.report.trajectory import PointKind, PointPhase, Trajectory, TrajectoryPoint, write_csv
from tests.worlds import desk


def trace(result: RunResult) -> tuple[TrajectoryPoint, ...]:
    trajectory = Trajectory(result)
    for each in result.rounds:
        trajectory.add(each)
    return trajectory.points


def test_the_points_are_the_baseline_every_candidate_and_both_profiles_of_the_final_test() -> None:
    found = trace(desk.engine(desk.WORSE, desk.DRAFT, desk.POLISH).run_sync(desk.request()))
    assert [(each.round, each.phase, each.kind, each.score, each.passed) for each in found] == [
        (0, "search", "baseline", 0.0, 0),
        (1, "search", "rejected", 0.0, 0),
        (2, "search", "accepted", 0.5, 0),
        (3, "search", "accepted", 1.0, 2),
        (3, "final test", "baseline", 0.0, 0),
        (3, "final test", "accepted", 1.0, 2),
    ]
    assert found[1].reason.startswith("gain +0.000")
    assert {each.noise for each in found} == {0.0}


def test_a_loss_is_a_positive_number() -> None:
    found = trace(desk.engine(desk.DRAFT).run_sync(desk.request(objective="weighted_loss")))
    assert [each.score for each in found[:2]] == [1.0, 0.5]


def make_evaluation(repeats: dict[str, list[float]], *, phase: str, profile: str) -> Evaluation:
    rows = [
        CaseRow(case_id=case_id, repeat=number, scores=(Score(metric="m", value=value),))
        for case_id, values in repeats.items()
        for number, value in enumerate(values)
    ]
    return Evaluation(eval_set_id="v", profile_digest=profile, rows=tuple(rows), thresholds={"m": 1.0}, phase=phase)


def test_noise_is_that_between_repeats_and_a_profile_that_ran_once_gets_that_of_the_others() -> None:
    result = desk.engine().run_sync(desk.request(max_rounds=0))
    digest = result.initial_profile.digest
    once = make_evaluation({"a": [0.0], "b": [1.0]}, phase="baseline", profile=digest)
    twice = make_evaluation({"a": [0.0, 0.4], "b": [1.0, 1.0]}, phase="final_test", profile=digest)
    changed = RunResult(
        **{name: getattr(result, name) for name in RunResult.__slots__ if name != "evaluations"},
        evaluations=(once, twice),
    )
    first, second = trace(changed)[:2]
    std = math.sqrt(stdev([0.0, 0.4]) ** 2 / 2)  # pooled over two cases, of which one has no noise
    assert second.noise == pytest.approx(1.96 * std / math.sqrt(4))
    assert first.noise == pytest.approx(1.96 * std / math.sqrt(2))


def test_without_repeats_the_noise_is_unknown_and_no_bar_is_drawn() -> None:
    points = trace(desk.engine(desk.DRAFT).run_sync(desk.request(final_test=None)))
    assert {each.noise for each in points} == {None}
    assert 'class="ci"' not in chart_trajectory(points, objective="mean score")


def test_the_csv_has_every_point() -> None:
    points = (
        TrajectoryPoint(round=0, phase="search", kind="baseline", profile="ab", score=0.25, cases=4, passed=1),
        TrajectoryPoint(
            round=1, phase="search", kind="rejected", profile="cd", score=0.5, noise=0.125, reason='no "gain", worse'
        ),
    )
    first, second = csv.DictReader(StringIO(write_csv(points)))
    assert (first["round"], first["kind"], first["score"], first["noise"]) == ("0", "baseline", "0.250000", "")
    assert (second["noise"], second["reason"]) == ("0.125000", 'no "gain", worse')


def test_a_chart_of_many_rounds_keeps_what_was_accepted_and_the_end() -> None:
    points = [
        TrajectoryPoint(
            round=number, phase="search", kind="accepted" if number % 50 == 1 else "rejected", profile="", score=0.5
        )
        for number in range(1_000)
    ]
    shown = choose_points(points)
    assert len(shown) <= MOST_POINTS
    assert [each.round for each in shown if each.kind == "accepted"] == list(range(1, 1_000, 50))
    assert shown[-1].round == 999
    assert [each.round for each in shown] == sorted(each.round for each in shown)


@pytest.mark.parametrize("accepted", [1, 3])
def test_a_chart_of_many_rounds_ends_with_the_final_test(accepted: int) -> None:
    """Also if more were accepted than a chart can show."""
    searched = [
        TrajectoryPoint(
            round=number, phase="search", kind="rejected" if number % accepted else "accepted", profile="", score=0.5
        )
        for number in range(1_000)
    ]
    tested = [
        TrajectoryPoint(round=999, phase="final test", kind="baseline", profile="", score=0.5),
        TrajectoryPoint(round=999, phase="final test", kind="accepted", profile="", score=0.5),
    ]
    shown = choose_points([*searched, *tested])
    assert len(shown) <= MOST_POINTS
    assert shown[-2:] == tested
    assert (shown[0], shown[-3]) == (searched[0], searched[-1])


def read_labels(points: list[TrajectoryPoint]) -> list[str]:
    """The labels of the horizontal axis that can be seen."""
    root = fromstring(chart_trajectory(points, objective="mean score"))
    [axis] = [each for each in root.iter() if each.get("class", "").startswith("axis x")]
    return [text for each in axis.iter() if each.tag.endswith("text") and (text := (each.text or "").strip())]


def test_the_labels_of_many_rounds_do_not_overlap() -> None:
    points = [
        TrajectoryPoint(round=number, phase="search", kind="rejected", profile="", score=0.5) for number in range(121)
    ]
    tested: list[tuple[PointPhase, PointKind]] = [
        ("final test", "baseline"),
        ("final test", "accepted"),
        ("test set", "baseline"),
    ]
    points += [TrajectoryPoint(round=120, phase=phase, kind=kind, profile="", score=0.5) for phase, kind in tested]
    labels = read_labels(points)
    assert labels[:3] == ["baseline", "round 9", "18"]
    assert labels[-3:] == ["final test", "best", "test set"]
    assert len(labels) <= MOST_LABELS + 3
    assert read_labels([points[0], points[1], *points[-3:]])[2] == "final test: baseline"


def test_what_is_accepted_stays_level_until_the_next_is() -> None:
    found: list[tuple[PointKind, float]] = [("baseline", 0.0), ("rejected", 0.4), ("accepted", 0.5)]
    points = [
        TrajectoryPoint(round=number, phase="search", kind=kind, profile="", score=score)
        for number, (kind, score) in enumerate(found)
    ]
    root = fromstring(chart_trajectory(points, objective="mean score"))
    [line] = [each.get("d", "") for each in root.iter() if each.get("class", "").startswith("line reactive")]
    first, level, last = (part.split(",")[-1].split()[-1] for part in re.findall(r"[\d.]+[ ,][\d.]+", line))
    assert first == level != last


def test_a_chart_has_no_scripts_and_its_noise_as_bars() -> None:
    points = [
        TrajectoryPoint(round=0, phase="search", kind="baseline", profile="", score=0.5, noise=0.1),
        TrajectoryPoint(
            round=1, phase="search", kind="rejected", profile="", score=0.4, noise=0.1, reason="<b>worse</b>"
        ),
    ]
    chart = chart_trajectory(points, objective="<i>score")
    assert chart.count('class="ci"') == 2
    assert "<script" not in chart
    assert "<b>" not in chart
    assert "&lt;b&gt;worse&lt;/b&gt;" in chart
