from __future__ import annotations

import threading
from typing import Any

import pytest

from promptiter.agents.base import RunContext
from promptiter.errors import SetupError
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.score import Score
from promptiter.evaluation.scorer import SCORER_SET, DescribedAgent, ScoredAgent, ScoredProfile, Scorer, as_scorer
from promptiter.profile import Profile
from tests.worlds import desk
from traces import ExecutionTrace, Failure, Step

STRUCTURE = desk.agent().describe()
BASELINE = Profile.baseline(STRUCTURE)
TWO = {"tests": 1.0, "size": 0.5}


async def call(scorer: Any) -> tuple[Score, ...]:
    return (await as_scorer(scorer).score(BASELINE, RunContext(repeat=3))).scores


@pytest.mark.parametrize(
    ("answer", "value", "reason"),
    [
        (0.25, 0.25, ""),
        (True, 1.0, ""),
        (Score(metric="tests", value=0.5, threshold=0.1, reason="1 of 2"), 0.5, "1 of 2"),
        (ScoredProfile(scores=(Score(metric="tests", value=0.5),)), 0.5, ""),
        ([Score(metric="tests", value=None, error="no compiler")], None, ""),
    ],
)
async def test_one_score_may_be_a_number_or_a_score_of_any_name(answer: object, value: float, reason: str) -> None:
    [score] = await call(lambda _profile: answer)
    assert (score.metric, score.threshold, score.value, score.reason) == ("score", 1.0, value, reason)


async def test_several_scores_are_named_with_their_thresholds() -> None:
    scorer = Scorer(lambda _: [Score(metric="size", value=0.7), Score(metric="tests", value=0.5)], TWO)
    assert [(score.metric, score.threshold, score.passed) for score in await call(scorer)] == [
        ("size", 0.5, True),
        ("tests", 1.0, False),
    ]
    assert [(metric.name, metric.threshold) for metric in scorer.metrics] == [("tests", 1.0), ("size", 0.5)]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ("good", "returned 'good'; return a number from 0 to 1, or a Score"),
        (None, "returned None; return a number from 0 to 1, or a Score"),
        (float("nan"), "returned nan as 'score'; return a number from 0 to 1"),
        (17.0, "returned 17 as 'score'; return a number from 0 to 1"),
        (Score(metric="tests", value=-0.5), "returned -0.5 as 'score'; return a number from 0 to 1"),
        (ScoredProfile(scores=(Score(metric="tests", value=1.5),)), "returned 1.5 as 'score'"),
        (
            [Score(metric="tests", value=0.5, threshold=0.9), Score(metric="size", value=0.5)],
            r"its scores are 'score'; .* name others with Scorer\(function, \{'tests': 0.9, 'size': 1.0\}\)",
        ),
    ],
)
async def test_what_is_not_a_score_is_an_error_that_names_the_fix(answer: object, problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        await call(lambda _profile: answer)


@pytest.mark.parametrize(
    "scores",
    [
        [Score(metric="tests", value=0.5), Score(metric="speed", value=0.5)],
        [Score(metric="tests", value=0.5), Score(metric="tests", value=0.6)],
        [0.5, 0.6],
    ],
)
async def test_scores_of_other_names_are_an_error(scores: object) -> None:
    with pytest.raises(SetupError, match="its scores are 'tests', 'size'; return one Score for each"):
        await call(Scorer(lambda _: scores, TWO))


async def test_a_function_may_be_sync_or_async_and_may_take_the_context() -> None:
    async def plain(profile: Profile) -> float:
        return float(profile == BASELINE)

    async def with_context(_profile: Profile, context: RunContext) -> float:
        return context.repeat / 10

    def in_a_thread(_profile: Profile, *, verbose: bool = False) -> bool:
        return threading.current_thread() is not threading.main_thread() and not verbose

    class Build:
        async def __call__(self, profile: Profile, context: RunContext) -> float:
            return float(context.repeat == 3 and profile == BASELINE)

    found = [(await call(each))[0].value for each in (plain, with_context, in_a_thread, Build())]
    assert found == [1.0, 0.3, 1.0, 1.0]
    assert as_scorer(Build()).name.endswith("Build")


def test_a_scorer_is_checked_when_it_is_made() -> None:
    with pytest.raises(SetupError, match=r"a scorer is 0\.5; give a function"):
        Scorer(0.5)  # type: ignore[arg-type]
    with pytest.raises(SetupError, match="a scorer needs thresholds"):
        Scorer(lambda _: 0.5, {})


async def test_a_scorer_gives_rows_with_scores_traces_and_errors() -> None:
    trace = ExecutionTrace(id="t", steps=(Step(id="build", node_id="build", kind="function"),))

    def build(_profile: Profile, context: RunContext) -> ScoredProfile:
        if context.repeat == 1:
            raise OSError("disk full")
        return ScoredProfile(scores=(Score(metric="tests", value=0.5),), output="log", traces=(trace, trace))

    scorer = Scorer(build, TWO)
    evaluator = Evaluator(scorer.metrics, options=EvaluationOptions(repeats=2))
    evaluation = await evaluator.evaluate(ScoredAgent(DescribedAgent(STRUCTURE), scorer), SCORER_SET)
    first, second = evaluation.rows
    assert [score.value for score in first.scores] == [0.5, None]
    assert first.scores[1].error == "the scorer returned no score 'size'"
    assert (first.output, len(first.trace_digests), first.case_id) == ("log", 2, "scorer")
    assert second.error == Failure("OSError", "disk full")
    assert [score.error for score in second.scores] == ["the run failed: OSError: disk full"] * 2


async def test_a_structure_alone_cannot_be_run_on_cases() -> None:
    evaluator = desk.evaluator()
    with pytest.raises(SetupError, match="give the engine an agent, or the request a scorer"):
        await evaluator.evaluate(DescribedAgent(STRUCTURE), desk.eval_set("train", 1))


async def test_an_evaluator_without_metrics_cannot_run_cases() -> None:
    with pytest.raises(SetupError, match="an evaluation needs metrics"):
        await Evaluator().evaluate(desk.agent(), desk.eval_set("train", 1))
