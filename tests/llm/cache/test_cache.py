from __future__ import annotations

import asyncio
import gc
import math
import multiprocessing
import os
import re
import sqlite3
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from types import MappingProxyType

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.llm.cache.cache import (
    Cache,
    CacheKey,
    FileCache,
    MemoryCache,
    SqliteCache,
    StoredAnswer,
    ToolAnswer,
    open_cache,
)
from promptiter.llm.cache.call_log import CallLog
from promptiter.llm.cache.keys import encode_answer
from promptiter.llm.cache.layered import LayeredCache
from promptiter.llm.cache.lines import format_line, is_intact
from promptiter.llm.messages import CallSite, ModelReply, ToolRequest
from tests.traces.strategies import json_values, texts, usages
from traces import Usage

KEY = CacheKey(role="agent", request_digest="d", case_id="c", repeat=1, step_id="planner~2", number=3)
REPLY = ModelReply(text="yes", usage=Usage(input_tokens=3, output_tokens=1, cost_usd=0.1))

keys = st.builds(
    CacheKey,
    role=st.sampled_from(["agent", "judge"]),
    request_digest=texts,
    case_id=texts,
    repeat=st.integers(0, 5),
    step_id=texts,
    number=st.integers(0, 5),
)
replies = st.builds(
    ModelReply,
    text=texts,
    tool_requests=st.lists(st.builds(ToolRequest, id=texts, name=texts, arguments=json_values), max_size=2).map(tuple),
    usage=usages.map(lambda usage: usage or Usage()),
    finish_reason=texts,
    extra=st.dictionaries(texts, json_values, max_size=2),
)
answers = replies | st.builds(ToolAnswer, value=json_values, error=st.none() | texts)


def key(number: int) -> CacheKey:
    return CacheKey(role="agent", request_digest=f"request {number}")


ROOT = Path(__file__).parents[3]
ON_DISK = ["cache.jsonl", "cache.sqlite", "calls.jsonl", "sharing.jsonl"]


def open_at(path: Path) -> Cache:
    """Open the cache at a path: two of them are logs of a run, one of which shares a cache."""
    if path.name == "calls.jsonl":
        return CallLog(path)
    if path.stem == "sharing":
        return LayeredCache(CallLog(path), open_cache(path.with_suffix(".db")))
    return open_cache(path)


@pytest.fixture(params=["memory", *ON_DISK])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cache]:
    cache = open_cache("memory") if request.param == "memory" else open_at(tmp_path / request.param)
    yield cache
    cache.close()


@pytest.fixture(params=ON_DISK)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def test_the_suffix_of_a_path_selects_the_cache(tmp_path: Path) -> None:
    for name, kind in (("a.jsonl", FileCache), ("a.sqlite", SqliteCache), ("a.db", SqliteCache)):
        found = open_cache(tmp_path / name)
        found.close()
        assert type(found) is kind
    assert type(open_cache("memory")) is MemoryCache
    with pytest.raises(SetupError, match=r"'calls.pickle' is of an unknown kind; give 'memory' or a path in .jsonl"):
        open_cache("calls.pickle")


def test_every_field_of_an_agent_call_is_part_of_its_key() -> None:
    others = [
        CacheKey(role="judge", request_digest="d", repeat=1),
        CacheKey(role="agent", request_digest="e", case_id="c", repeat=1, step_id="planner~2", number=3),
        CacheKey(role="agent", request_digest="d", case_id="b", repeat=1, step_id="planner~2", number=3),
        CacheKey(role="agent", request_digest="d", case_id="c", repeat=2, step_id="planner~2", number=3),
        CacheKey(role="agent", request_digest="d", case_id="c", repeat=1, step_id="planner", number=3),
        CacheKey(role="agent", request_digest="d", case_id="c", repeat=1, step_id="planner~2", number=4),
        CacheKey(role="agent", request_digest="d", case_id="c", repeat=1, step_id="planner~2", number=3, seed=1),
    ]
    assert len({KEY.digest, *(other.digest for other in others)}) == 8
    assert CacheKey.of(CallSite(case_id="c", repeat=1, step_id="planner~2", number=3), "d") == KEY


def test_key_digests_stay_the_same_across_releases() -> None:
    assert KEY.digest == "21f0e79ff466b188b950efcb0a1d6ac379eadb075d6c88685d86111dd0d1a4bc"


