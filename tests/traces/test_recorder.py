from __future__ import annotations

import asyncio
import contextvars
import itertools
import math
import random
import weakref
from collections.abc import AsyncGenerator, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from traces import (
    AmbiguousStepError,
    Blob,
    BrokenTraceError,
    EmptyTraceError,
    ExecutionTrace,
    Failure,
    NoActiveRecordingError,
    Recording,
    Snapshot,
    Step,
    UnknownPredecessorError,
    Usage,
    current_step,
    digest,
    read_surface,
    read_traces,
    record,
    step,
    write_traces,
)
from traces.snapshots import INLINE_LIMIT, take_snapshot


def shape(trace: ExecutionTrace) -> dict[str, tuple[str, ...]]:
    return {recorded.id: recorded.predecessors for recorded in trace.steps}


def recording(**options: Any) -> Recording:
    ticks = itertools.count(1)
    return record("t", clock=lambda: next(ticks), **options)


async def node(name: str, **options: Any) -> str:
    with step(name, **options) as current:
        await asyncio.sleep(random.random() / 200)
        current.output = name.upper()
    return name.upper()


def test_steps_in_sequence_follow_each_other() -> None:
    with recording() as live:
        with step("plan", kind="llm", input="hi", attributes={"a": 1}) as plan:
            plan.output = {"goal": 1}
            plan.usage = Usage(input_tokens=3)
        with step("answer"):
            pass
    [plan_step, answer] = live.trace.steps
    assert (plan_step.input, plan_step.output) == (Snapshot("hi"), Snapshot(data={"goal": 1}))
    assert (plan_step.kind, plan_step.usage, plan_step.attributes) == ("llm", Usage(input_tokens=3), {"a": 1})
    assert (plan_step.start_ns, plan_step.end_ns) == (1, 2)
    assert answer.predecessors == ("plan",)
    assert live.trace.status == "completed"


async def working_example(live: Recording) -> None:
    """Plan, retrieve and compose in parallel, review, rewrite once, again, finalize."""
    for is_last in (False, True):
        await node("planner")
        async with asyncio.TaskGroup() as group:
            group.create_task(node("retrieve"))
            group.create_task(node("compose"))
        await node("reviewer")
        if not is_last:
            await node("rewrite")
    await node("finalize")


@pytest.mark.parametrize("seed", range(5))
async def test_fan_out_join_and_loop_whatever_the_timing(seed: int) -> None:
    random.seed(seed)
    with recording() as live:
        await working_example(live)
    assert shape(live.trace) == {
        "planner": (),
        "retrieve": ("planner",),
        "compose": ("planner",),
        "reviewer": ("compose", "retrieve"),
        "rewrite": ("reviewer",),
        "planner~2": ("rewrite",),
        "retrieve~2": ("planner~2",),
        "compose~2": ("planner~2",),
        "reviewer~2": ("compose~2", "retrieve~2"),
        "finalize": ("reviewer~2",),
    }


async def test_an_indexed_fan_out_is_joined() -> None:
    async def chain(index: int) -> None:
        await node("research", index=index)
        await node("summarize", index=index)

    with recording() as live:
        await node("split")
        await asyncio.gather(*(chain(index) for index in range(3)))
        await node("merge")
    found = shape(live.trace)
    assert found["research[1]"] == ("split",)
    assert found["summarize[2]"] == ("research[2]",)
    assert found["merge"] == ("summarize[0]", "summarize[1]", "summarize[2]")


async def test_parallel_visits_without_an_index_are_rejected_whatever_the_timing() -> None:
    async def late(seconds: float) -> None:
        await asyncio.sleep(seconds)
        await node("research")

    for pause in (0.0, 0.05):  # overlapping, and one clearly after the other
        with pytest.raises(AmbiguousStepError, match="index=i"), recording():
            await asyncio.gather(late(0), late(pause))


