"""Agents that misbehave in ways that only another process survives. At the top level, so that workers import them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from promptiter.agents.function import agent, ask, chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.surface_scope import surface
from promptiter.errors import ModelError


@agent(instruction="upper")
async def misbehave(text: str) -> str:
    """Does what the letter says: `WORD argument`."""
    word, _, argument = text.partition(" ")
    if word == "leave":
        os._exit(int(argument))
    elif word == "signal":
        os.kill(os.getpid(), getattr(signal, argument))
    elif word == "die_once":
        answer = await ask(text, model="m")
        end_once(argument)
        return answer
    elif word == "block":
        block(argument)
    elif word == "start":
        start_process(argument)
        await asyncio.sleep(600)
    elif word == "print":
        sys.stdout.write(f"printed {argument}")
        os.write(1, b"\x00\x00\x00\xff written to descriptor 1\n")
        os.write(2, b"written to descriptor 2\n")
        return f"{argument}, input {sys.stdin.read()!r}"
    elif word == "catch":
        try:
            return await ask(argument, model="m")
        except ModelError as error:
            return f"caught {type(error).__name__}: {error} {sorted(vars(error).items())}"
    return text.upper() if surface("instruction") == "upper" else text


@agent(instruction="Ask the other.")
async def ask_other(text: str) -> str:
    return await misbehave(text)


@agent(instruction="Ask in an event loop of its own.")
def ask_in_own_loop(text: str) -> str:
    return asyncio.run(ask(text, model="m"))


def end_once(mark: str) -> None:
    if not Path(mark).exists():
        Path(mark).touch()
        os._exit(1)


def block(mark: str) -> None:
    Path(mark).write_text(str(os.getpid()))
    time.sleep(600)


def start_process(mark: str) -> None:
    Path(mark).write_text(str(subprocess.Popen(["sleep", "600"]).pid))


def make_agent() -> GraphAgent:
    async def inner(text: str) -> str:
        return f"made {text}"

    return chain("made", inner)


changed = chain("changed", *misbehave.nodes)
