"""Events of a run as server-sent events. A client that was cut off continues after the last id that it has seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

from promptiter.errors import UnknownRunError
from promptiter.manager import Manager
from promptiter.runlog.event_json import encode_event
from promptiter.runlog.events import Event

PAUSE_S = 15.0
"""After so long without an event, a comment is sent, so that proxies keep the connection."""


async def stream_events(manager: Manager, app: str, run_id: str, *, after: int) -> AsyncGenerator[bytes]:
    """Yield the events after a number as they happen; at the end of the run, `event: end` with its status.

    If the server stops, the stream ends without it, and the client continues elsewhere. If the run was deleted, the
    stream ends without it, too, and the client learns why when it asks again.
    """
    async with aclosing(manager.watch(run_id, after=after, app=app)) as events:
        coming = asyncio.ensure_future(anext(events, None))
        try:
            while True:
                done, _ = await asyncio.wait([coming], timeout=PAUSE_S)
                if not done:
                    yield b": waiting\n\n"
                    continue
                event = coming.result()
                if event is None:
                    break
                yield _format(event)
                coming = asyncio.ensure_future(anext(events, None))
        finally:
            coming.cancel()
            await asyncio.wait([coming])
    try:
        result = await manager.get_encoded(run_id, app=app)
    except UnknownRunError:
        return
    if result.status in ("queued", "running"):
        return
    yield b'event: end\ndata: {"status":"%s"}\n\n' % result.status.encode()


def _format(event: Event) -> bytes:
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event.seq, event.type.encode(), encode_event(event))
