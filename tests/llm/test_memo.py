from __future__ import annotations

import asyncio
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
from promptiter.llm.answers import encode_answer
from promptiter.llm.call_log import CallLog
from promptiter.llm.memo import FileMemo, Memo, MemoKey, MemoryMemo, SqliteMemo, StoredAnswer, ToolAnswer, open_memo
from promptiter.llm.memo_lines import as_line, is_sound
from promptiter.llm.messages import CallSite, ModelReply, ToolRequest
from tests.traces.strategies import json_values, texts, usages
from traces import Usage

KEY = MemoKey(role="agent", request_digest="d", case_id="c", draw=1, step_id="planner~2", number=3)
REPLY = ModelReply(text="yes", usage=Usage(input_tokens=3, output_tokens=1, cost_usd=0.1))

keys = st.builds(
    MemoKey,
    role=st.sampled_from(["agent", "judge"]),
    request_digest=texts,
    case_id=texts,
    draw=st.integers(0, 5),
    step_id=texts,
    number=st.integers(0, 5),
)
replies = st.builds(
    ModelReply,
    text=texts,
    tool_requests=st.lists(st.builds(ToolRequest, id=texts, name=texts, arguments=json_values), max_size=2).map(tuple),
    usage=usages.map(lambda usage: usage or Usage()),
    finish_reason=texts,
)
answers = replies | st.builds(ToolAnswer, value=json_values, error=st.none() | texts)


def key(number: int) -> MemoKey:
    return MemoKey(role="agent", request_digest=f"request {number}")


ROOT = Path(__file__).parents[2]
ON_DISK = ["memo.jsonl", "memo.sqlite", "calls.jsonl", "sharing.jsonl"]


def opened(path: Path) -> Memo:
    """The memo that a path stands for: two of them are logs of a run, one of which shares a memo."""
    if path.name == "calls.jsonl":
        return CallLog(path)
    return CallLog(path, shared=open_memo(path.with_suffix(".db"))) if path.stem == "sharing" else open_memo(path)


@pytest.fixture(params=["memory", *ON_DISK])
def memo(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memo]:
    memo = open_memo("memory") if request.param == "memory" else opened(tmp_path / request.param)
    yield memo
    memo.close()