async def test_tasks_awaited_one_by_one_look_parallel_and_say_after() -> None:
    """A task started after another has ended cannot be distinguished from one started beside it."""

    async def twice() -> None:
        with recording():
            await asyncio.create_task(node("plan"))
            await asyncio.create_task(node("plan"))

    with pytest.raises(AmbiguousStepError, match="after="):
        await twice()
    with recording() as live:
        latest: list[str] = []
        for visit in ("plan", "plan~2", "plan~3"):
            await asyncio.create_task(node("plan", after=latest))
            latest = [visit]
        await node("end")
    assert shape(live.trace)["plan~3"] == ("plan~2",)
    assert shape(live.trace)["end"] == ("plan~3",)


async def test_a_loop_under_timeouts_is_a_loop() -> None:
    with recording() as live:
        for _ in range(3):
            async with asyncio.timeout(5):
                await node("plan")
                await node("review")
    assert shape(live.trace)["plan~3"] == ("review~2",)


async def test_branches_that_ran_no_step_change_nothing() -> None:
    with recording() as live:
        await node("a")
        await asyncio.gather(asyncio.sleep(0), asyncio.create_task(asyncio.sleep(0)))
        await node("b")
    assert shape(live.trace)["b"] == ("a",)


async def test_branches_of_branches_are_joined() -> None:
    async def branch(name: str) -> None:
        await asyncio.gather(node(f"{name}1"), node(f"{name}2"))

    with recording() as live:
        await node("start")
        await asyncio.gather(branch("x"), branch("y"))
        await node("end")
    assert shape(live.trace)["end"] == ("x1", "x2", "y1", "y2")


async def test_a_branch_that_outlives_a_step_is_joined_later() -> None:
    async def slow() -> None:
        await asyncio.sleep(0.02)
        await node("background")

    with recording() as live:
        await node("start")
        task = asyncio.create_task(slow())
        await node("middle")
        await task
        await node("end")
    assert shape(live.trace)["middle"] == ("start",)
    assert shape(live.trace)["end"] == ("background", "middle")


def test_an_outer_step_follows_its_nested_steps() -> None:
    with recording() as live:
        with step("ask"):
            pass
        with step("agent", kind="agent"):
            with step("agent/think"):
                pass
            with step("tool"):
                pass
            with step("agent/think"):
                pass
        with step("end"):
            pass
    assert shape(live.trace) == {
        "ask": (),
        "agent/think": ("ask",),
        "agent/tool": ("agent/think",),
        "agent/think~2": ("agent/tool",),
        "agent": ("agent/think~2",),
        "end": ("agent",),
    }
    assert [visit.node_id for visit in live.trace.steps if "think" in visit.id] == ["agent/think"] * 2


