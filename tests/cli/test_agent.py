from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@contextmanager
def serve(folder: Path, *arguments: str) -> Iterator[str]:
    """The address of an agent that a process serves while the block runs."""
    command = [sys.executable, "-m", "promptiter", "agent", "serve", *arguments, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            served = re.fullmatch(r"Serving support_desk on (http://127\.0\.0\.1:\d+)\. Press Ctrl-C to stop\.\n", line)
            assert served, line
            yield served[1]
        finally:
            process.send_signal(signal.SIGINT)
    assert process.returncode == 0


def test_another_host_requires_a_token(run: Run) -> None:
    assert "can be reached from other machines; give a token" in run("agent", "serve", "--host", "0.0.0.0", code=2)


def test_a_configuration_without_an_agent_is_an_error(run: Run, tmp_path: Path) -> None:
    (tmp_path / "promptiter.yaml").write_text("models: {}\n")
    assert "the configuration has no agent" in run("agent", "serve", tmp_path, code=2)


@pytest.mark.parametrize("command", [("describe",), ("agent", "serve")])
def test_a_variable_that_is_not_set_is_named(command: tuple[str, ...], run: Run, tmp_path: Path) -> None:
    (tmp_path / "promptiter.yaml").write_text(
        "agent: {remote: {url: 'http://127.0.0.1:1', headers: {Authorization: 'Bearer ${NO_SUCH_TOKEN}'}}}\n"
    )
    assert "the environment variable 'NO_SUCH_TOKEN' is not set; export it" in run(*command, tmp_path, code=2)


@pytest.mark.long
def test_a_served_agent_is_described_and_evaluated_as_it_is_in_this_process(run: Run, desk: Path) -> None:
    near = run("describe"), run("evaluate", "--eval-set", "validation", code=1, stream="out")
    with serve(desk, "agent:agent") as address:
        file = desk / "promptiter.yaml"
        text = file.read_text()
        assert "agent: agent:agent" in text
        file.write_text(text.replace("agent: agent:agent", f"agent: {{remote: '{address}'}}"))
        assert (run("describe"), run("evaluate", "--eval-set", "validation", code=1, stream="out")) == near
    assert f"the service '{address.removeprefix('http://')}' cannot be reached" in run("describe", code=2)
