"""`promptiter trace to-evalset`."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from promptiter.evaluation.data.evalset import load_eval_set
from tests.cli.conftest import Run
from traces import ExecutionTrace, Snapshot, Step, read_otel, write_traces

EXPORTS = Path(__file__).parent.parent / "traces" / "exports"
DELEGATION = EXPORTS / "pydantic_ai_native_v5.parallel_delegation.otlp.jsonl"
TOOLS = EXPORTS / "strands_native_latest.tools_parallel.otlp.pb"


def test_exports_of_frameworks_become_cases(run: Run, tmp_path: Path) -> None:
    [tools] = read_otel(TOOLS)
    feedback, cases = tmp_path / "feedback.csv", tmp_path / "cases.jsonl"
    feedback.write_text(f"trace_id,rating,comment\n{tools.id.upper()},up,\nother,down,slow\n", encoding="utf-8")
    said = run("trace", "to-evalset", DELEGATION, TOOLS, "-o", cases, "--feedback", feedback)
    assert said.splitlines() == [
        f"2 cases of 2 runs, written to {cases}",
        "  1 of runs that people liked",
        "  1 of runs without feedback",
        "1 case with a reference answer",
        "1 row of feedback about other runs",
    ]
    liked, unknown = load_eval_set(cases).cases
    [turn] = liked.turns
    assert (turn.user, turn.expected) == ("price of nail and unobtainium", "Total known: 3; unobtainium unknown.")
    assert [(call.name, call.arguments) for call in turn.expected_tool_calls or ()] == [
        ("price", {"item": "nail"}),
        ("price", {"item": "unobtainium"}),
    ]
    assert unknown.turns[0].expected is None


@pytest.mark.slow
def test_cases_are_printed_and_the_summary_is_json(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    printed = run("trace", "to-evalset", DELEGATION, "-o", "-", "--json")
    assert json.loads(printed)["input"] == "Why did revenue change?"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(DELEGATION.read_bytes())))
    summary = json.loads(run("trace", "to-evalset", "-", "-o", tmp_path / "cases.jsonl", "--json"))
    assert summary == {
        "cases": 1,
        "with_reference": 0,
        "outcomes": {"failed": 0, "disliked": 0, "good": 0, "unknown": 1},
        "runs": 1,
        "left_out": {"no_content": 0, "no_question": 0, "later_turn": 0, "duplicate": 0, "sampled_out": 0},
        "redacted": {},
        "unmatched_feedback": 0,
        "traces_without_steps": 0,
    }


@pytest.mark.slow
def test_the_summary_says_what_was_redacted_and_left_out(run: Run, tmp_path: Path) -> None:
    file, cases = tmp_path / "own.jsonl", tmp_path / "cases.jsonl"
    questions = ["I am ada@example.com", "Call +49 170 1234567 or 415-555-2671", "Lamp?", "Lamp?", "", "Kettle?"]
    steps = [Step(id="desk", node_id="desk", input=Snapshot(each), output=Snapshot("ok")) for each in questions]
    write_traces(file, [ExecutionTrace(id=f"t{at}", steps=(step,)) for at, step in enumerate(steps)])
    said = run("trace", "to-evalset", file, "-o", cases, "--most", "3", "--seed", "2")
    assert said.splitlines()[0] == f"3 cases of 6 runs, written to {cases}"
    assert "1 run left out: without a question" in said
    assert "1 run left out: similar to another one" in said
    assert "1 run left out: not in the sample: --most" in said
    run("trace", "to-evalset", file, "-o", cases)
    assert "ada@" not in cases.read_text(encoding="utf-8")
    kept = run("trace", "to-evalset", file, "-o", cases, "--keep-personal-data")
    assert "ada@example.com" in cases.read_text(encoding="utf-8")
    assert "redacted" not in kept


def test_control_characters_of_ids_are_shown(run: Run, tmp_path: Path) -> None:
    file, feedback = tmp_path / "own.jsonl", tmp_path / "feedback.csv"
    step = Step(id="desk", node_id="desk", input=Snapshot("Why?"))
    write_traces(file, [ExecutionTrace(id="t\x1b[2J", steps=(step,))])
    feedback.write_text("trace_id,rating\nother\x1b[31m,up\n", encoding="utf-8")
    said = run("trace", "to-evalset", file, "-o", tmp_path / "c.jsonl", "--feedback", feedback, code=2)
    assert "\x1b" not in said
    assert "no row of" in said


def test_files_that_would_not_be_read_back_are_refused(run: Run, tmp_path: Path) -> None:
    said = run("trace", "to-evalset", DELEGATION, "-o", tmp_path / "cases.csv", code=2)
    assert "cases are written as JSON lines, and 'cases.csv' names another format; name it .jsonl" in said
