"""The financial assistant of the examples, in a folder of its own: an agent.yaml that runs offline."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

EXAMPLE = Path(__file__).parents[2] / "examples" / "financial_assistant"
MODULES = ("offline_model", "graders", "graders.turn_program_equivalence")


@contextmanager
def copy_assistant(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the example as the current folder. Its modules are unloaded before and after."""
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("runs", "results", "__pycache__", ".promptiter"))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(folder)
    for name in MODULES:
        sys.modules.pop(name, None)
    try:
        yield folder
    finally:
        for name in MODULES:
            sys.modules.pop(name, None)


def write_changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """Write the agent.yaml of the example with a change."""
    document = yaml.safe_load((EXAMPLE / "agent.yaml").read_text())
    change(document)
    file = folder / "agent.yaml"
    file.write_text(yaml.safe_dump(document, sort_keys=False))
    return file


def find_block(document: dict[str, Any]) -> dict[str, Any]:
    """The optimizer block of an agent.yaml."""
    found: dict[str, Any] = document["evaluations"]["optimizer"]
    return found
