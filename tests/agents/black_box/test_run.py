"""Runs of black-box agents in a session of the endpoint: budgets, outages, notes, clients in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

import promptiter
from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.call import CallAgent
from promptiter.agents.black_box.command import CommandAgent
from promptiter.agents.black_box.http import HttpAgent
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


def test_a_failed_health_check_ends_a_run_before_anything_is_spent() -> None:
    agent = CommandAgent(command=("bot", "{file:draft}"), prompts={"draft": "Draft."}, health=("false",))
    with pytest.raises(promptiter.SetupError, match="the health check of the agent failed"):
        Engine(agent, desk.evaluator(), search=desk.Tries()).run_sync(desk.request())
