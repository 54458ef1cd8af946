"""`promptiter runs`, `show`, `resume`, `stop`, `export` and `run` with --server, against a server on a socket."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from promptiter.manager import Manager
from promptiter.server.serving import ServerOptions, serve
from promptiter.server.sync_client import Client
from promptiter.testing.small_run import SmallRun
from tests.cli.conftest import Run
from tests.manager.test_manager import GatedRun
from tests.server.conftest import SmallApp, make_tokens

pytestmark = pytest.mark.slow


@dataclass
class ServerThread:
    """A server in a thread, with the app desk, whose runs end by themselves, and the app slow, whose runs wait."""

    url: str = ""
    gated: GatedRun = field(init=False)
    loop: asyncio.AbstractEventLoop = field(init=False)
    stop: asyncio.Event = field(init=False)
    has_started: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self.loop, self.stop, self.gated = asyncio.get_running_loop(), asyncio.Event(), GatedRun(free=4)
        manager = Manager([SmallApp(SmallRun()), SmallApp(self.gated, "slow")])
        tokens = make_tokens(reader=("read",), runner=("run",))
        await serve(manager, ServerOptions(port=0, tokens=tokens), on_start=self.announce, stop=self.stop)

    def announce(self, url: str) -> None:
        self.url = url
        self.has_started.set()

    def call(self, function: Callable[[], object]) -> None:
        self.loop.call_soon_threadsafe(function)

    def start_slowly(self) -> str:
        """Start a run that waits for the gate."""
        self.gated.asked = 0
        for each in (self.gated.gate, self.gated.waits):
            self.call(each.clear)
        with Client(self.url, app="slow", token="runner") as client:
            run_id = client.start().run_id
        asyncio.run_coroutine_threadsafe(self.gated.waits.wait(), self.loop).result(30)
        return run_id


@pytest.fixture(scope="module")
def server() -> Iterator[ServerThread]:
    server = ServerThread()
    thread = threading.Thread(target=server.run)
    thread.start()
    assert server.has_started.wait(30)
    yield server
    server.call(server.gated.gate.set)
    server.call(server.stop.set)
    thread.join()


@pytest.fixture(autouse=True)
def _environment(server: ServerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PROMPTITER_SERVER", server.url)
    monkeypatch.setenv("PROMPTITER_TOKEN", "runner")


@pytest.fixture(scope="module")
def finished(server: ServerThread) -> str:
    with Client(server.url, app="desk", token="runner") as client:
        return client.run().run_id


def test_a_run_is_started_followed_and_shown_as_a_local_one(server: ServerThread, run: Run) -> None:
    shown = run("run", "--server", server.url, "--app", "desk", "--max-rounds", "2", "--no-quiet", code=3, stream="out")
    run_id = run("runs", "--app", "desk", "--limit", "1").splitlines()[1].split()[0]
    assert "Answer politely." in shown
    assert f"promptiter show {run_id} --server {server.url} --app desk" in shown
    assert "/tmp" not in shown
    again = run("resume", run_id, "--app", "desk", "--quiet", code=3, stream="out")
    assert again.startswith("desk: ")
    document = json.loads(run("resume", run_id, "--app", "desk", "--json", code=3, stream="out"))
    assert (document["status"], document["path"], document["exit_code"]) == ("succeeded", None, 3)


def test_a_run_that_is_detached_prints_its_id(server: ServerThread, run: Run) -> None:
    run_id = run("run", "--server", server.url, "--app", "desk", "--detach").strip()
    assert run_id in run("runs", "--app", "desk", "--text", run_id)


def test_runs_are_listed_with_filters_and_pages(server: ServerThread, finished: str, run: Run) -> None:
    with Client(server.url, app="desk", token="runner") as client:
        client.run()
    assert finished in run("runs", "--app", "desk", "--status", "succeeded")
    assert "no such runs in the app 'desk'" in run("runs", "--app", "desk", "--status", "failed")
    [first] = json.loads(run("runs", "--app", "desk", "--limit", "1", "--json"))
    [second] = json.loads(run("runs", "--app", "desk", "--limit", "1", "--before", first["run_id"], "--json"))
    assert second["run_id"] < first["run_id"]
    assert first["run_id"] in run("runs", "--app", "desk", "--limit", "1", stream="err")
    assert "did you mean 'succeeded'" in run("runs", "--app", "desk", "--status", "succeded", code=2)


def test_a_finished_run_is_shown_in_every_way(finished: str, run: Run) -> None:
    assert "Answer politely." in run("show", finished, "--app", "desk")
    assert "train-0" in run("show", finished, "--app", "desk", "--case", "train-0")
    assert "round" in run("show", finished, "--app", "desk", "--rounds").lower()
    assert json.loads(run("show", finished, "--app", "desk", "--json"))["folder"] is None
    assert "clerk#instruction" in run("show", finished, "--app", "desk", "--blame", "clerk#instruction")
    assert "Answer politely." in run("show", "latest", "--app", "desk", "--diff")


def test_a_run_in_progress_is_shown_stopped_resumed_and_cancelled(server: ServerThread, run: Run) -> None:
    run_id = server.start_slowly()
    shown = run("show", run_id, "--app", "slow")
    assert "Running in round 1" in shown
    assert "4 model calls" in shown
    assert "stops after the work in progress" in run("stop", run_id, "--app", "slow")
    server.call(server.gated.gate.set)
    with Client(server.url, app="slow", token="runner") as client:
        assert client.wait(run_id).status in ("succeeded", "cancelled")
    shown = run("resume", run_id, "--app", "slow", code=3, stream="err")
    assert f"{run_id} at {server.url}" in shown
    assert "resuming" in shown
    other = server.start_slowly()
    assert f"cancelled {other}" in run("stop", other, "--app", "slow", "--cancel")
    assert "cancelled" in run("runs", "--app", "slow", "--text", other)
    server.call(server.gated.gate.set)
    run("resume", other, "--app", "slow", "--quiet", code=3, stream="out")


def test_a_queued_run_is_shown_and_stopped_as_one(server: ServerThread, run: Run) -> None:
    begun = [server.start_slowly()]
    with Client(server.url, app="slow", token="runner") as client:
        begun += [client.start().run_id for _ in range(3)]
        queued = client.start().run_id
    assert run("show", queued, "--app", "slow") == f"{queued} is queued: it has not begun\n"
    assert run("stop", queued, "--app", "slow") == f"cancelled {queued}\n"
    shown = run("show", queued, "--app", "slow")
    assert f"{queued} is cancelled; it had not begun" in shown
    assert "continue it with: promptiter resume" in shown
    assert json.loads(run("show", queued, "--app", "slow", "--json"))["status"] == "cancelled"
    for each in begun:
        run("stop", each, "--app", "slow", "--cancel")
    server.call(server.gated.gate.set)


def test_a_run_is_exported_to_a_folder_that_other_commands_read(finished: str, run: Run, tmp_path: Path) -> None:
    path = run("export", finished, "--app", "desk", "--to", tmp_path / "runs").strip()
    assert "Answer politely." in run("show", path)
    assert run("report", path).strip() == f"{path}/report.html"
    assert "clerk" in run("trace", "show", path, "--case", "train-0")
    assert "exists; choose another folder" in run("export", finished, "--app", "desk", "--to", "runs", code=2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--app", "dsek"), "unknown app 'dsek' (did you mean 'desk'?)"),
        (("--server", "127.0.0.1:8788"), "did you mean http://127.0.0.1:8788?"),
        (("--server", "ftp://host"), "is not the URL of a server"),
        (("--server", "http://user:pass@host"), "a token is given separately"),
        (("--server", "http://host/promptiter/v1/apps/desk"), "give only that of the server"),
        ((), "with --app NAME; it does not say which it has"),
        (
            ("--app", "desk", "--token-file", "missing"),
            "--token-file 'missing' cannot be read: No such file or directory\n",
        ),
        (("--runs", "http://host"), "give it as --server"),
        (("--server", "http://host", "--runs", "runs"), "both name a place"),
    ],
)
def test_wrong_places_are_explained(arguments: tuple[str, ...], message: str, run: Run) -> None:
    assert message in run("runs", *arguments, code=2)


def test_wrong_tokens_and_runs_are_explained(
    server: ServerThread, finished: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert f"there is no run 'nope' in the app 'desk' of {server.url}" in run("show", "nope", "--app", "desk", code=2)
    Path("token").write_text("reader\n")
    refused = run("resume", finished, "--app", "desk", "--token-file", "token", code=2)
    assert "answered 403: the token lacks the scope 'run'; ask for a token with more rights" in refused
    assert finished in run("runs", "--app", "desk", "--token-file", "token")
    monkeypatch.delenv("PROMPTITER_TOKEN")
    shown = run("runs", "--app", "desk", code=2)
    assert "a token is required" in shown
    assert "set PROMPTITER_TOKEN, or give --token-file FILE" in shown
    monkeypatch.setenv("PROMPTITER_TOKEN", "wrong")
    shown = run("runs", "--app", "desk", code=2)
    assert "the token is not known here; it is from the variable PROMPTITER_TOKEN; make another with" in shown
    Path("token").write_text("unknown\n")
    assert "it is from --token-file 'token'" in run("runs", "--app", "desk", "--token-file", "token", code=2)
    monkeypatch.setenv("PROMPTITER_TOKEN", "two words")
    assert "does not have a token" in run("runs", "--app", "desk", code=2)


def test_a_server_that_does_not_answer_is_named(run: Run) -> None:
    shown = run("runs", "--server", "http://127.0.0.1:1", "--app", "desk", code=1)
    assert "the server http://127.0.0.1:1 cannot be reached" in shown


def test_what_only_a_local_run_has_is_refused(server: ServerThread, finished: str, run: Run) -> None:
    at = ("--server", server.url, "--app", "desk")
    assert "--agent cannot be combined with --server" in run("run", *at, "--agent", "a:b", code=2)
    assert "'other.yaml' cannot be run at a server" in run("run", "other.yaml", *at, code=2)
    assert "--final-test cannot be combined" in run("resume", finished, *at, "--final-test", code=2)
    assert "--detach are for --server URL; `run` does not read PROMPTITER_SERVER" in run("run", "--detach", code=2)
    assert "name where the run is" in run("export", "--runs", "runs", code=2)


def test_a_local_place_comes_before_the_server_of_the_environment(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert "no runs in runs" in run("runs", "--runs", "runs")
