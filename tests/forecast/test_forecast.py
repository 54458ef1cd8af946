"""Forecasts from known costs: what each stage takes, what a budget allows, and what stays unknown."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.backprop.llm.aggregator import LLMAggregator
from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.backprop.llm.backwarder import LLMBackwarder
from promptiter.backprop.llm.corrector import LLMCorrector
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.engine.engine import Engine
from promptiter.engine.outline import SearchOutline
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Search
from promptiter.errors import RequestError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.forecast.estimate import BATCHED, BLAMED, BLOCKS, ITERATIONS, PASSED, PROPOSED, ROUNDS, SURFACES
from promptiter.forecast.forecast import forecast_run, make_forecast
from promptiter.forecast.unit_costs import UnitCosts
from promptiter.forecast.workload import find_downstream, read_workload
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import FileCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.llm.prices import Price, Prices
from promptiter.policies.final_test import FinalTest
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runs.cost_ranges import Cost, Range
from promptiter.runs.forecast_file import Forecast, read_forecast, write_forecast
from promptiter.search.descent.search import CoordinateDescent
from promptiter.search.few_shot import FewShotSearch
from promptiter.search.gepa import GepaSearch
from promptiter.search.gepa_library import ModuleSelector
from promptiter.search.gradient_check import GradientCheck
from promptiter.search.rounds import BackpropRounds
from tests.worlds import desk
from tests.worlds.desk_stages import Merges, Writes

NODES = ("first", "second", "third", "last")
TRAIN, VALIDATION = 8, 4
RUBRIC = {"id": "kind", "content": {"text": "The answer is kind."}}
CHOICES = {"scripted": 1.0, "better": 2.0, "best": 9.0}
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


def price_call(tokens: float, usd: float, seconds: float) -> Cost:
    """The cost of one call, known exactly."""
    return Cost(
        calls=Range.exactly(1),
        tokens=Range.exactly(tokens),
        usd=Range.exactly(usd),
        seconds=Range.exactly(seconds),
    )


def measured(*, failing: float | None = 1.0) -> UnitCosts:
    """Costs of an earlier run in which each node makes one call of 100 tokens and half a second per case run."""
    cost = price_call(100, 0.0001, 0.5)
    return UnitCosts(nodes=dict.fromkeys(NODES, cost), failing=failing, runs=("earlier",))


def forecast(built: Engine, asked: RunRequest, costs: UnitCosts | None = None) -> Forecast:
    return make_forecast(read_workload(built, asked), costs or UnitCosts(), built.evaluator.gateway)


def test_the_same_inputs_give_the_same_forecast_and_no_model_is_asked() -> None:
    first = forecast_run(engine(), request())
    assert first == forecast_run(engine(), request())
    assert from_plain(Forecast, to_plain(first)) == first


def test_a_run_that_only_validates_takes_exactly_the_baseline() -> None:
    found = forecast(engine(repeats=3), request(max_rounds=0), measured())
    calls = 3 * VALIDATION * len(NODES)
    assert list(found.stages) == ["baseline"]
    assert found.total.calls == Range(calls, calls, calls)
    assert found.rounds == Range(0, 0, 0)
    assert found.total.tokens == Range.exactly(100 * calls)
    assert found.total.usd == Range.exactly(round(0.0001 * calls, 6))


def test_cases_that_all_pass_leave_nothing_to_do() -> None:
    found = forecast(engine(), request(), measured(failing=0.0))
    assert found.rounds == Range(0, 0, 0)
    assert found.total.calls.high == VALIDATION * len(NODES)


def test_a_typical_run_is_measured_cost_times_case_runs() -> None:
    """One candidate is validated; it changes the middle node of the chain, and the final test takes one block."""
    only = request(targets=["third#instruction"], max_rounds=1)
    found = forecast(engine(), only, measured())
    typical = {name: expected.calls.typical for name, expected in found.stages.items()}
    assert typical == {
        "baseline": VALIDATION * 4,
        "train": TRAIN * 4,
        "rerun": TRAIN * 2,
        "validation": VALIDATION * 2,
        "final_test": 2 * VALIDATION * 4 + 2 * VALIDATION * 2,
    }
    assert found.total.calls.typical == sum(typical.values())


def test_of_a_large_train_set_a_minibatch_is_run_and_all_if_few_cases_fail() -> None:
    large = request(train=desk.eval_set("train", 400), targets=["third#instruction"], max_rounds=1)
    train = forecast(engine(), large, measured()).stages["train"].calls
    assert (train.low, train.typical, train.high) == (64 * 4, 64 * 4, 400 * 4)


def test_low_is_a_short_run_and_high_a_long_one() -> None:
    found = forecast(engine(), request(), measured())
    assert (TRAIN + VALIDATION) * 4 < found.total.calls.low < found.total.calls.typical < found.total.calls.high
    assert list(found.stages) == ["baseline", "train", "rerun", "validation", "ablation", "final_test"]
    assert list(found.nodes) == list(NODES)
    assert found.rounds == ROUNDS.at_most(request().round_limit)
    assert found.total.calls.typical in found.total.calls
    assert found.total.calls.high + 1 not in found.total.calls


def test_a_change_is_paid_from_the_changed_node_on() -> None:
    found = forecast(engine(), request(targets=["third#instruction"], max_rounds=1), measured())
    first, last = found.nodes["first"].calls, found.nodes["last"].calls
    assert first.typical == VALIDATION + TRAIN + 2 * VALIDATION
    assert last.typical > first.typical
    assert found.stages["validation"].calls.high == VALIDATION * 2


def test_later_candidates_are_compared_with_the_accepted_profile_run_again() -> None:
    one, most = (
        forecast(engine(), request(max_rounds=rounds), measured()).stages["validation"].calls.high for rounds in (1, 9)
    )
    assert one == VALIDATION * 4
    assert most == (2 * ROUNDS.high - 1) * VALIDATION * 4


def test_case_runs_are_paid_from_the_node_that_an_earlier_run_changed() -> None:
    unknown, last, first = (
        forecast(engine(), request(), replace(measured(), changed_nodes=frozenset(changed))).total.calls
        for changed in ((), ("last",), ("first", "last"))
    )
    assert last.low == unknown.low < first.low
    assert last.typical < unknown.typical < first.typical
    assert last.high == unknown.high == first.high


def test_cases_that_do_not_reach_a_changed_node_are_paid_once_in_the_final_test_and_not_in_the_search() -> None:
    costs = measured()
    rare = replace(costs.nodes["third"], calls=Range.exactly(0.25))
    costs = replace(costs, nodes={**costs.nodes, "third": rare})
    found = forecast(engine(), request(targets=["third#instruction"]), costs)
    one_profile = 2 * VALIDATION * (3 + 0.25)
    assert one_profile < found.stages["final_test"].calls.typical < 1.1 * one_profile
    assert found.stages["validation"].calls.typical <= VALIDATION * 0.25 * 4


def test_the_final_test_runs_both_profiles_in_blocks_of_its_own_repeats() -> None:
    only = {"targets": ["first#instruction"]}
    assert forecast(engine(), request(**only), measured()).stages["final_test"].calls.high == BLOCKS.high * 2 * 2 * 16
    six = forecast(engine(), request(**only, final_test=FinalTest(repeats=6)), measured())
    assert six.stages["final_test"].calls.high == BLOCKS.high * 6 * 2 * 16
    without = forecast(engine(), request(final_test=None), measured())
    assert not {"ablation", "final_test", "test_set"} & {*list(without.stages)}


def test_parts_are_ablated_only_if_several_surfaces_may_have_changed() -> None:
    assert "ablation" not in list(forecast(engine(), request(targets=["first#instruction"]), measured()).stages)
    assert "ablation" not in list(forecast(engine(), request(final_test=FinalTest(ablate=False)), measured()).stages)


def test_several_surfaces_of_one_node_are_parts_too() -> None:
    both = {"targets": ["first#instruction", "first#examples"]}
    assert forecast(engine(agent=chain("first")), request(**both)).stages["ablation"].calls.high > 0


def priced_choices(*, max_usd: float | None = None) -> Engine:
    """A node whose first model costs a dollar per million tokens, and that may choose one for 2 and one for 9."""
    prices = {name: Price(input_usd_per_million=usd, output_usd_per_million=usd) for name, usd in CHOICES.items()}
    models = {name: ScriptedModel([]) for name in CHOICES}
    through = Gateway(models=models, prices=Prices(prices), budget=Budget(max_usd=max_usd))
    node = ModelNode(name="first", instruction="Do it.", model="scripted", models=tuple(CHOICES))
    return engine(agent=GraphAgent(name="choosing", nodes=(node,)), through=through)


def test_candidates_are_priced_by_the_models_that_the_search_may_choose() -> None:
    costs = UnitCosts(nodes={"first": price_call(100, 0.0001, 0.5)}, failing=1.0, runs=("earlier",))
    plain = forecast(priced_choices(), request(targets=["first#instruction"]), costs).stages
    chosen = forecast(priced_choices(), request(targets=["first#model"]), costs).stages
    assert chosen["baseline"] == plain["baseline"]
    assert {stage: cost.calls for stage, cost in chosen.items()} == {stage: cost.calls for stage, cost in plain.items()}
    (now, one), (then, other) = ((each["final_test"].calls, each["final_test"].usd) for each in (plain, chosen))
    assert one is not None
    assert other is not None
    assert now == then
    assert other.typical == pytest.approx(one.typical * (1 + 4) / 2), "the accepted profile at the mean of 1, 2 and 9"
    assert other.high == pytest.approx(one.high * (1 + 9) / 2)
    assert other.low == one.low


def test_the_dearest_choice_is_reserved_for_the_final_test() -> None:
    costs = UnitCosts(nodes={"first": price_call(100, 0.0001, 0.5)}, failing=1.0, runs=("earlier",))
    [plain] = forecast(priced_choices(max_usd=1), request(targets=["first#instruction"]), costs).budget
    [chosen] = forecast(priced_choices(max_usd=1), request(targets=["first#model"]), costs).budget
    assert plain.endswith("$0.0048 is reserved for the final test")
    assert chosen.endswith("$0.024 is reserved for the final test")


def test_the_test_set_is_run_twice_under_both_profiles() -> None:
    asked = request(test=desk.eval_set("test", 10), targets=["first#instruction"])
    assert forecast(engine(), asked, measured()).stages["test_set"].calls.high == 2 * 10 * 2 * 4
    too_small = request(test=desk.eval_set("test", 7), targets=["first#instruction"])
    assert "test_set" not in [*forecast(engine(), too_small, measured()).stages], "it will not be run"


def test_nodes_inside_an_agent_follow_what_precedes_it() -> None:
    inner = GraphAgent(name="inner", nodes=(ModelNode(name="deep", instruction="Go deep.", model="scripted"),))
    before, after = (ModelNode(name=name, instruction="Go.", model="scripted") for name in ("before", "after"))
    agent = GraphAgent(
        name="outer", nodes=(before, after, inner), edges=(Edge("before", "inner"), Edge("inner", "after"))
    )
    snapshot = agent.describe()
    downstream = find_downstream(snapshot, ["before#instruction", "inner/deep#instruction"])
    assert downstream["before"] >= {"before", "inner/deep", "after"}
    assert downstream["inner/deep"] == {"inner/deep", "after"}


def test_rules_of_thumb_are_named_and_wide() -> None:
    by_rule, known = (forecast(engine(), request(max_rounds=0), costs) for costs in (None, measured()))
    assert by_rule.source == "no matching earlier run: rule-of-thumb figures"
    assert known.source == "based on 1 earlier run: earlier"
    assert any("4 characters per token" in note for note in by_rule.notes)
    assert any("how many cases fail" in note for note in by_rule.notes)
    assert by_rule.total.tokens.high / by_rule.total.tokens.low == pytest.approx(10, rel=0.01)
    assert by_rule.total.calls == known.total.calls
    assert known.notes == ()


def test_unknown_prices_stay_unknown() -> None:
    mixed = GraphAgent(
        name="mixed",
        nodes=(
            ModelNode(name="known", instruction="Go.", model="scripted"),
            ModelNode(name="strange", instruction="Go.", model="strange"),
        ),
        edges=(Edge("known", "strange"),),
    )
    through = gateway()
    through.add_model("strange", ScriptedModel([]))
    found = forecast(engine(agent=mixed, through=through), request())
    by_node = found.nodes
    assert by_node["strange"].usd is None
    assert by_node["known"].usd is not None
    assert by_node["known"].unpriced == ()
    assert found.total.usd is not None
    assert found.total.unpriced == ("strange",)
    only = engine(agent=chain("one", model="strange"), through=through)
    assert forecast(only, request()).total.usd is None
    silent = UnitCosts(nodes={"one": Cost(calls=Range.exactly(1), usd=None, unpriced=("scripted",))}, runs=("earlier",))
    priced = forecast(engine(agent=chain("one")), request(), silent)
    assert (priced.total.unpriced, priced.uncounted) == (("scripted",), ("scripted",)), "its price is known"
    paid = UnitCosts(nodes={"one": price_call(10, 0.5, 1.0)}, runs=("earlier",))
    assert forecast(only, request(), paid).total.usd is not None


def test_an_agent_without_a_known_model_says_so() -> None:
    agent = GraphAgent(
        name="plain", nodes=(FunctionNode(name="only", function=lambda text: text, declared={"file": "a text"}),)
    )
    found = forecast(engine(agent=agent), request())
    assert found.total.calls == Range(0, 0, 0)
    assert any("no node is known to ask a model" in note for note in found.notes)


def test_nodes_and_stages_whose_model_is_unknown_are_named() -> None:
    own = FunctionNode(name="own", function=lambda text: text, declared={"instruction": "Go."})
    agent = GraphAgent(name="mixed", nodes=(own,))
    found = forecast(engine(None, None, Writes(), agent=agent), request())
    assert "which model these ask is unknown: node 'own', the optimizer" in found.notes


def test_stages_that_ask_models_are_counted() -> None:
    three = LLMBackwarder("scripted"), LLMAggregator("scripted"), LLMOptimizer("scripted")
    found = forecast(engine(*three), request(), measured())
    assert found.stages["backwarder"].calls == (BLAMED * (TRAIN * 4)).map(round)
    twice = forecast(engine(*three, repeats=2), request(), measured()).stages["backwarder"].calls
    assert (twice.low, twice.typical) == (found.stages["backwarder"].calls.low, TRAIN * 4 * 2)
    assert found.stages["optimizer"].calls == SURFACES * found.rounds
    assert "calls of the backwarder, aggregator, optimizer have not been measured yet: rules of thumb" in found.notes
    costs = replace(measured(), calls={("optimizer", "scripted"): price_call(6_000, 0.1, 1.0)})
    found = forecast(engine(*three), request(), costs)
    assert found.stages["optimizer"].tokens.typical == 2 * 6_000


def test_whole_traces_are_blamed_in_batches() -> None:
    whole = forecast(engine(LLMAttributor("scripted")), request(), measured()).stages["backwarder"]
    assert whole.calls == (BATCHED * TRAIN).map(round)
    by_step = forecast(engine(LLMBackwarder("scripted")), request(), measured()).stages["backwarder"]
    assert whole.calls.high < by_step.calls.low
    assert whole.tokens.typical / whole.calls.typical > by_step.tokens.typical / by_step.calls.typical


class Own(desk.Tries):
    """A search of the user's own with an outline."""

    def outline(self) -> SearchOutline:
        return SearchOutline(max_rerun=3, optimizer="scripted")


