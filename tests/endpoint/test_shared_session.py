"""Clients that only read the environment, in a process of its own: its environment is changed for good."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.worlds.model_server import LoopbackServer, run_server

PROGRAM = """
import asyncio, os
import openai
import promptiter
from promptiter import Gateway, RunContext
from promptiter.endpoint import open_session
from promptiter.llm.litellm import load

own = os.environ["OPENAI_BASE_URL"]
promptiter.instrument()
promptiter.instrument()
assert os.environ["OPENAI_BASE_URL"] != own
hello = [{"role": "user", "content": "Hello"}]


async def main():
    gateway = Gateway()
    async with openai.AsyncOpenAI(api_key="x") as client:
        await client.chat.completions.create(model="openai/clerk", messages=hello)
        with gateway.active():
            async with open_session(RunContext(case_id="a")) as session:
                await client.chat.completions.create(model="openai/clerk", messages=hello)
                await load().acompletion(model="openai/openai/clerk", messages=hello, api_key="x")
                assert len(session.calls) == 2, session.calls
                async with open_session(RunContext(case_id="b")):
                    try:
                        await client.chat.completions.create(model="openai/clerk", messages=hello)
                    except openai.ConflictError as error:
                        assert "set evaluation.concurrency to 1, or use promptiter.instrument(client)" in str(error)
                    else:
                        raise AssertionError
    assert gateway.ledger.snapshot().total.calls == 2


asyncio.run(main())
print("fine")
"""


@pytest.mark.long
def test_clients_that_are_created_later_call_for_the_only_running_case() -> None:
    with run_server(LoopbackServer(answer=lambda _: "Hi")) as server:
        environment = {**os.environ, "OPENAI_BASE_URL": server.url, "OPENAI_API_KEY": "sk-upstream"}
        command = [sys.executable, "-c", PROGRAM]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout == "fine\n", done.stderr
    assert [body["model"] for body in server.bodies] == ["clerk"] * 3