def test_other_roles_ask_the_same_question_once_per_repeat() -> None:
    first = CacheKey.of(CallSite(role="judge", case_id="a", step_id="x", number=1), "d")
    second = CacheKey.of(CallSite(role="judge", case_id="b", step_id="y", number=2), "d")
    assert (first, first.digest) == (second, second.digest)
    assert first.digest != CacheKey.of(CallSite(role="judge", case_id="a", repeat=1), "d").digest
    assert first.digest != CacheKey.of(CallSite(role="judge", case_id="a"), "d", seed=1).digest


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(st.tuples(keys, answers), max_size=5))
def test_answers_come_back_equal(
    tmp_path_factory: pytest.TempPathFactory, many: list[tuple[CacheKey, StoredAnswer]]
) -> None:
    async def check(where: str | Path) -> None:
        cache = open_at(where) if isinstance(where, Path) else open_cache(where)
        first: dict[CacheKey, StoredAnswer] = {}
        for at, answer in many:
            assert await cache.put(at, answer) == first.setdefault(at, answer)
        if isinstance(where, Path):
            cache.close()
            cache = open_at(where)
        assert {at: await cache.get(at) for at in first} == first
        assert cache.stats().entries == cache.stats().hits == len(first)
        cache.close()

    folder = tmp_path_factory.mktemp("cache")
    asyncio.run(check("memory"))
    for name in ON_DISK:
        asyncio.run(check(folder / name))


async def test_the_first_answer_of_a_key_wins(cache: Cache) -> None:
    assert await cache.get(KEY) is None
    assert await cache.put(KEY, REPLY) == REPLY
    assert await cache.put(KEY, ModelReply(text="no")) == REPLY
    assert await cache.get(KEY) == REPLY
    assert cache.stats().entries == 1
    assert cache.stats().hits == 1
    assert cache.stats().bytes > 0


async def test_put_returns_what_a_replay_will_get(cache: Cache) -> None:
    value = {"pair": (1, 2), "proxy": MappingProxyType({"a": 1})}
    kept = await cache.put(KEY, ToolAnswer(value))
    assert kept == await cache.get(KEY) == ToolAnswer({"pair": [1, 2], "proxy": {"a": 1}})
    value["pair"] = (3,)
    assert kept == await cache.get(KEY)


async def test_half_an_emoji_does_not_lose_a_paid_answer(cache: Cache) -> None:
    assert await cache.put(KEY, ModelReply(text="good \ud83d")) == ModelReply(text="good ?")


@pytest.mark.parametrize("value", [math.nan, [{"a": math.inf}], object(), {1: 2}, 2**64])
async def test_values_that_json_cannot_represent_are_rejected(cache: Cache, value: object) -> None:
    with pytest.raises(SetupError, match="an answer of 'planner~2' "):
        await cache.put(KEY, ToolAnswer(value))
    assert await cache.get(KEY) is None


@pytest.mark.slow
async def test_many_tasks_that_put_one_key_get_one_answer(cache: Cache) -> None:
    got = await asyncio.gather(*(cache.put(KEY, ModelReply(text=str(number))) for number in range(50)))
    assert len(set(map(repr, got))) == 1