def test_an_own_search_is_forecast_by_its_outline_or_by_rounds() -> None:
    plain = Engine(chain(*NODES), desk.evaluator(gateway()), search=desk.Tries())
    found = forecast(plain, request(), measured())
    assert any("your own search has no outline" in note for note in found.notes)
    assert "rerun" not in list(found.stages)
    outlined = forecast(Engine(chain(*NODES), desk.evaluator(gateway()), search=Own()), request(), measured())
    assert outlined.stages["optimizer"].calls.low == 1
    assert outlined.stages["rerun"].calls.high == outlined.rounds.high * 3 * 4


def gepa(**options: Any) -> Engine:
    search = GepaSearch(reflection_model="scripted", **options)
    evaluator = Evaluator([FunctionMetric(name="right", function=desk.score)], gateway=gateway())
    return Engine(chain(*NODES), evaluator, search=search)


def test_gepa_runs_a_mini_batch_under_a_parent_and_a_child_and_validates_some_children() -> None:
    found = forecast(gepa(), request(max_rounds=10), measured())
    assert found.rounds == Range(ITERATIONS.low, ITERATIONS.typical, 10)
    calls = {stage: cost.calls for stage, cost in found.stages.items()}
    assert calls["rerun"].high == 10 * 3 * len(NODES), "a mini-batch of 3 cases per round"
    assert calls["train"].high == 10 * 3 * len(NODES)
    assert calls["validation"].high == 10 * PASSED.high * VALIDATION * len(NODES)
    assert calls["optimizer"] == Range(round(2 * PROPOSED.low), ITERATIONS.typical, 10)
    assert "backwarder" not in calls


