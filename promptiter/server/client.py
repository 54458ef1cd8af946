"""AsyncClient: a server, from Python. Client is the same for synchronous code.

    with Client("https://runs.example", app="desk", token=token) as client:
        run = client.start({"max_rounds": 4})
        for event in client.watch(run.run_id):
            print(event.type)
        print(client.get(run.run_id).verdict)

A stream that is cut off continues after the last event that arrived. While a server is away, such as during a restart,
requests that change nothing are made again for `patience_s` seconds. A request that changes something is made again
only if no connection could be made, so that nothing was sent.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar
from urllib.parse import quote

import orjson

from promptiter.concurrency import run_in_thread
from promptiter.runlog.event_json import decode_event
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunResult
from promptiter.server.bodies import RunListBody
from promptiter.server.client_errors import ARCHIVE, BASE_PATH, JSON, PAGE, STREAM, ServerError, read_body
from promptiter.server.client_transport import ClientTransport
from promptiter.server.patience import FIRST_PAUSE_S, PATIENCE_S, Patience
from promptiter.server.refine_bodies import RefinementListBody, RefinementState, StartedRefinementBody
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace
from traces.documents import from_json
from traces.model import Json

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")


class AsyncClient:
    """One app of a server. Its methods raise ServerError.

    `on_wait` is called when the server is away and waited for; without it, that is logged. A server that `was_reached`
    before, by another client, gets all the patience from the start.
    """

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
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._place = f"{BASE_PATH}/{quote(app, safe='')}"
        self._transport = ClientTransport(
            url,
            token=token,
            timeout_s=timeout_s,
            patience_s=patience_s,
            on_wait=on_wait,
            was_reached=was_reached,
            transport=transport,
        )

    async def describe(self) -> StructureSnapshot:
        """What may change about the agent."""
        return await self._get("/structure", lambda body: StructureSnapshot.from_json(body["structure"]))

    async def run(self, changes: Mapping[str, Json] | None = None) -> RunResult:
        """Start a run, and wait for its result."""
        started = await self.start(changes)
        return await self.wait(started.run_id)

    async def start(self, changes: Mapping[str, Json] | None = None) -> RunResult:
        """Start a run with these changes to the app's promptiter.yaml, and return its state: queued."""
        return await self._post("/async-runs", _read_result, {"run": dict(changes or {})})

    async def get(self, run_id: str) -> RunResult:
        """The state of a run, finished or in progress."""
        return await self._get(_locate(run_id), _read_result)

    async def list(self, **filters: Json) -> RunListBody:
        """A page of runs, newest first. Filters: status, verdict, created_from, created_before, text, limit, cursor."""
        given = {name: value for name, value in filters.items() if value is not None}
        return await self._get("/async-runs", RunListBody.model_validate, params=given)

    async def cancel(self, run_id: str) -> RunResult:
        """Cancel a run. Its finished rounds stay."""
        return await self._post(f"{_locate(run_id)}/cancel", _read_result)

    async def resume(self, run_id: str) -> RunResult:
        """Continue a run that was cancelled, stopped or interrupted, or that failed."""
        return await self._post(f"{_locate(run_id)}/resume", _read_result)

    async def delete(self, run_id: str) -> None:
        """Delete a run that is not in progress."""
        await self._send("DELETE", _locate(run_id), kind=None)

    async def get_trace(self, run_id: str, trace_digest: str) -> ExecutionTrace:
        """A trace of a run."""
        return from_json(await self._send("GET", f"{_locate(run_id)}/traces/{quote(trace_digest, safe='')}"))

    async def stop(self, run_id: str) -> RunResult:
        """Stop a run after the work in progress. It can be resumed."""
        return await self._post(f"{_locate(run_id)}/stop", _read_result)

    async def refine(self, run_id: str, **wanted: Json) -> StartedRefinementBody:
        """Refine the output of a case of a run that has ended, in the background.

        Keys: case, iterations, tier_low, tier_mid, tier_high, model, worker_model.
        """
        given = {name: value for name, value in wanted.items() if value is not None}
        return await self._post(f"{_locate(run_id)}/refine", StartedRefinementBody.model_validate, given)

    async def list_refinements(self, run_id: str) -> Sequence[RefinementState]:
        """The refinements of a run, oldest first."""
        return (await self._get(f"{_locate(run_id)}/refinements", RefinementListBody.model_validate)).refinements

    async def get_report(self, run_id: str) -> str:
        """The report of a run as an HTML page."""
        return (await self._send("GET", f"{_locate(run_id)}/report", kind=PAGE)).decode()

    async def export(self, run_id: str, folder: str | os.PathLike[str], *, traces: bool = True) -> None:
        """Write a copy of a run to a new folder, which `promptiter show`, `report` and `apply` read."""
        from promptiter.runs.run_copy import unpack_copy

        with tempfile.TemporaryFile() as file:
            place = f"{self._place}{_locate(run_id)}/archive"
            await self._transport.load(place, file, params={"traces": traces}, kind=ARCHIVE)
            await run_in_thread(lambda: unpack_copy(file, Path(folder)))

    async def list_apps(self) -> Sequence[str]:
        """The apps of the server. A server with tokens keeps them to itself."""
        return read_body(await self._transport.send("GET", "/health"), lambda body: list(map(str, body["apps"])))

    async def wait(self, run_id: str) -> RunResult:
        """Wait until a run ends, and return its result."""
        async for _ in self.watch(run_id):
            pass
        return await self.get(run_id)

    async def watch(self, run_id: str, *, after: int = -1) -> AsyncGenerator[Event]:
        """Yield the events of a run as they happen, until it ends."""
        patience = self._transport.begin()
        while True:
            try:
                async with aclosing(self._stream(run_id, after, patience)) as events:
                    async for event in events:
                        if event is None:
                            return
                        after = event.seq
                        yield event
                await asyncio.sleep(FIRST_PAUSE_S)  # the server stops, or a proxy has ended the stream
            except ServerError as error:
                await patience.wait(error)

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _stream(self, run_id: str, after: int, patience: Patience) -> AsyncGenerator[Event | None]:
        """The events of one connection; None at the end of the run."""
        place = f"{self._place}{_locate(run_id)}/events"
        async with self._transport.open(place, params={"after": after}, kind=STREAM) as answer:
            patience.reached()
            kind = b""
            async for line in _split_lines(answer.aiter_bytes()):
                name, _, value = line.partition(b": ")
                if name == b"event":
                    kind = value
                elif name == b"data" and kind == b"end":
                    yield None
                elif name == b"data":
                    yield decode_event(value, where=f"an event of the run {run_id!r}")

    async def _get(
        self, place: str, read: Callable[[dict[str, Any]], T], *, params: Mapping[str, Json] | None = None
    ) -> T:
        return read_body(await self._send("GET", place, params=params), read)

    async def _post(self, place: str, read: Callable[[dict[str, Any]], T], body: Json = None) -> T:
        return read_body(await self._send("POST", place, body=body), read)

    async def _send(
        self,
        method: str,
        place: str,
        *,
        params: Mapping[str, Json] | None = None,
        body: Json = None,
        kind: str | None = JSON,
    ) -> bytes:
        return await self._transport.send(method, f"{self._place}{place}", params=params, body=body, kind=kind)


async def _split_lines(chunks: AsyncIterable[bytes]) -> AsyncGenerator[bytes]:
    """The lines of a stream of events. Those of httpx also end at U+2028 and others, which JSON may contain."""
    begun = b""
    async for chunk in chunks:
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            yield (begun + line).removesuffix(b"\r")
            begun = b""
        begun += rest


def _locate(run_id: str) -> str:
    return f"/async-runs/{quote(run_id, safe='')}"


def _read_result(body: Mapping[str, Any]) -> RunResult:
    return RunResult.from_json(orjson.dumps(body["result"]))
