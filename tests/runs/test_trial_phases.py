"""What is shown of a run of coordinate descent: summary, command line, report, progress."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from promptiter.cli.views.rounds import print_rounds
from promptiter.cli.views.show import print_summary
from promptiter.observers.progress import RunProgress
from promptiter.runs.directory import RunDirectory
from promptiter.runs.report.pages import render_html, render_markdown
from promptiter.runs.report.run_report import read_report
from promptiter.runs.summary import RunSummary, read_summary
from tests.worlds.quadratic_world import TEXT, build_descent, build_engine, build_request


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    search = build_descent(max_cycles=2, numeric_max_trials=6, textual_max_trials=2, startup_trials=4)
    engine = build_engine(search, seed=3)
    directory = RunDirectory.begin(tmp_path_factory.mktemp("phases"), engine, build_request(cases=3))
    directory.run_sync()
    return directory.path


@pytest.fixture(scope="module")
def summary(folder: Path) -> RunSummary:
    return read_summary(folder)


def show(print_view: object, summary: RunSummary) -> str:
    screen = Console(file=StringIO(), width=140)
    print_view(screen, summary)  # type: ignore[operator]
    assert isinstance(screen.file, StringIO)
    return screen.file.getvalue()


def test_the_phases_of_a_run_have_their_gains(summary: RunSummary) -> None:
    phases = summary.descent.phases

    assert [(each.cycle, each.phase) for each in phases] == [
        (1, "numeric"),
        (1, "textual"),
        (2, "numeric"),
        (2, "textual"),
    ]
    assert sum(each.trials for each in phases) == len(summary.descent.trials)
    assert phases[0].before - sum(each.gain for each in phases) == pytest.approx(summary.descent.trials[-1].best)


def test_the_shares_of_the_surfaces_add_up_to_the_gain(summary: RunSummary) -> None:
    axes = {each.surface_id: each for each in summary.descent.axes}
    [textual] = [each for each in summary.descent.phases if each.phase == "textual" and each.accepted]

    assert sum(each.gain for each in axes.values()) == pytest.approx(sum(each.gain for each in summary.descent.phases))
    assert axes[TEXT].gain == pytest.approx(textual.gain)


def test_a_proposal_is_explained_by_the_study_or_the_critic(summary: RunSummary) -> None:
    numeric = [each.why for each in summary.descent.trials if each.cycle == 1 and each.phase == "numeric"]
    textual = [each.why for each in summary.descent.trials if each.phase == "textual"]

    assert [bool(each) for each in numeric] == [False] * 4 + [True] * 2
    assert numeric[-1].startswith("density of good to bad trials ")
    assert textual[0] == "the answer does not show where it is from (confidence 0.8)"


def test_show_has_phases_and_shares(summary: RunSummary) -> None:
    text = show(print_summary, summary)

    assert "Phases" in text
    assert "share of the gain" in text
    assert "archive#instruction" in text


def test_show_rounds_has_a_line_per_trial(summary: RunSummary) -> None:
    text = show(print_rounds, summary)

    assert "numeric phase, from a loss of" in text
    assert sum(line.split()[1:2] == ["n"] for line in text.splitlines()) == sum(
        each.phase == "numeric" for each in summary.descent.trials
    )


def test_the_report_draws_the_trials(folder: Path) -> None:
    report = read_report(folder)
    page, text = render_html(report), render_markdown(report)

    assert '<h2 id="phases">Phases</h2>' in page
    assert "loss on train over" in page
    assert "2 textual" in page
    assert "| cycle | phase | trials |" in text


def test_the_progress_says_how_trials_and_phases_ended() -> None:
    screen = Console(file=StringIO(), width=160)
    engine = build_engine(build_descent(max_cycles=1, numeric_max_trials=2, textual_max_trials=1), seed=3)
    engine.run_sync(build_request(cases=2), observers=[RunProgress(screen)])
    assert isinstance(screen.file, StringIO)
    text = screen.file.getvalue()

    assert "cycle 1, numeric phase: loss" in text
    assert "numeric trial 2, " in text
    assert "textual phase: 1 of 1 trial accepted" in text
