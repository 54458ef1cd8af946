"""InPlaceAgent: an agent that can only read one fixed file or key is given each candidate there, and then the baseline.

    async with InPlaceAgent(ask_my_bot, {"bot#instruction": FileSource("prompts/bot.md")}) as agent:
        evaluation = await evaluator.evaluate(agent, eval_set, profile)

Runs under one profile go on at the same time; a run under another waits until they have ended, also in other processes.
The baseline is on disk before the first candidate is written. It comes back at the end of the `async with`, at the end
of the program, on SIGTERM, and after a SIGKILL with the next start or with `promptiter restore`.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast
from weakref import WeakKeyDictionary

import orjson

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.agents.graph import GraphAgent
from promptiter.agents.in_place.exit_hooks import close_at_end, closed, undisturbed
from promptiter.agents.in_place.saved_baseline import STATE_FOLDER, Restored, SavedBaseline
from promptiter.agents.in_place.target_lock import POLL_S, FolderLock
from promptiter.agents.nodes import Calls, View
from promptiter.errors import AgentError, SetupError
from promptiter.llm.redaction import process_redactor
from promptiter.profile import Profile
from promptiter.sources import FileSource, Source
from promptiter.structure import (
    SURFACE_TYPES,
    TEXT_TYPES,
    NodeKind,
    StructureSnapshot,
    Surface,
    SurfaceType,
    escape_segment,
)
from traces import Failure
from traces.model import Json

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class InPlaceAgent:
    """An agent whose surfaces in `targets` live outside. It wraps an agent, or a function from question to answer.

    A function becomes one node, and all targets are surfaces of it. Text surfaces are held as they are, parameters and
    examples as JSON. A synchronous function that is given up at a timeout still counts as running until it returns.
    """

    def __init__(
        self,
        wrapped: Agent | Callable[[str], Any],
        targets: Mapping[str, Source],
        *,
        state_folder: str | os.PathLike[str] = STATE_FOLDER,
    ) -> None:
        if not targets:
            raise SetupError("an in-place agent needs targets: the surfaces that live outside, and where")
        self.targets = dict(sorted(targets.items()))
        self.state_folder = Path(state_folder).absolute()
        self._wrapped = wrapped
        self._saved = SavedBaseline(self.state_folder)
        self._seats: WeakKeyDictionary[asyncio.AbstractEventLoop, _Seat] = WeakKeyDictionary()

    def describe(self) -> StructureSnapshot:
        """The structure, with the targets' baseline as the values of their surfaces; read once, at the first call."""
        return self._described.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext | None = None) -> AgentRun:
        """Run the wrapped agent while the targets hold the profile's values."""
        described = self._described
        snapshot, agent = described.snapshot, described.agent
        profile.check(snapshot)
        changed = [surface_id for surface_id in self.targets if surface_id in profile.overrides]
        wanted = {surface_id: _text_of(profile.overrides[surface_id]) for surface_id in changed}
        inner = agent.describe()
        given = Profile.of(inner, {surface_id: profile.value(surface_id, snapshot) for surface_id in inner.surface_ids})
        try:
            async with self._holding(wanted):
                run = await agent.run(case, given, context or RunContext())
        except AgentError as error:
            return AgentRun(error=Failure(type(error).__name__, str(error)))
        return self._with_unknown_reads(run)

    def close(self) -> list[Restored]:
        """Put the baseline back now, and say where. Await the runs first: `async with` and `aclose` do.

        If another process is running under the same state folder, this is left to its end.
        """
        with undisturbed():
            done = self._restore()
        closed(self)
        for each in done:
            if not each.is_settled:
                _log.warning("%s was not restored: %s", each.place, process_redactor().redact_text(each.note))
        return done

    async def aclose(self) -> list[Restored]:
        """Put the baseline back when the runs under way have ended; when cancelled, at once."""
        seat = self._seat()
        try:
            async with seat.turn:
                await seat.idle.wait()
                return await _unbroken(self.close)
        except asyncio.CancelledError:
            await _unbroken(self.close)
            raise
        finally:
            closed(self)  # once more: only the main thread can give SIGTERM back

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @cached_property
    def _described(self) -> _Described:
        files = [target.file for target in self.targets.values() if isinstance(target, FileSource)]
        if len(set(files)) < len(files):
            raise SetupError(f"each surface needs a file of its own, got {', '.join(sorted(map(str, files)))}")
        baseline = self._saved.read(self.targets)
        surfaces = tuple(_surface(name, target, baseline[name]) for name, target in self.targets.items())
        if hasattr(self._wrapped, "describe") and hasattr(self._wrapped, "run"):
            agent = cast("Agent", self._wrapped)
            return _Described(_with_surfaces(agent.describe(), surfaces), agent, baseline)
        one_node = _one_node(surfaces, self._ask)
        return _Described(one_node.describe(), one_node, baseline)

    @asynccontextmanager
    async def _holding(self, wanted: Mapping[str, str]) -> AsyncIterator[None]:
        """Hold these values in the targets: at once if they are there already, else when those before have left."""
        seat = self._seat()
        async with seat.turn:  # whoever comes after a switch waits behind it, so that it comes to its turn
            if not seat.runs or seat.wanted != wanted:
                await seat.idle.wait()
                await self._switch(seat, wanted)
            seat.enter()
        try:
            yield
        finally:
            seat.leave()

    async def _switch(self, seat: _Seat, wanted: Mapping[str, str]) -> None:
        baseline = self._described.baseline
        if not seat.lock.acquire():
            _log.info("waiting for another process that has a candidate of %s in place", self.state_folder)
            while not seat.lock.acquire():  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(POLL_S)
        close_at_end(self)
        try:
            await _unbroken(lambda: self._saved.hold(self.targets, baseline=baseline, wanted=wanted))
        except BaseException:
            seat.lock.release()
            raise
        seat.wanted = wanted

    def _restore(self) -> list[Restored]:
        if not self._saved.is_left:
            return []
        if any(seat.lock.is_held for seat in self._seats.values()):
            return self._saved.restore(self.targets)
        lock = FolderLock(self.state_folder)
        if not lock.acquire_soon():
            _log.info("another process is running under %s and will restore the baseline", self.state_folder)
            return []
        try:
            return self._saved.restore(self.targets)
        finally:
            lock.release()

    async def _ask(self, question: str) -> Json:
        """Ask the wrapped function; a synchronous one in a thread, which holds the targets until it returns."""
        function = cast("Callable[[str], Any]", self._wrapped)
        try:
            if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):
                return await function(question)
            answer = await self._in_thread(function, question)
            return await answer if inspect.isawaitable(answer) else answer
        except SystemExit as left:  # asyncio would end the whole program
            raise AgentError(f"the function left by sys.exit({left.code!r})") from left

    async def _in_thread(self, function: Callable[[str], Any], question: str) -> Any:
        seat, loop = self._seat(), asyncio.get_running_loop()
        seat.enter()
        work = _threads().submit(contextvars.copy_context().run, function, question)
        work.add_done_callback(lambda _: _call_in(loop, seat.leave))
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            if not work.done():
                _log.warning("a run was given up, but its function still runs; other profiles wait until it returns")
            raise

    def _seat(self) -> _Seat:
        return self._seats.setdefault(asyncio.get_running_loop(), _Seat(self.state_folder))

    def _with_unknown_reads(self, run: AgentRun) -> AgentRun:
        """Nobody knows when a step read a target of its node, so that nobody knows what it read."""
        outside = {surface_id.partition("#")[0] for surface_id in self.targets}
        trace = run.trace and replace(
            run.trace,
            steps=tuple(
                replace(step, surface_reads=None) if step.node_id in outside else step for step in run.trace.steps
            ),
        )
        return replace(run, trace=trace, turns=tuple(map(self._with_unknown_reads, run.turns)))