async def test_a_cancelled_put_is_kept(path: Path) -> None:
    cache = open_at(path)
    tasks = [asyncio.ensure_future(cache.put(key(number), REPLY)) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert cache.stats().entries == 50
    cache.close()


async def test_an_answer_is_visible_at_once_to_another_cache_on_the_same_path(path: Path) -> None:
    first, second = open_at(path), open_at(path)
    assert await second.get(KEY) is None
    await first.put(KEY, REPLY)
    await first.sync()
    assert await second.get(KEY) == REPLY
    assert await second.put(KEY, ModelReply(text="no")) == REPLY
    await second.put(key(1), REPLY)
    assert await first.get(key(1)) == REPLY
    first.close()
    second.close()


def write_200(
    path: str, worker: int, meet: Callable[[float], object], results: multiprocessing.Queue[list[str]]
) -> None:
    async def write() -> list[str]:
        cache = open_at(Path(path))
        got = []
        for number in range(200):
            meet(60.0)  # so that all four write this key at once
            got.append(await cache.put(key(number), ModelReply(text=f"worker {worker}" * 50)))
        again = [await cache.get(key(number)) for number in range(200)]
        assert got == again
        cache.close()
        return [answer.text for answer in got if isinstance(answer, ModelReply)]

    results.put(asyncio.run(write()))


@pytest.mark.slow
def test_four_processes_agree_on_every_answer(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(4), context.Queue()
    workers = [
        context.Process(target=write_200, args=(str(path), worker, barrier.wait, results)) for worker in range(4)
    ]
    for worker in workers:
        worker.start()
    got = [results.get(timeout=120) for _ in workers]
    for worker in workers:
        worker.join()
    assert len(got[0]) == 200
    assert got == [got[0]] * 4
    cache = open_at(path)
    assert cache.stats().entries == 200
    cache.close()
    if path.suffix == ".jsonl":
        assert len(path.read_bytes().splitlines()) == 200


def write_forever(path: str, written: Connection) -> None:
    async def write() -> None:
        cache = open_at(Path(path))
        for number in count():
            await cache.put(key(number), ModelReply(text=f"{number} " * 1000))
            written.send(number)

    asyncio.run(write())


@pytest.mark.slow
async def test_stored_answers_survive_a_sigkill(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    hear, tell = context.Pipe(duplex=False)
    writer = context.Process(target=write_forever, args=(str(path), tell))
    writer.start()
    tell.close()
    numbers = [hear.recv() for _ in range(100)]
    writer.kill()
    writer.join()
    with suppress(EOFError):
        while True:
            numbers.append(hear.recv())
    cache = open_at(path)
    kept = [await cache.get(key(number)) for number in numbers]
    assert kept == [ModelReply(text=f"{number} " * 1000) for number in numbers]
    assert len(numbers) <= cache.stats().entries <= len(numbers) + 1
    cache.close()


async def test_lines_are_json_that_people_can_read(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "calls.jsonl")
    await cache.put(KEY, REPLY)
    line = orjson.loads((tmp_path / "calls.jsonl").read_bytes())
    assert line["v"] == 1
    assert line["call"] == {
        "role": "agent",
        "request_digest": "d",
        "case_id": "c",
        "repeat": 1,
        "step_id": "planner~2",
        "number": 3,
    }
    assert line["model"]["text"] == "yes"
    cache.close()


@pytest.mark.slow
async def test_a_line_torn_at_any_byte_is_dropped_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    cache = FileCache(path)
    await cache.put(key(1), REPLY)
    whole = path.stat().st_size
    await cache.put(key(2), REPLY)
    cache.close()
    written = path.read_bytes()
    for size in range(whole, len(written), 7):
        path.write_bytes(written[:size])
        cache = FileCache(path)
        assert await cache.get(key(1)) == REPLY
        assert await cache.get(key(2)) is None
        await cache.put(key(3), REPLY)
        assert await cache.put(key(2), REPLY) == REPLY
        cache.close()
        again = FileCache(path)
        assert [await again.get(key(number)) for number in (1, 2, 3)] == [REPLY] * 3
        again.close()
        assert len(path.read_bytes().splitlines()) == 3


async def test_a_damaged_line_is_skipped_with_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "calls.jsonl"
    cache = FileCache(path)
    for number in range(3):
        await cache.put(key(number), REPLY)
    cache.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"yes", b"yet") + lines[2])
    cache = FileCache(path)
    assert [await cache.get(key(number)) for number in range(3)] == [REPLY, None, REPLY]
    assert f"the line at byte {len(lines[0])} is damaged" in caplog.text
    assert await cache.put(key(1), ModelReply(text="new")) == ModelReply(text="new")
    cache.close()


async def test_a_file_truncated_while_in_use_is_a_typed_error(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "calls.jsonl")
    await cache.put(key(1), REPLY)
    os.truncate(tmp_path / "calls.jsonl", 20)
    with pytest.raises(SetupError, match="was changed at byte 0 while in use"):
        await cache.get(key(1))
    with pytest.raises(SetupError, match="to 20 bytes while in use"):
        await cache.get(key(2))
    cache.close()


async def test_the_file_is_indexed_and_not_held_in_memory(tmp_path: Path) -> None:
    cache = FileCache(tmp_path / "calls.jsonl")
    for number in range(100):
        await cache.put(key(number), ModelReply(text="x" * 200_000))
    cache.close()
    tracemalloc.start()
    cache = FileCache(tmp_path / "calls.jsonl")
    assert await cache.get(key(99)) is not None
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.stats().bytes > 20_000_000
    assert held < 1_500_000
    cache.close()


GROW = """
import asyncio, resource, sys
from promptiter.llm.cache.cache import FileCache, CacheKey
from promptiter.llm.messages import ModelReply

async def main():
    cache = FileCache(sys.argv[1])
    start = 0
    for end in (2_000, 22_000):
        for number in range(start, end, 50):
            keys = [CacheKey(role="agent", request_digest=str(each)) for each in range(number, number + 50)]
            await asyncio.gather(*(cache.put(key, ModelReply(text="yes")) for key in keys))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
        start = end
    cache.close()

asyncio.run(main())
"""


@pytest.mark.long
def test_memory_does_not_grow_with_the_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROW, tmp_path / "a.jsonl"], capture_output=True, text=True, check=True
    )
    early, late = map(int, done.stdout.split())
    per_answer = (late - early) * 1024 / 20_000
    assert per_answer < 120  # while the bounded cache fills; a dictionary of places takes 300 bytes an answer


@pytest.mark.slow
async def test_a_long_file_is_indexed_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with path.open("wb") as file:
        file.writelines(format_line(encode_answer(key(number), REPLY)) for number in range(20_000))
    tracemalloc.start()
    cache = FileCache(path)
    assert await cache.get(key(19_999)) == REPLY
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert cache.stats().entries == 20_000
    assert peak < 3_000_000  # the buffer, and a batch of places
    cache.close()