@pytest.mark.parametrize(("selector", "texts"), [("round_robin", 1), ("random", 1), ("all", 4)])
def test_gepa_reflects_on_as_many_texts_as_its_selector_chooses(selector: ModuleSelector, texts: int) -> None:
    found = forecast(gepa(module_selector=selector), request(max_rounds=10), measured())
    assert found.stages["optimizer"].calls.high == 10 * texts


def test_a_cap_on_metric_calls_limits_the_rounds_and_what_they_take() -> None:
    whole = forecast(gepa(), request(max_rounds=30), measured())
    found = forecast(gepa(), request(max_rounds=30, max_metric_calls=60), measured())
    assert whole.rounds == ITERATIONS
    assert found.budget == ("max_metric_calls 60 allows 5 to 14 rounds; 8 are reserved for the final test",)
    assert found.rounds == Range(ITERATIONS.low, 6, 14)
    searched = sum(found.stages[stage].calls.high for stage in ("baseline", "train", "rerun", "validation"))
    assert searched == pytest.approx((60 - 8) * len(NODES), abs=2), "each stage is rounded"
    assert whole.total.calls.high > 2 * found.total.calls.high


def test_a_cap_on_metric_calls_limits_other_searches_too() -> None:
    found = forecast(engine(), request(max_rounds=6, max_metric_calls=40), measured())
    assert found.budget == ("max_metric_calls 40 allows 1 round; 8 are reserved for the final test",)
    assert found.rounds == Range(1, 1, 1)