def test_after_names_the_predecessors() -> None:
    with recording() as live:
        with step("a") as a:
            pass
        with step("b"):
            pass
        with step("c", after=[a]):
            pass
        with step("d", after=["b", "c"]):
            pass
        with step("e", after=[]):
            pass
    assert shape(live.trace) == {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c"), "e": ()}


async def test_threads_are_branches() -> None:
    def work(index: int) -> str:
        with step("work", index=index):
            return str(read_surface("work#instruction"))

    with recording(resolve=str.upper) as live:
        await node("start")
        assert await asyncio.gather(*(asyncio.to_thread(work, n) for n in range(8))) == ["WORK#INSTRUCTION"] * 8
        await node("end")
    assert len(shape(live.trace)["end"]) == 8


def test_plain_threads_with_a_copied_context() -> None:
    def work(index: int) -> None:
        with step("work", index=index):
            pass

    with recording() as live, ThreadPoolExecutor(4) as pool:
        with step("start"):
            pass
        for future in [pool.submit(contextvars.copy_context().run, work, n) for n in range(200)]:
            future.result()
        with step("end"):
            pass
    assert len(live.trace.steps) == 202
    assert len(shape(live.trace)["end"]) == 200


async def test_two_recordings_are_independent() -> None:
    async def run(name: str, value: str) -> ExecutionTrace:
        with record(name, resolve=lambda _: value) as live:
            for _ in range(3):
                with step("node") as current:
                    await asyncio.sleep(0)
                    current.output = read_surface("node#instruction")
        return live.trace

    first, second = await asyncio.gather(run("one", "A"), run("two", "B"))
    assert {current.output.text for current in first.steps} == {"A"}
    assert {current.output.text for current in second.steps} == {"B"}
    assert len(first.steps) == len(second.steps) == 3


def test_reading_a_surface_records_it_also_when_it_is_empty() -> None:
    values = {"a#instruction": "", "a#model": "m"}
    with recording(resolve=values.__getitem__) as live:
        with step("a") as current:
            assert read_surface("a#instruction") == ""
            assert current.read_surface("a#model") == "m"
        with step("b"):
            pass
    assert live.trace.steps[0].surface_reads == {"a#instruction": digest(""), "a#model": digest("m")}
    assert live.trace.steps[1].surface_reads == {}  # nothing was read: that is known


def test_reading_outside_raises() -> None:
    with pytest.raises(NoActiveRecordingError, match="no recording is active"):
        read_surface("a#instruction")
    with pytest.raises(NoActiveRecordingError, match="no recording is active"), step("a"):
        pass
    with recording(resolve=str) as live, pytest.raises(NoActiveRecordingError, match="no step is open"):
        read_surface("a#instruction")
    with pytest.raises(EmptyTraceError):
        _ = live.trace
    with recording(), step("a"), pytest.raises(NoActiveRecordingError, match="no resolver"):
        read_surface("a#instruction")
    with ThreadPoolExecutor(1) as pool, recording(resolve=str), step("a"):
        reading = pool.submit(read_surface, "a#instruction")
        with pytest.raises(NoActiveRecordingError, match="copy of the context"):
            reading.result()


async def test_a_task_that_outlives_the_recording_raises() -> None:
    async def late() -> None:
        await asyncio.sleep(0.01)
        await node("late")

    with recording() as live:
        await node("a")
        task = asyncio.create_task(late())
    with pytest.raises(NoActiveRecordingError, match="'t' has ended"):
        await task
    assert shape(live.trace) == {"a": ()}


def test_an_error_is_recorded_and_propagates() -> None:
    with pytest.raises(ValueError, match="no"), recording() as live, step("outer"), step("inner"):
        raise ValueError("no")
    assert live.trace.status == "failed"
    assert [current.error for current in live.trace.steps] == [Failure("ValueError", "no")] * 2


def test_an_error_that_was_handled_leaves_a_completed_trace() -> None:
    with recording() as live:
        with pytest.raises(KeyError), step("try"):
            raise KeyError("x")
        with step("again"):
            pass
    assert live.trace.status == "completed"
    assert shape(live.trace)["again"] == ("try",)


@pytest.mark.parametrize("give_up", ["cancel", "timeout"])
async def test_cancellation_leaves_an_incomplete_trace(give_up: str) -> None:
    live = recording()

    async def run() -> None:
        with live:
            await node("a")
            async with asyncio.timeout(0.01 if give_up == "timeout" else None):
                with step("b"):
                    await asyncio.sleep(5)

    task = asyncio.create_task(run())
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises((asyncio.CancelledError, TimeoutError)):
        await task
    assert live.trace.status == "incomplete"
    assert live.trace.steps[1].error == Failure("cancelled")


async def test_an_open_step_makes_the_trace_incomplete() -> None:
    with recording() as live, step("a"):
        half = live.trace
    assert (half.status, half.steps[0].end_ns) == ("incomplete", None)
    assert live.trace.status == "completed"


def test_tool_calls_are_part_of_the_step() -> None:
    with recording() as live, step("agent") as agent:
        with agent.call_tool("search", {"q": "x"}, call_id="c1") as call:
            call.result = ["found"]
        with pytest.raises(OSError, match="down"), current_step().call_tool("fetch"):
            raise OSError("down")
    search, fetch = live.trace.steps[0].tool_calls
    assert (search.name, search.arguments, search.result, search.id) == ("search", {"q": "x"}, ["found"], "c1")
    assert fetch.error == Failure("OSError", "down")


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, Snapshot()),
        ("text", Snapshot("text")),
        (["a", 1], Snapshot(data=["a", 1])),
        ((1, 2), Snapshot(data=[1, 2])),
        ({1: {2, 1}}, Snapshot(data={"1": [1, 2]})),
        (Point(3), Snapshot(data={"x": 3})),
        ({"a": math.nan, "b": [math.inf]}, Snapshot(data={"a": "NaN", "b": ["Infinity"]})),
        ({"a": None}, Snapshot(data={"a": None})),
        (2**70, Snapshot(str(2**70))),
        ("\ud800", Snapshot("\\ud800")),
        (Snapshot("as it is"), Snapshot("as it is")),
    ],
)
def test_any_value_has_a_snapshot(value: object, expected: Snapshot) -> None:
    assert take_snapshot(value, {}) == expected


