from __future__ import annotations

import asyncio
import shutil
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode, Tool
from promptiter.engine.engine import Engine
from promptiter.engine.expectation import MOST_OWN_S
from promptiter.engine.forecast import forecast_run
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.runs import recorded as recorded_module
from promptiter.runs.directory import RunDirectory
from promptiter.runs.recorded import forecast_of, read_forecast, recorded_in, write_forecast
from tests.worlds import desk
from tests.worlds.starter import Shop
from traces import Usage


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one run of the shop: 6 validation cases, 8 train cases, six models."""
    folder = tmp_path_factory.mktemp("runs")
    Shop().run(folder)
    return folder


def test_traces_say_what_each_node_took_and_receipts_how_long(runs: Path) -> None:
    shop = Shop()
    found = recorded_in(runs, shop.engine, shop.request)
    assert (found.runs, len(found.cases)) == (1, 14)
    assert (found.passed, found.failed) == (0, 14)
    case = found.cases[0]
    assert {name: use.calls for name, use in case.nodes.items()} == dict.fromkeys(
        ("reception", "returns", "payments", "delivery", "lead", "filing"), 1.0
    )
    assert all(use.input_tokens > 0 and use.output_tokens > 0 and use.seconds > 0 for use in case.nodes.values())
    assert max(use.seconds for use in case.nodes.values()) < case.path_s < sum(u.seconds for u in case.nodes.values())
    assert set(found.models.values()) == {"simulated"}
    assert found.usd_per_token["simulated"] > 0
    assert found.source == "from 14 traces of 1 earlier run"
    assert found.patched == 2
    assert found.own_s is not None
    assert 0 < found.own_s <= MOST_OWN_S


class Moody:
    """A model that is careful in every second repeat only, and with question 0."""

    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        asked = request.messages[-1].content
        text = f"{asked} careful" if repeat % 2 or "question 0" in asked else asked
        return ModelReply(text=text, usage=Usage(input_tokens=10, output_tokens=5))


@pytest.mark.parametrize(("repeats", "noise"), [(1, None), (2, 0.5)])
def test_noise_is_the_share_of_cases_whose_draws_differ(tmp_path: Path, repeats: int, noise: float | None) -> None:
    moody = Gateway(models={"scripted": Moody()})
    engine = Engine(desk.agent(), desk.evaluator(moody, repeats=repeats), search=desk.Tries())
    request = desk.request(run_id="", max_rounds=0)
    RunDirectory.begin(tmp_path, engine, request).run_sync()
    assert recorded_in(tmp_path, engine, request).noise == noise


def test_a_claim_that_saw_no_noise_says_so(runs: Path) -> None:
    shop = Shop()
    assert recorded_in(runs, shop.engine, shop.request).noise == 0


class Slow(Moody):
    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        await asyncio.sleep(0.1)
        return await super().__call__(request, repeat=repeat)


def test_time_that_a_model_takes_is_not_promptiters_own(tmp_path: Path) -> None:
    engine = Engine(desk.agent(), desk.evaluator(Gateway(models={"scripted": Slow()})), search=desk.Tries())
    request = desk.request(run_id="", validation=desk.eval_set("validation", 8), max_rounds=0)
    result = RunDirectory.begin(tmp_path, engine, request).run_sync()
    found = recorded_in(tmp_path, engine, request)
    assert found.own_s is not None
    assert found.own_s * 16 < result.measured.duration_s - 0.2 + 1e-6
    assert all(case.path_s >= 0.19 for case in found.cases)


def test_what_passes_is_counted_only_under_the_profile_that_the_next_run_starts_with(runs: Path) -> None:
    shop = Shop()
    best = shop.run(runs).accepted_profile
    found = recorded_in(runs, shop.engine, replace(shop.request, initial_profile=best))
    assert (found.passed, found.failed) == (0, 0)
    assert len(found.cases) == 14


def test_runs_of_other_structures_and_broken_ones_are_passed_over(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    other = desk.engine(desk.DRAFT)
    assert recorded_in(folder, other, desk.request()).runs == 0
    [run] = folder.iterdir()
    for name in ("9999_no_header", "9998_torn"):
        shutil.copytree(run, folder / name)
    (folder / "9999_no_header" / "run.json").write_text("{")
    (folder / "9998_torn" / "journal.jsonl").write_text("what is this?\n")
    assert recorded_in(folder, Shop().engine, Shop().request).runs == 1
    assert recorded_in(tmp_path / "nowhere", Shop().engine, Shop().request).runs == 0


def test_how_much_is_read_is_bounded(runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    [run] = folder.iterdir()
    for number in range(4):
        shutil.copytree(run, folder / f"{run.name}~{number}")
    assert recorded_in(folder, Shop().engine, Shop().request).runs == 5
    monkeypatch.setattr(recorded_module, "MOST_RUNS", 3)
    assert recorded_in(folder, Shop().engine, Shop().request).runs == 3
    monkeypatch.setattr(recorded_module, "MOST_CASES", 20)
    assert len(recorded_in(folder, Shop().engine, Shop().request).cases) == 20


def test_traces_that_were_not_kept_leave_rules_of_thumb(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs"
    shutil.copytree(runs, folder)
    [run] = folder.iterdir()
    shutil.rmtree(run / "traces")
    found = recorded_in(folder, Shop().engine, Shop().request)
    assert (found.cases, found.failed) == ((), 14)
    assert found.source == "no traces yet: rules of thumb"
    assert not (run / "traces").exists()


def test_calls_of_tools_and_their_rounds_are_told_apart(tmp_path: Path) -> None:
    def script(request: ModelRequest) -> ModelReply:
        asked = sum(message.role == "tool" for message in request.messages)
        wishes = () if asked == 2 else (ToolRequest(id=f"t{asked}", name="look", arguments={"at": asked}),)
        return ModelReply(
            text="" if wishes else "careful careful",
            tool_requests=wishes,
            usage=Usage(input_tokens=10, output_tokens=5),
        )

    def look(at: int) -> str:
        return f"seen {at}"

    tool = Tool(name="look", description="Looks.", function=look)
    nodes = (ModelNode(name="seeker", instruction="Look twice.", model="scripted", tools=(tool,)),)
    evaluator = Evaluator(
        [FunctionMetric(name="careful", function=desk.score)],
        gateway=Gateway(models={"scripted": ScriptedModel(script)}),
    )
    engine = Engine(GraphAgent(name="seeking", nodes=nodes), evaluator)
    request = desk.request(run_id="", max_rounds=0)
    result = RunDirectory.begin(tmp_path, engine, request).run_sync()
    found = recorded_in(tmp_path, engine, request)
    assert [case.nodes["seeker"].calls for case in found.cases] == [3.0, 3.0]
    assert result.measured.spent.of_models.calls == 6
    assert forecast_of(tmp_path, engine, request).total.calls.p50 == 6


def test_a_forecast_is_kept_and_read_again(tmp_path: Path) -> None:
    shop = Shop()
    forecast = forecast_run(shop.engine, shop.request)
    assert write_forecast(tmp_path, forecast) == tmp_path / "forecast.json"
    assert read_forecast(tmp_path) == forecast
    assert orjson.loads((tmp_path / "forecast.json").read_bytes())["schema_version"] == 1
    (tmp_path / "forecast.json").write_text("[]")
    assert read_forecast(tmp_path) is None
    assert read_forecast(tmp_path / "nowhere") is None


def test_a_run_keeps_the_forecast_that_it_was_begun_with(tmp_path: Path) -> None:
    shop = Shop()
    forecast = forecast_of(tmp_path, shop.engine, shop.request)
    run = RunDirectory.begin(tmp_path, shop.engine, shop.request, forecast=forecast)
    assert read_forecast(run.path) == forecast
    result = run.run_sync()
    assert result.measured.spent.of_models.calls in forecast.total.calls
