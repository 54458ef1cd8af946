"""The tests of what a store promises about answers and traces."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

from promptiter.errors import ModelTimeoutError, ModelUnavailableError, SetupError
from promptiter.llm.cache.keys import StoredAnswer, ToolAnswer
from promptiter.llm.ledger import Spending
from promptiter.llm.messages import ModelReply, ToolRequest
from promptiter.llm.redaction import Redactor
from promptiter.testing.store_hooks import (
    LARGE,
    LOST,
    REPLY,
    STRANGE_TEXTS,
    USAGE,
    Clock,
    StoreHooks,
    ask,
    expect_error,
    in_event_loop,
    make_key,
    make_receipt,
    make_trace,
)
from traces import Usage


class AnswerContract(StoreHooks):
    """Answers are kept once, and the account of a run has every call."""

    @in_event_loop
    async def test_the_first_answer_of_a_key_is_kept(self, tmp_path: Path) -> None:
        tools = ToolRequest(id="1", name="look", arguments={"at": [1, None, "ü"]})
        answers: list[StoredAnswer] = [
            REPLY,
            ModelReply(text="", tool_requests=(tools,), usage=Usage(), finish_reason="length"),
            ToolAnswer({"rows": [1, 2.5, None, True]}),
            ToolAnswer(None, error="ValueError: no"),
            *(ModelReply(text=text, usage=USAGE) for text in STRANGE_TEXTS),
            ModelReply(text="x" * LARGE, usage=USAGE),
        ]
        async with self.open_new_run(tmp_path) as run:
            for number, answer in enumerate(answers):
                key = make_key(number)
                assert await run.answers.get(key) is None
                stored = await run.answers.put(key, answer)
                assert stored == await run.answers.get(key) == await run.answers.put(key, ToolAnswer("late"))
                assert stored == answer or "\ud83d" in getattr(answer, "text", "")
            kept = [await run.answers.get(make_key(number)) for number in range(len(answers))]
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            assert [await run.answers.get(make_key(number)) for number in range(len(answers))] == kept
            assert run.answers.stats().entries == len(answers)
            assert await run.answers.get(replace(make_key(0), repeat=1)) is None
            assert await run.answers.get(replace(make_key(0), seed=7)) is None

    @in_event_loop
    async def test_equal_calls_at_the_same_time_get_one_answer(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            found = await asyncio.gather(
                *(run.answers.put(make_key(), ToolAnswer(number), paid=make_receipt()) for number in range(20))
            )
            assert len({str(answer) for answer in found}) == 1
            assert await run.answers.get(make_key()) == found[0]
            assert (await run.answers.ledger()).total.calls == 20

    @in_event_loop
    async def test_an_answer_that_is_not_json_is_refused_and_counts_as_paid(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            async with run.answers.asking(make_key(), lost=LOST):
                pass
            with expect_error(SetupError):
                await run.answers.put(make_key(), ToolAnswer(math.nan), paid=make_receipt())
            assert await run.answers.get(make_key()) is None
        await self.check_ledger(tmp_path, calls=1, lost=0)

    @in_event_loop
    async def test_the_account_has_what_every_process_paid(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            for number in range(3):
                await ask(run, number)
            # An answer that is not stored, and one from a cache that runs share.
            await run.answers.note_paid(replace(make_key(9), role="judge"), make_receipt("judge"))
            await run.answers.put(make_key(5), REPLY)
            before = await run.answers.ledger()
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            assert await run.answers.ledger() == before
            await ask(run, 3)
            after = await run.answers.ledger()
        assert {(entry.role, entry.model, entry.node_id, entry.spent.calls) for entry in after.entries} == {
            ("agent", "m", "clerk", 4),
            ("judge", "m", "clerk", 1),
        }
        assert (after.total.cost_usd, after.total.input_tokens) == (0.5, 500)
        assert await (await self.make_store(tmp_path, Clock()).view("a")).read_ledger() == after

    @in_event_loop
    async def test_calls_in_flight_when_a_process_ended_are_lost(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            await ask(run, 0)
            with expect_error(ValueError):  # the server refused it
                async with run.answers.asking(make_key(1), lost=LOST):
                    raise ValueError("refused")
            open_calls = [run.answers.asking(make_key(number), lost=LOST) for number in (2, 3, 3)]
            for call in open_calls:
                await call.__aenter__()
            assert (await run.answers.ledger()).total.lost_calls == 0, "this process is alive"
        for _ in range(2):
            await self.check_ledger(tmp_path, calls=1, lost=3)
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            await ask(run, 2)
            await ask(run, 3)
        await self.check_ledger(tmp_path, calls=3, lost=3)
        del open_calls

    @in_event_loop
    async def test_calls_that_may_have_been_billed_are_lost_at_the_most_they_may_have_cost(
        self, tmp_path: Path
    ) -> None:
        errors = (ModelTimeoutError("late"), ModelUnavailableError("cut", may_be_billed=True), asyncio.CancelledError())
        async with self.open_new_run(tmp_path) as run:
            for number, error in enumerate((*errors, ModelUnavailableError("503"))):
                with expect_error(type(error)):
                    async with run.answers.asking(make_key(number), lost=LOST):
                        raise error
            await run.answers.asking(make_key(9), lost=LOST).__aenter__()
            assert (await run.answers.ledger()).total == LOST.spent + LOST.spent + LOST.spent
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            [entry] = (await run.answers.ledger()).entries
        assert (entry.role, entry.model, entry.node_id) == (LOST.role, LOST.model, LOST.node_id)
        assert entry.spent == Spending(attempts=4, lost_calls=4, possible_tokens=2_000, possible_usd=1.0)

    @in_event_loop
    async def test_answers_paid_after_a_mark_are_known_also_in_a_later_process(self, tmp_path: Path) -> None:
        async with self.open_new_run(tmp_path) as run:
            start = await run.answers.mark()
            await ask(run, 0)
            mark = await run.answers.mark()
            await ask(run, 1)
            await run.answers.put(make_key(2), REPLY)  # not paid
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            end = await run.answers.mark()
            await ask(run, 3)
            found = [
                [await run.answers.is_since(make_key(number), place) for number in range(5)]
                for place in (start, mark, end)
            ]
        assert found == [
            [True, True, False, True, False],
            [False, True, False, True, False],
            [False, False, False, True, False],
        ]


class TraceContract(StoreHooks):
    """Traces are found by their digests."""

    @in_event_loop
    async def test_traces_are_found_by_their_digests(self, tmp_path: Path) -> None:
        texts = [text for text in STRANGE_TEXTS if "\ud83d" not in text]  # a recorder escapes half pairs
        made = [make_trace(text) for text in (*texts, "x" * LARGE)]
        async with self.open_new_run(tmp_path) as run:
            digests = [await run.traces.put(trace) for trace in made]
            assert len(set(digests)) == len(made)
            assert [await run.traces.put(trace) for trace in made] == digests
            kept = [await run.traces.get(name) for name in digests]
            await run.traces.sync()
        async with self.make_store(tmp_path, Clock()).open("a") as run:
            assert [await run.traces.get(name) for name in digests] == kept
            assert all([await run.traces.has(name) for name in digests])
        view = await self.make_store(tmp_path, Clock()).view("a")
        assert [await view.read_trace(name) for name in digests] == kept
        assert kept[1] == made[1]

    @in_event_loop
    async def test_the_digest_of_a_trace_leaves_out_times_and_secrets(self, tmp_path: Path) -> None:
        early, late = (make_trace("the key is topsecretvalue", start_ns=start) for start in (1, 2))
        async with self.open_new_run(tmp_path) as run:
            redactor = Redactor(["topsecretvalue"])
            first, second = [await run.traces.put(trace, redactor=redactor) for trace in (early, late)]
            assert first == second != await run.traces.put(early)
            assert "topsecretvalue" not in repr(await run.traces.get(first))

    @in_event_loop
    async def test_a_missing_trace_is_reported(self, tmp_path: Path) -> None:
        names = ("0" * 64, "", "no digest", "../a", "x" * 5000)
        async with self.open_new_run(tmp_path) as run:
            for name in names:
                assert not await run.traces.has(name)
                with expect_error(SetupError):
                    await run.traces.get(name)
        view = await self.make_store(tmp_path, Clock()).view("a")
        for name in names:
            with expect_error(SetupError):
                await view.read_trace(name)
