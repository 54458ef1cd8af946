from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from promptiter.agents.graph import Choice, Edge, GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.expectation import CallUse, CaseUse, NodeUse, Recorded
from promptiter.engine.forecast import Band, Forecast, StageForecast, forecast_run
from promptiter.engine.plan import plan_of
from promptiter.errors import RequestError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.judge import make_judge_builders
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import FileCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.llm.prices import Price, Prices
from promptiter.offline.rules.optimizer import RuleOptimizer
from promptiter.policies.final_test import FinalTest
from promptiter.policies.paired_gain import PairedGain
from promptiter.policies.stopping import MaxCalls, MaxRounds, Patience, TargetScore
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.results import RunRequest
from promptiter.stages.contracts import OptimizeRequest, OptimizeResult
from tests.worlds import desk

NODES = ("first", "second", "third", "last")
TRAIN, VALIDATION = 8, 4
PRICES = Prices({"scripted": Price(input_usd_per_million=1.0, output_usd_per_million=1.0)})


def chain(*names: str, model: str = "scripted") -> GraphAgent:
    nodes = tuple(ModelNode(name=name, instruction=f"Do what {name} does.", model=model) for name in names)
    return GraphAgent(name="chain", nodes=nodes, edges=tuple(Edge(one, other) for one, other in pairwise(names)))


def gateway(**options: object) -> Gateway:
    """A gateway whose models fail on any call: a forecast makes none."""
    return Gateway(models={"scripted": ScriptedModel([])}, prices=PRICES, **options)  # type: ignore[arg-type]


def engine(
    *stages: object, agent: GraphAgent | None = None, through: Gateway | None = None, repeats: int = 1
) -> Engine:
    evaluator = Evaluator(
        [FunctionMetric(name="right", function=desk.score)],
        gateway=through or gateway(),
        options=EvaluationOptions(repeats=repeats),
    )
    return Engine(agent or chain(*NODES), evaluator, *stages)  # type: ignore[arg-type]


def request(**changes: object) -> RunRequest:
    return desk.request(
        **{"train": desk.eval_set("train", TRAIN), "validation": desk.eval_set("validation", VALIDATION), **changes}
    )


def recorded(*, passed: int = 0, failed: int = 12, tokens: int = 100, nodes: Sequence[str] = NODES) -> Recorded:
    use = NodeUse(calls=1, input_tokens=tokens - 20, output_tokens=20, seconds=0.5)
    case = CaseUse(nodes=dict.fromkeys(nodes, use), path_s=0.5 * len(nodes))
    return Recorded(runs=2, cases=(case,) * 12, passed=passed, failed=failed)


def stage(forecast: Forecast, name: str) -> StageForecast:
    return next(each for each in forecast.stages if each.stage == name)


def stages(forecast: Forecast) -> list[str]:
    return [each.stage for each in forecast.stages]


def test_the_same_inputs_give_the_same_forecast_and_asking_makes_no_call() -> None:
    first = forecast_run(engine(), request())
    assert first == forecast_run(engine(), request())
    assert from_plain(Forecast, to_plain(first)) == first
    assert first != forecast_run(engine(), request(seed=1))


def test_a_run_that_only_validates_takes_exactly_that() -> None:
    found = forecast_run(engine(repeats=3), request(max_rounds=0), recorded())
    assert stages(found) == ["baseline"]
    assert found.total.calls == Band(3 * VALIDATION * 4, 3 * VALIDATION * 4, 3 * VALIDATION * 4)
    assert found.rounds == Band(0, 0, 0)
    assert 0.8 < found.total.tokens.p50 / (3 * VALIDATION * 4 * 100) < 1.25
    assert found.total.usd is not None
    assert found.total.usd.p50 == pytest.approx(found.total.tokens.p50 / 1e6, rel=0.05)
    assert found.source == "from 12 traces of 2 earlier runs"


