"""Deletes old runs now and then, while a server runs. Only runs that have ended are deleted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass

from promptiter.errors import PromptiterError
from promptiter.manager import Manager
from promptiter.wording import plural

EVERY_S = 3600.0

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Which runs of each app are kept: those of the last `keep_days`, and the last `keep_last`. Without both, all."""

    keep_days: float | None = None
    keep_last: int | None = None

    async def keep_pruning(
        self,
        manager: Manager,
        *,
        every_s: float = EVERY_S,
        is_in_use: Callable[[str, str], bool] = lambda *_: False,
        on_deleted: Callable[[Collection[str]], Awaitable[None]] | None = None,
    ) -> None:
        """Delete the other runs, at once and then from time to time. Those in use wait for the next time."""
        while self.keep_days is not None or self.keep_last is not None:
            try:
                deleted = await manager.prune(keep_days=self.keep_days, keep_last=self.keep_last, is_in_use=is_in_use)
            except PromptiterError as error:  # such as a database that is down: the next time tries it again
                logger.warning("old runs could not be deleted: %s", error)
            else:
                if deleted:
                    if on_deleted is not None:
                        await on_deleted(deleted)
                    logger.info("deleted %s: %s", plural(len(deleted), "old run"), ", ".join(deleted))
            await asyncio.sleep(every_s)
