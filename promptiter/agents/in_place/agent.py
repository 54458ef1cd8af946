"""InPlaceAgent: an agent that reads its prompts from a fixed file or key, where each candidate is written.

    async with InPlaceAgent(ask_my_bot, {"bot#instruction": FileSource("prompts/bot.md")}) as agent:
        evaluation = await evaluator.evaluate(agent, eval_set, profile)

Runs under the same profile are concurrent; a run under another profile waits until they have ended, in other processes
too. The baseline is saved to disk before the first candidate is written. It is restored at the end of the `async with`,
when the program exits, on SIGTERM or SIGHUP, and after a SIGKILL by the next start or by `promptiter restore`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast
from weakref import WeakKeyDictionary

from promptiter.agents.base import (
    Agent,
    AgentRun,
    CaseInput,
    ExternalAgent,
    NeedsProgram,
    RunContext,
    is_agent,
    run_agent,
)
from promptiter.agents.graph import GraphAgent
from promptiter.agents.in_place.exit_hooks import cancel_close_at_exit, close_at_exit, defer_signals
from promptiter.agents.in_place.saved_baseline import STATE_FOLDER, RestoreResult, SavedBaseline
from promptiter.agents.in_place.source_lock import POLL_S, FolderLock
from promptiter.agents.in_place.source_use import SourceUse, call_with_sources, current_use
from promptiter.agents.in_place.source_values import decode_bytes, decode_surface, merge_surfaces
from promptiter.agents.node_context import NodeContext
from promptiter.agents.step_calls import StepCalls
from promptiter.concurrency import is_async, run_in_thread
from promptiter.context import ContextValue
from promptiter.errors import AgentError, SetupError
from promptiter.llm.redaction import process_redactor
from promptiter.profile import Profile
from promptiter.sources import FileSource, Source
from promptiter.structure import NodeKind, StructureSnapshot, Surface, escape_segment
from promptiter.value_text import encode_value
from traces import Failure
from traces.model import Json

_log = logging.getLogger(__name__)


class InPlaceAgent:
    """Wraps an agent, or a function from message to answer, that reads surfaces from `sources`.

    A function becomes one node with all of these surfaces. Text surfaces are stored as they are, parameters and
    examples as JSON. A synchronous function that times out still counts as running until it returns.
    """

    def __init__(
        self,
        wrapped: Agent | Callable[[str], Any],
        sources: Mapping[str, Source],
        *,
        state_folder: str | os.PathLike[str] = STATE_FOLDER,
    ) -> None:
        if not sources:
            raise SetupError("an in-place agent needs sources: where each of its surfaces is stored")
        self.sources = dict(sources)
        self.state_folder = Path(state_folder).absolute()
        self._wrapped = wrapped
        self._saved = SavedBaseline(self.state_folder)
        self._uses: WeakKeyDictionary[asyncio.AbstractEventLoop, SourceUse] = WeakKeyDictionary()

    def describe(self) -> StructureSnapshot:
        """The structure, with the baseline of the sources as surface values; read once, at the first call."""
        return self._description.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext | None = None) -> AgentRun:
        """Run the wrapped agent while the sources hold the profile's values."""
        snapshot, agent = self._description.snapshot, self._description.agent
        profile.check(snapshot)
        changed = [surface_id for surface_id in self.sources if surface_id in profile.overrides]
        wanted = {surface_id: encode_value(profile.overrides[surface_id]) for surface_id in changed}
        inner = agent.describe()
        given = Profile.of(inner, {surface_id: profile.value(surface_id, snapshot) for surface_id in inner.surface_ids})
        try:
            async with self._hold(wanted):
                run = await run_agent(agent, case, given, context or RunContext())
        except AgentError as error:
            return AgentRun(error=Failure(type(error).__name__, str(error)))
        return self._clear_reads(run)

    @property
    def notes(self) -> tuple[str, ...]:
        """Those of the wrapped agent."""
        return self._wrapped.notes if isinstance(self._wrapped, ExternalAgent) else ()

    def find_setup_problem(self) -> str | None:
        """Why the program of the wrapped agent cannot be started."""
        wrapped: object = self._wrapped
        return wrapped.find_setup_problem() if isinstance(wrapped, NeedsProgram) else None

    async def check_health(self) -> None:
        """Check the health of the wrapped agent."""
        if isinstance(self._wrapped, ExternalAgent):
            await self._wrapped.check_health()

    def close(self) -> list[RestoreResult]:
        """Restore the baseline now. The runs must have ended: `async with` and `aclose` wait for them.

        If another process is running under the same state folder, that process restores it instead.
        """
        with defer_signals():
            done = self._restore()
        cancel_close_at_exit(self)
        for each in done:
            if not each.is_settled:
                _log.warning("%s was not restored: %s", each.place, process_redactor().redact_text(each.note))
        return done

    async def aclose(self) -> list[RestoreResult]:
        """Restore the baseline when the current runs have ended; when cancelled, at once."""
        use = self._current_use()
        try:
            async with use.turn:
                await use.idle.wait()
                return await run_in_thread(self.close)
        except asyncio.CancelledError:
            await run_in_thread(self.close)
            raise
        finally:
            cancel_close_at_exit(self)  # again, since only the main thread can reset the SIGTERM handler

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.aclose()

    @cached_property
    def _description(self) -> _Description:
        files = [source.file for source in self.sources.values() if isinstance(source, FileSource)]
        if len(set(files)) < len(files):
            raise SetupError(f"each surface needs its own file, got {', '.join(sorted(map(str, files)))}")
        baseline = self._saved.read(self.sources)
        surfaces = tuple(
            decode_surface(name, decode_bytes(source, baseline[name])) for name, source in self.sources.items()
        )
        if is_agent(self._wrapped):
            return _Description(merge_surfaces(self._wrapped.describe(), surfaces), self._wrapped, baseline)
        one_node = _build_agent(surfaces, self._ask)
        return _Description(one_node.describe(), one_node, baseline)

    @asynccontextmanager
    async def _hold(self, wanted: Mapping[str, str]) -> AsyncIterator[None]:
        """Keep these values in the sources. Waits for runs that need other values."""
        use = self._current_use()
        async with use.turn:  # runs that arrive during a switch queue behind it, so that it cannot starve
            if not use.runs or use.wanted != wanted:
                await use.idle.wait()
                await self._switch(use, wanted)
            use.enter()
        try:
            with ContextValue(current_use, use):
                yield
        finally:
            use.leave()

    async def _switch(self, use: SourceUse, wanted: Mapping[str, str]) -> None:
        baseline = self._description.baseline
        if not use.lock.acquire():
            _log.info("waiting for another process that has a candidate of %s in place", self.state_folder)
            while not use.lock.acquire():  # noqa: ASYNC110 - another process sets no event
                await asyncio.sleep(POLL_S)
        close_at_exit(self)
        try:
            await run_in_thread(lambda: self._saved.hold(self.sources, baseline=baseline, wanted=wanted))
        except BaseException:
            use.lock.release()
            raise
        use.wanted = wanted

    def _restore(self) -> list[RestoreResult]:
        if not self._saved.has_leftovers:
            return []
        if any(use.lock.is_held for use in self._uses.values()):
            return self._saved.restore(self.sources)
        lock = FolderLock(self.state_folder)
        if not lock.acquire_soon():
            _log.info("another process is running under %s and will restore the baseline", self.state_folder)
            return []
        try:
            return self._saved.restore(self.sources)
        finally:
            lock.release()

    async def _ask(self, question: str) -> Json:
        """Call the wrapped function; a synchronous one in a thread, which keeps the sources in use until it returns."""
        function = cast("Callable[[str], Any]", self._wrapped)
        try:
            if is_async(function):
                return await function(question)
            answer = await call_with_sources(function, question)
            return await answer if inspect.isawaitable(answer) else answer
        except SystemExit as error:  # asyncio would end the whole program
            raise AgentError(f"the function called sys.exit({error.code!r})") from error

    def _current_use(self) -> SourceUse:
        return self._uses.setdefault(asyncio.get_running_loop(), SourceUse(self.state_folder))

    def _clear_reads(self, run: AgentRun) -> AgentRun:
        """Mark the surface reads of nodes with sources as unknown, since reading a source is not recorded."""
        outside = {surface_id.partition("#")[0] for surface_id in self.sources}
        trace = run.trace and replace(
            run.trace,
            steps=tuple(
                replace(step, surface_reads=None) if step.node_id in outside else step for step in run.trace.steps
            ),
        )
        return replace(run, trace=trace, turns=tuple(map(self._clear_reads, run.turns)))


@dataclass(frozen=True, slots=True)
class _Description:
    """The structure, the agent behind it, and the baseline bytes of the sources."""

    snapshot: StructureSnapshot
    agent: Agent
    baseline: Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class _FunctionWithSources:
    """A node whose function reads its surfaces from the sources."""

    name: str
    known: tuple[Surface, ...]
    ask: Callable[[str], Awaitable[Json]]
    kind: NodeKind = "agent"

    def surfaces(self, node_id: str) -> tuple[Surface, ...]:
        return tuple(surface for surface in self.known if surface.node_id == node_id)

    async def run(self, context: NodeContext, calls: StepCalls) -> Json:
        calls.step.input = context.input
        return await self.ask(context.input)


def _build_agent(surfaces: tuple[Surface, ...], ask: Callable[[str], Awaitable[Json]]) -> GraphAgent:
    names = sorted({surface.node_id for surface in surfaces})
    if len(names) > 1 or names[0] != escape_segment(names[0]):
        raise SetupError(
            f"a function is one node, but the sources are for surfaces of {', '.join(names)}; name them all after one "
            "node, such as bot#instruction, or wrap an agent"
        )
    return GraphAgent(name=names[0], nodes=(_FunctionWithSources(names[0], surfaces, ask),))
