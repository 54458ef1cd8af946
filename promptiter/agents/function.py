"""Plain functions as agents: a decorator for one, `chain` for several, and `ask` to call a model from inside.

@agent(instruction="Answer in one sentence.")
async def support(question):
    return await ask(question, instruction=surface("instruction"), model="gpt-4o-mini")
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

from promptiter.agents.edges import Edge
from promptiter.agents.graph import AnyNode, GraphAgent
from promptiter.agents.nodes import FunctionNode, Parameter
from promptiter.agents.step_calls import current_calls
from promptiter.errors import SetupError
from promptiter.llm.messages import Message, ModelRequest
from promptiter.structure import NO_LIMITS, SURFACE_TYPES, Limits, SurfaceType
from traces.model import Json


def node(*, limits: Limits = NO_LIMITS, **declared: Json | Parameter) -> Callable[[Callable[..., Any]], FunctionNode]:
    """Turn a function into a node: `@node(instruction="...")`. It reads its surfaces with `surface("instruction")`."""
    if unknown := sorted(set(declared) - set(SURFACE_TYPES)):
        raise SetupError(f"unknown surface types {', '.join(unknown)}; known are {', '.join(SURFACE_TYPES)}")
    surfaces: dict[SurfaceType, Json | Parameter] = {kind: declared[kind] for kind in SURFACE_TYPES if kind in declared}

    def decorate(function: Callable[..., Any]) -> FunctionNode:
        return FunctionNode(name=function.__name__, function=function, declared=surfaces, limits=limits)

    return decorate


def agent(*, limits: Limits = NO_LIMITS, **declared: Json | Parameter) -> Callable[[Callable[..., Any]], GraphAgent]:
    """Turn a function from message to answer into an agent with one node: `@agent(instruction="...")`."""

    def decorate(function: Callable[..., Any]) -> GraphAgent:
        return chain(function.__name__, node(limits=limits, **declared)(function))

    return decorate


def chain(name: str, *steps: AnyNode | Callable[..., Any]) -> GraphAgent:
    """An agent that runs functions or nodes in sequence, each on the output of the previous one."""
    nodes = tuple(node()(each) if inspect.isroutine(each) else cast("AnyNode", each) for each in steps)
    edges = tuple(Edge(first.name, second.name) for first, second in pairwise(nodes))
    return GraphAgent(name=name, nodes=nodes, edges=edges)


async def ask(
    prompt: str | Sequence[Message],
    *,
    model: str,
    instruction: str = "",
    options: Mapping[str, Json] | None = None,
    is_live: bool = False,
) -> str:
    """Ask a model from inside a node, through the gateway; usage and cache key belong to the running step."""
    messages = (Message("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
    if instruction:
        messages = (Message("system", instruction), *messages)
    request = ModelRequest(model=model, messages=messages, options=options or {})
    try:
        calls = current_calls.get()
    except LookupError:
        raise SetupError(
            "ask() works inside a node of a running agent; run the agent instead of the function"
        ) from None
    return (await calls.ask(request, is_live=is_live)).text


def ask_sync(
    prompt: str | Sequence[Message],
    *,
    model: str,
    instruction: str = "",
    options: Mapping[str, Json] | None = None,
    is_live: bool = False,
) -> str:
    """`ask` for synchronous nodes, which run in threads."""
    question = ask(prompt, model=model, instruction=instruction, options=options, is_live=is_live)
    return asyncio.run_coroutine_threadsafe(question, current_calls.get().loop).result()
