from __future__ import annotations

import asyncio
import math
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter.errors import BadRequestError, SetupError
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import Cache, CacheKey, FileCache, MemoryCache, StoredAnswer, ToolAnswer, open_cache
from promptiter.llm.cache.call_log import CallLog, read_account
from promptiter.llm.cache.layered import LayeredCache
from promptiter.llm.cache.lines import format_line
from promptiter.llm.gateway import Gateway
from promptiter.llm.ledger import LedgerEntry, LedgerSnapshot, Spending
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from traces import Usage

AGENT = CallSite(role="agent", case_id="c1", step_id="bot")
USAGE = Usage(input_tokens=100, output_tokens=10, cached_input_tokens=40, cost_usd=0.1)
REPLY = ModelReply(text="yes", usage=USAGE)
PAID = LedgerEntry(role="agent", model="m", node_id="bot", spent=Spending.of_call(USAGE, seconds=0.25, attempts=2))
LOST = LedgerEntry(role="agent", model="m", node_id="bot", spent=Spending.of_lost_call(tokens=90, usd=0.5))
NEVER = 3600


def key(number: int = 0) -> CacheKey:
    return CacheKey(role="agent", request_digest=f"request {number}")


def request(text: str = "hi") -> ModelRequest:
    return ModelRequest(model="m", messages=(Message("user", text),))


def read(path: Path) -> bytes:
    return path.read_bytes()


def write(path: Path, raw: bytes) -> None:
    path.write_bytes(raw)


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


def kinds(path: Path) -> list[str]:
    return [next(kind for kind in ("asked", "given_up", "key") if kind in line) for line in lines(path)]


async def others() -> None:
    """Let all other tasks end, also calls in flight that no caller waits for."""
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left)


def ledger_at(path: Path) -> LedgerSnapshot:
    return read_account(path)


def lost_at(path: Path) -> int:
    return ledger_at(path).total.lost_calls


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


@pytest.fixture
def log(path: Path) -> Iterator[CallLog]:
    with closing(CallLog(path)) as opened:
        yield opened


class Unwritable(MemoryCache):
    """A shared cache on a disk that is full."""

    async def put(self, key: CacheKey, answer: StoredAnswer, *, paid: LedgerEntry | None = None) -> StoredAnswer:  # noqa: ARG002
        raise SetupError("the shared cache is full")


async def test_a_line_records_what_was_paid(log: CallLog, path: Path) -> None:
    async with log.asking(key(), lost=LOST):
        pass
    await log.put(key(), REPLY, paid=PAID)
    asked, answered = lines(path)
    assert {name: asked[name] for name in asked if name != "sum"} == {
        "v": 1,
        "asked": key().digest,
        "role": "agent",
        "model": "m",
        "node_id": "bot",
        "tokens": 90,
        "usd": 0.5,
    }
    assert answered["paid"] == {"model": "m", "node_id": "bot", "attempts": 2, "seconds": 0.25}
    assert await log.ledger() == ledger_at(path) == LedgerSnapshot((PAID,))


async def test_the_log_agrees_with_the_ledger(path: Path) -> None:
    def search(query: str) -> str:
        return query

    with closing(CallLog(path)) as log:
        door = Gateway(models={"m": ScriptedModel([REPLY, "unpriced", ModelReply(text="x", usage=USAGE)])}, cache=log)
        await door.ask(request("1"), AGENT, node_id="bot")
        await door.ask(request("2"), AGENT, node_id="writer")
        await door.ask(request("3"), CallSite(role="judge"))
        await door.call_tool("search", {"query": "x"}, search, AGENT, node_id="bot")
        counted = door.ledger.snapshot()
        assert await log.ledger() == counted
        await door.ask(request("1"), AGENT, node_id="bot")
        assert await log.ledger() == counted
    assert ledger_at(path) == counted
    assert counted.total.calls == 4
    assert counted.of_models.calls == 3


async def test_a_plain_cache_on_the_same_file_skips_lines_that_are_not_answers(log: CallLog, path: Path) -> None:
    async with log.asking(key(), lost=LOST):
        pass
    await log.put(key(), REPLY, paid=PAID)
    with closing(FileCache(path)) as cache:
        assert await cache.get(key()) == REPLY
        assert cache.stats().entries == log.stats().entries == 1