def test_objects_are_snapshotted_as_text_and_cycles_too() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    assert take_snapshot(cycle, {}) == Snapshot(data=["[[...]]"])
    text = take_snapshot({"f": print}, {}).data
    assert text == {"f": "<built-in function print>"}


def test_later_changes_do_not_affect_a_snapshot() -> None:
    state = {"items": [1]}
    with recording() as live, step("a", input=state) as current:
        state["items"].append(2)
        current.output = state
    state["items"].append(3)
    assert (live.trace.steps[0].input.data, live.trace.steps[0].output.data) == ({"items": [1]}, {"items": [1, 2]})


@pytest.mark.parametrize(
    ("value", "media_type"),
    [("é" * (INLINE_LIMIT + 1), "text/plain"), (["x" * INLINE_LIMIT], "application/json"), (b"\x00\xff", None)],
)
def test_large_and_binary_values_are_stored_by_digest(value: Any, media_type: str | None) -> None:
    live = recording()
    made = take_snapshot(value, live.blobs)
    [blob] = made.blobs
    assert blob.media_type == media_type or media_type is None
    assert digest(live.blobs[blob.digest]) == blob.digest
    assert len(live.blobs[blob.digest]) == blob.size
    assert len(made.text or "") <= INLINE_LIMIT


def test_bytes_inside_a_value_are_stored_by_digest() -> None:
    live = recording()
    made = take_snapshot({"image": b"\x89PNG"}, live.blobs)
    blob = Blob(digest(b"\x89PNG"), 4)
    assert made == Snapshot(
        data={"image": {"digest": blob.digest, "size": 4, "media_type": blob.media_type}}, blobs=(blob,)
    )


def test_names_that_look_like_visits_do_not_collide() -> None:
    with recording() as live:
        for name in ("a", "a~2", "a", "a"):
            with step(name):
                pass
    assert sorted(current.id for current in live.trace.steps) == ["a", "a~2", "a~2~1", "a~3"]


@pytest.mark.slow
async def test_a_recording_of_ten_thousand_steps_is_recorded_in_order() -> None:
    with recording() as live:
        for _ in range(10_000):
            with step("loop"):
                pass
    assert live.trace.steps[-1].id == "loop~10000"


def generate_step(name: str) -> Generator[str]:
    with step(name):
        yield name
        yield name


def test_steps_after_a_generator_closed_out_of_order_are_not_nested_in_it() -> None:
    with recording() as live:
        first, second = generate_step("a"), generate_step("b")
        next(first)
        next(second)
        first.close()
        second.close()
        with step("later"):
            pass
    assert [current.id for current in live.trace.steps] == ["a", "a/b", "later"]


async def test_an_async_generator_closed_in_another_task_is_recorded() -> None:
    async def stream() -> AsyncGenerator[int]:
        with step("stream"):
            for number in range(3):
                yield number

    async def close(chunks: AsyncGenerator[int]) -> None:
        await chunks.aclose()

    with recording() as live:
        chunks = stream()
        await anext(chunks)
        await asyncio.create_task(close(chunks))
        with step("after"):
            pass
    assert live.trace.steps[0].end_ns is not None


