"""The end of a run on the screen: what the gain is shown for, and why not for new cases."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from promptiter.cli.views.run import print_end, print_line
from promptiter.runlog.results import RunResult
from promptiter.runs.summary import RunSummary, summarize
from promptiter.runs.summary_wording import failing_line
from tests.worlds import desk

BOTH = {**desk.DRAFT, **desk.POLISH}


def improve(**changes: object) -> RunResult:
    return desk.engine(BOTH).run_sync(desk.request(**{"validation": desk.eval_set("validation", 5), **changes}))


@pytest.fixture(scope="module")
def tested() -> RunResult:
    return improve(test=desk.eval_set("test", 8))


def show(summary: RunSummary) -> tuple[list[str], str]:
    """The end of a run in full, and as one line."""
    long, short = (Console(file=StringIO(), width=300) for _ in range(2))
    print_end(long, summary)
    print_line(short, summary)
    assert isinstance(long.file, StringIO)
    assert isinstance(short.file, StringIO)
    return long.file.getvalue().splitlines(), short.file.getvalue().strip()


def test_with_a_test_set_the_headline_has_its_scores_and_those_of_validation(tested: RunResult) -> None:
    conclusion = tested.conclusion
    assert conclusion is not None
    found = summarize(replace(tested, conclusion=replace(conclusion, test_before=0.25, test_after=0.875)))
    headline = "Improved on new cases: mean score 0.250 → 0.875 on the test set (p = 0.0039; validation 0.000 → 1.000)"
    lines, line = show(found)
    assert f"✓ {headline}" in lines
    assert line == f"desk: {headline}"
    assert not any("Not shown" in each for each in lines)


def test_a_result_with_a_test_set_says_the_same(tested: RunResult) -> None:
    first, shown, *_ = repr(tested).splitlines()
    assert first.endswith("improved: mean_score 0.000 → 1.000 on the test set (0.000 → 1.000 on validation))")
    assert shown.startswith("  shown for new cases: gain +1.000 (90% interval ")
    assert "0.000 → 1.000 on the test set" in tested._repr_html_()


def test_a_gain_that_is_not_shown_for_new_cases_has_a_line_with_the_reason_and_the_next_step() -> None:
    lines, _ = show(replace(summarize(improve()), folder=Path("runs/r")))
    few = "5 validation cases, which the search selected on, are too few for a gain of this size"
    assert f"  Not shown for new cases: {few}; give a test set (`test`) of 8 cases or more" in lines
    assert "  adopted: runs/r/surfaces/ and profiles/best.json" in lines


def test_a_case_that_fails_in_one_repeat_counts_as_failing_and_the_line_says_so(tested: RunResult) -> None:
    found = summarize(tested)
    assert found.validation is not None
    assert found.validation.repeats == 2
    figures = replace(found.validation, passed=3)
    assert failing_line(found) == "all 5 validation cases pass"
    still = "2 of 5 validation cases still fail in at least one of 2 repeats"
    assert failing_line(replace(found, validation=figures)) == still
    assert failing_line(replace(found, validation=replace(figures, passed=4))).startswith(
        "1 of 5 validation cases still fails"
    )
    assert failing_line(replace(found, validation=replace(figures, repeats=1))) == still.partition(" in at")[0]