@dataclass(frozen=True, slots=True)
class _Described:
    """What was found at the first look: the structure, the agent behind it, and the bytes in the targets."""

    snapshot: StructureSnapshot
    agent: Agent
    baseline: Mapping[str, bytes]


class _Seat:
    """One event loop's share of the targets: how many runs it has under way, and with which values."""

    def __init__(self, folder: Path) -> None:
        self.lock = FolderLock(folder)
        self.turn = asyncio.Lock()
        self.idle = asyncio.Event()
        self.idle.set()
        self.runs = 0
        self.wanted: Mapping[str, str] = {}

    def enter(self) -> None:
        self.runs += 1
        self.idle.clear()

    def leave(self) -> None:
        self.runs -= 1
        if not self.runs:
            self.lock.release()
            self.idle.set()


@dataclass(frozen=True, slots=True)
class _Outside:
    """A node whose surfaces live outside: its function reads them itself."""

    name: str
    known: tuple[Surface, ...]
    ask: Callable[[str], Awaitable[Json]]
    kind: NodeKind = "agent"

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        return tuple(surface for surface in self.known if surface.node_id == node_id)

    async def run(self, view: View, calls: Calls) -> Json:
        calls.step.input = view.input
        return await self.ask(view.input)


def _one_node(surfaces: tuple[Surface, ...], ask: Callable[[str], Awaitable[Json]]) -> GraphAgent:
    names = sorted({surface.node_id for surface in surfaces})
    if len(names) > 1 or names[0] != escape_segment(names[0]):
        raise SetupError(
            f"a function is one node, but the targets are surfaces of {', '.join(names)}; name them all after one "
            "node, such as bot#instruction, or wrap an agent"
        )
    return GraphAgent(name=names[0], nodes=(_Outside(names[0], surfaces, ask),))


