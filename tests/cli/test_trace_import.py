"""`promptiter trace import`: files that are still written, and messages about files that cannot be read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Run
from traces import read_otel, read_traces

EXPORTS = Path(__file__).parents[1] / "traces" / "exports"
FAN_OUT = EXPORTS / "langgraph_openinference.send_fanout.otlp.jsonl"


@pytest.mark.slow
def test_a_followed_file_is_written_run_by_run_until_it_is_stopped(tmp_path: Path) -> None:
    source, output = tmp_path / "spans.jsonl", tmp_path / "traces.jsonl"
    raw = FAN_OUT.read_bytes()
    source.write_bytes(raw)
    command = ["trace", "import", "--follow", "--quiet", "0.2", str(source), "-o", str(output)]
    with subprocess.Popen(
        [sys.executable, "-m", "promptiter", *command],
        stderr=subprocess.PIPE,
        env=dict(os.environ),
    ) as process:
        deadline = time.monotonic() + 60
        while not (output.exists() and output.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        with source.open("ab") as file:
            file.write((EXPORTS / "langgraph_otelgenai.two_turns.otlp.jsonl").read_bytes() + b'{"half')
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors.decode()
    first, second = read_traces(output)
    assert [first] == read_otel(FAN_OUT)
    assert second.status == "completed"
    assert b"press Ctrl-C to end" in errors
    assert b"2 traces with" in errors
    assert b"a half-written last message was left out" in errors


@pytest.mark.slow
def test_warnings_are_printed_and_part_of_the_json(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spans.jsonl").write_bytes(FAN_OUT.read_bytes() + b'{"resourceSpans')
    command = ("trace", "import", tmp_path / "spans.jsonl", "-o", tmp_path / "traces.jsonl")
    assert "warning: a half-written last line was left out" in run(*command, stream="err")
    assert '"a half-written last line was left out": 1' in run(*command, "--json")


def test_a_file_that_is_no_export_says_what_it_is(run: Run, tmp_path: Path) -> None:
    (tmp_path / "spans.csv").write_text("trace_id,span_id\nabc,def\n")
    printed = run("trace", "import", tmp_path / "spans.csv", "-o", tmp_path / "traces.jsonl", code=2)
    assert "is text, but not JSON: it starts with 'trace_id,span_id" in printed
    assert not (tmp_path / "traces.jsonl").exists()
