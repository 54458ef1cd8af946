"""Runs of black-box agents in a session of the endpoint: budgets, outages, notes, clients in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import promptiter
from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.call import CallAgent
from promptiter.agents.black_box.command import CommandAgent
from promptiter.agents.black_box.http import HttpAgent
from promptiter.backprop.command.stages import CommandOptimizer
from promptiter.engine.engine import Engine
from promptiter.errors import (
    BadRequestError,
    BudgetEndedError,
    ModelNotFoundError,
    ModelUnavailableError,
)
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.llm.retries import Retries
from promptiter.profile import Profile
from promptiter.runs.directory import RunDirectory
from tests.worlds import desk
from tests.worlds.triage_forms import PROMPTS, make_python_script
from tests.worlds.triage_programs.desk import answer
from tests.worlds.triage_world import make_triage_world


async def run_desk(agent: CommandAgent | CallAgent, gateway: Gateway) -> AgentRun:
    case = make_triage_world(0).train.cases[0]
    with gateway.active():
        given = CaseInput(text=case.turns[0].user)
        return await agent.run(given, Profile.baseline(agent.describe()), RunContext(case_id=case.id))


async def test_a_spent_budget_ends_the_evaluation_whatever_the_command_makes_of_it() -> None:
    world = make_triage_world(0)
    gateway = world.build_evaluator().gateway
    gateway.budget = Budget(max_calls=1)
    with pytest.raises(BudgetEndedError):
        await run_desk(make_python_script(), gateway)
    assert gateway.ledger.snapshot().by_role()["agent"].calls == 1


async def test_a_command_that_fails_because_a_model_is_down_is_an_outage() -> None:
    def fail(_: ModelRequest) -> ModelReply:
        raise ModelUnavailableError("down")

    models = dict.fromkeys(("note", "sort", "answer"), ScriptedModel(fail))
    done = await run_desk(make_python_script(), Gateway(models=models, retries=Retries(attempts=1)))
    assert done.error is not None
    assert done.error.is_outage
    assert done.trace is not None
    assert [(step.id, step.error is None) for step in done.trace.steps] == [("note", False), ("triage", False)]


SHRUG = """
import json, os, sys, urllib.request
for model in ("note", "sort"):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}]}).encode()
    try:
        urllib.request.urlopen(urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)).read()
    except OSError:
        pass