def test_cases_that_all_pass_leave_nothing_to_do() -> None:
    found = forecast_run(engine(), request(), recorded(passed=100, failed=0))
    assert found.rounds.p50 == 0
    assert found.total.calls.p50 == VALIDATION * 4
    without_target = forecast_run(engine(), request(stop=Patience(3)), recorded(passed=100, failed=0))
    assert without_target.total.calls.p5 == (TRAIN + VALIDATION) * 4


def test_cases_that_all_fail_take_at_least_baseline_train_and_one_change() -> None:
    found = forecast_run(engine(), request(), recorded())
    whole = (TRAIN + VALIDATION) * 4
    assert whole < found.total.calls.p5 < found.total.calls.p50 < found.total.calls.p95 < 10 * whole
    assert stages(found) == ["baseline", "train", "backwarder", "rerun", "validation", "ablation", "final_test"]
    assert stage(found, "backwarder").expected.calls == Band(0, 0, 0)
    assert [each.node_id for each in found.nodes] == list(NODES)


def test_a_change_is_paid_from_the_changed_node_on() -> None:
    found = forecast_run(engine(), request(targets=["third#instruction"]), recorded())
    assert [each.node_id for each in stage(found, "rerun").nodes] == ["third", "last"]
    for name in ("train", "final_test"):
        assert [each.node_id for each in stage(found, name).nodes] == list(NODES)
    only = forecast_run(engine(), request(targets=["third#instruction"], max_rounds=1), recorded())
    assert [each.node_id for each in stage(only, "validation").nodes] == ["third", "last"]


def test_a_candidate_after_the_first_runs_beside_the_accepted_profile_on_fresh_draws() -> None:
    one, many = (
        stage(forecast_run(engine(), request(stop=MaxRounds(9), max_rounds=rounds), recorded()), "validation")
        for rounds in (1, 8)
    )
    assert one.expected.calls.p95 <= VALIDATION * 4
    assert many.expected.calls.p95 > 4 * VALIDATION * 4


def test_the_claim_runs_both_profiles_in_blocks_of_its_own_draws() -> None:
    def claimed(**changes: object) -> Forecast:
        known = replace(recorded(), noise=0.0)
        return forecast_run(engine(), request(**{"targets": ["first#instruction"], **changes}), known)

    block = 2 * 2 * VALIDATION * 4
    assert stages(claimed())[-1] == "final_test"
    assert 0.7 * block < stage(claimed(), "final_test").expected.calls.p50 <= 2 * block
    assert stage(claimed(final_test=FinalTest(repeats=6)), "final_test").expected.calls.p50 > 2 * block
    for without in ({"final_test": None}, {"max_rounds": 0}):
        assert not {"ablation", "final_test", "test"} & {*stages(claimed(**without))}


def test_parts_are_left_out_only_where_several_may_have_changed_and_the_claim_wants_it() -> None:
    assert "ablation" not in stages(forecast_run(engine(), request(targets=["first#instruction"]), recorded()))
    assert "ablation" not in stages(forecast_run(engine(), request(final_test=FinalTest(ablate=False)), recorded()))


def test_sealed_cases_are_run_twice_under_both_profiles() -> None:
    sealed = request(test=desk.eval_set("test", 10), targets=["first#instruction"])
    found = stage(forecast_run(engine(), sealed, replace(recorded(), noise=0.0)), "test").expected.calls
    assert 10 * 2 * 4 < found.p50 <= 2 * 10 * 2 * 4


def test_where_runs_come_out_differently_a_claim_takes_more_draws() -> None:
    quiet, noisy = (
        stage(forecast_run(engine(), request(), replace(recorded(), noise=noise)), "final_test").expected.calls
        for noise in (0.0, 1.0)
    )
    assert noisy.p95 > 1.3 * quiet.p95
    assert noisy.p50 >= quiet.p50


def test_agents_that_had_many_texts_patched_are_expected_to_take_more() -> None:
    little, much = (
        forecast_run(engine(), request(), replace(recorded(), noise=1.0, patched=patched)).total.calls
        for patched in (1.0, 4.0)
    )
    assert much.p50 > 1.5 * little.p50