def test_a_value_that_cannot_be_shown_does_not_hide_the_error() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("repr is broken")

    live = recording()

    def run() -> None:
        with live, step("a") as current:
            current.output = Broken()
            raise ValueError("the real error")

    with pytest.raises(ValueError, match="the real error"):
        run()
    [recorded] = live.trace.steps
    assert recorded.error == Failure("ValueError", "the real error")
    assert recorded.output.text == f"<{Broken.__qualname__}>"
    assert recorded.end_ns is not None


async def test_a_task_that_outlives_its_step_is_joined_by_the_next() -> None:
    async def work() -> None:
        await asyncio.sleep(0.01)
        await node("fetch")

    with recording() as live:
        with step("plan"):
            task = asyncio.create_task(work())
        await task
        await node("answer")
    assert shape(live.trace)["answer"] == ("plan", "plan/fetch")


async def test_a_branch_that_still_runs_is_not_joined() -> None:
    async def long() -> None:
        await node("first")
        await asyncio.sleep(0.05)
        await node("second")

    with recording() as live:
        await node("start")
        task = asyncio.create_task(long())
        await asyncio.sleep(0.02)
        await node("middle")
        await task
        await node("end")
    assert shape(live.trace)["middle"] == ("start",)
    assert shape(live.trace)["end"] == ("middle", "second")


def test_tool_results_are_kept_like_snapshots() -> None:
    with recording() as live, step("a") as current:
        with current.call_tool("draw", {"mask": b"01"}) as call:
            call.result = b"PNG"
        with current.call_tool("fetch") as call:
            call.result = ["x" * INLINE_LIMIT]
    draw, fetch = live.trace.steps[0].tool_calls
    assert live.blobs[draw.result["digest"]] == b"PNG"
    assert live.blobs[draw.arguments["mask"]["digest"]] == b"01"
    assert len(live.blobs[fetch.result["blob"]["digest"]]) > INLINE_LIMIT


def test_attributes_are_snapshots_too() -> None:
    tags = ["a"]
    with recording(attributes={"tags": tags, "odd": print}) as live, step("a", attributes={"tags": tags}):
        pass
    trace = live.trace
    tags.append("b")
    assert (trace.attributes["tags"], trace.steps[0].attributes["tags"]) == (["a"], ["a"])
    assert trace.attributes["odd"] == "<built-in function print>"


def test_an_unknown_predecessor_is_rejected_at_once() -> None:
    with pytest.raises(UnknownPredecessorError, match="'b' follows step 'a'"), recording(), step("b", after="a"):
        pass


@pytest.mark.parametrize("value", [{"v": math.nan, "s": {"c", "b", "a"}, "p": Point(1)}])
def test_snapshots_do_not_depend_on_hash_order(value: object) -> None:
    assert take_snapshot(value, {}).data == {"v": "NaN", "s": ["a", "b", "c"], "p": {"x": 1}}


def test_consumers_of_a_stream_are_still_collected(tmp_path: Path) -> None:
    """Reading a stream must not keep the garbage collector from freeing cycles that the consumer creates."""
    path = tmp_path / "many.jsonl"
    write_traces(path, [ExecutionTrace(id=f"t{n}", steps=(Step(id="a", node_id="a"),)) for n in range(3000)])
    alive: weakref.WeakSet[Cycle] = weakref.WeakSet()
    most = 0
    for _ in read_traces(path):
        alive.add(Cycle())
        most = max(most, len(alive))
    assert most < 2000


class Cycle:
    def __init__(self) -> None:
        self.itself = self
        self.weight = [[] for _ in range(20)]  # type: ignore[var-annotated]


def test_a_recording_around_a_loop_joins_what_runs_in_it() -> None:
    async def fan_out() -> None:
        await node("split")
        await asyncio.gather(*(node("work", index=number) for number in range(3)))
        await node("merge")

    with recording() as live:
        asyncio.run(fan_out())
        asyncio.run(node("again"))
    assert shape(live.trace)["merge"] == ("work[0]", "work[1]", "work[2]")
    assert shape(live.trace)["again"] == ("merge",)