@pytest.fixture(params=ON_DISK)
def path(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return tmp_path / str(request.param)


def test_a_path_says_which_memo_it_is(tmp_path: Path) -> None:
    for name, kind in (("a.jsonl", FileMemo), ("a.sqlite", SqliteMemo), ("a.db", SqliteMemo)):
        found = open_memo(tmp_path / name)
        found.close()
        assert type(found) is kind
    assert type(open_memo("memory")) is MemoryMemo
    with pytest.raises(SetupError, match=r"'calls.pickle' is: give 'memory' or a path in .jsonl"):
        open_memo("calls.pickle")


def test_every_field_of_an_agent_call_is_part_of_its_key() -> None:
    others = [
        MemoKey(role="judge", request_digest="d", draw=1),
        MemoKey(role="agent", request_digest="e", case_id="c", draw=1, step_id="planner~2", number=3),
        MemoKey(role="agent", request_digest="d", case_id="b", draw=1, step_id="planner~2", number=3),
        MemoKey(role="agent", request_digest="d", case_id="c", draw=2, step_id="planner~2", number=3),
        MemoKey(role="agent", request_digest="d", case_id="c", draw=1, step_id="planner", number=3),
        MemoKey(role="agent", request_digest="d", case_id="c", draw=1, step_id="planner~2", number=4),
    ]
    assert len({KEY.digest, *(other.digest for other in others)}) == 7
    assert MemoKey.of(CallSite(case_id="c", draw=1, step_id="planner~2", number=3), "d") == KEY


def test_the_digest_of_a_key_stays_what_it_was_when_memos_were_written() -> None:
    assert KEY.digest == "21f0e79ff466b188b950efcb0a1d6ac379eadb075d6c88685d86111dd0d1a4bc"


def test_other_roles_ask_the_same_question_once_per_draw() -> None:
    first = MemoKey.of(CallSite(role="judge", case_id="a", step_id="x", number=1), "d")
    second = MemoKey.of(CallSite(role="judge", case_id="b", step_id="y", number=2), "d")
    assert (first, first.digest) == (second, second.digest)
    assert first.digest != MemoKey.of(CallSite(role="judge", case_id="a", draw=1), "d").digest


@settings(max_examples=40)
@given(st.lists(st.tuples(keys, answers), max_size=5))
def test_answers_come_back_equal(
    tmp_path_factory: pytest.TempPathFactory, many: list[tuple[MemoKey, StoredAnswer]]
) -> None:
    async def check(where: str | Path) -> None:
        memo = opened(where) if isinstance(where, Path) else open_memo(where)
        first: dict[MemoKey, StoredAnswer] = {}
        for at, answer in many:
            assert await memo.put(at, answer) == first.setdefault(at, answer)
        if isinstance(where, Path):
            memo.close()
            memo = opened(where)
        assert {at: await memo.get(at) for at in first} == first
        assert memo.stats().entries == memo.stats().hits == len(first)
        memo.close()

    folder = tmp_path_factory.mktemp("memo")
    asyncio.run(check("memory"))
    for name in ON_DISK:
        asyncio.run(check(folder / name))


async def test_the_first_answer_of_a_key_wins(memo: Memo) -> None:
    assert await memo.get(KEY) is None
    assert await memo.put(KEY, REPLY) == REPLY
    assert await memo.put(KEY, ModelReply(text="no")) == REPLY
    assert await memo.get(KEY) == REPLY
    assert memo.stats().entries == 1
    assert memo.stats().hits == 1
    assert memo.stats().bytes > 0


async def test_put_gives_what_a_replay_will_get(memo: Memo) -> None:
    value = {"pair": (1, 2), "proxy": MappingProxyType({"a": 1})}
    kept = await memo.put(KEY, ToolAnswer(value))
    assert kept == await memo.get(KEY) == ToolAnswer({"pair": [1, 2], "proxy": {"a": 1}})
    value["pair"] = (3,)
    assert kept == await memo.get(KEY)


async def test_half_an_emoji_does_not_lose_an_answer_that_was_paid(memo: Memo) -> None:
    assert await memo.put(KEY, ModelReply(text="good \ud83d")) == ModelReply(text="good ?")


@pytest.mark.parametrize("value", [math.nan, [{"a": math.inf}], object(), {1: 2}, 2**64])
async def test_what_json_cannot_hold_is_refused(memo: Memo, value: object) -> None:
    with pytest.raises(SetupError, match="an answer at 'planner~2' "):
        await memo.put(KEY, ToolAnswer(value))
    assert await memo.get(KEY) is None


async def test_many_tasks_that_put_one_key_get_one_answer(memo: Memo) -> None:
    got = await asyncio.gather(*(memo.put(KEY, ModelReply(text=str(number))) for number in range(50)))
    assert len(set(map(repr, got))) == 1


async def test_a_cancelled_put_is_kept(path: Path) -> None:
    memo = opened(path)
    tasks = [asyncio.ensure_future(memo.put(key(number), REPLY)) for number in range(50)]
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert memo.stats().entries == 50
    memo.close()


async def test_another_memo_on_the_same_path_sees_an_answer_at_once(path: Path) -> None:
    first, second = opened(path), opened(path)
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
        memo = opened(Path(path))
        got = []
        for number in range(200):
            meet(60.0)  # so that all four write this key at once
            got.append(await memo.put(key(number), ModelReply(text=f"worker {worker}" * 50)))
        again = [await memo.get(key(number)) for number in range(200)]
        assert got == again
        memo.close()
        return [answer.text for answer in got if isinstance(answer, ModelReply)]

    results.put(asyncio.run(write()))


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
    memo = opened(path)
    assert memo.stats().entries == 200
    memo.close()
    if path.suffix == ".jsonl":
        assert len(path.read_bytes().splitlines()) == 200


def write_forever(path: str, told: Connection) -> None:
    async def write() -> None:
        memo = opened(Path(path))
        for number in count():
            await memo.put(key(number), ModelReply(text=f"{number} " * 1000))
            told.send(number)

    asyncio.run(write())


async def test_what_put_returned_survives_a_sigkill(path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    hear, tell = context.Pipe(duplex=False)
    writer = context.Process(target=write_forever, args=(str(path), tell))
    writer.start()
    tell.close()
    told = [hear.recv() for _ in range(100)]
    writer.kill()
    writer.join()
    with suppress(EOFError):
        while True:
            told.append(hear.recv())
    memo = opened(path)
    kept = [await memo.get(key(number)) for number in told]
    assert kept == [ModelReply(text=f"{number} " * 1000) for number in told]
    assert len(told) <= memo.stats().entries <= len(told) + 1
    memo.close()


async def test_lines_are_json_that_people_can_read(tmp_path: Path) -> None:
    memo = FileMemo(tmp_path / "calls.jsonl")
    await memo.put(KEY, REPLY)
    line = orjson.loads((tmp_path / "calls.jsonl").read_bytes())
    assert line["v"] == 1
    assert line["call"] == {
        "role": "agent",
        "request_digest": "d",
        "case_id": "c",
        "draw": 1,
        "step_id": "planner~2",
        "number": 3,
    }
    assert line["model"]["text"] == "yes"
    memo.close()


async def test_a_line_torn_at_any_byte_is_dropped_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    memo = FileMemo(path)
    await memo.put(key(1), REPLY)
    whole = path.stat().st_size
    await memo.put(key(2), REPLY)
    memo.close()
    written = path.read_bytes()
    for size in range(whole, len(written), 7):
        path.write_bytes(written[:size])
        memo = FileMemo(path)
        assert await memo.get(key(1)) == REPLY
        assert await memo.get(key(2)) is None
        await memo.put(key(3), REPLY)
        assert await memo.put(key(2), REPLY) == REPLY
        memo.close()
        again = FileMemo(path)
        assert [await again.get(key(number)) for number in (1, 2, 3)] == [REPLY] * 3
        again.close()
        assert len(path.read_bytes().splitlines()) == 3


async def test_a_damaged_line_is_skipped_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "calls.jsonl"
    memo = FileMemo(path)
    for number in range(3):
        await memo.put(key(number), REPLY)
    memo.close()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[1].replace(b"yes", b"yet") + lines[2])
    memo = FileMemo(path)
    assert [await memo.get(key(number)) for number in range(3)] == [REPLY, None, REPLY]
    assert f"the line at byte {len(lines[0])} is damaged" in caplog.text
    assert await memo.put(key(1), ModelReply(text="new")) == ModelReply(text="new")
    memo.close()


async def test_a_file_cut_while_in_use_is_a_typed_error(tmp_path: Path) -> None:
    memo = FileMemo(tmp_path / "calls.jsonl")
    await memo.put(key(1), REPLY)
    os.truncate(tmp_path / "calls.jsonl", 20)
    with pytest.raises(SetupError, match="was changed at byte 0 while in use"):
        await memo.get(key(1))
    with pytest.raises(SetupError, match="was cut to 20 bytes while in use"):
        await memo.get(key(2))
    memo.close()


async def test_the_file_is_indexed_not_held(tmp_path: Path) -> None:
    memo = FileMemo(tmp_path / "calls.jsonl")
    for number in range(100):
        await memo.put(key(number), ModelReply(text="x" * 200_000))
    memo.close()
    tracemalloc.start()
    memo = FileMemo(tmp_path / "calls.jsonl")
    assert await memo.get(key(99)) is not None
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memo.stats().bytes > 20_000_000
    assert held < 1_500_000
    memo.close()


GROW = """
import asyncio, resource, sys
from promptiter.llm.memo import FileMemo, MemoKey
from promptiter.llm.messages import ModelReply

async def main():
    memo = FileMemo(sys.argv[1])
    start = 0
    for end in (2_000, 22_000):
        for number in range(start, end, 50):
            keys = [MemoKey(role="agent", request_digest=str(each)) for each in range(number, number + 50)]
            await asyncio.gather(*(memo.put(key, ModelReply(text="yes")) for key in keys))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)
        start = end
    memo.close()

asyncio.run(main())
"""


def test_memory_does_not_grow_with_the_answers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", GROW, tmp_path / "a.jsonl"], capture_output=True, text=True, check=True
    )
    early, late = map(int, done.stdout.split())
    per_answer = (late - early) * 1024 / 20_000
    assert per_answer < 120  # while the bounded cache fills; a dictionary of places takes 300 bytes an answer


