"""`promptiter serve` and `promptiter token`: what they print, and their errors."""

from __future__ import annotations

import re
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from promptiter.server.tokens import Tokens
from tests.cli.conftest import Run

pytestmark = pytest.mark.slow


def test_other_machines_need_tokens(run: Run, tmp_path: Path) -> None:
    assert "there are no tokens: make some with `promptiter token`" in run(
        "serve", tmp_path, "--host", "0.0.0.0", code=2
    )


def test_every_problem_of_every_configuration_is_reported(run: Run, tmp_path: Path) -> None:
    for name, content in (("a", "agnet: x\nmax_rounds: -1\n"), ("b", "agent: nowhere:x\n")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "promptiter.yaml").write_text(content)
    shown = run("serve", tmp_path / "a", tmp_path / "b", tmp_path / "c", code=2)
    for text in ("the server cannot start, it has", "agnet", "max_rounds", "nowhere", f"{tmp_path}/c: "):
        assert text in shown


def test_a_problem_of_a_configuration_names_its_file_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.yaml").write_text("agnet: x\n")
    assert "\n  - bad.yaml: unknown key 'agnet'" in run("serve", "bad.yaml", code=2)
    assert "\n  - promptiter.yaml: cannot be read" in run("serve", code=2)


def test_agents_must_be_at_an_allowed_host(run: Run, tmp_path: Path) -> None:
    for name, agent in (("a", "remote: http://127.0.0.1:9"), ("b", "http: {url: http://169.254.169.254/chat}")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "promptiter.yaml").write_text(f"agent: {{{agent}}}\n")
    shown = run("serve", tmp_path / "a", tmp_path / "b", "--allow-agent", "a.example", "--allow-agent", "b:80", code=2)
    assert "agents at '127.0.0.1:9' may not be called; allowed: a.example, b:80" in shown
    assert "agents at '169.254.169.254:80' may not be called" in shown
    assert "link-local address" in run("serve", tmp_path / "b", code=2)
    assert "--allow-agent: 'http://a' is not a host" in run("serve", "--allow-agent", "http://a", code=2)


def test_apps_of_one_name_are_refused(run: Run, desk: Path, tmp_path: Path) -> None:
    shown = run("serve", desk, desk, "--store", f"sqlite:///{tmp_path}/runs.db", code=2)
    assert f"two apps are called {desk.name!r}; name one with `server: {{app: ...}}`" in shown


def test_wrong_tokens_are_reported(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "'none.yaml' cannot be read" in run("serve", "--tokens", "none.yaml", code=2)
    Path("tokens.yaml").write_text("tokens: []\n")
    assert "has no tokens; make one with `promptiter token" in run("serve", "--tokens", "tokens.yaml", code=2)
    Path("tokens.yaml").write_text("tokens: [{name: ci, scopes: [rule]}]\n")
    shown = run("serve", "--tokens", "tokens.yaml", code=2)
    assert "sha256" in shown
    assert "scopes" in shown


def test_expired_tokens_are_named(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    entry = f"{{name: ci, sha256: {'0' * 64}, scopes: [run], expires: 2020-01-01T00:00:00Z}}"
    Path("tokens.yaml").write_text(f"tokens: [{entry}]\n")
    assert "the token 'ci' expired on 2020-01-01" in run("serve", "none.yaml", "--tokens", "tokens.yaml", code=2)


def test_a_port_in_use_and_a_database_of_another_release_are_reported(run: Run, desk: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        assert f"127.0.0.1:{port} cannot be used" in run("serve", desk, "--port", port, code=2)
    with sqlite3.connect(desk / "promptiter.db") as database:
        database.execute("UPDATE promptiter_schema SET version = 99")
    database.close()
    assert "has schema 99, and this release reads" in run("serve", desk, "--port", "0", code=2)


def test_a_token_is_printed_once_and_only_its_hash_is_kept(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    token = run("token", "ci", "--scope", "read", "--app", "desk", "--days", "3").strip()
    assert token not in Path("tokens.yaml").read_text()
    assert Tokens.load("tokens.yaml").check(f"Bearer {token}", "read", "desk").name == "ci"
    assert "has a token 'ci'" in run("token", "ci", code=2)


def test_names_that_a_token_cannot_have_are_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "'' cannot be the name of a token" in run("token", "", code=2)
    assert "cannot be the name of a token: use 1 to 100 characters" in run("token", "x" * 101, code=2)
    for app in ("my app", ""):
        assert f"{app!r} cannot be the name of an app" in run("token", "ci", "--app", app, code=2)
    assert not Path("tokens.yaml").exists()


def test_a_server_says_what_it_serves_logs_runs_and_ends_with_0(desk: Path, run: Run) -> None:
    options = ("--run-timeout-s", "0.001", "--max-streams", "1")
    command = [sys.executable, "-m", "promptiter", "serve", "--port", "0", *options]
    with subprocess.Popen(command, cwd=desk, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline().rstrip() for _ in range(4)]
        found = re.fullmatch(rf"Serving {desk.name} on (\S+)\. Press Ctrl-C to stop\.", lines[0])
        assert found is not None
        assert lines[1:] == [
            f"  runs:   sqlite:///{desk}/promptiter.db",
            "  tokens: off; everyone on this machine may do everything",
            f"  API:    {found[1]}/promptiter/v1/openapi.json",
        ]
        run_id = run("run", "--server", found[1], "--max-rounds", "0", "--detach").strip()
        run("resume", run_id, "--server", found[1], "--quiet")
        waited = httpx.post(f"{found[1]}/promptiter/v1/apps/{desk.name}/runs")
        assert (waited.status_code, "longer than 0.001 s" in waited.text) == (504, True)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 0
    assert f"{desk.name}: run {run_id} started" in errors
    assert f"{desk.name}: run {run_id} succeeded: " in errors