print("Thank you for your message.")
sys.exit(int(sys.argv[1]))
"""


async def run_shrug(code: int, *, errors: Mapping[str, Exception]) -> AgentRun:
    """Run a command that asks two models, drops their errors and ends with an exit code."""

    def reply(request: ModelRequest) -> ModelReply:
        if request.model in errors:
            raise errors[request.model]
        return ModelReply(text="Hello, too.")

    command = (sys.executable, "-Sc", SHRUG, str(code), "{file:note}")
    models = dict.fromkeys(("note", "sort"), ScriptedModel(reply))
    agent = CommandAgent(command=command, prompts={"note": "Be kind."})
    return await run_desk(agent, Gateway(models=models, retries=Retries(attempts=1)))


async def test_the_error_of_a_run_has_that_of_its_model_call() -> None:
    done = await run_shrug(22, errors={"note": ModelNotFoundError("there is no model 'note'")})
    assert done.error is not None
    assert done.error.message.endswith(
        "exit code 22; its last failed model call: ModelNotFoundError: there is no model 'note'"
    )


async def test_an_answer_without_any_model_is_an_error() -> None:
    missing = ModelNotFoundError("there is no such model")
    done = await run_shrug(0, errors={"note": missing, "sort": missing})
    assert done.error is not None
    assert (done.error.type, done.error.is_outage) == ("ModelNotFoundError", False)
    assert done.error.message.endswith("without the answer of a model call, which failed: there is no such model")


async def test_an_agent_may_do_without_one_of_its_models_and_without_refused_calls() -> None:
    missing, filtered = ModelNotFoundError("there is no such model"), BadRequestError("against the content policy")
    for errors in ({"note": missing}, {"note": filtered, "sort": filtered}):
        done = await run_shrug(0, errors=errors)
        assert (done.error, done.output) == (None, "Thank you for your message.")


async def test_the_key_of_a_run_is_not_in_its_error() -> None:
    code = "import os, sys; sys.exit(os.environ['OPENAI_API_KEY'])"
    agent = CommandAgent(command=(sys.executable, "-Sc", code, "{file:note}"), prompts={"note": "Be kind."})
    done = await run_desk(agent, Gateway())
    assert done.error is not None
    assert done.error.message.endswith("exit code 1: ***")


@pytest.mark.slow
async def test_a_client_of_openai_in_a_function_has_the_steps_of_the_graph() -> None:
    import openai

    client = promptiter.instrument(openai.OpenAI(api_key="not-needed", base_url="http://127.0.0.1:9/v1", max_retries=0))

    def ask(model: str, messages: Sequence[Any], tools: Sequence[Any]) -> Mapping[str, Any]:
        given: dict[str, Any] = {"tools": list(tools)} if tools else {}
        reply = client.chat.completions.create(model=model, messages=list(messages), **given)
        message: Mapping[str, Any] = reply.choices[0].message.model_dump(exclude_none=True)
        return message

    def call_agent(query: str, prompts: Mapping[str, str]) -> str:
        return answer(query, prompts, ask)

    gateway = make_triage_world(0).build_evaluator().gateway
    done = await run_desk(CallAgent(call_agent, prompts=PROMPTS, name="triage"), gateway)
    assert done.error is None
    assert done.trace is not None
    assert [(step.id, step.sources) for step in done.trace.steps] == [
        ("note", ()),
        ("sort", ("note",)),
        ("answer", ("note", "sort")),
    ]


def test_a_run_says_once_that_a_service_gets_one_case_at_a_time() -> None:
    agent = HttpAgent(url="http://127.0.0.1:9/chat", prompts={"draft": "Draft."})
    with pytest.raises(promptiter.RunFailedError) as failed:
        Engine(agent, desk.evaluator(), search=desk.Tries()).run_sync(desk.request())
    notes = [each for each in failed.value.result.problems if "one case at a time" in each]
    assert notes == list(agent.notes)


def make_engine(agent: Agent, optimizer: CommandOptimizer | None = None) -> Engine:
    if optimizer is not None:
        return Engine(agent, desk.evaluator(), optimizer=optimizer)
    return Engine(agent, desk.evaluator(), search=desk.Tries())


def make_command(*command: str, **fields: Any) -> CommandAgent:
    return CommandAgent(command=command, prompts={"draft": "Draft."}, environment={"DRAFT": "{prompt:draft}"}, **fields)


@pytest.mark.parametrize(
    ("agent", "optimizer", "message"),
    [
        (make_command("true", health=("false",)), None, "the health check of the agent failed"),
        (make_command("no-such-bot"), None, "agent: the command 'no-such-bot' cannot be started: it is not in PATH"),
        (
            make_command("./bot", is_in_place=True),
            None,
            "agent: the command './bot' cannot be started: the file does not exist",
        ),
        (
            desk.agent(),
            CommandOptimizer(command=("no-such-bot", "{folder}")),
            "CommandOptimizer: the command 'no-such-bot' cannot be started: it is not in PATH; install it",
        ),
    ],
)
def test_what_cannot_be_started_is_found_before_anything_is_spent(
    agent: Agent, optimizer: CommandOptimizer | None, message: str, tmp_path: Path
) -> None:
    with pytest.raises(promptiter.SetupError, match=message):
        make_engine(agent, optimizer).run_sync(desk.request())
    with pytest.raises(promptiter.SetupError, match=message):
        RunDirectory.begin(tmp_path / "runs", make_engine(agent, optimizer), desk.request(run_id=""))
    assert not (tmp_path / "runs").exists()


def test_an_error_with_half_a_surrogate_pair_is_an_error_of_the_case(tmp_path: Path) -> None:
    def call_agent(query: str, prompts: Mapping[str, str]) -> str:
        raise ValueError("half a \ud83d pair")

    agent = CallAgent(call_agent, prompts={"draft": "Draft."})
    result = RunDirectory.begin(tmp_path, make_engine(agent), desk.request(run_id="")).run_sync()
    assert (result.status, result.verdict) == ("succeeded", "invalid_eval")
    assert result.baseline is not None
    assert {row.error and row.error.text for row in result.baseline.rows} == {"ValueError: half a \\ud83d pair"}
