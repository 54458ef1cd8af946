"""Exports read as a stream: the same traces, however much waits in a temporary file."""

from __future__ import annotations

import io
import tempfile
from pathlib import Path
from random import Random
from typing import Any

import orjson
import pytest

from traces import UnreadableTraceError, read_otel, stream_otel
from traces.otel.detect import read_spans
from traces.otel.recover.coverage import Coverage
from traces.otel.runs import join_runs
from traces.otel.span_store import SpanStore


def make_span(trace: int, number: int, parent: int | None = None, **attributes: str) -> dict[str, Any]:
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{trace * 100 + number:016x}",
        "parentSpanId": "" if parent is None else f"{trace * 100 + parent:016x}",
        "name": "span",
        "startTimeUnixNano": str(trace * 1_000_000 + number * 1_000),
        "endTimeUnixNano": str(trace * 1_000_000 + number * 1_000 + 500),
        "attributes": [
            {"key": f"gen_ai.{key.replace('_', '.')}", "value": {"stringValue": value}}
            for key, value in attributes.items()
        ],
    }


def make_chat(trace: int, number: int, asked: str, answer: str, **attributes: str) -> dict[str, Any]:
    shown = [{"role": "user", "content": asked}]
    return make_span(
        trace,
        number,
        1,
        operation_name="chat",
        agent_name=f"agent {number}",
        input_messages=orjson.dumps(shown).decode(),
        output_messages=orjson.dumps([{"role": "assistant", "content": answer}]).decode(),
        **attributes,
    )


def make_runs(count: int) -> list[dict[str, Any]]:
    """Runs of three spans. The last run continues in another OTLP trace that links to it."""
    spans: list[dict[str, Any]] = []
    for trace in range(1, count + 1):
        answer = f"the answer of the first agent in run {trace} is quoted by the second one"
        spans += [
            make_span(trace, 1, operation_name="invoke_workflow"),
            make_chat(trace, 2, f"task {trace}", answer),
            make_chat(trace, 3, f"check this: {answer}", "accepted"),
        ]
    linked = make_chat(count + 1, 4, "go on", "done")
    linked["links"] = [{"traceId": f"{count:032x}", "spanId": f"{count * 100 + 3:016x}"}]
    return [*spans, linked]


def write_lines(spans: list[dict[str, Any]], *, size: int = 2) -> bytes:
    batches = (spans[at : at + size] for at in range(0, len(spans), size))
    return b"".join(orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": batch}]}]}) + b"\n" for batch in batches)


@pytest.mark.parametrize("limit_bytes", [0, 10_000, 256_000_000])
def test_a_stream_yields_what_read_otel_returns_whatever_waits_in_a_file(limit_bytes: int) -> None:
    spans = make_runs(12)
    Random(7).shuffle(spans)
    raw = write_lines(spans)
    together, streamed = Coverage(), Coverage()
    expected = read_otel(raw, coverage=together)
    assert list(stream_otel(raw, coverage=streamed, limit_bytes=limit_bytes)) == expected
    assert streamed == together
    assert len(expected) == 12
    assert max(len(trace.steps) for trace in expected) == 3


@pytest.mark.parametrize("limit_bytes", [0, 256_000_000])
def test_turns_of_a_conversation_are_joined_from_the_file(limit_bytes: int) -> None:
    answer = "Paris is the capital of France"
    first = make_chat(1, 2, "Which city?", answer, conversation_id="c")
    later = make_chat(2, 3, "Why?", "because", conversation_id="c")
    shown = [{"role": "user", "content": "Which city?"}, {"role": "assistant", "content": answer}]
    for attribute in later["attributes"]:
        if attribute["key"] == "gen_ai.input.messages":
            attribute["value"] = {"stringValue": orjson.dumps(shown).decode()}
    other = make_chat(3, 4, "Hello", "world", conversation_id="c")
    found = list(stream_otel(write_lines([later, other, first], size=1), limit_bytes=limit_bytes))
    assert [len(trace.steps) for trace in found] == [2, 1]


ANSWER = "The surcharge is contestable because the written notice is missing."
TEMPLATE = "Answer in one paragraph and name the clause that decides it."


def join(*chats: dict[str, Any]) -> list[int]:
    return [len(trace.steps) for trace in read_otel(write_lines(list(chats)))]


def test_a_trace_that_was_shown_a_line_of_an_earlier_answer_continues_its_run() -> None:
    passed_on = f"Draft a letter.\n{ANSWER}\nBe polite."
    first = make_chat(1, 2, "Is it legitimate?", f"Here is what I found.\n{ANSWER}", conversation_id="c")
    later = make_chat(2, 3, passed_on, f"Dear customer,\n{ANSWER}", conversation_id="c")
    last = make_chat(3, 4, f"Review this.\n{ANSWER}", "approved", conversation_id="c")
    assert join(first, later, last) == [3]
    assert join(first, make_chat(2, 3, passed_on, "done", conversation_id="another")) == [1, 1]
    assert join(make_chat(1, 2, "Is it?", ANSWER), make_chat(2, 3, passed_on, "done")) == [1, 1]


def test_lines_that_runs_have_in_common_do_not_join_them() -> None:
    """A template that both were told and one repeats, and a greeting that both gave."""
    asked = make_chat(1, 2, f"{TEMPLATE}\nWho pays?", f"{TEMPLATE}\nThe customer.", conversation_id="c")
    other = make_chat(2, 3, f"{TEMPLATE}\nWho signs?", "The manager.", conversation_id="c")
    assert join(asked, other) == [1, 1]
    greeting = "Thank you for contacting the help desk of the northern branch."
    greeted = make_chat(1, 2, "Hello", greeting, conversation_id="c")
    again = make_chat(2, 3, "Hi", greeting, conversation_id="c")
    assert join(greeted, again, make_chat(2, 4, f"Translate.\n{greeting}", "Merci", conversation_id="c")) == [1, 2]


@pytest.mark.parametrize("limit_bytes", [0, 256_000_000])
def test_log_records_of_another_file_reach_spans_in_the_file(limit_bytes: int) -> None:
    span = make_span(1, 2, operation_name="chat", agent_name="agent")
    record = {
        "traceId": span["traceId"],
        "spanId": span["spanId"],
        "eventName": "gen_ai.user.message",
        "body": {"kvlistValue": {"values": [{"key": "content", "value": {"stringValue": "Which city?"}}]}},
    }
    logs = orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]})
    [trace] = stream_otel(logs, write_lines([span]), limit_bytes=limit_bytes)
    assert trace.steps[0].input.text == "Which city?"


def test_nothing_is_left_of_the_temporary_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    raw = write_lines(make_runs(3))
    stream = stream_otel(raw, limit_bytes=0)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    with pytest.raises(UnreadableTraceError):
        list(stream_otel(raw + b"{broken}\n" + raw, limit_bytes=0))
    assert list(tmp_path.iterdir()) == []


def test_the_store_keeps_only_facts_of_traces_in_the_file() -> None:
    raw = io.BufferedReader(io.BytesIO(write_lines(make_runs(3))))
    with SpanStore(limit_bytes=0) as store:
        for batch in read_spans("spans", raw):
            store.add(batch)
        assert store._held == {}
        assert [len(trace_ids) for trace_ids in join_runs(store)] == [1, 1, 2]
        assert len(store.take(f"{1:032x}")) == 3
        assert store.load(f"{1:032x}") == []
