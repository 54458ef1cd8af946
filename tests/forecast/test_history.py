"""Earlier runs: which of them match, and what is measured in them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from promptiter.agents.declarations import Tool
from promptiter.agents.function import agent
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.agents.surface_scope import surface
from promptiter.engine.engine import Engine
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.forecast import history as history_module
from promptiter.forecast.forecast import forecast_run
from promptiter.forecast.history import measure_unit_costs
from promptiter.forecast.unit_costs import UnitCosts
from promptiter.forecast.workload import read_workload
from promptiter.llm.cache.cache import FileCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import Model, ScriptedModel
from promptiter.policies.stopping import Patience
from promptiter.runs.cost_ranges import Range
from promptiter.runs.directory import RunDirectory
from tests.worlds import desk
from tests.worlds.starter import Shop
from traces import Usage
from traces.model import Json

pytestmark = pytest.mark.slow

NODES = ("delivery", "filing", "lead", "payments", "reception", "returns")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of the shop: 6 validation cases, 8 train cases, six models."""
    folder = tmp_path_factory.mktemp("runs")
    Shop().run(folder)
    return folder


def measure(folder: Path, engine: Engine, request: RunRequest) -> UnitCosts:
    return measure_unit_costs(folder, engine, read_workload(engine, request))


def desk_engine(model: Model) -> Engine:
    return Engine(desk.agent(), desk.evaluator(Gateway(models={"scripted": model})), search=desk.Tries())


def baseline_run(folder: Path, engine: Engine, **changes: object) -> RunRequest:
    """Validate the baseline of the desk and nothing else."""
    request = desk.request(run_id="", max_rounds=0, **changes)
    RunDirectory.begin(folder, engine, request).run_sync()
    return request


def test_the_baseline_of_an_earlier_run_shows_what_a_case_run_costs(runs: Path) -> None:
    shop = Shop()
    found = measure(runs, shop.engine, shop.request)
    [run] = runs.glob("[!.]*")
    assert found.runs == (run.name,)
    assert {name: cost.calls for name, cost in found.nodes.items()} == dict.fromkeys(NODES, Range.exactly(1.0))
    for cost in found.nodes.values():
        assert cost.tokens.low > 0
        assert cost.usd is not None
        assert cost.usd.low > 0
        assert cost.seconds.low > 0
        assert not cost.unpriced
    assert found.failing == 1.0
    assert len(found.changed_nodes) == 2
    assert forecast_run(shop.engine, shop.request, runs=runs).source == f"based on 1 earlier run: {run.name}"


class Settled(ScriptedModel):
    """A model that reports its settings."""

    def __init__(self, settings: Mapping[str, Json]) -> None:
        super().__init__(desk.answer)
        self.settings = settings


def test_only_runs_of_the_same_agent_and_models_count(tmp_path: Path) -> None:
    careful = desk_engine(Settled({"temperature": 0}))
    request = baseline_run(tmp_path, careful)
    assert measure(tmp_path, careful, request).runs
    assert measure(tmp_path, desk_engine(Settled({"temperature": 1})), request) == UnitCosts()
    other_name = Gateway(models={"scripted": desk.model(), "other": desk.model()})
    nodes = tuple(replace(node, model="other") for node in desk.agent().nodes if isinstance(node, ModelNode))
    renamed = Engine(replace(desk.agent(), nodes=nodes), desk.evaluator(other_name), search=desk.Tries())
    assert measure(tmp_path, renamed, request) == UnitCosts()
    assert forecast_run(renamed, request, runs=tmp_path).source == "no matching earlier run: rule-of-thumb figures"


def test_only_runs_with_eval_sets_of_the_same_sizes_count(tmp_path: Path) -> None:
    engine = desk_engine(desk.model())
    small = baseline_run(tmp_path, engine)
    large = replace(small, validation=desk.eval_set("validation", 7))
    assert measure(tmp_path, engine, large) == UnitCosts()
    RunDirectory.begin(tmp_path, engine, large).run_sync()
    assert len(measure(tmp_path, engine, large).runs) == 1
    assert len(measure(tmp_path, engine, small).runs) == 1


def test_a_run_whose_baseline_came_from_a_shared_cache_is_skipped(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "cache.jsonl")
    runs = tmp_path / "runs"
    for _ in range(2):
        evaluator = desk.evaluator(Gateway(models={"scripted": desk.model()}, cache=cache))
        engine = Engine(desk.agent(), evaluator, search=desk.Tries())
        request = baseline_run(runs, engine)
    cache.close()
    found = measure(runs, engine, request)
    assert found.runs == (min(run.name for run in runs.glob("[!.]*")),)
    assert {cost.calls for cost in found.nodes.values()} == {Range.exactly(1.0)}


def test_failures_and_changes_count_only_for_the_same_start(runs: Path) -> None:
    shop = Shop()
    best = shop.run(runs).accepted_profile
    found = measure(runs, shop.engine, replace(shop.request, initial_profile=best))
    assert found.runs
    assert found.failing is None
    assert found.changed_nodes == frozenset()


