"""All encodings of one run give the same trace."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import orjson
import pytest
from opentelemetry.proto.logs.v1 import logs_pb2

from traces import ExecutionTrace, Failure, UnreadableTraceError, Usage, read_otel
from traces.documents import to_json
from traces.otel.recover.coverage import Coverage

EXPORTS = Path(__file__).parent / "exports"
RUNS = sorted({path.name.removesuffix(".otlp.jsonl") for path in EXPORTS.glob("*.otlp.jsonl")})
FAN_OUT = "langgraph_openinference.send_fanout"
HAS_ZSTD = importlib.util.find_spec("zstandard") is not None

Fields = dict[str, Any]


def load_spans(run: str) -> list[Fields]:
    """The spans of a run, flat: attributes as a mapping."""
    spans = []
    for line in (EXPORTS / f"{run}.otlp.jsonl").read_bytes().splitlines():
        for resource in orjson.loads(line)["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                spans += [{**span, "scope": scope.get("scope", {}).get("name", "")} for span in scope["spans"]]
    return spans


def plain(value: Fields) -> Any:
    kind: str
    inner: Any
    kind, inner = next(iter(value.items()), ("none", None))
    match kind:
        case "intValue":
            return int(inner)
        case "arrayValue":
            return [plain(each) for each in inner.get("values", ())]
        case "kvlistValue":
            return flat(inner.get("values", ()))
        case _:
            return inner


def flat(attributes: Iterable[Fields]) -> Fields:
    return {each["key"]: plain(each["value"]) for each in attributes}


@pytest.mark.parametrize("run", RUNS)
def test_all_files_of_a_run_give_the_same_trace(run: str) -> None:
    expected = read_otel(EXPORTS / f"{run}.otlp.jsonl")
    for path in sorted(EXPORTS.glob(f"{run}.*")):
        found = read_otel(path)
        if ".otlp." in path.name:
            assert found == expected, path.name
        else:
            assert_close(found, expected)


def assert_close(found: list[ExecutionTrace], expected: list[ExecutionTrace]) -> None:
    """Equal but for rounded times."""

    def compare(left: Any, right: Any, name: str) -> None:
        if isinstance(left, dict):
            assert left.keys() == right.keys()
            for key in left:
                compare(left[key], right[key], key)
        elif isinstance(left, list):
            assert len(left) == len(right)
            for one, other in zip(left, right, strict=True):
                compare(one, other, name)
        elif name.endswith("_ns"):
            assert abs(left - right) <= 1_000
        else:
            assert left == right

    left, right = (
        [orjson.loads(to_json(trace)) for trace in sorted(each, key=lambda trace: trace.id)]
        for each in (found, expected)
    )
    compare(left, right, "")


def to_base64(span: Fields) -> Fields:
    ids = {
        key: base64.b64encode(bytes.fromhex(span[key])).decode()
        for key in ("traceId", "spanId", "parentSpanId")
        if span.get(key)
    }
    code = {0: "STATUS_CODE_UNSET", 1: "STATUS_CODE_OK", 2: "STATUS_CODE_ERROR"}[span.get("status", {}).get("code", 0)]
    return {**span, **ids, "kind": "SPAN_KIND_INTERNAL", "status": {**span.get("status", {}), "code": code}}


def to_snake(value: Any) -> Any:
    """As Phoenix writes OTLP: names in snake case, and nulls for the types that a value does not have."""
    if isinstance(value, list):
        return [to_snake(each) for each in value]
    if not isinstance(value, dict):
        return value
    named = {"".join(f"_{c.lower()}" if c.isupper() else c for c in key): to_snake(item) for key, item in value.items()}
    if any(key.endswith("_value") for key in named):
        nulls = dict.fromkeys(("string_value", "int_value", "bool_value", "double_value", "array_value"))
        return {**nulls, **named}
    return named


def to_logfire(span: Fields) -> Fields:
    start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
    return {
        "kind": "span",
        "trace_id": span["traceId"],
        "span_id": span["spanId"],
        "parent_span_id": span.get("parentSpanId") or None,
        "span_name": span["name"],
        "start_timestamp": iso(start),
        "end_timestamp": iso(end),
        "duration": (end - start) / 1e9,
        "attributes": json.dumps(flat(span.get("attributes", ()))),
        "otel_status_code": "ERROR" if span.get("status", {}).get("code") == 2 else "UNSET",
        "otel_status_message": span.get("status", {}).get("message"),
        "otel_events": [
            {"event_name": event["name"], "attributes": flat(event.get("attributes", ()))}
            for event in span.get("events", ())
        ],
        "otel_links": [
            {"context": {"trace_id": link["traceId"], "span_id": link["spanId"]}, "attributes": {}}
            for link in span.get("links", ())
        ],
        "otel_scope_name": span["scope"],
    }


def iso(nanoseconds: int) -> str:
    from datetime import UTC, datetime

    whole = datetime.fromtimestamp(nanoseconds // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{whole}.{nanoseconds % 10**9:09}Z"


def to_nested(spans: list[Fields]) -> Fields:
    """As Patronus and TRAIL write spans: children inside their parents, ISO durations."""
    by_parent: dict[str, list[Fields]] = {}
    ids = {span["spanId"] for span in spans}
    for span in spans:
        parent = span.get("parentSpanId") or ""
        by_parent.setdefault(parent if parent in ids else "", []).append(span)

    def nest(span: Fields) -> Fields:
        start, end = int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"])
        return {
            "timestamp": iso(start),
            "trace_id": span["traceId"],
            "span_id": span["spanId"],
            "span_name": span["name"],
            "span_kind": "Internal",
            "duration": f"PT{(end - start) / 1e9:.9f}S",
            "status_code": "Error" if span.get("status", {}).get("code") == 2 else "Unset",
            "status_message": span.get("status", {}).get("message", ""),
            "span_attributes": flat(span.get("attributes", ())),
            "events": [
                {"Name": event["name"], "Attributes": flat(event.get("attributes", ()))}
                for event in span.get("events", ())
            ],
            "links": [],
            "child_spans": [nest(child) for child in by_parent.get(span["spanId"], ())],
        }

    return {"trace_id": spans[0]["traceId"], "spans": [nest(span) for span in by_parent[""]]}


def to_langfuse(span: Fields) -> Fields:
    is_error = span.get("status", {}).get("code") == 2
    return {
        "id": span["spanId"],
        "traceId": span["traceId"],
        "parentObservationId": span.get("parentSpanId") or None,
        "type": "SPAN",
        "name": span["name"],
        "startTime": iso(int(span["startTimeUnixNano"])),
        "endTime": iso(int(span["endTimeUnixNano"])),
        "level": "ERROR" if is_error else "DEFAULT",
        "statusMessage": span.get("status", {}).get("message"),
        "metadata": {"attributes": flat(span.get("attributes", ())), "scope": {"name": span["scope"]}},
    }


def to_integers(span: Fields) -> Fields:
    ids = {key: int(span[key], 16) for key in ("traceId", "spanId", "parentSpanId") if span.get(key)}
    return {**span, **ids}


CONVERSIONS: dict[str, Callable[[list[Fields]], Any]] = {
    "a list of spans": lambda spans: spans,
    "base64 ids and enums as words": lambda spans: list(map(to_base64, spans)),
    "snake case": lambda spans: {"data": to_snake(spans), "next_cursor": None},
    "Logfire's rows": lambda spans: {"columns": [], "rows": list(map(to_logfire, spans))},
    "Logfire's rows with pending spans": lambda spans: [
        each for span in spans for each in ({**to_logfire(span), "kind": "pending_span"}, to_logfire(span))
    ],
    "Logfire's columns": lambda spans: {
        "columns": [
            {"name": name, "values": [row[name] for row in map(to_logfire, spans)]} for name in to_logfire(spans[0])
        ]
    },
    "Langfuse": lambda spans: {"data": list(map(to_langfuse, spans)), "meta": {"page": 1}},
}


@pytest.mark.parametrize("conversion", CONVERSIONS)
def test_other_tools_give_the_same_trace(conversion: str) -> None:
    spans = load_spans(FAN_OUT)
    expected = read_otel(EXPORTS / f"{FAN_OUT}.otlp.jsonl")
    converted = CONVERSIONS[conversion](spans)
    assert_close(read_otel(json.dumps(converted).encode()), expected)
    assert_close(read_otel(json.dumps(converted, indent=2).encode()), expected)
    if isinstance(converted, list):
        assert_close(read_otel("\n".join(map(json.dumps, converted)).encode()), expected)
        assert_close(read_otel("\n".join(json.dumps(each, indent=4) for each in converted).encode()), expected)


def test_nested_spans_and_integer_ids_give_the_same_trace() -> None:
    spans = load_spans(FAN_OUT)
    expected = read_otel(EXPORTS / f"{FAN_OUT}.otlp.jsonl")
    assert_close(read_otel(json.dumps(to_nested(spans)).encode()), expected)
    assert_close(read_otel(json.dumps(list(map(to_integers, spans))).encode()), expected)


def test_times_in_seconds_and_ends_that_are_missing_are_read() -> None:
    spans = [
        {**span, "startTimeUnixNano": int(span["startTimeUnixNano"]) / 1e9, "endTimeUnixNano": None}
        for span in load_spans(FAN_OUT)
    ]
    [trace] = read_otel(json.dumps(spans).encode())
    [expected] = read_otel(EXPORTS / f"{FAN_OUT}.otlp.jsonl")
    assert [step.id for step in trace.steps] == [step.id for step in expected.steps]
    assert trace.status == "incomplete"


def to_frames(messages: Iterable[bytes]) -> bytes:
    return b"".join(len(each).to_bytes(4, "big") + each for each in messages)


def to_varints(messages: Iterable[bytes]) -> bytes:
    def varint(number: int) -> bytes:
        return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + varint(number // 128)

    return b"".join(varint(len(each)) + each for each in messages)


@pytest.mark.parametrize("run", RUNS)
def test_framed_and_compressed_files_give_the_same_trace(run: str) -> None:
    lines = (EXPORTS / f"{run}.otlp.jsonl").read_bytes().splitlines()
    expected = read_otel(EXPORTS / f"{run}.otlp.jsonl")
    assert read_otel(to_frames(lines)) == expected
    assert read_otel(to_frames(map(gzip.compress, lines))) == expected
    if (message := EXPORTS / f"{run}.otlp.pb").exists():
        raw = message.read_bytes()
        for each in (to_frames([raw]), to_varints([raw]), to_frames([gzip.compress(raw)]), gzip.compress(raw)):
            assert read_otel(each) == expected


@pytest.mark.skipif(not HAS_ZSTD, reason="needs zstandard")
@pytest.mark.parametrize("run", RUNS)
def test_zstd_gives_the_same_trace(run: str) -> None:
    import zstandard

    raw = (EXPORTS / f"{run}.otlp.jsonl").read_bytes()
    expected = read_otel(raw)
    pack = zstandard.ZstdCompressor().compress
    half = raw.index(b"\n") + 1
    assert read_otel(pack(raw)) == expected
    assert read_otel(pack(raw[:half]) + (pack(raw[half:]) if raw[half:] else b"")) == expected
    assert read_otel(to_frames(map(pack, raw.splitlines()))) == expected
    assert read_otel(pack(to_frames(raw.splitlines()))) == expected
    with pytest.raises(UnreadableTraceError, match="damaged zstd file"):
        read_otel(pack(raw)[:-20])


def test_without_the_extra_zstd_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UnreadableTraceError, match=r"pip install 'promptiter\[zstd\]'"):
        read_otel(b"\x28\xb5\x2f\xfd" + b"x" * 50)


def log_messages() -> tuple[bytes, bytes, bytes]:
    """Spans without content and the log records that have it, in JSON and in protobuf."""
    ids = {"traceId": "ab" * 16, "spanId": "cd" * 8}
    span = {
        **ids,
        "name": "chat m",
        "startTimeUnixNano": "1000000000000000000",
        "endTimeUnixNano": "1000000001000000000",
        "attributes": [
            {"key": "gen_ai.operation.name", "value": {"stringValue": "chat"}},
            {"key": "gen_ai.request.model", "value": {"stringValue": "m"}},
        ],
    }
    records: list[Fields] = [
        {**ids, "eventName": "gen_ai.user.message", "body": {"kvlistValue": {"values": [pair("content", "Hi?")]}}},
        {
            **ids,
            "eventName": "gen_ai.choice",
            "body": {
                "kvlistValue": {
                    "values": [{"key": "message", "value": {"kvlistValue": {"values": [pair("content", "Hello!")]}}}]
                }
            },
        },
    ]
    message = logs_pb2.LogsData()
    added = message.resource_logs.add().scope_logs.add().log_records
    for each in records:
        record = added.add(event_name=each["eventName"], time_unix_nano=5)
        record.trace_id, record.span_id = bytes.fromhex(each["traceId"]), bytes.fromhex(each["spanId"])
        fill(record.body, each["body"])
    spans = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    return (
        spans,
        orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}),
        message.SerializeToString(),
    )


def pair(key: str, text: str) -> Fields:
    return {"key": key, "value": {"stringValue": text}}


def fill(target: Any, value: Fields) -> None:
    if "stringValue" in value:
        target.string_value = value["stringValue"]
    for each in value.get("kvlistValue", {}).get("values", ()):
        fill(target.kvlist_value.values.add(key=each["key"]).value, each["value"])


def test_log_records_of_every_encoding_are_joined_to_their_spans() -> None:
    spans, as_json, as_protobuf = log_messages()
    for logs in (
        as_json,
        as_protobuf,
        to_frames([as_protobuf]),
        gzip.compress(as_protobuf),
        orjson.dumps(to_snake(orjson.loads(as_json))),
    ):
        for files in ((spans, logs), (logs, spans)):
            [trace] = read_otel(*files)
            assert trace.steps[0].output.text == "Hello!"
            assert trace.steps[0].input.text == "Hi?"


def test_a_mixture_of_files_is_one_import() -> None:
    files = [
        EXPORTS / f"{FAN_OUT}.otlp.pb",
        EXPORTS / "langgraph_otelgenai.two_turns.sdk.jsonl",
        EXPORTS / "langgraph_openinference.rag_cycle.jaeger.json",
    ]
    assert len(read_otel(*files)) == sum(len(read_otel(file)) for file in files)


@pytest.mark.parametrize("name", [f"{FAN_OUT}.sdk.jsonl", f"{FAN_OUT}.otlp.jsonl", f"{FAN_OUT}.console.txt"])
def test_a_half_written_end_is_a_counted_warning(name: str) -> None:
    raw = (EXPORTS / name).read_bytes()
    if name.endswith(".otlp.jsonl"):
        raw += raw.splitlines()[0]
    coverage = Coverage()
    assert read_otel(raw[:-40], coverage=coverage)
    assert sum(coverage.warnings.values()) == 1
    assert "half-written" in next(iter(coverage.warnings))


def test_a_half_written_last_frame_is_a_counted_warning() -> None:
    raw = (EXPORTS / f"{FAN_OUT}.otlp.pb").read_bytes()
    coverage = Coverage()
    assert read_otel(to_frames([raw, raw])[:-7], coverage=coverage) == read_otel(raw)
    assert coverage.warnings == {"a half-written last message was left out": 1}


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (b"PK\x03\x04" + b"x" * 40, "zip archive"),
        (b"name,span_kind,parent_id,start_time\n" * 3, "is text, but not JSON: it starts with 'name,span_kind"),
        (b"PAR1" + b"\0" * 40, "Parquet"),
        (gzip.compress(b'{"resourceSpans": []}\n' * 100, mtime=0)[:-3], "damaged gzip file"),
        (b'{"hello": 1}', "neither spans nor a span id, but 'hello'"),
        (b'{"data": [], "total": 0}', "the empty answer of a query"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"resourceSpans": [{"instrumentationLibrarySpans": [{"spans": []}]}]}', "from before 2022"),
    ],
)
def test_files_that_are_no_export_say_what_they_are(start: bytes, message: str) -> None:
    with pytest.raises(UnreadableTraceError, match=message):
        read_otel(start)


def test_a_jaeger_trace_alone_and_spans_of_phoenix_are_read() -> None:
    jaeger = EXPORTS / "langgraph_openinference.rag_cycle.jaeger.json"
    [trace] = orjson.loads(jaeger.read_bytes())["data"]
    assert read_otel(orjson.dumps(trace)) == read_otel(jaeger)
    frame = [orjson.loads(line) for line in (EXPORTS / "phoenix.rag_cycle.phoenix_df.jsonl").read_bytes().splitlines()]
    rows = [
        {
            "context": {"trace_id": row["context.trace_id"], "span_id": row["context.span_id"]},
            "attributes": {key[11:]: value for key, value in row.items() if key.startswith("attributes.")},
            **{key: value for key, value in row.items() if "." not in key},
        }
        for row in frame
    ]
    expected = read_otel(EXPORTS / "phoenix.rag_cycle.phoenix_df.jsonl")
    assert read_otel(orjson.dumps({"data": rows, "next_cursor": None})) == expected


def test_observations_of_langfuse_without_recorded_attributes_are_steps() -> None:
    times = {"startTime": "2026-01-01T00:00:00.000Z", "endTime": "2026-01-01T00:00:01.000Z"}
    generation = {
        "id": "3f0c5f0e-7d0b-4b5e-9d57-0b1f4f7d2a11",
        "traceId": "run-7",
        "type": "GENERATION",
        "name": "answer",
        "model": "some-model",
        "input": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi?"}],
        "output": {"role": "assistant", "content": "Hello!"},
        "usageDetails": {"input": 7, "output": 2, "total": 9},
        "costDetails": {"total": 0.25},
        "level": "ERROR",
        "statusMessage": "too slow",
        "metadata": None,
        **times,
    }
    root = {"id": "root", "traceId": "run-7", "type": "SPAN", "name": "run", **times}
    child = {**generation, "parentObservationId": "root"}
    for document in (
        [root, child],
        {"id": "run-7", "sessionId": "s-1", "observations": [root, child]},
        {"data": [root, child]},
    ):
        [trace] = read_otel(orjson.dumps(document))
        [step] = trace.steps
        assert (step.kind, step.input.text, step.output.text) == ("llm", "Hi?", "Hello!")
        assert step.usage == Usage(input_tokens=7, output_tokens=2, cost_usd=0.25)
        assert step.error == Failure("", "too slow")


def test_what_holds_no_spans_gives_no_traces() -> None:
    for raw, warning in (
        (b"", "no spans in the export"),
        (b"\n \n", "no spans in the export"),
        (b'{"resourceSpans": []}', "no spans in the export"),
        (b'{"resourceMetrics": [{"scopeMetrics": []}]}', "a batch of metrics was left out"),
        (log_messages()[1], "log records without spans"),
    ):
        coverage = Coverage()
        assert read_otel(raw, coverage=coverage) == []
        assert [each.partition(":")[0] for each in coverage.warnings] == [warning]


@pytest.mark.slow
def test_bombs_and_huge_attributes_are_refused() -> None:
    line = b'{"resourceSpans": []}' + b" " * (1 << 20) + b"\n"
    with pytest.raises(
        UnreadableTraceError, match=r"more than 250 times its size.*unpack it yourself \(`gunzip -k FILE`\)"
    ):
        read_otel(gzip.compress(line * 100, 9))
    span = load_spans(FAN_OUT)[0]
    span["attributes"].append(pair("huge", "x" * (2 << 20)))
    raw = orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]})
    for each in (raw, orjson.dumps([span])):
        with pytest.raises(
            UnreadableTraceError, match=r"attribute 'huge' has 2 MB, and the limit is 1 MB.*--max-attribute-mb"
        ):
            read_otel(each, max_attribute_mb=1)


@pytest.mark.slow
def test_a_span_with_too_many_attributes_is_refused() -> None:
    span = load_spans(FAN_OUT)[0]
    span["attributes"] = [pair(str(number), "") for number in range(100_001)]
    with pytest.raises(UnreadableTraceError, match="100,001 attributes"):
        read_otel(orjson.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