def test_judges_and_teachers_are_stages() -> None:
    through = gateway()
    config = parse_eval_config(
        [
            {
                "metric_name": "good",
                "evaluator_name": "llm_rubric_response",
                "criterion": {
                    "llm_judge": {
                        "judge_model": {"model_name": "simulated", "num_samples": 3},
                        "rubrics": [RUBRIC],
                    }
                },
            }
        ],
        source="metrics",
    )
    evaluator = Evaluator(build_metrics(config, gateway=through), gateway=through)
    bare = EvalSet(id="bare", cases=tuple(EvalCase(id=f"b{n}", turns=(Turn(user=f"ask {n}"),)) for n in range(5)))
    asked = request(validation=bare, teacher="simulated", max_rounds=0)
    found = forecast(Engine(chain(*NODES), evaluator), asked, measured())
    assert found.stages["judge"].calls == Range(15, 15, 15)
    assert found.stages["teacher"].calls == Range(5, 5, 5)


@pytest.mark.parametrize(
    "search",
    [
        FewShotSearch(teacher="scripted"),
        BackpropRounds(teacher="scripted"),
        GepaSearch(teacher="scripted"),
        CoordinateDescent(phases=("examples",), teacher="scripted"),
    ],
)
def test_the_teacher_of_few_shot_examples_runs_each_train_case_once_at_most(search: Search) -> None:
    agent = chain(*NODES)
    asked = request(targets=[each.id for each in agent.describe().surfaces if each.type == "examples"])
    found = forecast(Engine(agent, desk.evaluator(gateway()), search=search), asked, measured())
    train = asked.train
    assert isinstance(train, EvalSet)
    assert found.stages["teacher"].calls.high == len(train.cases) * len(NODES)