def test_a_run_that_reached_its_target_shows_how_many_rounds_are_needed(runs: Path, tmp_path: Path) -> None:
    shop = Shop()
    taken = shop.run(runs).current_round
    assert measure(runs, shop.engine, shop.request).rounds == Range(taken, taken, taken + 1)
    other_stop = replace(shop.request, stop=Patience(2))
    assert measure(runs, shop.engine, other_stop).rounds is None
    assert forecast_run(shop.engine, shop.request, runs=runs).rounds.high == taken + 1
    engine = desk_engine(desk.model())
    cut = baseline_run(tmp_path, engine)
    assert measure(tmp_path, engine, cut).rounds is None


def test_a_run_that_missed_its_target_suggests_more_rounds(tmp_path: Path) -> None:
    shop = Shop()
    request = replace(shop.request, max_rounds=1, targets=["lead#instruction"])
    RunDirectory.begin(tmp_path, shop.engine, request).run_sync()
    found = measure(tmp_path, shop.engine, request).rounds
    assert found is not None
    assert (found.low, found.typical) == (1, 2)


class Slow:
    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:  # noqa: ARG002
        await asyncio.sleep(0.05)
        return desk.answer(request)


def test_seconds_are_those_of_a_case_run_from_start_to_end(tmp_path: Path) -> None:
    engine = desk_engine(Slow())
    found = measure(tmp_path, engine, baseline_run(tmp_path, engine, validation=desk.eval_set("validation", 8)))
    assert sum(cost.seconds.low for cost in found.nodes.values()) >= 0.1  # two nodes, one after the other


def test_runs_of_other_structures_and_broken_ones_are_skipped(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    assert measure(folder, desk.engine(desk.DRAFT), desk.request()) == UnitCosts()
    [run, *_] = folder.glob("[!.]*")
    for name in ("9999_no_header", "9998_torn"):
        shutil.copytree(run, folder / name)
    (folder / "9999_no_header" / "run.json").write_text("{")
    (folder / "9998_torn" / "journal.jsonl").write_text("what is this?\n")
    names = {path.name for path in folder.glob("[!.]*")} - {"9999_no_header", "9998_torn"}
    assert {*measure(folder, Shop().engine, Shop().request).runs} == names
    assert measure(tmp_path / "nowhere", Shop().engine, Shop().request) == UnitCosts()


def test_only_the_newest_runs_are_used(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs"
    run = min(runs.glob("[!.]*"))
    for number in range(4):
        shutil.copytree(run, folder / f"{run.name}~{number}")
    assert len(measure(folder, Shop().engine, Shop().request).runs) == 4
    monkeypatch.setattr(history_module, "MAX_RUNS", 3)
    assert len(measure(folder, Shop().engine, Shop().request).runs) == 3
    monkeypatch.setattr(history_module, "MAX_FOLDERS", 2)
    assert len(measure(folder, Shop().engine, Shop().request).runs) == 2


def test_calls_of_tools_do_not_count_as_model_calls(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> ModelReply:
        asked = sum(message.role == "tool" for message in request.messages)
        wishes = () if asked == 2 else (ToolRequest(id=f"t{asked}", name="look", arguments={"at": asked}),)
        return ModelReply(
            text="" if wishes else "careful careful",
            tool_requests=wishes,
            usage=Usage(input_tokens=10, output_tokens=5),
        )

    tool = Tool(name="look", description="Looks.", function=lambda at: f"seen {at}")
    nodes = (ModelNode(name="seeker", instruction="Look twice.", model="scripted", tools=(tool,)),)
    evaluator = Evaluator(
        [FunctionMetric(name="careful", function=desk.score)],
        gateway=Gateway(models={"scripted": ScriptedModel(script)}),
    )
    engine = Engine(GraphAgent(name="seeking", nodes=nodes), evaluator)
    request = baseline_run(tmp_path, engine)
    assert measure(tmp_path, engine, request).nodes["seeker"].calls == Range.exactly(3.0)
    assert forecast_run(engine, request, runs=tmp_path).total.calls.typical == 6


def test_an_agent_that_bypasses_the_gateway_is_forecast_without_calls_once_that_is_known(tmp_path: Path) -> None:
    @agent(instruction="Answer.")
    async def own_client(question: str) -> str:
        return f"{surface('instruction')} {question}"

    engine = Engine(own_client, desk.evaluator(), search=desk.Tries())
    assert forecast_run(engine, desk.request()).total.calls.low > 0
    request = replace(baseline_run(tmp_path, engine), max_rounds=2)
    found = forecast_run(engine, request, runs=tmp_path)
    assert (found.total.calls, found.total.usd) == (Range.exactly(0), None)
    assert found.total.uncounted == (UNKNOWN_MODEL,)
    assert found.total.seconds.high > 0
    assert "no node is known to ask a model; calls that bypass promptiter's gateway are not counted" in found.notes


def test_models_that_report_no_tokens_are_named(tmp_path: Path) -> None:
    engine = desk_engine(ScriptedModel(lambda _: ModelReply(text="careful", usage=Usage())))
    request = baseline_run(tmp_path, engine)
    found = forecast_run(engine, request, runs=tmp_path)
    assert (found.total.tokens, found.total.uncounted) == (Range.exactly(0), ("scripted",))
    assert all(cost.uncounted == ("scripted",) for cost in (*found.nodes.values(), *found.stages.values()))


def test_the_run_after_a_run_stays_within_its_forecast(runs: Path) -> None:
    shop = Shop()
    expected = forecast_run(shop.engine, shop.request, runs=runs).total
    spent = shop.run(runs).measured.spent.of_models
    assert spent.calls in expected.calls
    assert spent.tokens in expected.tokens
