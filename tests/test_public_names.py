"""The names that users import and type. Changing one is a change for them: CHANGELOG it."""

from __future__ import annotations

import subprocess
import sys

import typer.main

import promptiter
import traces
from promptiter.cli import app

TRACES = """
AmbiguousStepError Blob BrokenTraceError CycleError DuplicateStepError Edge EmptyTraceError ExecutionTrace Failure Loop
NoActiveRecordingError OpenStep Place Recording Snapshot Step ToolCall TraceError TraceGraph TraceProcessor
UnknownConventionError UnknownPredecessorError UnknownStepError UnreadableTraceError UnwritableTraceError Usage
current_step digest read read_otel read_surface read_traces record step write_otel write_traces
"""
PROMPTITER = "__version__"
COMMANDS = "trace export, trace show, trace stats"


def test_names_of_traces() -> None:
    assert traces.__all__ == sorted(TRACES.split())
    assert {name for name in traces.__all__ if getattr(traces, name) is None} == set()
    assert dir(traces) == traces.__all__


def test_names_of_promptiter() -> None:
    assert promptiter.__all__ == PROMPTITER.split()
    assert all(getattr(promptiter, name) for name in promptiter.__all__)


def test_names_of_commands() -> None:
    found = []
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        inner = getattr(command, "commands", {"": None})
        found += [f"{name} {sub}".strip() for sub in inner]
    assert ", ".join(sorted(found)) == COMMANDS


def test_importing_loads_nothing_heavy() -> None:
    heavy = ["networkx", "pydantic", "opentelemetry", "litellm", "rich", "typer", "orjson", "google", "asyncio"]
    code = f"import sys, promptiter, traces; print([name for name in {heavy!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
