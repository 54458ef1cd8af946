"""What must be equal in two runs of the same request: everything except `measured`."""

from __future__ import annotations

from pathlib import Path

import orjson

from promptiter.evaluation.trace_store import encode_trace
from traces import read_traces


def read_unmeasured(folder: Path, *, traces: bool = True) -> object:
    """The result without `measured`, the profiles and surfaces, and the names of the traces."""
    [result] = folder.glob("*/result.json")
    left = {
        str(file.relative_to(result.parent)): file.read_bytes()
        for file in sorted(result.parent.rglob("*"))
        if file.is_file() and file.parent.name in ("profiles", "surfaces")
    }
    file = result.parent / "traces.jsonl.gz"
    names = sorted({encode_trace(trace)[0] for trace in read_traces(file)}) if traces else []
    return drop_measured(orjson.loads(result.read_bytes())), left, names


def forget_final_tests(runs: Path) -> None:
    """Remove the final tests and their results from the uses of cases, as if no run had come to its own."""
    file = runs / ".case_uses.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    kinds = (b'"final_test"', b'"test_result"')
    file.write_bytes(b"".join(line for line in lines if not any(kind in line for kind in kinds)))


def drop_measured(value: object) -> object:
    if isinstance(value, dict):
        return {key: drop_measured(each) for key, each in value.items() if key != "measured"}
    return [drop_measured(each) for each in value] if isinstance(value, list) else value
