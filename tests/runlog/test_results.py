from __future__ import annotations

from dataclasses import replace

from promptiter.profile import Profile, ProfileDiff, SurfaceChange
from promptiter.runlog.results import RunResult
from tests.traces.test_notebook import SCRIPT, Tags
from tests.worlds import desk


def finished_run() -> RunResult:
    return desk.engine(desk.DRAFT, desk.POLISH).run_sync(desk.request())


def test_a_result_is_shown_in_a_few_lines() -> None:
    result = finished_run()
    lines = repr(result).splitlines()
    assert len(lines) == 3
    assert lines[0].startswith(f"RunResult(succeeded, {result.verdict}: mean_score ")
    assert all(len(line) < 300 for line in lines)
    assert f"{result.measured.spent.total.calls:,} model calls" in lines[2]


def test_a_failed_result_names_its_error() -> None:
    assert "; the network is down)" in repr(replace(finished_run(), error="the network is down"))


def test_a_notebook_shows_verdict_changes_and_cases() -> None:
    result = finished_run()
    change = {result.targets[0]: f"Answer briefly. {SCRIPT}"}
    result = replace(result, accepted_profile=Profile.of(result.structure, change), error=SCRIPT)
    read = Tags(result._repr_html_())
    assert read.text.count(SCRIPT) == 2
    assert result.targets[0] in read.text
    assert result.verdict in read.text
    assert result.accepted is not None
    assert all(case.case_id in read.text for case in result.accepted.cases)
    assert len(result._repr_html_()) < 20_000


def test_a_profile_diff_is_a_tuple_of_changes_and_a_text() -> None:
    diff = ProfileDiff([SurfaceChange("bot#instruction", "Be kind.", "Be brief."), SurfaceChange("bot#model", 1, 2)])
    assert diff == (SurfaceChange("bot#instruction", "Be kind.", "Be brief."), SurfaceChange("bot#model", 1, 2))
    assert "-Be kind.\n+Be brief.\n\nbot#model\n-1\n+2" in str(diff)
    assert str(ProfileDiff()) == "no changes"
    assert "no changes" in ProfileDiff()._repr_html_()
