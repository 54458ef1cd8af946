"""A run under a cap, killed six times, against a server that fails: the server's own account is never above the cap.

Of the requests, 30% fail, some of them by an answer that comes after the client has given up. What the run reports is
compared with what the server has counted.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import time
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot, Spending
from promptiter.runlog.codec import from_plain
from tests.cli.test_run_budget import answer, on_the_server
from tests.worlds.model_server import LoopbackServer, run_server

pytestmark = [pytest.mark.slow, pytest.mark.long]

KILLS = 6
CONCURRENCY = 32
PRICES = (1.0, 4.0)
"""Dollars per million input and output tokens, as in `on_the_server`."""


def start(desk: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "promptiter", *arguments, "--quiet"]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
    return subprocess.Popen(command, cwd=desk, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def run_with_kills(desk: Path, server: LoopbackServer, rng: random.Random) -> Spending:
    """Run to the end, with some SIGKILLs while calls are in flight, and return what the run reports."""
    for _ in range(KILLS):
        before, wanted = len(server.arrivals), rng.randrange(8, 40)
        process = start(desk, *(("resume", "latest") if (desk / "runs").exists() else ("run",)))
        while process.poll() is None and len(server.arrivals) < before + wanted:
            time.sleep(0.005)
        process.kill()
        process.communicate()
    process = start(desk, "resume", "latest")
    _, errors = process.communicate(timeout=240)
    assert b"Traceback" not in errors, errors.decode()
    [path] = (desk / "runs").glob("*/result.json")
    result = orjson.loads(path.read_bytes())
    entries = result["measured"]["spent"]["entries"]
    logging.getLogger(__name__).info(
        "%s %s %s %s", result["status"], result["verdict"], result["stop"], result["error"]
    )
    return LedgerSnapshot(tuple(from_plain(LedgerEntry, each) for each in entries)).total


@pytest.mark.parametrize("reports_usage", [True, False], ids=["usage", "no usage"])
@pytest.mark.parametrize("budget", [{"max_calls": 250}, {"max_tokens": 300_000}, {"max_usd": 0.5}], ids=str)
def test_the_server_counts_no_more_than_the_cap_and_the_report_says_what_it_counts(
    budget: dict[str, Any], reports_usage: bool, tmp_path: Path
) -> None:
    desk = tmp_path / "desk"
    shutil.copytree(str(files("promptiter") / "starter"), desk)
    settings: dict[str, Any] = {"fault_rate": 0.3, "retry_after_s": 0.0, "slow_s": 4.0, "max_in_a_row": 2}
    with run_server(LoopbackServer(answer, seed=4, reports_usage=reports_usage, **settings)) as server:
        on_the_server(desk, server, budget, timeout_s=2.0)
        spent = run_with_kills(desk, server, random.Random(str(budget)))
        billed = list(server.billed)
    tokens = sum(map(sum, billed))
    usd = sum(PRICES[0] * used[0] + PRICES[1] * used[1] for used in billed) / 1e6
    counted = {"max_calls": len(billed), "max_tokens": tokens, "max_usd": usd}
    assert all(counted[name] <= cap for name, cap in budget.items()), counted
    reported = spent.calls + spent.lost_calls
    unsent = reported - len(billed)
    logging.getLogger(__name__).info("%s: %s, %s; logged and not received: %s", budget, counted, spent, unsent)
    assert 0 <= unsent <= KILLS * CONCURRENCY, "what was logged right before a kill may not have been sent"
    assert spent.lost_calls > 0
    assert spent.tokens <= tokens <= spent.tokens + spent.possible_tokens
    assert (spent.cost_usd or 0.0) <= usd + 1e-9 <= (spent.cost_usd or 0.0) + spent.possible_usd + 2e-9
    assert (spent.uncounted_calls == 0) is reports_usage
