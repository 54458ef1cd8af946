from __future__ import annotations

import pytest

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.stats.final_test import BLOCKS, decide_for_these_cases
from promptiter.evaluation.stats.new_cases import decide_for_new_cases
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.forecast.forecast import forecast_run
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.prices import Price, Prices
from promptiter.policies.acceptance import MinGain
from promptiter.policies.goal_test import decide_for_goal, decide_for_goal_on_new_cases
from promptiter.policies.goals import Goal, list_other_models
from promptiter.policies.non_inferiority import NonInferior
from promptiter.policies.stopping import MaxRounds, TargetScore
from promptiter.runlog.results import RunResult
from promptiter.search.cheaper import ModelDownsizing
from promptiter.search.shorter import PromptShortening
from promptiter.structure import Limits, Surface
from tests.worlds import desk

DEAR, CHEAP = (
    Price(input_usd_per_million=10.0, output_usd_per_million=30.0),
    Price(input_usd_per_million=1.0, output_usd_per_million=3.0),
)
SAME = [PairedScores(case_id=str(at), before=(1.0,) * 6, after=(1.0,) * 6) for at in range(40)]
BETTER = [PairedScores(case_id=str(at), before=(0.0,) * 6, after=(1.0,) * 6) for at in range(40)]


def test_the_goal_decides_what_the_final_test_shows() -> None:
    assert decide_for_goal(Goal(), SAME, blocks=BLOCKS).outcome == "futile"
    assert decide_for_goal(Goal(), BETTER, blocks=BLOCKS) == decide_for_these_cases(BETTER)
    assert decide_for_goal_on_new_cases(Goal(), BETTER, alpha=0.05) == decide_for_new_cases(BETTER)


@pytest.mark.slow
def test_a_saving_must_be_shown_besides_no_loss() -> None:
    goal, noisy = Goal(kind="fewer_tokens", margin=0.1), (100.0, 90.0, 110.0, 95.0, 105.0, 100.0)
    same, fewer = (
        [
            PairedScores(case_id=str(at), before=noisy, after=tuple(part * each for each in noisy[::-1]))
            for at in range(40)
        ]
        for part in (1.0, 0.7)
    )
    result = decide_for_goal(goal, SAME, blocks=BLOCKS, amounts=fewer)
    assert (result.scope, result.outcome) == ("these cases", "shown")
    assert result.saving is not None
    assert result.saving.gain == pytest.approx(0.3, abs=0.06)
    assert "a loss of 0.1 or more is ruled out" in result.reason
    assert "fewer tokens (95% interval" in result.reason
    assert decide_for_goal(goal, SAME, blocks=BLOCKS, amounts=same).outcome == "futile"
    unknown = decide_for_goal(goal, SAME, blocks=BLOCKS)
    assert (unknown.outcome, unknown.needed_repeats) == ("not_shown", 0)
    assert unknown.reason.endswith("the tokens of a run are unknown, so a saving cannot be shown")
    lost = [PairedScores(case_id=str(at), before=(1.0,) * 6, after=(0.0,) * 6) for at in range(40)]
    assert decide_for_goal(goal, lost, blocks=BLOCKS, amounts=fewer).outcome == "futile"


def test_the_test_goes_on_until_both_are_decided() -> None:
    goal = Goal(kind="fewer_tokens", margin=0.1)
    score = [case.first(2) for case in SAME]
    amounts = [PairedScores(case_id=case.case_id, before=(100.0, 90.0), after=(90.0, 99.0)) for case in SAME]
    result = decide_for_goal(goal, score, blocks=BLOCKS, amounts=amounts)
    assert (result.outcome, result.needed_repeats) == ("open", 2)


def test_savings_are_tested_for_new_cases_too() -> None:
    goal = Goal(kind="cheaper", margin=0.15)
    amounts = [PairedScores(case_id=case.case_id, before=(2.0,), after=(1.0,)) for case in SAME]
    result = decide_for_goal_on_new_cases(goal, SAME, alpha=0.05, amounts=amounts)
    assert (result.scope, result.outcome) == ("new cases", "shown")
    assert "50.0% fewer dollars, fewer in 40 of 40 cases" in result.reason
    assert decide_for_goal_on_new_cases(goal, SAME, alpha=0.05, amounts=SAME).outcome == "not_shown"
    assert decide_for_goal_on_new_cases(goal, SAME, alpha=0.05).outcome == "not_shown"


def test_an_invalid_goal_is_refused() -> None:
    for wrong in ({"kind": "fame"}, {"margin": 0.0}, {"margin": 1.0}, {"kind": "cheaper", "models": "gpt"}):
        with pytest.raises(SetupError):
            Goal(**wrong)
    with pytest.raises(SetupError, match="of kind 'cheaper'"):
        Goal(kind="fewer_tokens", models=("small",))


def test_the_models_of_a_goal_are_limited_to_what_a_node_accepts() -> None:
    free = Surface(node_id="n", type="model", value="large")
    bound = Surface(node_id="n", type="model", value="large", limits=Limits(choices=("large", "small")))
    goal = Goal(kind="cheaper", models=("small", "tiny", "large", "small"))
    assert list_other_models(goal, free, "large") == ("small", "tiny")
    assert list_other_models(goal, bound, "large") == ("small",)
    assert list_other_models(Goal(kind="cheaper"), bound, "small") == ("large",)
    assert list_other_models(Goal(kind="cheaper"), free, "large") == ()


