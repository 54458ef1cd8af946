"""The structure of a remote agent: fetched once, and compared when the agent may have been started again."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from promptiter.agents.remote.messages import StructureAnswer, read_message
from promptiter.errors import (
    InvalidStructureError,
    ModelUnavailableError,
    ServiceError,
    SetupError,
    StructureMismatchError,
)
from promptiter.structure import StructureSnapshot

Fetch = Callable[[], Awaitable[str]]
"""Sends `GET /structure` and returns the body of the answer."""


class RemoteStructure:
    """The structure of the agent that `fetch` asks. May be used by several threads."""

    def __init__(self, fetch: Fetch, *, sender: str) -> None:
        self._fetch = fetch
        self._sender = sender
        self._known: StructureSnapshot | None = None
        self._lock = threading.Lock()

    def get(self) -> StructureSnapshot:
        """The structure, as it was when it was first asked for. The first call blocks."""
        with self._lock:
            if self._known is None:
                with ThreadPoolExecutor(1) as thread:  # whichever event loop runs in this one
                    self._known = thread.submit(copy_context().run, asyncio.run, self._ask()).result()
            return self._known

    async def check(self) -> None:
        """Ask for the structure again. StructureMismatchError if it is another one than the first time."""
        found = await self._ask()
        with self._lock:
            known = self._known = self._known or found
        if found.structure_id == known.structure_id:
            return
        gone = sorted(set(known.surface_ids) - set(found.surface_ids))
        new = sorted(set(found.surface_ids) - set(known.surface_ids))
        changes = [f"{', '.join(gone)} disappeared"] if gone else []
        changes += [f"{', '.join(new)} appeared"] if new else []
        raise StructureMismatchError(
            f"{self._sender} has another structure than when it was first asked for it: "
            f"{'; '.join(changes) or 'nodes or edges differ'}; serve the agent as it was and resume, or start a new run"
        )

    async def _ask(self) -> StructureSnapshot:
        try:
            raw = await self._fetch()
            return read_message(StructureAnswer, raw, sender=self._sender).structure.build_snapshot()
        except ModelUnavailableError as error:
            raise SetupError(f"{error}; start the agent, or correct its address") from error
        except (ServiceError, InvalidStructureError) as error:
            raise SetupError(f"GET /structure: {error}") from error