def test_cases_that_do_not_come_by_a_patched_node_are_not_run_again() -> None:
    every, few = recorded().cases[0], recorded(nodes=("first", "last")).cases[0]
    known = replace(recorded(), cases=(every, few, few, few), noise=0.0)
    found = forecast_run(engine(), request(targets=["third#instruction"]), known)
    assert stage(found, "final_test").expected.calls.p95 <= 2 * 2 * 2 * (VALIDATION / 4) * 4
    unread = forecast_run(engine(), request(targets=["third#instruction"]), recorded(nodes=("first", "last")))
    assert stage(unread, "final_test").expected.calls.p50 >= 2 * VALIDATION * 2


def test_what_is_inside_an_agent_follows_what_stands_before_it() -> None:
    inner = GraphAgent(name="inner", nodes=(ModelNode(name="deep", instruction="Go deep.", model="scripted"),))
    before, after = (ModelNode(name=name, instruction="Go.", model="scripted") for name in ("before", "after"))
    agent = GraphAgent(
        name="outer", nodes=(before, after, inner), edges=(Edge("before", "inner"), Edge("inner", "after"))
    )
    below = plan_of(engine(agent=agent), request(), Recorded()).below
    assert below["before"] >= {"before", "inner/deep", "after"}
    assert below["inner/deep"] == {"inner/deep", "after"}


def test_without_traces_it_says_so_and_is_wide() -> None:
    thumbed, known = (
        forecast_run(engine(), request(max_rounds=0)),
        forecast_run(engine(), request(max_rounds=0), recorded()),
    )
    assert thumbed.source == "no traces yet: rules of thumb"
    assert any("4 characters a token" in note for note in thumbed.notes)
    assert any("how many cases fail" in note for note in thumbed.notes)
    wide, narrow = (each.total.tokens.p95 / each.total.tokens.p5 for each in (thumbed, known))
    assert wide > 3 > 1.5 > narrow
    assert known.notes == ()


def test_loops_and_conditions_make_visits_unsure() -> None:
    nodes = tuple(ModelNode(name=name, instruction="Go.", model="scripted") for name in ("ask", "again", "end"))
    route = Choice("ask", lambda _: "end", {"again": "again", "end": "end"})
    agent = GraphAgent(name="loop", nodes=nodes, edges=(route, Edge("again", "ask")), output="end")
    found = forecast_run(engine(agent=agent), request(max_rounds=0))
    calls = {each.node_id: each.expected.calls for each in found.nodes}
    assert calls["end"].p50 < VALIDATION < calls["ask"].p95
    assert calls["ask"].p5 >= VALIDATION


def test_unknown_prices_stay_unknown() -> None:
    agent = chain("known", "strange")
    mixed = GraphAgent(
        name="mixed",
        nodes=(agent.nodes[0], ModelNode(name="strange", instruction="Go.", model="strange")),
        edges=agent.edges,
    )
    through = gateway()
    through.add_model("strange", ScriptedModel([]))
    found = forecast_run(engine(agent=mixed, through=through), request())
    by_node = {each.node_id: each.expected for each in found.nodes}
    assert by_node["strange"].usd is None
    assert by_node["known"].usd is not None
    assert by_node["known"].unpriced == ()
    assert found.total.usd is not None
    assert found.total.unpriced == ("strange",)
    only = forecast_run(engine(agent=chain("one", model="strange"), through=through), request())
    assert only.total.usd is None
    rate = Recorded(usd_per_token={"strange": 2e-6})
    assert forecast_run(engine(agent=chain("one", model="strange"), through=through), request(), rate).total.usd


def test_traces_may_name_nodes_and_models_that_the_structure_does_not() -> None:
    known = replace(recorded(nodes=("first", "hidden")), models={"hidden": "scripted", "first": "older"})
    found = forecast_run(engine(), request(), known)
    assert {each.node_id: each.model for each in found.nodes} == {"first": "scripted", "hidden": "scripted"}
    assert "what was recorded was answered by other models: older" in found.notes


