"""An agent that is a function: which functions it takes, and what they get."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.call import CallAgent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.endpoint.sessions import find_session
from promptiter.errors import ModelUnavailableError, SetupError
from promptiter.llm import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest
from promptiter.llm.retries import Retries
from promptiter.profile import Profile

PROMPTS = {"note": "Be kind.", "reply#tool.policy": "Says what is allowed."}


async def call_async(query: str, prompts: Mapping[str, str]) -> str:
    return f"{query}: {prompts['note']}"


def call_sync(query: str, prompts: Mapping[str, str]) -> str:
    return f"{query}: {prompts['note']}"


def call_scaled(factor: int, query: str, prompts: Mapping[str, str]) -> str:
    return call_sync(query, prompts) * factor


async def call_scaled_async(factor: int, query: str, prompts: Mapping[str, str]) -> str:
    return call_sync(query, prompts) * factor


class Bot:
    def __call__(self, query: str, *, prompts: Mapping[str, str]) -> str:
        return call_sync(query, prompts)


class AsyncBot:
    async def __call__(self, query: str, *, prompts: Mapping[str, str]) -> str:
        return call_sync(query, prompts)


def run(agent: Any, case: CaseInput | None = None, **values: str) -> AgentRun:
    profile = Profile.of(agent.describe(), {f"{name}#instruction": value for name, value in values.items()})
    done = asyncio.run(agent.run(case or CaseInput(text="hi"), profile, RunContext(case_id="one")))
    assert isinstance(done, AgentRun)
    return done


@pytest.mark.parametrize(
    "function",
    [
        call_async,
        call_sync,
        partial(call_scaled, 1),
        partial(call_scaled_async, 1),
        Bot(),
        AsyncBot(),
        Bot().__call__,
        partial(partial(call_scaled, 1)),
    ],
)
def test_functions_partials_and_objects_are_called(function: Any) -> None:
    done = run(CallAgent(function, prompts=PROMPTS), note="New.")
    assert (done.output, done.error) == ("hi: New.", None)


def test_a_function_gets_history_and_state_if_it_asks_for_them() -> None:
    def call(query: str, prompts: Mapping[str, str], history: Any, state: Any) -> Any:
        return {"query": query, "prompts": sorted(prompts), "said": [each.content for each in history], **state}

    case = CaseInput(text="hi", history=(Message("user", "before"),), state={"id": 7})
    done = run(CallAgent(call, prompts=PROMPTS), case)
    assert done.data == {"query": "hi", "prompts": ["note", "reply#tool.policy"], "said": ["before"], "id": 7}


def test_what_a_function_changes_in_its_prompts_is_its_own() -> None:
    def call(query: str, prompts: Any) -> str:
        found = str(prompts["note"])
        prompts["note"] = query
        return found

    agent = CallAgent(call, prompts=PROMPTS)
    assert [run(agent).output for _ in range(2)] == ["Be kind."] * 2


@pytest.mark.parametrize(
    ("query", "error"),
    [
        ("divide", "ZeroDivisionError: division by zero"),
        ("nothing", "AnswerError: 'agent' returned None; return the answer, as a text or as data"),
        ("exit", "SystemExit: 3"),
        ("first", "RuntimeError: the function raised StopIteration; give `next` a default, or catch it"),
    ],
)
def test_a_failure_is_the_error_of_the_case(query: str, error: str) -> None:
    def call(query: str, prompts: Mapping[str, str]) -> str | None:
        if query == "exit":
            sys.exit(3)
        if query == "first":
            return str(next(iter(())))
        return str(1 / len(prompts.get("other", ""))) if query == "divide" else None

    done = run(CallAgent(call, prompts=PROMPTS), CaseInput(text=query))
    assert done.error is not None
    assert done.error.text == error


def test_a_task_that_the_agent_cancelled_itself_is_the_error_of_the_case() -> None:
    async def call(query: str, prompts: Mapping[str, str]) -> str:
        task = asyncio.create_task(asyncio.sleep(60, query + prompts["note"]))
        task.cancel()
        return await task

    done = run(CallAgent(call, prompts=PROMPTS))
    assert done.error is not None
    assert done.error.text == "CancelledError: the agent awaited a task that was cancelled"


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda query: query, "has no parameter `prompts`, so it would not get new values"),
        (Bot, "call_agent is the class Bot; give a function"),
        ("bot", "call_agent is 'bot'; give a function"),
    ],
)
def test_mistakes_are_found_when_the_agent_is_built(function: Any, message: str) -> None:
    with pytest.raises(SetupError, match=message):
        CallAgent(function, prompts=PROMPTS)


def test_in_place_a_thread_keeps_its_candidate_until_it_returns(tmp_path: Path) -> None:
    """A run that timed out still reads its file, so a run under another profile waits for it."""
    file = tmp_path / "note.md"
    file.write_text("baseline")
    started, released, read = threading.Event(), threading.Event(), []

    def call(query: str) -> str:
        if query == "slow":
            started.set()
            released.wait(20)
        read.append(file.read_text())
        return read[-1]

    inner = CallAgent(call, prompts={"note": file}, is_in_place=True)
    agent = InPlaceAgent(inner, inner.sources, state_folder=tmp_path / "state")

    async def main() -> AgentRun:
        new = Profile.of(agent.describe(), {"note#instruction": "new"})
        slow = await agent.run(CaseInput(text="slow"), new, RunContext(deadline_s=0.1))
        assert slow.error is not None
        waiting = asyncio.create_task(agent.run(CaseInput(text="quick"), Profile.baseline(agent.describe())))
        await asyncio.sleep(0.05)
        released.set()
        done = await waiting
        await agent.aclose()
        return done

    done = asyncio.run(main())
    assert started.is_set()
    end = time.monotonic() + 10
    while len(read) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert (read, done.output) == (["new", "baseline"], "baseline")


async def ask_stubbornly(query: str, prompts: Mapping[str, str]) -> str:
    """Ask as often as the message says, and answer even without an answer of the model."""
    session = find_session()
    assert session is not None
    request = ModelRequest(model="clerk", messages=(Message("system", prompts["note"]), Message("user", "hello")))
    for _ in range(int(query)):
        try:
            call = await session.ask(request)
        except ModelUnavailableError:
            continue
        assert call.reply is not None
        return call.reply.text
    return "Sorry."


@pytest.mark.parametrize(("attempts", "answer", "is_outage"), [("2", "Sorry.", True), ("3", "Yes.", False)])
def test_an_answer_without_a_model_that_was_down_is_an_outage(attempts: str, answer: str, is_outage: bool) -> None:
    failures = iter([1, 2])

    async def clerk(request: ModelRequest, *, repeat: int) -> ModelReply:
        if next(failures, None):
            raise ModelUnavailableError("down")
        return ModelReply(text="Yes.")

    with Gateway(models={"clerk": clerk}, retries=Retries(attempts=1)).active():
        done = run(CallAgent(ask_stubbornly, prompts={"note": "Be kind."}), CaseInput(text=attempts))
    assert done.output == answer
    assert (done.error is not None and done.error.is_outage) == is_outage
    assert done.trace is not None
    if not is_outage:
        assert done.error is None
        assert [(step.id, step.error) for step in done.trace.steps] == [("note", None)]
