"""The figures of a report are those of the profiles that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from statistics import mean

from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.runs.report.pages import render_html, render_markdown
from promptiter.runs.report.run_report import RunReport, collect_report
from tests.worlds import desk


def run_desk(folder: Path, *rounds: dict[str, str]) -> tuple[RunResult, Path]:
    run = RunDirectory.begin(folder, desk.engine(*rounds), desk.request(run_id="", max_rounds=len(rounds)))
    return run.run_sync(), run.path


def refuse(result: RunResult) -> RunResult:
    """The result if the final test had not shown an improvement, in two blocks of which the second is worse."""
    tested = [
        each
        for each in result.evaluations
        if (each.phase, each.profile_digest) == ("final_test", result.working_profile.digest)
    ]
    first = tested[0]
    worse = [
        replace(row, repeat=row.repeat + 10, scores=tuple(replace(score, value=0.0) for score in row.scores))
        for row in first.rows
    ]
    second = replace(first, number=99, rows=tuple(worse))
    return replace(
        result,
        accepted_profile=result.initial_profile,
        accepted=result.baseline,
        evaluations=(*(each for each in result.evaluations if each not in tested[1:]), second),
    )


def read_figures(report: RunReport) -> dict[str, tuple[float | None, float | None]]:
    return {each.name: (each.before, each.after) for each in report.figures}


def test_the_figures_of_a_candidate_that_was_not_adopted_are_its_own(tmp_path: Path) -> None:
    result, folder = run_desk(tmp_path, desk.DRAFT)
    report = collect_report(refuse(result), folder)
    assert read_figures(report)["mean score"] == (0.0, 0.25)
    assert mean(each.after.score or 0.0 for each in report.cases if each.after is not None) == 0.25
    assert [each.name for each in report.usage] == ["input tokens", "output tokens", "dollars"]
    assert "Unchanged: draft" not in render_markdown(report)


def test_a_run_that_changed_nothing_has_only_figures_of_its_baseline(tmp_path: Path) -> None:
    result, folder = run_desk(tmp_path, desk.WORSE)
    report = collect_report(result, folder)
    assert read_figures(report)["mean score"] == (0.0, None)
    assert not report.is_compared
    assert "<b>0 of 2</b>" in render_html(report)
    assert "| mean score | 0.000 |\n" in render_markdown(report)


def test_the_cases_that_pass_are_those_of_the_search(tmp_path: Path) -> None:
    result, folder = run_desk(tmp_path, desk.DRAFT | desk.POLISH)
    report = collect_report(result, folder)
    assert report.passed == (0, 2)
    assert "<b>0 → 2 of 2</b>" in render_html(report)
