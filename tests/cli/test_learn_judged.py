"""`promptiter learn` with judges and stages behind a real HTTP server: forecast, spending, Ctrl-C."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from promptiter.cli.exit_codes import EXIT_CODES
from promptiter.llm.messages import Message, ModelRequest
from tests.cli.conftest import Run
from tests.worlds import rules_world
from tests.worlds.model_server import LoopbackServer, reply_at_once, run_server
from tests.worlds.production import run_in_production
from tests.worlds.sighted_expert import SightedExpert
from traces.model import Json

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:Item '.*' on TypedDict class:UserWarning")]

RUNS = 12
WORLD = rules_world.make_rules_world("coupled", 1)
EXPERT = SightedExpert(WORLD.knowledge, seed=1)
RUBRIC: Json = [{"id": "right", "content": {"text": "Is the answer right?"}}]


def is_judge(body: dict[str, Any]) -> bool:
    return str(body["messages"][0]["content"]).startswith("You judge")


def answer(body: dict[str, Any]) -> str:
    """As a judge, that nothing is right; else as the expert of the world."""
    if is_judge(body):
        return json.dumps({"verdicts": [{"id": "right", "reason": "the fee is wrong", "passed": False}]})
    messages = tuple(Message(each["role"], each["content"]) for each in body["messages"])
    schema = body["response_format"]["json_schema"]["schema"]
    return reply_at_once(EXPERT(ModelRequest(model="expert", messages=messages, schema=schema), repeat=0)).text


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> Path:
    production = asyncio.run(run_in_production(WORLD, rules_world.make_cases("prod", RUNS)))
    path = tmp_path_factory.mktemp("production") / "spans.jsonl"
    production.write_spans(path)
    return path


@pytest.fixture(autouse=True)
def in_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def configure(server: LoopbackServer, **settings: Json) -> None:
    judge = {"judge_model": {"model_name": "openai/local"}, "rubrics": RUBRIC}
    metric = {"metric_name": "right", "evaluator_name": "llm_rubric_response", "criterion": {"llm_judge": judge}}
    price = {"input_usd_per_million": 1.0, "output_usd_per_million": 4.0}
    document = {
        "metrics": [metric],
        "models": {"openai/local": {"api_base": server.url, "api_key": "sk-loopback", "price": price}},
        "stages": "openai/local",
        **settings,
    }
    Path("promptiter.yaml").write_text(yaml.safe_dump(document))


def read_lessons() -> Any:
    return orjson.loads(Path("lessons/lessons.json").read_bytes())


def test_judging_is_forecast_before_it_is_paid(run: Run, spans: Path) -> None:
    with run_server(LoopbackServer(answer)) as server:
        configure(server)
        shown = run("learn", spans, "--dry-run")
        assert not server.arrivals
        said = run("learn", spans, stream="err")
    assert f"judging {RUNS} runs: {RUNS} calls" in shown
    assert said.index(f"judging {RUNS} runs: {RUNS} calls") < said.index(f"{RUNS} of {RUNS} judged runs failed")
    lessons = read_lessons()
    assert lessons["groups"][0]["kind"] == "right"
    assert {each["surface_id"] for each in lessons["patches"]["patches"]} == WORLD.faulty


@pytest.mark.parametrize(
    "budget", [{"max_calls": 5}, {"max_usd": 0.04}, {"max_calls": RUNS + 1}, {"max_tokens": 20_000}]
)
def test_the_budget_holds_while_judging_and_after(run: Run, spans: Path, budget: dict[str, float]) -> None:
    with run_server(LoopbackServer(answer, fault_rate=0.1, seed=2, retry_after_s=0.0, slow_s=0.01)) as server:
        configure(server, budget=budget)
        run("learn", spans, code=EXIT_CODES["budget_ended"])
    usd = sum(asked * 1e-6 + answered * 4e-6 for asked, answered in server.billed)
    spent = {"max_calls": len(server.billed), "max_tokens": sum(map(sum, server.billed)), "max_usd": usd}
    assert all(spent[name] <= cap for name, cap in budget.items()), spent
    lessons = read_lessons()
    assert lessons["stop_reason"] in budget
    assert any(" were judged" in note or " were blamed" in note for note in lessons["notes"])
