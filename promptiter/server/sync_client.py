"""Client: AsyncClient for synchronous code. It works in notebooks, too."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from promptiter.concurrency import get_background_loop
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunResult
from promptiter.server.bodies import RunListBody
from promptiter.server.client import AsyncClient
from promptiter.server.client_errors import ServerError
from promptiter.server.patience import PATIENCE_S
from promptiter.server.refine_bodies import RefinementState, StartedRefinementBody
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace
from traces.model import Json

T = TypeVar("T")


class Client:
    """AsyncClient for synchronous code."""

    def __init__(
        self,
        url: str,
        *,
        app: str,
        token: str | None = None,
        timeout_s: float = 60.0,
        patience_s: float = PATIENCE_S,
        on_wait: Callable[[ServerError], None] | None = None,
        was_reached: bool = False,
    ) -> None:
        self._client = AsyncClient(
            url,
            app=app,
            token=token,
            timeout_s=timeout_s,
            patience_s=patience_s,
            on_wait=on_wait,
            was_reached=was_reached,
        )

    def describe(self) -> StructureSnapshot:
        """What may change about the agent."""
        return _wait_for(self._client.describe())

    def run(self, changes: Mapping[str, Json] | None = None) -> RunResult:
        """Start a run, and wait for its result."""
        return _wait_for(self._client.run(changes))

    def start(self, changes: Mapping[str, Json] | None = None) -> RunResult:
        """Start a run with these changes to the app's promptiter.yaml, and return its state: queued."""
        return _wait_for(self._client.start(changes))

    def get(self, run_id: str) -> RunResult:
        """The state of a run, finished or in progress."""
        return _wait_for(self._client.get(run_id))

    def list(self, **filters: Json) -> RunListBody:
        """A page of runs, newest first; see AsyncClient.list."""
        return _wait_for(self._client.list(**filters))

    def cancel(self, run_id: str) -> RunResult:
        """Cancel a run. Its finished rounds stay."""
        return _wait_for(self._client.cancel(run_id))

    def resume(self, run_id: str) -> RunResult:
        """Continue a run that was cancelled, stopped or interrupted, or that failed."""
        return _wait_for(self._client.resume(run_id))

    def delete(self, run_id: str) -> None:
        """Delete a run that is not in progress."""
        _wait_for(self._client.delete(run_id))

    def get_trace(self, run_id: str, trace_digest: str) -> ExecutionTrace:
        """A trace of a run."""
        return _wait_for(self._client.get_trace(run_id, trace_digest))

    def stop(self, run_id: str) -> RunResult:
        """Stop a run after the work in progress. It can be resumed."""
        return _wait_for(self._client.stop(run_id))

    def refine(self, run_id: str, **wanted: Json) -> StartedRefinementBody:
        """Refine the output of a case of a run that has ended, in the background; see AsyncClient.refine."""
        return _wait_for(self._client.refine(run_id, **wanted))

    def list_refinements(self, run_id: str) -> Sequence[RefinementState]:
        """The refinements of a run, oldest first."""
        return _wait_for(self._client.list_refinements(run_id))

    def get_report(self, run_id: str) -> str:
        """The report of a run as an HTML page."""
        return _wait_for(self._client.get_report(run_id))

    def export(self, run_id: str, folder: str | os.PathLike[str], *, traces: bool = True) -> None:
        """Write a copy of a run to a new folder, which `promptiter show`, `report` and `apply` read."""
        _wait_for(self._client.export(run_id, folder, traces=traces))

    def list_apps(self) -> Sequence[str]:
        """The apps of the server. A server with tokens keeps them to itself."""
        return _wait_for(self._client.list_apps())

    def wait(self, run_id: str) -> RunResult:
        """Wait until a run ends, and return its result."""
        return _wait_for(self._client.wait(run_id))

    def watch(self, run_id: str, *, after: int = -1) -> Iterator[Event]:
        """Yield the events of a run as they happen, until it ends."""
        events = self._client.watch(run_id, after=after)
        try:
            while (event := _wait_for(_next(events))) is not None:
                yield event
        finally:
            _wait_for(events.aclose())

    def close(self) -> None:
        """Close the connections."""
        _wait_for(self._client.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


async def _next(events: AsyncIterator[Event]) -> Event | None:
    return await anext(events, None)


def _wait_for(call: Coroutine[Any, Any, T]) -> T:
    """The result of a call, which is made in the event loop of a background thread."""
    return asyncio.run_coroutine_threadsafe(call, get_background_loop()).result()
