"""Imported traces on the command line: edges of users, coverage, names of steps, marks of guesses, structures."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from promptiter.cli import main

ROOT = Path(__file__).parent.parent.parent
DESK = ROOT / "examples" / "import_spans" / "desk.otlp.jsonl"
LOOP = ROOT / "tests" / "traces" / "exports" / "strands_native_events.graph_cycle.otlp.jsonl"


def run(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr("sys.argv", ["promptiter", "trace", *map(str, words)])
    monkeypatch.setenv("COLUMNS", "120")
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_coverage_counts_spans_edges_and_corrected_traces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "import", DESK, "-o", tmp_path / "traces.jsonl", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["spans"], found["spans_folded"], found["spans_dropped"]) == (20, 4, {})
    assert found["edges"] == {"control/time": 16}
    assert found["traces_changed_by_consensus"] == 1
    assert found["steps_without_predecessors"] == 4


def test_an_unknown_node_in_the_edges_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    edges = tmp_path / "edges.txt"
    edges.write_text("planer -> search\n")
    assert run(monkeypatch, "import", DESK, "-o", tmp_path / "traces.jsonl", "--edges", edges) != 0
    assert "did you mean 'planner'?" in capsys.readouterr().err


def test_imported_steps_are_named_by_their_nodes_and_guesses_are_marked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "show", LOOP) == 0
    printed = capsys.readouterr().out
    assert "reviewer#2 ?" in printed
    assert "? which steps came before is guessed (text" in printed
    assert run(monkeypatch, "show", LOOP, "--format", "mermaid") == 0
    assert "-.->" in capsys.readouterr().out
    assert run(monkeypatch, "show", LOOP, "-o", tmp_path / "loop.svg") == 0
    picture = (tmp_path / "loop.svg").read_text(encoding="utf-8")
    assert "stroke-dasharray" in picture
    assert "guessed from texts or times" in picture
    assert ">reviewer#2<" in picture


@pytest.mark.parametrize("name", ["structure.svg", "structure.mmd", "structure.json"])
def test_a_structure_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert run(monkeypatch, "structure", DESK, "-o", tmp_path / name) == 0
    assert "planner" in (tmp_path / name).read_text(encoding="utf-8")


def test_a_structure_says_what_varies(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "structure", DESK) == 0
    assert "varies, 4 values: Today is 2026-11-{…}. You plan answers for {…}." in capsys.readouterr().out