def test_runs_of_the_teacher_of_few_shot_examples_are_judged() -> None:
    agent, through = chain(*NODES), gateway()
    rubric = {"llm_judge": {"judge_model": {"model_name": "simulated"}, "rubrics": [RUBRIC]}}
    config = [{"metric_name": "good", "evaluator_name": "llm_rubric_response", "criterion": rubric}]
    evaluator = Evaluator(build_metrics(parse_eval_config(config, source="metrics"), gateway=through), gateway=through)
    asked = request(targets=[each.id for each in agent.describe().surfaces if each.type == "examples"])
    alone, taught = (
        forecast(Engine(agent, evaluator, search=FewShotSearch(teacher=each)), asked, measured())
        for each in (None, "scripted")
    )
    train = asked.train
    assert isinstance(train, EvalSet)
    assert taught.stages["judge"].calls.high == alone.stages["judge"].calls.high + len(train.cases)


def test_a_corrector_is_a_stage_of_its_own() -> None:
    check = GradientCheck(LLMCorrector("scripted"), most=3)
    search = BackpropRounds(LLMBackwarder("scripted"), Merges(), Writes(), check=check)
    found = forecast(Engine(chain(*NODES), desk.evaluator(gateway()), search=search), request(), measured())
    assert found.stages["corrector"].calls.high == 3
    assert "teacher" not in found.stages


