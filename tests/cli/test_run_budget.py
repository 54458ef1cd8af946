"""`promptiter run` under a hard cap, against a real HTTP server that fails: what it reports is never above."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.cli.exit_codes import EXIT_CODES
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot
from promptiter.llm.messages import Message, ModelRequest
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.policies.verdict import Verdict
from promptiter.runlog.codec import from_plain
from tests.cli.conftest import Run
from tests.cli.test_run import in_file
from tests.worlds.model_server import LoopbackServer, reply_at_once, run_server
from traces.model import Json

PRICE = {"input_usd_per_million": 1.0, "output_usd_per_million": 4.0}
SIMULATED = SimulatedModel(compliance=1.0)


def answer(body: dict[str, Any]) -> str:
    messages = tuple(Message(each["role"], each["content"]) for each in body["messages"])
    return reply_at_once(SIMULATED(ModelRequest(model="simulated", messages=messages), repeat=0)).text


def on_the_server(desk: Path, server: LoopbackServer, budget: dict[str, Json], **settings: Json) -> None:
    code = desk / "agent.py"
    code.write_text(code.read_text().replace('MODEL = "simulated"', 'MODEL = "openai/local"'))
    model = {"api_base": server.url, "api_key": "sk-loopback", "price": PRICE, **settings}
    in_file(desk, metrics="metrics.json", models={"openai/local": model}, budget=budget, evaluation={"concurrency": 32})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("budget", "verdict"),
    [
        ({"max_calls": 150}, "budget_ended"),
        ({"max_tokens": 20_000}, "budget_ended"),
        ({"max_usd": 0.03}, "budget_ended"),
        pytest.param(
            {"max_calls": 900, "max_tokens": 900_000, "max_usd": 2}, "improved_on_validation", marks=pytest.mark.long
        ),
    ],
)
def test_a_run_reports_no_more_than_its_cap(run: Run, desk: Path, budget: dict[str, Json], verdict: Verdict) -> None:
    with run_server(LoopbackServer(answer, fault_rate=0.1, seed=2, retry_after_s=0.0, slow_s=0.01)) as server:
        on_the_server(desk, server, budget)
        found = orjson.loads(run("run", "--json", "--quiet", code=EXIT_CODES[verdict], stream="out"))
    spent = LedgerSnapshot(tuple(from_plain(LedgerEntry, each) for each in found["measured"]["spent"]["entries"])).total
    calls, tokens = spent.calls + spent.lost_calls, spent.tokens + spent.possible_tokens
    reported = {"max_calls": calls, "max_tokens": tokens, "max_usd": (spent.cost_usd or 0.0) + spent.possible_usd}
    assert calls == len(server.billed)
    assert found["verdict"] == verdict
    assert len(server.arrivals) > spent.calls  # it failed now and then
    assert all(reported[name] <= cap for name, cap in budget.items()), reported
    if verdict == "budget_ended":
        assert [reason["kind"] for reason in found["stop"]["reasons"]] == list(budget)
