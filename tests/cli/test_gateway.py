from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from tests.cli.conftest import Run
from tests.marks import take_some
from traces import read_traces

BODY = {"model": "clerk", "messages": [{"role": "user", "content": "Hello"}]}


def test_another_host_requires_a_token(run: Run) -> None:
    assert "can be reached from other machines; give a token" in run("gateway", "--host", "0.0.0.0", code=2)
    assert "16 to 128 letters" in run("gateway", "--token", "a/b", code=2)


def test_a_file_that_cannot_be_written_is_found_before_anything_is_served(run: Run, tmp_path: Path) -> None:
    assert "its folder does not exist" in run("gateway", "--record", tmp_path / "no" / "x.jsonl", code=2)


def test_a_wrong_configuration_is_reported(run: Run, tmp_path: Path) -> None:
    (tmp_path / "promptiter.yaml").write_text("modles: {}\n")
    assert "modles" in run("gateway", tmp_path, code=2)


def test_a_port_that_is_in_use_is_an_error_and_no_summary(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} of '127.0.0.1' cannot be used" in run("gateway", "--port", str(port), code=2)
        assert run("gateway", "--port", str(port), "--record", "calls.jsonl", code=2, stream="out") == ""
    assert not (tmp_path / "calls.jsonl").exists()


SLOW_CLERK = """
import time
from pathlib import Path

def answer(messages):
    Path("asked").touch()
    time.sleep(60)
"""


@pytest.mark.slow
def test_two_signals_at_once_end_it_without_waiting_for_calls_and_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "clerk.py").write_text(SLOW_CLERK)
    (tmp_path / "promptiter.yaml").write_text("python_path: [.]\nmodels: {clerk: {model: clerk:answer}}\n")
    command = [sys.executable, "-m", "promptiter", "gateway", "--port", "0"]
    with (
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process,
        ThreadPoolExecutor() as pool,
    ):
        assert process.stdout is not None
        url = re.search(r"OPENAI_BASE_URL=(\S+)", "".join(process.stdout.readline() for _ in range(7)))
        assert url is not None
        call = pool.submit(lambda: httpx.post(f"{url[1]}/chat/completions", json=BODY, trust_env=False, timeout=50))
        while not (tmp_path / "asked").exists():
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=50)
        assert call.exception() is not None or call.result().status_code >= 400
    assert (process.returncode, errors) == (0, "")
    assert "0 model calls" in output


def count_steps(path: Path) -> int:
    return sum(len(trace.steps) for trace in read_traces(path)) if path.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "number", take_some((signal.SIGINT, signal.SIGTERM, signal.SIGKILL), {signal.SIGINT, signal.SIGKILL})
)
def test_calls_are_answered_shown_recorded_and_counted(tmp_path: Path, number: int) -> None:
    (tmp_path / "clerk.py").write_text('def answer(messages):\n    return "You said: " + messages[-1]["content"]\n')
    (tmp_path / "promptiter.yaml").write_text(
        "cache: answers.jsonl\npython_path: [.]\nmodels: {clerk: {model: clerk:answer}}\n"
    )
    command = [sys.executable, "-m", "promptiter", "gateway", "--port", "0", "--record", "calls.jsonl"]
    environment = {**os.environ, "PROMPTITER_TOKEN": "token-of-the-test-1"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(7)]
        url = re.search(r"OPENAI_BASE_URL=(\S+)", "".join(lines))
        assert url is not None
        for headers in ({}, {"X-Promptiter-Conversation": "a", "X-Promptiter-Node": "planner"}, {}):
            response = httpx.post(f"{url[1]}/chat/completions", json=BODY, headers=headers, trust_env=False)
            assert response.json()["choices"][0]["message"]["content"] == "You said: Hello"
        assert httpx.get(f"{url[1].replace('token', 'tokem')}/models", trust_env=False).status_code == 401
        while number == signal.SIGKILL and count_steps(tmp_path / "calls.jsonl") < 3:
            time.sleep(0.05)
        process.send_signal(number)
        rest = process.stdout.read()
    assert "a  planner  clerk  0." in rest
    if number != signal.SIGKILL:  # what was recorded before is kept all the same
        assert process.returncode == 0
        assert "2 model calls, 1 cached" in rest
        assert "2 traces written to calls.jsonl" in rest
    traces = {trace.id: trace for trace in read_traces(tmp_path / "calls.jsonl")}
    assert [step.id for step in traces["gateway"].steps] == ["agent", "agent~2"]
    assert [step.node_id for step in traces["a"].steps] == ["planner"]
    assert (tmp_path / "answers.jsonl").exists()