async def test_answers_of_older_logs_cost_nothing(path: Path) -> None:
    with closing(FileCache(path)) as cache:
        await cache.put(key(), REPLY)
    assert ledger_at(path) == LedgerSnapshot()


async def test_a_call_that_failed_is_given_up_and_costs_nothing(path: Path) -> None:
    async def refuse(_: list[dict[str, Any]]) -> str:
        raise BadRequestError("no")

    with closing(CallLog(path)) as log:
        door = Gateway(models={"m": refuse}, cache=log)
        with pytest.raises(BadRequestError):
            await door.ask(request(), AGENT)
        assert door.ledger.snapshot() == LedgerSnapshot()
    assert kinds(path) == ["asked", "given_up"]
    assert ledger_at(path) == LedgerSnapshot()


@pytest.mark.parametrize("turns", [*range(6), None])
async def test_a_call_that_was_cancelled_is_lost_only_if_it_was_sent(path: Path, turns: int | None) -> None:
    is_called = asyncio.Event()

    async def hang(_: list[dict[str, Any]]) -> str:
        is_called.set()
        await asyncio.sleep(NEVER)
        return ""

    with closing(CallLog(path)) as log:
        door = Gateway(models={"m": hang}, cache=log)
        call = asyncio.create_task(door.ask(request(), AGENT))
        for _ in range(turns or 0):
            await asyncio.sleep(0)
        if turns is None:
            await is_called.wait()
        call.cancel()
        await others()
        assert call.cancelled()
    assert kinds(path) in ([], ["asked", "given_up"])
    assert lost_at(path) == door.ledger.snapshot().total.lost_calls == is_called.is_set()


async def test_a_call_that_waits_for_a_slot_is_not_logged_as_asked(path: Path) -> None:
    both = asyncio.Barrier(3)

    async def hang(_: list[dict[str, Any]]) -> str:
        await both.wait()
        await asyncio.sleep(NEVER)
        return ""

    with closing(CallLog(path)) as log:
        door = Gateway(models={"m": hang}, cache=log, concurrency=2)
        calls = [asyncio.create_task(door.ask(request(str(number)), AGENT)) for number in range(9)]
        await both.wait()
        assert kinds(path) == ["asked"] * 2
        assert (await log.ledger()).total.lost_calls == 0  # the process lives
        assert lost_at(path) == 2  # another that looks now takes it for killed
        for call in calls:
            call.cancel()
        await others()


def run_until_killed(path: str, started: Connection) -> None:
    async def run() -> None:
        async def answer(messages: list[dict[str, Any]]) -> ModelReply:
            if "hang" in messages[-1]["content"]:
                started.send("in flight")
                await asyncio.sleep(NEVER)
            return REPLY

        door = Gateway(models={"m": answer}, cache=CallLog(path))
        await door.ask(request("1"), AGENT, node_id="bot")
        await asyncio.gather(*(door.ask(request(f"hang {n}"), AGENT, node_id="bot") for n in range(3)))

    asyncio.run(run())


