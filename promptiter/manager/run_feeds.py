"""RunFeeds: those who watch a run in this process share what is read of it. New events are read from the store once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

from promptiter.runlog.events import Event
from promptiter.runs.store import RunView

KEPT = 64
"""The newest events of a run that are shared. Who is further behind reads the store at their own pace."""


@dataclass(eq=False)
class RunFeed:
    """The newest events of a run. `end` is the number after them; None before the store was asked."""

    events: deque[Event] = field(default_factory=lambda: deque(maxlen=KEPT))
    end: int | None = None
    is_over: bool = False
    watchers: int = 0
    reading: asyncio.Task[None] | None = None
    _waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def add(self, event: Event) -> None:
        self.events.append(event)
        self.end = event.seq + 1
        self.wake()

    def wake(self) -> None:
        for each in self._waiting:
            if not each.done():
                each.set_result(None)
        self._waiting.clear()

    async def wait(self) -> None:
        """Wait for the next event, or for the end. Raises what the reading of the store raised."""
        if self.reading is not None and self.reading.done():
            self.reading.result()
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(turn)
        try:
            await turn
        finally:
            self._waiting.discard(turn)


class RunFeeds:
    """The feeds of the runs of one store that are watched. `wait_for_news` returns when a look at a run is due."""

    def __init__(
        self, is_in_progress: Callable[[RunView], Awaitable[bool]], wait_for_news: Callable[[str], Awaitable[None]]
    ) -> None:
        self._is_in_progress = is_in_progress
        self._wait_for_news = wait_for_news
        self._feeds: dict[str, RunFeed] = {}

    async def watch(self, view: RunView, *, after: int) -> AsyncGenerator[Event]:
        """Yield the events of a run as they happen, from the one after a number on, until the run ends."""
        feed, start = self._join(view), after + 1
        try:
            while True:
                if feed.end is None or (start >= feed.end and not feed.is_over):
                    await feed.wait()
                elif start >= feed.end:
                    return
                elif start >= feed.end - len(feed.events):
                    event = feed.events[start - feed.end]
                    start += 1
                    yield event
                else:
                    first = start
                    async for event in view.read(start):
                        start = event.seq + 1
                        yield event
                    if start == first:  # it was deleted
                        return
        finally:
            self._leave(view.header.run_id, feed)

    def _join(self, view: RunView) -> RunFeed:
        run_id = view.header.run_id
        feed = self._feeds.get(run_id)
        if feed is None or feed.reading is None or feed.reading.done():
            feed = self._feeds[run_id] = RunFeed()
            feed.reading = asyncio.create_task(self._keep_reading(feed, view), name=f"feed of {run_id}")
            feed.reading.add_done_callback(lambda _: feed.wake())
        feed.watchers += 1
        return feed

    def _leave(self, run_id: str, feed: RunFeed) -> None:
        feed.watchers -= 1
        if feed.watchers == 0:
            assert feed.reading is not None, "it has been joined"
            feed.reading.cancel()
            if self._feeds.get(run_id) is feed:
                del self._feeds[run_id]

    async def _keep_reading(self, feed: RunFeed, view: RunView) -> None:
        last = await view.last()
        feed.end = 0 if last is None else last.seq + 1
        feed.wake()
        while not feed.is_over:
            is_over = not await self._is_in_progress(view)
            async for event in view.read(feed.end):
                feed.add(event)
            feed.is_over = is_over
            if not is_over:
                await self._wait_for_news(view.header.run_id)