def test_a_budget_caps_the_forecast_and_says_how_many_rounds_it_allows() -> None:
    def with_caps(**caps: float) -> Forecast:
        return forecast(engine(through=gateway(budget=Budget(**caps))), request(), measured())  # type: ignore[arg-type]

    assert forecast(engine(), request(), measured()).budget == ()
    assert with_caps(max_calls=10).budget == ("max_calls 10 does not even allow the baseline",)
    [sentence] = with_caps(max_calls=VALIDATION * 4).budget
    assert sentence == "max_calls 16 allows only the baseline"
    [sentence] = with_caps(max_calls=10_000).budget
    assert sentence == "max_calls 10,000 allows 4 of 4 rounds; 192 is reserved for the final test"
    [sentence] = with_caps(max_calls=400).budget
    assert sentence.startswith("max_calls 400 allows 1 to 3 of 4 rounds")
    capped = with_caps(max_calls=60)
    assert capped.total.calls.high <= 60


def test_what_the_final_test_needs_is_reserved() -> None:
    def budget(cap: int, **changes: object) -> str:
        through = gateway(budget=Budget(max_calls=cap))
        [sentence] = forecast(engine(through=through), request(**changes), measured()).budget
        return sentence

    baseline, final_test = VALIDATION * 4, 2 * 3 * 2 * VALIDATION * 4
    assert f"; {final_test} is reserved for the final test" in budget(10_000)
    assert f"; {(100 - baseline) // 2} is reserved for the final test" in budget(100)
    assert "reserved" not in budget(100, final_test=None)
    rounds = [int(budget(300, **changes).split(" allows ")[1].split()[0]) for changes in ({}, {"final_test": None})]
    assert rounds[0] < rounds[1]


def test_dollars_and_tokens_are_capped_too() -> None:
    through = gateway(budget=Budget(max_usd=0.05, max_tokens=50_000))
    tokens, usd = forecast(engine(through=through), request(), measured()).budget
    assert usd.startswith("max_usd $0.05 allows ")
    assert tokens.startswith("max_tokens 50,000 allows ")
    assert usd.endswith(" is reserved for the final test")


def test_concurrency_shortens_the_time() -> None:
    def seconds(concurrency: int) -> float:
        options = EvaluationOptions(concurrency=concurrency)
        many = request(validation=desk.eval_set("many", 64), max_rounds=0, evaluation=options)
        return forecast(engine(), many, measured()).total.seconds.typical

    assert seconds(1) == pytest.approx(16 * seconds(16))


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    found = forecast(engine(), request(acceptance=SigmaGain()), measured())
    assert "further repeats that the acceptance policy may ask for are not counted" in found.notes
    cache = FileCache(tmp_path / "cache.jsonl")
    found = forecast(engine(through=gateway(cache=cache)), request(), measured())
    cache.close()
    assert any("shared cache" in note for note in found.notes)


def test_a_request_that_cannot_be_served_cannot_be_forecast() -> None:
    with pytest.raises(RequestError, match="max_rounds is -1"):
        forecast_run(engine(), request(max_rounds=-1))


def test_a_forecast_is_written_and_read_again(tmp_path: Path) -> None:
    found = forecast(engine(), request(), measured())
    assert write_forecast(tmp_path, found) == tmp_path / "forecast.json"
    assert read_forecast(tmp_path) == found
    assert orjson.loads((tmp_path / "forecast.json").read_bytes())["schema_version"] == 2
    (tmp_path / "forecast.json").write_text("[]")
    assert read_forecast(tmp_path) is None
    assert read_forecast(tmp_path / "nowhere") is None
