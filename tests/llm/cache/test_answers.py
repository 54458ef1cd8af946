"""Equal calls are made once, also if a cache is slow."""

from __future__ import annotations

import asyncio

from promptiter.llm.cache.answers import Answers, Call, PaidAnswer
from promptiter.llm.cache.cache import CacheKey, MemoryCache
from promptiter.llm.cache.keys import StoredAnswer
from promptiter.llm.ledger import Ledger, Spending
from promptiter.llm.messages import ModelReply
from promptiter.llm.redaction import Redactor
from traces import Usage

REPLY = ModelReply(text="yes", usage=Usage(input_tokens=3, output_tokens=1))


class SlowCache(MemoryCache):
    """A cache whose first look-up reads at once, but returns late, as a database does."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.lookups = 0

    async def get(self, key: CacheKey) -> StoredAnswer | None:
        self.lookups += 1
        is_first = self.lookups == 1
        found = await super().get(key)
        if is_first:
            await self.gate.wait()
        return found


async def test_a_call_that_was_answered_while_the_cache_was_asked_is_not_made_again() -> None:
    cache, made = SlowCache(), 0
    answers = Answers(cache, Ledger(), redactor=Redactor())
    call = Call(CacheKey(role="agent", request_digest="d"), model="m", node_id="n")

    async def make() -> PaidAnswer:
        nonlocal made
        made += 1
        return REPLY, Spending.of_call(REPLY.usage, seconds=0.0)

    async with asyncio.timeout(10):
        late = asyncio.create_task(answers.answer(call, make, is_live=False))
        await asyncio.sleep(0)
        assert await answers.answer(call, make, is_live=False) == REPLY
        cache.gate.set()
        assert await late == REPLY
    assert made == 1
