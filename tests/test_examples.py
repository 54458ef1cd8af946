"""Each example is run as its page says, in a copy of examples/, and prints what its page says. Nothing may call out."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from examples.record_a_run.main import record
from tests.pages import Output, blocks, check_output
from traces import ExecutionTrace, read_traces

EXAMPLES = Path(__file__).parent.parent / "examples"
SHORT = ("quickstart", "record_a_run")
"""Examples of `make test`. The others are part of `make long`."""

OFFLINE = """
import os, sys

def watch(event, arguments):
    place = arguments[1] if event == "socket.connect" else arguments[0] if event == "socket.getaddrinfo" else None
    host = place[0] if isinstance(place, tuple) else place
    if event.startswith("socket.") and isinstance(place, tuple | str) and host not in ("127.0.0.1", "localhost"):
        os.write(2, f"the example calls {place}".encode())
        os._exit(70)

sys.addaudithook(watch)
"""
"""Ends a program that connects to another machine, or looks one up."""


def read_page(name: str) -> list[tuple[str, str]]:
    """The commands of an example, each with what it prints."""
    pairs = []
    for block in blocks(EXAMPLES / name / "README.md"):
        assert block.expected
        [command] = block.code.splitlines()
        pairs.append((command, block.expected))
    return pairs


COMMANDS = [
    pytest.param(page.parent.name, *pair, marks=[] if page.parent.name in SHORT else [pytest.mark.long], id=pair[0])
    for page in sorted(EXAMPLES.glob("*/README.md"))
    for pair in read_page(page.parent.name)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "command", "expected"), COMMANDS)
def test_an_example_prints_what_its_page_says(name: str, command: str, expected: str, tmp_path: Path) -> None:
    if name == "node_agent" and shutil.which("node") is None:
        pytest.skip("Node.js is not installed: apt-get install nodejs")
    shutil.copytree(EXAMPLES, tmp_path / "examples")
    (tmp_path / "offline").mkdir()
    (tmp_path / "offline" / "sitecustomize.py").write_text(OFFLINE)
    environ = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"])),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(tmp_path / "offline"), os.environ.get("PYTHONPATH")))),
        "COLUMNS": "120",
        "PYTEST_PLUGINS": "promptiter.pytest_plugin",  # as its entry point does, also if that is not installed yet
    }
    done = subprocess.run(shlex.split(command), capture_output=True, text=True, cwd=tmp_path, env=environ)
    assert done.returncode == 0, done.stderr
    check_output(Output(done.stdout, done.stderr), expected, place=name)


def test_the_index_lists_every_example_with_its_command() -> None:
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir() and path.name != "__pycache__"}
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \[(\w+)\]\((\w+)\) \| .* \| `(.+)` \|$", index, re.MULTILINE)
    assert set(listed) == {(name, name, command) for name in folders for command, _ in read_page(name)}


@pytest.mark.slow
async def test_the_bundled_trace_is_what_the_example_records() -> None:
    [bundled] = read_traces(EXAMPLES / "record_a_run" / "research_desk.jsonl")
    assert without_times(await record()) == without_times(bundled)


def without_times(trace: ExecutionTrace) -> ExecutionTrace:
    return replace(
        trace,
        steps=tuple(
            replace(
                step,
                start_ns=None,
                end_ns=None,
                tool_calls=tuple(replace(call, start_ns=None, end_ns=None) for call in step.tool_calls),
            )
            for step in trace.steps
        ),
    )
