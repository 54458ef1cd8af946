"""What must be equal in two runs of the same request: everything outside `measured`."""

from __future__ import annotations

from pathlib import Path

import orjson


def outside_measured(folder: Path) -> object:
    """All that a run leaves for people and must be equal, kill or not."""
    [result] = folder.glob("*/result.json")
    left = {
        str(file.relative_to(result.parent)): file.read_bytes()
        for file in sorted(result.parent.rglob("*"))
        if file.is_file() and file.parent.name in ("profiles", "surfaces")
    }
    traces = sorted(file.name for file in (result.parent / "traces").rglob("*.gz"))
    return without_measured(orjson.loads(result.read_bytes())), left, traces


def without_measured(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_measured(each) for key, each in value.items() if key != "measured"}
    return [without_measured(each) for each in value] if isinstance(value, list) else value