async def test_a_long_file_is_indexed_as_a_stream(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    with path.open("wb") as file:
        file.writelines(as_line(encode_answer(key(number), REPLY)) for number in range(20_000))
    tracemalloc.start()
    memo = FileMemo(path)
    assert await memo.get(key(19_999)) == REPLY
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert memo.stats().entries == 20_000
    assert peak < 3_000_000  # the buffer, and a batch of places
    memo.close()


async def test_of_two_lines_with_one_key_the_first_counts(tmp_path: Path) -> None:
    path = tmp_path / "joined.jsonl"
    path.write_bytes(b"".join(as_line(encode_answer(KEY, ModelReply(text=text))) for text in ("one", "two")))
    memo = FileMemo(path)
    assert await memo.get(KEY) == ModelReply(text="one")
    assert memo.stats().entries == 1
    memo.close()


FULL = """
import asyncio, os, resource, sys
from pathlib import Path
from promptiter.errors import SetupError
from promptiter.llm.memo import MemoKey
from promptiter.llm.messages import ModelReply
from tests.llm.test_memo import opened

async def main():
    memo = opened(Path(sys.argv[1]))
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    key = lambda number: MemoKey(role="agent", request_digest=str(number))
    kept = []
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    for number in range(100):
        try:
            kept.append(await memo.put(key(number), ModelReply(text=str(number) * 5_000)))
        except SetupError as error:
            print(error)
            break
    assert 10 < len(kept) < 100
    assert [await memo.get(key(number)) for number in range(len(kept))] == kept
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    late = await memo.put(key(number), ModelReply(text="late"))
    memo.close()
    again = opened(Path(sys.argv[1]))
    assert [await again.get(key(number)) for number in range(len(kept))] == kept
    assert await again.get(key(number)) == late
    assert again.stats().entries == len(kept) + 1
    again.close()

asyncio.run(main())
"""


def test_a_full_disk_is_a_typed_error_and_leaves_the_memo_whole(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, path], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.match(r"the memo '.*' could not be written: .*; make room and resume the run\n", done.stdout)
    assert "torn" not in done.stderr
    if path.suffix == ".jsonl":
        assert all(map(is_sound, path.read_bytes().splitlines(keepends=True)))


async def test_a_newer_memo_is_refused(tmp_path: Path) -> None:
    newer = b'"v":2,"other":1}'
    (tmp_path / "a.jsonl").write_bytes(b'{"sum":"%s",%s\n' % (sha256(newer).hexdigest()[:8].encode(), newer))
    memo = FileMemo(tmp_path / "a.jsonl")
    with pytest.raises(SetupError, match="has version 2, this release reads 1"):
        await memo.get(KEY)
    memo.close()
    with sqlite3.connect(tmp_path / "a.db") as database:
        database.execute("PRAGMA user_version = 2")
    database.close()
    with pytest.raises(SetupError, match="has version 2, this release reads 1"):
        SqliteMemo(tmp_path / "a.db")


async def read_all(path: Path) -> None:
    memo = SqliteMemo(path)
    try:
        for number in range(200):
            await memo.get(key(number))
    finally:
        memo.close()


@pytest.mark.parametrize("size", [50, 3000, 20_000])
async def test_a_truncated_database_is_a_typed_error(tmp_path: Path, size: int) -> None:
    path = tmp_path / "calls.sqlite"
    memo = SqliteMemo(path)
    for number in range(200):
        await memo.put(key(number), REPLY)
    memo.close()
    assert path.stat().st_size > 40_000
    os.truncate(path, size)
    with pytest.raises(SetupError, match=r"calls.sqlite' is damaged .*: move it away and run again"):
        await read_all(path)


def test_a_database_held_by_another_is_a_typed_error(tmp_path: Path) -> None:
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(SetupError, match="is held by another process"):
        SqliteMemo(tmp_path / "a.db", busy_timeout_s=0.05)
    other.close()


@pytest.mark.parametrize("name", ["a.jsonl", "a.sqlite"])
def test_a_path_that_cannot_be_opened_is_a_typed_error(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SetupError, match=rf"file/{name}' cannot be used: .*; check its folder"):
        open_memo(tmp_path / "file" / name)
    (tmp_path / "folder" / name).mkdir(parents=True)
    with pytest.raises(SetupError, match=rf"folder/{name}' cannot be used: .*; check its folder"):
        open_memo(tmp_path / "folder" / name)


@pytest.mark.parametrize("name", ["a.jsonl", "a.sqlite"])
def test_folders_that_are_missing_are_made(tmp_path: Path, name: str) -> None:
    open_memo(tmp_path / ".promptiter" / "shared" / name).close()
    assert (tmp_path / ".promptiter" / "shared" / name).exists()


def test_closing_twice_is_harmless(memo: Memo) -> None:
    memo.close()
    memo.close()
