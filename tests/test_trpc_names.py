"""Every name that docs/reference/trpc_agent.md gives for promptiter exists."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import re
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.worlds import desk
from tests.worlds.desk import Watcher
from tests.worlds.desk_stages import engine

ROOT = Path(__file__).parent.parent
NAMES = ("backprop", "evaluation", "policies", "stages", "runs", "manager", "server.application")
PACKAGES = ("promptiter", *(f"promptiter.{name}" for name in NAMES))
SCHEMA = orjson.loads((ROOT / "promptiter/config/promptiter.schema.json").read_bytes())


def read_column(title: str) -> list[str]:
    """The code in a column of all tables with this title, row by row."""
    found, column = [], None
    for line in (ROOT / "docs/reference/trpc_agent.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if not cells:
            column = None
        elif column is None:
            column = cells.index(title) if title in cells else -1
        elif column >= 0:
            found += re.findall(r"`([^`]+)`", cells[column])
    return found


def find_public(name: str) -> Any:
    for package in (*PACKAGES, "traces"):
        module = importlib.import_module(package)
        if hasattr(module, name):
            return getattr(module, name)
    raise AssertionError(f"{name} is not public")


@pytest.mark.parametrize("code", [each for each in read_column("Python") if "#" not in each])
def test_the_name_in_python_exists(code: str) -> None:
    if argument := re.fullmatch(r"(\w+)\((\w+)=\)", code):
        assert argument[2] in inspect.signature(find_public(argument[1])).parameters
        return
    name, _, attribute = code.partition(".")
    found = find_public(name)
    fields = {field.name for field in dataclasses.fields(found)} if dataclasses.is_dataclass(found) else set()
    fields |= set(getattr(found, "model_fields", ()))
    assert not attribute or attribute in fields or hasattr(found, attribute)


@pytest.mark.parametrize("key", read_column("promptiter.yaml"))
def test_the_key_of_the_configuration_exists(key: str) -> None:
    section: Any = SCHEMA
    for part in key.split("."):
        refs = [each["$ref"] for each in (section, *section.get("anyOf", ())) if "$ref" in each]
        section = SCHEMA["$defs"][refs[0].rpartition("/")[2]] if refs else section
        assert part in section["properties"]
        section = section["properties"][part]


async def test_a_run_has_these_events() -> None:
    watcher = Watcher()
    await engine().run(desk.request(), observers=[watcher])
    assert len(read_column("type here")) == 10
    assert set(read_column("type here")) <= {event.type for event in watcher.events}
    evaluated = {event.phase for event in watcher.events if event.type == "evaluation_finished"}
    assert set(read_column("phase, if several have this type")) == {"baseline", "train", "validation"} <= evaluated