def test_a_fan_out_that_nothing_precedes_must_be_recorded_inside_the_loop() -> None:
    async def fan_out() -> None:
        await asyncio.gather(*(node("work", index=number) for number in range(3)))
        await node("merge")

    with pytest.raises(AmbiguousStepError, match="inside the loop"), recording():
        asyncio.run(fan_out())

    async def inside() -> ExecutionTrace:
        with recording() as live:
            await fan_out()
        return live.trace

    assert shape(asyncio.run(inside()))["merge"] == ("work[0]", "work[1]", "work[2]")


def test_threads_before_the_first_step_of_a_loop_are_joined() -> None:
    def work(index: int) -> None:
        with step("work", index=index):
            pass

    async def fan_out() -> None:
        await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(3)))
        await node("merge")

    with recording() as live:
        asyncio.run(fan_out())
    assert shape(live.trace)["merge"] == ("work[0]", "work[1]", "work[2]")


async def test_a_swallowed_misuse_error_is_raised_at_the_end() -> None:
    live = recording()

    async def forgot_the_index() -> None:
        with live:
            await asyncio.gather(*(node("work") for _ in range(3)), return_exceptions=True)

    with pytest.raises(AmbiguousStepError):
        await forgot_the_index()
    assert live.trace.status == "failed"


def test_invalid_kinds_and_values_are_rejected_at_once() -> None:
    with recording():
        with pytest.raises(BrokenTraceError, match="kind must be one of agent, llm, function, tool, got 'LLM'"):
            step("a", kind="LLM")  # type: ignore[arg-type]
        with step("a") as current:
            with pytest.raises(TypeError, match=r"usage must be a traces\.Usage"):
                current.usage = {"input_tokens": 3}  # type: ignore[assignment]
            with pytest.raises(AttributeError):
                current.outptu = "x"  # type: ignore[attr-defined]


def test_a_step_says_which_results_it_read_and_what_only_triggered_it(tmp_path: Path) -> None:
    with recording() as live:
        for name in ("draft", "count", "finish"):
            with step(name) as current:
                current.output = name
                if name == "finish":
                    current.read_from(["draft"])
    found = {each.id: each for each in live.trace.steps}
    assert found["finish"].predecessors == ("count", "draft")
    assert [(edge.source, edge.kind) for edge in found["finish"].edges] == [("count", "control"), ("draft", "data")]
    assert (found["finish"].unread, found["count"].unread, found["count"].edges) == (("count",), (), ())
    assert (found["finish"].sources, found["count"].sources) == (("draft",), ("draft",))
    write_traces(tmp_path / "t.jsonl", [live.trace])
    assert list(read_traces(tmp_path / "t.jsonl")) == [live.trace]


async def test_a_recording_that_keeps_nothing_runs_the_same_code() -> None:
    async def search(number: int) -> str:
        with step("search", input=number) as current:  # parallel, and without an index
            with current.call_tool("find", {"number": number}) as call:
                call.result = read_surface("search#instruction")
            await asyncio.sleep(0)
            current.usage = Usage(input_tokens=1)
            answer = current.output = f"{current_step().node_id} {call.result}"
        return answer

    with recording(resolve={"search#instruction": "look"}.__getitem__, keep_steps=False) as live:
        with step("outer") as outer:
            answers = await asyncio.gather(*map(search, range(3)))
            late = asyncio.create_task(search(3))
            assert current_step() is outer
        with pytest.raises(NoActiveRecordingError, match="no step is open"):
            current_step()
    assert answers == ["search look"] * 3
    assert await late == "search look"  # a task may outlive it
    assert not live.has_steps
    with pytest.raises(NoActiveRecordingError, match="no recording is active"):
        current_step()


def test_enums_ids_and_decimals_are_kept_as_their_values() -> None:
    class Wish(str, Enum):  # noqa: UP042 - many people write it so
        REFUND = "refund"

    class Level(Enum):
        HIGH = 3

    value = {"wish": Wish.REFUND, Wish.REFUND: [Level.HIGH, UUID(int=7), Decimal("1.50")]}
    assert take_snapshot(value, {}).data == {"wish": "refund", "refund": [3, str(UUID(int=7)), "1.50"]}
