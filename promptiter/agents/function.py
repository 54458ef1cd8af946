"""Plain functions as agents: a decorator for one, `chain` for several, and `ask` to call a model from inside.

@agent(instruction="Answer in one sentence.")
async def support(question):
    return await ask(question, instruction=surface("instruction"), model="gpt-4o-mini")
"""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Generic, Never, ParamSpec, TypeVar, cast

from promptiter.agents.argument_checks import check_items, check_value
from promptiter.agents.base import check_async
from promptiter.agents.declarations import Declared
from promptiter.agents.edges import Edge
from promptiter.agents.flow import AnyNode
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode
from promptiter.agents.parameters import list_parameters
from promptiter.agents.serving import ReadSurface, mark_running, serve_function
from promptiter.agents.step_calls import StepCalls, find_calls, find_own_step
from promptiter.concurrency import is_in_loop
from promptiter.errors import SetupError
from promptiter.llm.messages import Message, ModelRequest
from promptiter.llm.options import check_options
from promptiter.structure import NO_LIMITS, SURFACE_TYPES, Limits, SurfaceType
from promptiter.wording import shorten
from traces.model import Json

P = ParamSpec("P")
R = TypeVar("R")


def node(
    *misplaced: Never, limits: Limits = NO_LIMITS, **declared: Declared
) -> Callable[[Callable[..., Any]], FunctionNode]:
    """Turn a function into a node: `@node(instruction="...")`. It reads its surfaces with `surface("instruction")`.

    Several surfaces of a type have names: `@node(instruction={"plan": "...", "write": "..."})`, read with
    `surface("instruction.plan")`.
    """
    _refuse_function("node", misplaced)
    surfaces = _check_declared(declared)

    def decorate(function: Callable[..., Any]) -> FunctionNode:
        _check_function(function)
        return FunctionNode(name=function.__name__, function=function, declared=surfaces, limits=limits)

    return decorate


def agent(
    *misplaced: Never, limits: Limits = NO_LIMITS, **declared: Declared
) -> Callable[[Callable[P, R]], FunctionAgent[P, R]]:
    """Turn a function from message to answer into an agent with one node: `@agent(instruction="...")`.

    It can still be called as before. Surfaces are declared as for `node`.
    """
    _refuse_function("agent", misplaced)
    build_node = node(limits=limits, **declared)

    def decorate(function: Callable[P, R]) -> FunctionAgent[P, R]:
        return FunctionAgent(name=function.__name__, nodes=(build_node(function),))

    return decorate


def _check_function(function: Callable[..., Any]) -> None:
    """Raise SetupError for what cannot be a node: a generator, or a method of a class."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise SetupError(f"{function.__name__} yields its answer in parts; return the whole answer")
    first = next(iter(list_parameters(function).values()), None)
    if first is not None and first.name == "self" and first.kind is not first.POSITIONAL_ONLY:  # as those of builtins
        raise SetupError(
            f"{function.__qualname__} is a method; decorate a function at the top of a module, or give the class the "
            "methods `describe` and `run`"
        )


def _refuse_function(decorator: str, misplaced: tuple[object, ...]) -> None:
    """Refuse a decorator without parentheses, whose first argument would be the function."""
    if misplaced:
        name = getattr(misplaced[0], "__name__", "the function")
        raise SetupError(
            f'{name}: write @{decorator}(instruction="..."), with the texts that may change in parentheses'
        )


@dataclass(frozen=True, kw_only=True, eq=False)  # it adds no field
class FunctionAgent(GraphAgent, Generic[P, R]):
    """A function as an agent. Called like the function, it returns what the function returns.

    It runs with the active profile, or with the baseline: `await triage("hi")`, or `triage("hi")` if the function is
    synchronous. `with_profile` returns it with an optimized profile, for production.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        # Tools that show signatures and documentation find those of the function here.
        self.__dict__.update(__doc__=self._function.__doc__, __wrapped__=self._function)
        if inspect.iscoroutinefunction(self._function):
            self.__dict__.update(_list_coroutine_marks())

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:  # type: ignore[override]  # the function's signature
        read = self._find_reader()
        if inspect.iscoroutinefunction(self._function):
            return cast("R", self._call(partial(self._function, *args, **kwargs), read))
        with self._serve(read):
            result = self._function(*args, **kwargs)
        check_async(self._function, result)
        return cast("R", self._call(lambda: result, read) if inspect.isawaitable(result) else result)

    async def _call(self, function: Callable[[], Awaitable[Any]], read: ReadSurface) -> Any:
        # A call that is cancelled before it starts must not leave a coroutine of the function behind.
        with self._serve(read):
            return await function()

    @contextmanager
    def _serve(self, read: ReadSurface) -> Iterator[None]:
        [only] = self.describe().nodes
        with mark_running(self.nodes, read), serve_function(only.id, self.describe().surface_ids, read):
            yield

    @property
    def _function(self) -> Callable[..., Any]:
        [only] = self.nodes
        return cast("FunctionNode", only).function