def _with_surfaces(snapshot: StructureSnapshot, found: tuple[Surface, ...]) -> StructureSnapshot:
    """The structure with the values that were found outside; surfaces that it does not know are added."""
    outside = {surface.id: surface for surface in found}
    known = tuple(
        replace(surface, value=outside.pop(surface.id).value) if surface.id in outside else surface
        for surface in snapshot.surfaces
    )
    return replace(snapshot, surfaces=(*known, *outside.values()))


def _surface(surface_id: str, target: Source, raw: bytes) -> Surface:
    node_id, _, name = surface_id.partition("#")
    kind, _, part = name.partition(".")
    if not node_id or kind not in SURFACE_TYPES:
        raise SetupError(
            f"{surface_id!r} is no surface: write node#type or node#type.part; types are {', '.join(SURFACE_TYPES)}"
        )
    text = target.text_of(raw) if isinstance(target, FileSource) else raw.decode()
    value = _value_of(surface_id, kind, text)
    return Surface(node_id=node_id, type=kind, part=part, value=value)


def _value_of(surface_id: str, kind: SurfaceType, text: str) -> Json:
    if kind in TEXT_TYPES:
        return text
    if kind == "model":
        return text.strip()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SetupError(f"the target of {surface_id!r} must hold JSON, holds {text!r:.60}: {error}") from error


def _text_of(value: Json) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


async def _unbroken(work: Callable[[], _T]) -> _T:
    """Do something in a thread, to its end even if this is cancelled."""
    done = asyncio.get_running_loop().run_in_executor(None, work)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return done.result()


def _call_in(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    """Call in a loop's thread; where the loop has ended, here."""
    try:
        loop.call_soon_threadsafe(call)
    except RuntimeError:
        call()


@cache
def _threads() -> ThreadPoolExecutor:
    """Not asyncio's own pool: that one is small, and a switch must not wait behind functions that hang."""
    return ThreadPoolExecutor(max_workers=64, thread_name_prefix="promptiter-in-place")
