"""Agents in production: the processes and threads that web servers use."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, os, signal
from promptiter import Gateway, ModelNode
from promptiter.agents import agent, ask_sync, chain, node, surface

@agent(instruction="function")
def function(question):
    return ask_sync(question, instruction=surface("instruction"), model="echo")

@node(instruction="node")
def first(question):
    return ask_sync(question, instruction=surface("instruction"), model="echo")

graph = chain("graph", first, ModelNode(name="second", instruction="graph", model="echo"))

def answer():
    return [function("hi"), asyncio.run(graph("hi")), asyncio.run(asyncio.to_thread(function, "hi"))]

with Gateway(models={"echo": lambda messages: f"{messages[0]['content']} {messages[-1]['content']}"}).active():
    before = answer()  # as a server that warms up before it forks its workers
    if (child := os.fork()) == 0:
        signal.alarm(30)
        print(answer(), flush=True)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert (before, status) == (answer(), 0), status
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no fork")
def test_a_forked_process_makes_calls_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "['function hi', 'graph node hi', 'function hi']\n"
