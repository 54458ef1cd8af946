"""The endpoint counts what the model's server counts: with streams, faults, and agents killed in the middle.

Once with clients in this process, once with an agent that is a command.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.command import CommandAgent
from promptiter.endpoint import EndpointSession, open_session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.executor import LocalExecutor
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm import Gateway
from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.retries import Retries
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from tests.endpoint.clients import open_client, read_events
from tests.endpoint.http_agent import agent
from tests.worlds.model_server import LoopbackServer, run_server

MODEL = "openai/clerk"
PROGRAM = """
import json, os, urllib.request
body = {"model": "openai/clerk", "stream": True, "messages": [{"role": "user", "content": os.environ["QUESTION"]}]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode())
print("asking", flush=True)
urllib.request.urlopen(request).read()
"""


@dataclass
class StreamingAgent:
    """Asks twice, as a stream. Some runs are another process that is killed, or break off in the middle."""

    killed: int = 0

    def describe(self) -> StructureSnapshot:
        return agent.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        number = int(context.case_id)
        async with open_session(context) as session:
            if number % 25 == 3:
                await self._kill_program(session, case.text)
            elif number % 5 == 2:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(random.Random(number).uniform(0.002, 0.05)):
                        await self._ask(session, case.text)
                self.killed += 1
            else:
                return AgentRun(output=await self._ask(session, case.text))
        return AgentRun(output="killed")

    async def _ask(self, session: EndpointSession, text: str) -> str:
        said = []
        async with open_client(session) as client:
            for question in (text, f"{text} again"):
                body = {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": question}]}
                response = await client.post("/chat/completions", json=body, timeout=60)
                events: list[Any] = read_events(response)
                assert events[-1] == "[DONE]"
                said.append("".join(event["choices"][0]["delta"].get("content", "") for event in events[:-1]))
        return " / ".join(said)

    async def _kill_program(self, session: EndpointSession, text: str) -> None:
        given = {**session.environment, "QUESTION": text}
        program = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, env=given, stdout=asyncio.subprocess.PIPE
        )
        assert program.stdout is not None
        assert await program.stdout.readline()
        await asyncio.sleep(0.01)
        with contextlib.suppress(ProcessLookupError):  # it may have its answer by now
            program.kill()
        await program.communicate()
        self.killed += 1


def has_output(case: EvalCase, run: AgentRun) -> float:
    return float(bool(run.output))


def make_faulty_server() -> LoopbackServer:
    return LoopbackServer(answer=lambda body: f"You said: {body['messages'][-1]['content']}", fault_rate=0.3)


def build_evaluator(url: str) -> Evaluator:
    gateway = Gateway(
        models={MODEL: LiteLLMModel(api_base=url, api_key="sk-x")}, retries=Retries(attempts=6, first_delay_s=0.005)
    )
    return Evaluator(
        [FunctionMetric(name="any", function=has_output)],
        gateway=gateway,
        executor=LocalExecutor(concurrency=32),
        options=EvaluationOptions(),
    )


@pytest.mark.long
async def test_200_cases_with_faults_and_killed_agents_are_counted_as_the_server_counts() -> None:
    cases = tuple(EvalCase(id=str(number), turns=(Turn(user=f"question {number}"),)) for number in range(200))
    tested = StreamingAgent()
    with run_server(make_faulty_server()) as server:
        evaluator = build_evaluator(server.url)
        first = await evaluator.evaluate(tested, EvalSet(id="s", cases=cases))
        assert {row.error for row in first.rows} == {None}
        assert tested.killed == 48
        answered = [row for row in first.rows if row.output != "killed"]
        assert len(answered) == 152
        assert all(
            row.output == f"You said: {text} / You said: {text} again"
            for row, text in zip(answered, (f"question {row.case_id}" for row in answered), strict=True)
        )
        total = evaluator.gateway.ledger.snapshot().total
        assert len(server.billed) == total.calls + total.lost_calls
        assert len(server.faults) > 50
        calls = len(server.arrivals)
        second = await evaluator.evaluate(StreamingAgent(), EvalSet(id="s", cases=cases))
        assert [row.output for row in second.rows if row.output != "killed"] == [row.output for row in answered]
        total = evaluator.gateway.ledger.snapshot().total
        assert len(server.billed) == total.calls + total.lost_calls
        assert len(server.arrivals) - calls < 60  # only what the killed agents had not asked before


DESK = """
import http.client, json, os, signal, sys, time
from urllib.parse import urlsplit

question = sys.stdin.read()
number = int(question.split()[-1])

def ask(text, *, fate=""):
    url = urlsplit(os.environ["OPENAI_BASE_URL"])
    body = {"model": "openai/clerk", "stream": True, "messages": [{"role": "user", "content": text}]}
    connection = http.client.HTTPConnection(url.netloc)
    connection.request("POST", url.path + "/chat/completions", json.dumps(body))
    if fate == "hangs":
        time.sleep(600)
    if fate == "dies at once":
        os.kill(os.getpid(), signal.SIGKILL)
    answer = connection.getresponse()
    if fate == "dies while it reads":
        answer.read(10)
        os.kill(os.getpid(), signal.SIGKILL)
    events = [line[6:] for line in answer.read().decode().splitlines() if line.startswith("data: ")]
    assert events[-1] == "[DONE]", events
    return "".join(json.loads(each)["choices"][0]["delta"].get("content", "") for each in events[:-1])

fate = {3: "hangs", 7: "dies at once", 11: "dies while it reads"}.get(number % 25, "")
first = ask(question, fate=fate if number % 2 else "")
print(first, "/", ask(question + " again", fate=fate))
"""


@pytest.mark.long
async def test_a_ledger_with_commands_that_are_killed_is_what_the_server_counts() -> None:
    cases = tuple(EvalCase(id=str(number), turns=(Turn(user=f"question {number}"),)) for number in range(200))
    tested = CommandAgent(
        command=(sys.executable, "-Sc", DESK),
        prompts={"reply": "Repeat."},
        environment={"REPLY": "{prompt:reply}"},
        timeout_s=20,
        grace_s=0.5,
    )
    with run_server(make_faulty_server()) as server:
        evaluator = build_evaluator(server.url)
        first = await evaluator.evaluate(tested, EvalSet(id="s", cases=cases))
        errors = Counter(row.error.message.partition(" ")[2][:60] for row in first.rows if row.error is not None)
        assert sum(errors.values()) == 24, errors
        assert sum(count for error, count in errors.items() if "did not end in 20 s" in error) == 8, errors
        assert sum(count for error, count in errors.items() if "was ended by SIGKILL" in error) == 16, errors
        answered = {row.case_id: row.output for row in first.rows if row.error is None}
        assert answered == {each: f"You said: question {each} / You said: question {each} again" for each in answered}
        total = evaluator.gateway.ledger.snapshot().total
        assert len(server.billed) == total.calls + total.lost_calls
        assert len(server.faults) > 50
        calls = len(server.arrivals)
        second = await evaluator.evaluate(tested, EvalSet(id="s", cases=cases))
        assert {row.case_id: row.output for row in second.rows if row.error is None} == answered
        total = evaluator.gateway.ledger.snapshot().total
        assert len(server.billed) == total.calls + total.lost_calls
        assert len(server.arrivals) - calls < 20  # only what commands that died at once had not sent before