def engine(
    search: ModelDownsizing | PromptShortening, prices: dict[str, Price], *, models: tuple[str, ...] = ()
) -> Engine:
    agent = GraphAgent(
        name="one", nodes=(ModelNode(name="draft", instruction="Draft.", model="scripted", models=models),)
    )
    gateway = Gateway(models={name: ScriptedModel([]) for name in ("scripted", "small", "tiny")}, prices=Prices(prices))
    return Engine(agent, desk.evaluator(gateway), search=search)


@pytest.mark.parametrize("wanted", ["small", "scripted"])
async def test_an_unknown_price_is_reported_with_its_model_before_anything_is_spent(wanted: str) -> None:
    prices = {name: CHEAP for name in ("small", "scripted") if name != wanted}
    goal = Goal(kind="cheaper", models=("small",))
    request = desk.request(goal=goal, acceptance=NonInferior(0.05, "usd"))
    with pytest.raises(RequestError, match=f"the price of model {wanted!r} is unknown, so it cannot be compared"):
        await engine(ModelDownsizing(), prices).run(request)


async def test_a_goal_needs_its_policy_and_something_to_change() -> None:
    prices = {"scripted": DEAR, "small": CHEAP}
    with pytest.raises(RequestError, match=r"acceptance is MinGain\(0.005\); give NonInferior\(0.02, 'usd', 3\)"):
        await engine(ModelDownsizing(), prices).run(
            desk.request(goal=Goal(kind="cheaper", margin=0.02, models=("small",)), acceptance=MinGain())
        )
    with pytest.raises(RequestError, match="there is no other model to try"):
        await engine(ModelDownsizing(), prices).run(
            desk.request(goal=Goal(kind="cheaper"), acceptance=NonInferior(0.05, "usd"))
        )
    goal = Goal(kind="cheaper", models=("small",))
    request = desk.request(goal=goal, acceptance=NonInferior(0.05, "usd"), targets=["draft#instruction"])
    with pytest.raises(RequestError, match="no target has a type that it can change: model"):
        await engine(ModelDownsizing(), prices).run(request)
    with pytest.raises(RequestError, match=r"stop is about the score: TargetScore\(1.0\); leave it out"):
        await engine(PromptShortening(), prices).run(
            desk.request(goal=Goal(kind="fewer_tokens"), acceptance=NonInferior(), stop=TargetScore(1.0) | MaxRounds(3))
        )
    with pytest.raises(RequestError, match="give a Goal"):
        await engine(PromptShortening(), prices).run(desk.request(goal="fewer_tokens"))


async def test_a_result_knows_its_goal_and_survives_its_file() -> None:
    goal = Goal(kind="fewer_tokens", margin=0.1)
    built = Engine(desk.agent(), desk.evaluator(), search=PromptShortening())
    result = await built.run(desk.request(goal=goal, acceptance=NonInferior(0.1), max_rounds=0))
    assert result.goal == goal
    assert RunResult.from_json(result.to_json()) == result


@pytest.mark.parametrize("search", [ModelDownsizing(), PromptShortening()])
def test_a_search_for_another_goal_can_be_forecast(search: ModelDownsizing | PromptShortening) -> None:
    is_cheaper = isinstance(search, ModelDownsizing)
    built = engine(search, {"scripted": DEAR, "small": CHEAP}, models=("scripted", "small"))
    goal = Goal(kind="cheaper" if is_cheaper else "fewer_tokens")
    request = desk.request(goal=goal, acceptance=NonInferior(0.05, "usd" if is_cheaper else "tokens"), max_rounds=6)
    forecast = forecast_run(built, request)
    stages = list(forecast.stages)
    searched = ["validation"] if is_cheaper else ["train", "rerun", "validation"]
    assert stages == ["baseline", *searched, "final_test"]
    assert 1 <= forecast.rounds.low <= forecast.rounds.high <= 6
    assert forecast.total.calls.high > forecast.total.calls.low


async def test_the_losses_of_several_candidates_must_stay_within_the_margin_together() -> None:
    """Each instruction is shorter and loses one more of the 20 cases than the one before."""
    texts = ["Lose 0 of them, please, with some more words.", "Lose 1 of them, please.", "Lose 2 of them."]

    def answer(request: ModelRequest) -> str:
        lost, number = (int(request.messages[at].content.split()[word]) for at, word in ((0, 1), (-1, -1)))
        return "careful careful" if number >= lost else "no"

    agent = GraphAgent(name="one", nodes=(ModelNode(name="draft", instruction=texts[0], model="scripted"),))
    steps = desk.Tries({"draft#instruction": texts[1]}, {"draft#instruction": texts[2]})
    built = Engine(agent, desk.evaluator(Gateway(models={"scripted": ScriptedModel(answer)})), search=steps)
    request = desk.request(
        validation=desk.eval_set("validation", 20),
        goal=Goal(kind="fewer_tokens"),
        acceptance=NonInferior(0.05),
        final_test=None,
    )
    result = await built.run(request)
    first, second = (each.decision for each in result.rounds)
    assert first is not None
    assert first.accepted
    assert second is not None
    assert second.reason == "gain -0.050, -0.100 since the start is beyond the margin 0.05"
    assert [change.after for change in result.changes] == [texts[1]]
