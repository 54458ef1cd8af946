"""Results as JSON: encoded once per change, for all who poll."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from promptiter.manager import encoded_results
from promptiter.manager.encoded_results import EncodedResults, SharedCalls
from promptiter.runlog.results import RunResult
from tests.manager.test_manager import GatedRun, expected_result, managing

pytestmark = pytest.mark.slow


async def test_a_result_is_encoded_once_per_version() -> None:
    now = 0.0
    results = EncodedResults(now=lambda: now)
    result = await name_result("run")
    assert results.find("run", "succeeded", (1,)) is None
    encoded = await results.encode(result, (1,))
    assert RunResult.from_json(encoded.body) == result
    assert results.find("run", "succeeded", (1,)) is encoded
    assert results.find("run", "succeeded", (2,)) is None
    assert (await results.encode(result, (2,))).tag == encoded.tag, "equal content has equal tags"
    results.forget("run")
    assert results.find("run", "succeeded", (2,)) is None


async def test_the_result_of_a_run_in_progress_may_be_a_moment_old() -> None:
    times = iter([0.0, 0.1, 0.3, 0.7])  # it takes 0.1 s, and is used for 0.5 s
    results = EncodedResults(now=lambda: next(times))
    encoded = await results.encode(replace(await name_result("run"), status="running"), (1,))
    assert results.find("run", "running", (2,)) is encoded
    assert results.find("run", "succeeded", (2,)) is None, "an end is seen at once"
    assert results.find("run", "running", (2,)) is None


async def test_what_is_kept_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    results = EncodedResults()
    result = await name_result("a")
    size = len((await results.encode(result, ())).body)
    monkeypatch.setattr(encoded_results, "MAX_BYTES", 5 * size // 2)
    for name in ("b", "c"):
        await results.encode(await name_result(name), ())
    assert [results.find(name, "succeeded", ()) is not None for name in "abc"] == [False, True, True]
    monkeypatch.setattr(encoded_results, "MAX_BYTES", 10)
    assert (await results.encode(result, ())).body
    assert results.find("a", "succeeded", ()) is None


async def test_calls_that_arrive_during_a_call_share_the_next_one() -> None:
    shared: SharedCalls[int] = SharedCalls()
    gates = [asyncio.Event() for _ in range(3)]
    begun = 0

    async def work() -> int:
        nonlocal begun
        begun += 1
        number = begun
        await gates[number - 1].wait()
        return number

    first = asyncio.create_task(shared.call("run", work))
    await asyncio.sleep(0)
    later = [asyncio.create_task(shared.call("run", work)) for _ in range(10)]
    await asyncio.sleep(0)
    assert begun == 1
    later[0].cancel()
    gates[0].set()
    await asyncio.sleep(0.01)
    last = asyncio.create_task(shared.call("run", work))
    gates[1].set()
    gates[2].set()
    assert (await first, [await each for each in later[1:]], await last) == (1, [2] * 9, 3)
    assert begun == 3
    assert not shared._current
    assert not shared._next


async def test_an_error_is_for_those_who_wait_and_not_for_the_next() -> None:
    shared: SharedCalls[int] = SharedCalls()

    async def fail() -> int:
        raise OSError("the database is gone")

    async def answer() -> int:
        return 1

    found = await asyncio.gather(*(shared.call("run", fail) for _ in range(3)), return_exceptions=True)
    assert [str(each) for each in found] == ["the database is gone"] * 3
    assert await shared.call("run", answer) == 1


async def test_a_run_in_progress_is_polled_and_its_end_is_seen_at_once() -> None:
    gated = GatedRun(free=6)
    async with managing(gated.engine) as manager:
        run_id = (await manager.start(gated.request)).run_id
        await gated.waits.wait()
        polled = await asyncio.gather(*(manager.get_encoded(run_id) for _ in range(20)))
        assert {each.status for each in polled} == {"running"}
        assert len({id(each.body) for each in polled}) == 1, "all of them got the same bytes"
        gated.gate.set()
        async for _ in manager.watch(run_id):
            pass
        ended = await manager.get_encoded(run_id)
        assert (ended.status, RunResult.from_json(ended.body)) == ("succeeded", await expected_result())


async def name_result(run_id: str) -> RunResult:
    result = await expected_result()
    return replace(result, measured=replace(result.measured, run_id=run_id))