def test_an_agent_that_asks_no_model_that_is_known_says_so() -> None:
    agent = GraphAgent(
        name="plain", nodes=(FunctionNode(name="only", function=lambda text: text, declared={"file": "a text"}),)
    )
    found = forecast_run(engine(agent=agent), request())
    assert found.total.calls == Band(0, 0, 0)
    assert any("no node is known to ask a model" in note for note in found.notes)


def test_stages_that_ask_models_are_counted() -> None:
    three = LLMBackwarder("scripted"), LLMAggregator("scripted"), LLMOptimizer("scripted")
    found = forecast_run(engine(*three), request(), recorded())
    for name in ("backwarder", "aggregator", "optimizer"):
        assert stage(found, name).expected.calls.p5 >= 1
    assert stage(found, "backwarder").expected.calls.p50 >= TRAIN
    assert any("backwarder, aggregator, optimizer ask has not been recorded yet" in note for note in found.notes)
    use = CallUse(input_tokens=5_000, output_tokens=1_000, seconds=1.0)
    known = Recorded(calls=dict.fromkeys(("backwarder", "aggregator", "optimizer"), use))
    optimizer = stage(forecast_run(engine(*three), request(), known), "optimizer").expected
    assert 3_000 < optimizer.tokens.p50 / optimizer.calls.p50 < 12_000


class Own:
    async def optimize(self, request: OptimizeRequest) -> OptimizeResult:
        return await RuleOptimizer().optimize(request)


def test_stages_and_searches_of_ones_own_are_told_as_unknown() -> None:
    found = forecast_run(engine(None, None, Own()), request(), recorded())
    assert stage(found, "optimizer").expected.usd is None
    assert any("optimizer of your own" in note for note in found.notes)
    own = Engine(chain(*NODES), desk.evaluator(gateway()), search=desk.Tries())
    told = forecast_run(own, request(), recorded())
    assert any("the search is your own" in note for note in told.notes)
    assert "rerun" not in stages(told)


def test_judges_teachers_are_stages() -> None:
    through = gateway()
    config = parse_eval_config(
        [
            {
                "metric_name": "good",
                "evaluator_name": "llm_rubric_response",
                "criterion": {
                    "llm_judge": {
                        "judge_model": {"model_name": "simulated", "num_samples": 3},
                        "rubrics": [{"id": "kind", "content": {"text": "The answer is kind."}}],
                    }
                },
            }
        ],
        source="metrics",
    )
    evaluator = Evaluator(build_metrics(config, builders=make_judge_builders(through)), gateway=through)
    bare = EvalSet(id="bare", cases=tuple(EvalCase(id=f"b{n}", turns=(Turn(user=f"ask {n}"),)) for n in range(5)))
    asked = request(validation=bare, teacher="simulated", max_rounds=0)
    found = forecast_run(Engine(chain(*NODES), evaluator), asked, recorded())
    assert stage(found, "judge").expected.calls == Band(15, 15, 15)
    assert [each.node_id for each in stage(found, "judge").nodes] == ["good"]
    assert stage(found, "teacher").expected.calls == Band(5, 5, 5)


def test_the_budget_is_told_in_rounds_and_caps_the_forecast() -> None:
    def with_caps(**caps: float) -> Forecast:
        return forecast_run(engine(through=gateway(budget=Budget(**caps))), request(), recorded())  # type: ignore[arg-type]

    assert forecast_run(engine(), request(), recorded()).budget == ()
    [told] = with_caps(max_calls=10).budget
    assert told == "max_calls 10 allows not even the baseline at p50 and at p95, of at most 4"
    [told] = with_caps(max_calls=VALIDATION * 4).budget
    assert "allows only the baseline at p50 and at p95" in told
    [told] = with_caps(max_calls=10_000).budget
    assert "allows 4 rounds at p50 and at p95" in told
    capped = with_caps(max_calls=60)
    assert capped.total.calls.p95 <= 60


