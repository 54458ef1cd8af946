"""Run folders as document 004 describes them, for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from traces.model import Json

RUN_ID = "2026-04-19_16-05-53_cbf28fd0"
NESTED: Json = {
    "loops": {"used": 5, "max": 12},
    "workers": {"spawned": 7, "max": 20},
    "tokens": {"consumed": 182_001, "max": 400_000},
    "tool_calls": {"used": 33, "max": 80},
    "wall_time": {"elapsed_s": 411.5, "max_s": 1800},
    "depth": {"used": 2, "max": 3},
}
FLAT: Json = {
    "max_loops": 5,
    "max_total_workers": 7,
    "max_total_tokens": 182_001,
    "max_tool_calls": 33,
    "max_wall_time": 411.5,
    "max_depth": 3,
}


def write_json(file: Path, document: Json) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(orjson.dumps(document))
    return file


def write_completion(run_dir: Path, **given: Json) -> Path:
    document: dict[str, Json] = {"run_id": RUN_ID, "task": "Write the report.", "final_budget": NESTED, **given}
    return write_json(run_dir / "run_completion.json", document)


def write_events(file: Path, events: Sequence[Mapping[str, Json]]) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"".join(orjson.dumps(event) + b"\n" for event in events))
    return file


def gate(name: str, reason: str, *, triggered: bool = True) -> dict[str, Json]:
    return {"category": "gate", "fields": {"gate": name, "reason": reason, "triggered": triggered}}


def write_run(run_dir: Path, *, text: str = "draft", severity: str = "high", **given: Json) -> Path:
    """A finished run with a deliverable and one defect."""
    write_completion(run_dir, **given)
    defects: Json = [
        {"category": "content", "location": "section 2", "description": "no sources", "severity": severity}
    ]
    write_json(run_dir / "iterations" / "1" / "critique.json", {"critiques": [{"defects": defects}]})
    (run_dir / "FINAL").mkdir()
    (run_dir / "FINAL" / "report.md").write_text(text)
    return run_dir