@pytest.mark.slow
async def test_calls_in_flight_at_a_kill_are_counted_and_made_again(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    hear, tell = context.Pipe(duplex=False)
    run = context.Process(target=run_until_killed, args=(str(path), tell))
    run.start()
    for _ in range(3):
        assert hear.recv() == "in flight"
    run.kill()
    run.join()
    [entry] = ledger_at(path).entries
    assert (entry.role, entry.model, entry.node_id) == ("agent", "m", "bot")
    assert (entry.spent.calls, entry.spent.cost_usd, entry.spent.lost_calls) == (1, 0.1, 3)
    with closing(CallLog(path)) as log:
        door = Gateway(models={"m": ScriptedModel([REPLY, REPLY])}, cache=log)
        for text in ("1", "hang 0", "hang 2"):  # the first is known
            await door.ask(request(text), AGENT, node_id="bot")
        assert (await log.ledger()).total == door.ledger.snapshot().total + entry.spent - Spending(cache_hits=1)
    assert entry.spent.possible_tokens > 3 * 4096  # the most that each answer may have
    assert ledger_at(path).total.lost_calls == 3  # also the next time, though two were answered since
    assert ledger_at(path).total.calls == 3


async def test_a_resumed_run_continues_with_the_remaining_budget(path: Path) -> None:
    with closing(CallLog(path)) as log:
        await Gateway(models={"m": ScriptedModel([REPLY])}, cache=log).ask(request("1"), AGENT)
    with closing(CallLog(path)) as log:
        budget = Budget(max_calls=2)
        budget.charge((await log.ledger()).of_models, of="run")
        door = Gateway(models={"m": ScriptedModel([REPLY])}, cache=log, budget=budget)
        for text in ("1", "2"):
            await door.ask(request(text), AGENT)
        assert budget.state.calls == 2


async def test_the_last_line_may_be_torn_at_any_byte(path: Path) -> None:
    with closing(CallLog(path)) as log:
        for number in range(2):
            async with log.asking(key(number), lost=LOST):
                pass
            await log.put(key(number), REPLY, paid=PAID)
    whole = read(path)
    ends = [place for place, byte in enumerate(whole, 1) if byte == ord("\n")]
    for size in [*range(0, len(whole), 23), *ends]:
        write(path, whole[:size])
        complete = sum(end <= size for end in ends)
        total = ledger_at(path).total
        assert (total.calls, total.lost_calls) == ((0, 0), (0, 1), (1, 0), (1, 1), (2, 0))[complete]


async def test_a_torn_line_does_not_lose_the_lines_after_it(path: Path) -> None:
    write(path, b'{"sum":"torn' * 100)
    with closing(CallLog(path)) as log:
        async with log.asking(key(), lost=LOST):
            assert await log.ledger() == LedgerSnapshot()
        await log.put(key(), ModelReply(text="long" * 1000, usage=USAGE), paid=PAID)
        assert await log.ledger() == LedgerSnapshot((PAID,))


async def test_a_damaged_answer_is_a_lost_call(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with closing(CallLog(path)) as log:
        async with log.asking(key(), lost=LOST):
            pass
        await log.put(key(), REPLY, paid=PAID)
    write(path, read(path).replace(b'"yes"', b'"yet"'))
    with closing(CallLog(path)) as log:
        assert (await log.ledger()).total == ledger_at(path).total == LOST.spent
    assert "is damaged" in caplog.text


async def test_an_answer_paid_twice_counts_twice_and_is_not_lost(path: Path, log: CallLog) -> None:
    other = ModelReply(text="no", usage=Usage(input_tokens=1, output_tokens=1, cost_usd=0.02))
    paid = LedgerEntry(role="agent", model="m", node_id="bot", spent=Spending.of_call(other.usage))
    for answer, receipt in ((REPLY, PAID), (other, paid)):
        async with log.asking(key(), lost=LOST):
            pass
        assert await log.put(key(), answer, paid=receipt) == REPLY
    assert kinds(path) == ["asked", "key", "asked", "given_up"]
    assert ledger_at(path).total == PAID.spent + paid.spent


async def test_an_answer_that_cannot_be_stored_still_counts_as_paid(path: Path, log: CallLog) -> None:
    async with log.asking(key(), lost=LOST):
        pass
    with pytest.raises(SetupError, match="NaN"):
        await log.put(key(), ToolAnswer(math.nan), paid=PAID)
    assert kinds(path) == ["asked", "given_up"]
    assert ledger_at(path).total == PAID.spent


async def test_runs_share_answers_and_each_accounts_for_what_it_paid(tmp_path: Path) -> None:
    shared = tmp_path / "shared.sqlite"
    script = ["one", "two"]
    for run, (known, calls) in enumerate([(0, 2), (2, 0)]):
        with closing(LayeredCache(CallLog(tmp_path / f"{run}.jsonl"), open_cache(shared))) as log:
            door = Gateway(models={"m": ScriptedModel(script[:calls])}, cache=log)
            assert [(await door.ask(request(text), AGENT)).text for text in "12"] == script
            assert (door.ledger.snapshot().total.cache_hits, log.stats().hits) == (known, known)
            assert log.stats().entries == 2
        assert ledger_at(tmp_path / f"{run}.jsonl").total.calls == calls
    shared.unlink()
    with closing(CallLog(tmp_path / "1.jsonl")) as log:  # the run no longer needs the shared cache
        door = Gateway(models={"m": ScriptedModel([])}, cache=log)
        assert [(await door.ask(request(text), AGENT)).text for text in "12"] == script


async def test_the_first_answer_of_the_shared_cache_wins_and_what_was_paid_stays_paid(tmp_path: Path) -> None:
    first = ModelReply(text="first", usage=Usage(input_tokens=9, output_tokens=9, cost_usd=9.0))
    shared = MemoryCache()
    with closing(LayeredCache(CallLog(tmp_path / "calls.jsonl"), shared)) as log:
        await shared.put(key(), first)
        async with log.asking(key(), lost=LOST):
            pass
        assert await log.put(key(), REPLY, paid=PAID) == first
        assert await log.get(key()) == first
    assert ledger_at(tmp_path / "calls.jsonl") == LedgerSnapshot((PAID,))


async def test_an_answer_that_the_shared_cache_refuses_is_in_the_log(path: Path) -> None:
    with closing(LayeredCache(CallLog(path), Unwritable())) as log:
        with pytest.raises(SetupError, match="the shared cache is full"):
            await log.put(key(), REPLY, paid=PAID)
        assert await log.get(key()) == REPLY
    assert ledger_at(path) == LedgerSnapshot((PAID,))


async def test_syncing_reaches_the_shared_cache_and_closing_does_not(path: Path) -> None:
    done: list[str] = []

    class Shared(MemoryCache):
        async def sync(self) -> None:
            done.append("synced")

        def close(self) -> None:
            done.append("closed")

    with closing(LayeredCache(CallLog(path), Shared())) as log:
        await log.sync()
    assert done == ["synced"]


async def test_a_call_is_not_made_if_it_cannot_be_logged(path: Path) -> None:
    with closing(CallLog(path)) as log:
        door = Gateway(models={"m": ScriptedModel([])}, cache=log)
        await log.put(key(), REPLY)
        os.truncate(path, 3)
        with pytest.raises(SetupError, match="to 3 bytes"):
            await door.ask(request(), AGENT)


@pytest.mark.parametrize("make", [lambda _: MemoryCache(), FileCache, lambda path: open_cache(path.with_suffix(".db"))])
async def test_other_caches_write_nothing_when_a_call_starts(path: Path, make: Callable[[Path], Cache]) -> None:
    with closing(make(path)) as cache:
        before = cache.stats().bytes
        async with cache.asking(key(), lost=LOST):
            assert cache.stats().bytes == before


async def test_a_line_of_another_version_is_refused(path: Path) -> None:
    write(path, format_line(b'{"v":2,"asked":"k"}'))
    with pytest.raises(SetupError, match="has version 2, this release reads 1"):
        ledger_at(path)


@pytest.mark.long
async def test_any_byte_of_the_log_may_be_damaged(path: Path) -> None:
    with closing(CallLog(path)) as log:
        for number in range(2):
            async with log.asking(key(number), lost=LOST):
                pass
            await log.put(key(number), REPLY, paid=PAID)
    whole = read(path)
    first = len(b"".join(whole.splitlines(keepends=True)[:1]))
    for place in range(len(whole)):
        for flipped in (0x01, 0x20, 0x80):
            write(path, whole[:place] + bytes([whole[place] ^ flipped]) + whole[place + 1 :])
            total = ledger_at(path).total
            assert total.calls + total.lost_calls in (1, 2)
    for place in range(first, first + 24):  # the beginning of an answer, where its checksum is
        write(path, whole[:place] + bytes([whole[place] ^ 0x01]) + whole[place + 1 :])
        with closing(CallLog(path)) as log:
            assert (await log.get(key(0)), await log.get(key(1))) == (None, REPLY)
            assert await log.put(key(0), REPLY, paid=PAID) == REPLY