def test_what_the_claim_needs_is_held_back_and_the_search_has_fewer_rounds() -> None:
    def told(cap: int, **changes: object) -> str:
        [told] = forecast_run(
            engine(through=gateway(budget=Budget(max_calls=cap))), request(**changes), recorded()
        ).budget
        return told

    baseline, claim = VALIDATION * 4, 2 * 3 * 2 * VALIDATION * 4
    assert f"with {claim} held back for the claim" in told(10_000)
    assert f"with {(100 - baseline) // 2} held back for the claim" in told(100)
    assert "held back" not in told(100, final_test=None)
    rounds = [int(told(300, **changes).split(" allows ")[1].split()[0]) for changes in ({}, {"final_test": None})]
    assert rounds[0] < rounds[1]
    long = request(stop=MaxRounds(9), max_rounds=8)
    capped = forecast_run(engine(through=gateway(budget=Budget(max_calls=300))), long, recorded())
    unclaimed = forecast_run(
        engine(through=gateway(budget=Budget(max_calls=300))), replace(long, final_test=None), recorded()
    )
    assert stage(capped, "final_test").expected.calls.p5 > 0
    assert 1.3 * stage(capped, "validation").expected.calls.p95 < stage(unclaimed, "validation").expected.calls.p95
    assert capped.total.calls.p95 <= 300


def test_dollars_and_tokens_are_held_back_too() -> None:
    through = gateway(budget=Budget(max_usd=0.05, max_tokens=50_000))
    usd, tokens = forecast_run(engine(through=through), request(), recorded()).budget
    assert usd.startswith("max_usd $0.05 allows ")
    assert usd.endswith(" held back for the claim")
    assert tokens.endswith(" held back for the claim")


def test_what_a_policy_wants_to_see_more_of_is_told() -> None:
    found = forecast_run(engine(), request(acceptance=PairedGain()), recorded())
    assert any("wants to see beside the first are not counted" in note for note in found.notes)


def test_a_busy_machine_makes_the_run_longer() -> None:
    slow, fast = (
        forecast_run(engine(), request(), replace(recorded(), own_s=own_s)).total.seconds.p50 for own_s in (0.05, None)
    )
    assert slow > 1.3 * fast


def test_a_budget_needs_room_for_the_longest_answer() -> None:
    through = gateway(budget=Budget(max_tokens=VALIDATION * 4 * 150))
    found = forecast_run(engine(through=through), request(), recorded())
    assert found.budget == ("max_tokens 2,400 allows not even the baseline at p50 and at p95, of at most 4",)
    assert found.total.calls.p95 == 0


def test_what_stops_a_run_between_rounds_shortens_it() -> None:
    without = forecast_run(engine(), request(stop=MaxRounds(9), max_rounds=8), recorded())
    limited = forecast_run(engine(), request(stop=MaxCalls(50) | TargetScore(1.0), max_rounds=8), recorded())
    assert limited.rounds == Band(1, 1, 1)
    assert without.rounds.p95 > 3


def test_concurrency_and_waiting_make_the_time() -> None:
    def seconds(concurrency: int) -> float:
        options = EvaluationOptions(concurrency=concurrency)
        many = request(validation=desk.eval_set("many", 64), max_rounds=0, evaluation=options)
        return forecast_run(engine(), many, recorded()).total.seconds.p50

    assert seconds(1) > 6 * seconds(16)


def test_a_cache_that_runs_share_is_told(tmp_path: object) -> None:
    cache = FileCache(f"{tmp_path}/cache.jsonl")
    found = forecast_run(engine(through=gateway(cache=cache)), request(), recorded())
    cache.close()
    assert any("not paid again" in note for note in found.notes)


def test_what_cannot_be_served_cannot_be_forecast() -> None:
    with pytest.raises(RequestError, match="max_rounds is -1"):
        forecast_run(engine(), request(max_rounds=-1))