async def test_the_first_of_two_lines_with_the_same_key_wins(tmp_path: Path) -> None:
    path = tmp_path / "joined.jsonl"
    path.write_bytes(b"".join(format_line(encode_answer(KEY, ModelReply(text=text))) for text in ("one", "two")))
    cache = FileCache(path)
    assert await cache.get(KEY) == ModelReply(text="one")
    assert cache.stats().entries == 1
    cache.close()


FULL = """
import asyncio, os, resource, sys
from pathlib import Path
from promptiter.errors import SetupError
from promptiter.llm.cache.cache import CacheKey
from promptiter.llm.messages import ModelReply
from tests.llm.cache.test_cache import open_at

async def main():
    cache = open_at(Path(sys.argv[1]))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    key = lambda number: CacheKey(role="agent", request_digest=str(number))
    kept = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    for number in range(100):
        try:
            kept.append(await cache.put(key(number), ModelReply(text=str(number) * 5_000)))
        except SetupError as error:
            print(error)
            break
    assert 10 < len(kept) < 100
    assert [await cache.get(key(number)) for number in range(len(kept))] == kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    late = await cache.put(key(number), ModelReply(text="late"))
    cache.close()
    again = open_at(Path(sys.argv[1]))
    assert [await again.get(key(number)) for number in range(len(kept))] == kept
    assert await again.get(key(number)) == late
    assert again.stats().entries == len(kept) + 1
    again.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_a_full_disk_is_a_typed_error_and_leaves_the_cache_whole(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.match(r"the cache '.*' could not be written: .*; free some space and resume the run\n", done.stdout)
    assert "incomplete" not in done.stderr
    if path.suffix == ".jsonl":
        assert all(map(is_intact, path.read_bytes().splitlines(keepends=True)))


async def test_a_newer_cache_is_refused(tmp_path: Path) -> None:
    newer = b'"v":2,"other":1}'
    (tmp_path / "a.jsonl").write_bytes(b'{"sum":"%s",%s\n' % (sha256(newer).hexdigest()[:8].encode(), newer))
    cache = FileCache(tmp_path / "a.jsonl")
    with pytest.raises(SetupError, match="has version 2, this release reads 1"):
        await cache.get(KEY)
    cache.close()
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(SetupError, match="has version 2, this release reads 1"):
        SqliteCache(tmp_path / "a.db")


async def read_all(path: Path) -> None:
    cache = SqliteCache(path)
    try:
        for number in range(200):
            await cache.get(key(number))
    finally:
        cache.close()


@pytest.mark.parametrize("size", [50, 3000, 20_000])
async def test_a_truncated_database_is_a_typed_error(tmp_path: Path, size: int) -> None:
    path = tmp_path / "calls.sqlite"
    cache = SqliteCache(path)
    for number in range(200):
        await cache.put(key(number), REPLY)
    cache.close()
    assert path.stat().st_size > 40_000
    os.truncate(path, size)
    with pytest.raises(SetupError, match=r"calls.sqlite' is damaged .*: move it away and run again"):
        await read_all(path)


def test_a_database_held_by_another_is_a_typed_error(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SetupError, match="is locked by another process"):
        SqliteCache(tmp_path / "a.db", busy_timeout_s=0.05)
    other.close()


@pytest.mark.parametrize("name", ["a.jsonl", "a.sqlite"])
def test_a_path_that_cannot_be_opened_is_a_typed_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=rf"file/{name}' cannot be used: .*; check its folder"):
        open_cache(tmp_path / "file" / name)
    (tmp_path / "folder" / name).mkdir(parents=True)
    with pytest.raises(SetupError, match=rf"folder/{name}' cannot be used: .*; check its folder"):
        open_cache(tmp_path / "folder" / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.sqlite"])
def test_missing_folders_are_created(tmp_path: Path, name: str) -> None:
    open_cache(tmp_path / ".promptiter" / "shared" / name).close()
    assert (tmp_path / ".promptiter" / "shared" / name).exists()


def test_closing_twice_is_harmless(cache: Cache) -> None:
    cache.close()
    cache.close()


@pytest.mark.slow
async def test_a_cache_that_is_not_closed_closes_with_its_last_reference(tmp_path: Path) -> None:
    """A connection that is still open when it is collected is a ResourceWarning in Python 3.13."""
    files, database = FileCache(tmp_path / "a.jsonl"), SqliteCache(tmp_path / "a.db")
    for cache in (files, database):
        await cache.put(KEY, REPLY)
        cache._worker.submit(int).result()  # until now the worker's thread may hold a reference from the last call
    file, index, connection = files._file, files._index, database._database
    del cache, files, database
    gc.collect()
    assert file.closed
    for use in (lambda: len(index), lambda: connection.execute("SELECT 1")):
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            use()