def _list_coroutine_marks() -> dict[str, Any]:
    """The attributes by which `inspect` (from Python 3.12) and `asyncio` tell that the call of an object is awaited."""
    if sys.version_info < (3, 12):
        return {"_is_coroutine": vars(asyncio.coroutines)["_is_coroutine"]}

    def marked() -> None: ...

    return dict(vars(inspect.markcoroutinefunction(marked)))


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
    """Ask a model from inside a node, through the gateway; usage and cache key belong to the running step.

    Inside `with traces.step(...)`, prompt and answer are the input and output of that step, unless it sets its own.
    With several questions, these are the first prompt and the last answer.
    """
    if not isinstance(prompt, str):
        check_items(
            "the prompt of ask()", prompt, Message, wanted="Message('user', '...') of promptiter.llm, or a text"
        )
    check_value("the model of ask()", model, str, wanted="the name of a model")
    check_value("the instruction of ask()", instruction, str, wanted="a text, such as surface('instruction')")
    messages = (Message("user", prompt),) if isinstance(prompt, str) else tuple(prompt)
    if instruction:
        messages = (Message("system", instruction), *messages)
    check_options(options or {}, place="the options of ask()")
    request = ModelRequest(model=model, messages=messages, options=options or {})
    calls, step = _find_calls("ask"), find_own_step()
    note_answer = step.note_question(prompt) if step is not None else None
    answer = (await calls.ask(request, is_live=is_live)).text
    if note_answer is not None:
        note_answer(answer)
    return answer


def ask_sync(
    prompt: str | Sequence[Message],
    *,
    model: str,
    instruction: str = "",
    options: Mapping[str, Json] | None = None,
    is_live: bool = False,
) -> str:
    """`ask` for synchronous functions. It blocks, so it does not work in the thread of an event loop."""
    calls = _find_calls("ask_sync")
    if is_in_loop():
        raise SetupError(
            "ask_sync() would block the event loop of this thread; use `await ask(...)` in an async function, and call "
            "a synchronous function with `await asyncio.to_thread(function, ...)`"
        )
    question = ask(prompt, model=model, instruction=instruction, options=options, is_live=is_live)
    return asyncio.run_coroutine_threadsafe(question, calls.loop).result()


def _find_calls(caller: str) -> StepCalls:
    calls = find_calls()
    if calls is None:
        raise SetupError(
            f"{caller}() works inside a function that is decorated with @agent or @node, and inside `with "
            "traces.step(...)` of an agent that is written by hand; a new thread needs a copy of "
            "the context, as made by asyncio.to_thread"
        )
    return calls


def _check_declared(declared: Mapping[str, Declared]) -> dict[SurfaceType, Declared]:
    """The declared surfaces in the order of their types. Raises SetupError if a type or a part has a wrong name."""
    if unknown := sorted(set(declared) - set(SURFACE_TYPES)):
        example = "{" + ", ".join(f'"{name}": "..."' for name in unknown) + "}"
        raise SetupError(
            f"unknown surface types {', '.join(unknown)}; known are {', '.join(SURFACE_TYPES)}; write several "
            f"instructions as instruction={example}"
        )
    for kind, value in declared.items():
        parts = list(value) if isinstance(value, Mapping) else ["-"]
        if not parts or not all(isinstance(part, str) and part and "#" not in part for part in parts):
            raise SetupError(
                f"{kind}={shorten(value)} must be a value, or values by the names of its parts, such as "
                f'{kind}={{"plan": ..., "write": ...}}'
            )
    return {kind: declared[kind] for kind in SURFACE_TYPES if kind in declared}
