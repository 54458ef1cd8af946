from __future__ import annotations

from pathlib import Path

from promptiter.tasks.trace_files import read_trace_files
from traces import read_otel, write_traces
from traces.otel.recover.coverage import Coverage

EXPORTS = Path(__file__).parent.parent / "traces" / "exports"
TWO_TURNS = EXPORTS / "langgraph_otelgenai.two_turns.otlp.jsonl"
FAN_OUT = EXPORTS / "langgraph_openinference.send_fanout.otlp.pb"


def test_own_traces_and_exports_are_read_together(tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl.gz"
    [expected] = read_otel(FAN_OUT)
    write_traces(own, [expected])
    assert list(read_trace_files([own])) == [expected]
    coverage = Coverage()
    found = list(read_trace_files([TWO_TURNS, own, FAN_OUT.read_bytes()], coverage=coverage))
    assert [trace.id for trace in found] == [expected.id, *(trace.id for trace in read_otel(TWO_TURNS)), expected.id]
    assert coverage.traces == 2


def test_a_run_that_is_spread_over_files_is_joined(tmp_path: Path) -> None:
    lines = TWO_TURNS.read_text(encoding="utf-8").splitlines()
    parts = [tmp_path / f"{number}.jsonl" for number in range(len(lines))]
    for part, line in zip(parts, lines, strict=True):
        part.write_text(line, encoding="utf-8")
    assert len(list(read_trace_files(parts))) == len(read_otel(TWO_TURNS))
