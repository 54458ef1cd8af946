from __future__ import annotations

from dataclasses import replace

from promptiter.engine.engine import Engine
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile, ProfileDiff, SurfaceChange
from promptiter.runlog.results import RunResult
from promptiter.runs.summary import summarize
from tests.traces.test_notebook import SCRIPT, Tags
from tests.worlds import desk
from traces import Failure


def finished_run() -> RunResult:
    return desk.engine(desk.DRAFT, desk.POLISH).run_sync(desk.request())


def test_a_result_is_shown_in_a_few_lines() -> None:
    result = finished_run()
    lines = repr(result).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(f"RunResult(succeeded, {result.verdict}: mean_score ")
    assert all(len(line) < 300 for line in lines)
    assert f"{result.measured.spent.total.calls:,} model calls" in lines[4]
    assert lines[1] == "  shown for these cases: gain +1.000 (95% interval +0.375 to +1.000)"
    assert lines[2].startswith(
        "  not shown for new cases: 2 validation cases, which the search selected on, are too few"
    )


def test_a_failed_result_names_its_error() -> None:
    assert "; the network is down)" in repr(replace(finished_run(), error="the network is down"))


def test_cases_that_a_metric_could_not_score_are_problems_of_the_result() -> None:
    def fail_once(case: EvalCase, run: object) -> float:
        return 1.0 if case.id != "v-1" else float(case.metadata["weight"])

    gateway = Gateway(models={"scripted": desk.model()})
    evaluator = Evaluator([FunctionMetric(name="own", function=fail_once)], gateway=gateway)
    engine = Engine(desk.agent(), evaluator, search=desk.Tries())
    result = engine.run_sync(desk.request(validation=desk.eval_set("v", 8)))
    assert result.problems == ("1 of 8 validation cases is unscored: metric 'own' raised KeyError: 'weight'",)
    assert repr(result).splitlines()[3] == f"  problem: {result.problems[0]}"
    summary = summarize(result)
    assert (summary.outcome, summary.problems) == ("target_reached", result.problems)
    assert summary.headline == "Nothing to fix in the 7 of 8 cases that could be scored"


def test_problems_of_the_baseline_and_of_the_accepted_profile_are_told_apart() -> None:
    result = finished_run()
    assert result.accepted is not None
    [first, *others] = result.accepted.rows
    failed = replace(first, error=Failure("ValueError", "no source"))
    accepted = replace(result.accepted, rows=(failed, *others))
    count = len(others) + 1
    text = f"1 of {count} validation case runs is unscored: the agent failed with ValueError: no source"
    assert result.problems == ()
    assert replace(result, accepted=accepted).problems == (f"accepted profile: {text}",)


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
