"""A project that real `promptiter serve` processes serve, with models behind a real HTTP server, or simulated ones.

The test kills the processes, and compares what the model's server has received with what the database holds.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web
from sqlalchemy import Connection, select

from promptiter.runlog.results import RunResult
from promptiter.runs.sql.address import parse_address
from promptiter.runs.sql.answers import PLACES
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.tables import ANSWERS, CALLS, RUNS
from promptiter.server.patience import PATIENCE_S
from promptiter.server.sync_client import Client
from tests.cli.test_run import in_file
from tests.cli.test_run_budget import answer, on_the_server
from tests.worlds.model_server import LoopbackServer, run_server
from traces.model import Json

WAIT_S = 120.0
OVERLAYS: tuple[Mapping[str, Json], ...] = tuple(
    {"max_rounds": rounds, "train": f"train-{number}", "validation": f"validation-{number}"}
    for number, rounds in enumerate((2, 2, 1))
)
"""The runs that are started; one of them has to wait for its turn. Each has cases of its own.

A result says how often its cases were used before, which would depend on time.
"""
CASES = 4


@dataclass
class ModelServer(LoopbackServer):
    """The models' server. While it is stuck, it answers nothing."""

    is_stuck: bool = False

    async def handle(self, request: web.Request) -> web.StreamResponse:
        while self.is_stuck:  # noqa: ASYNC110 - the test changes it in another thread
            await asyncio.sleep(0.05)
        return await super().handle(request)


@dataclass(eq=False)
class ServerProcess:
    """One `promptiter serve`."""

    process: subprocess.Popen[bytes]
    output: Path
    app: str

    @property
    def url(self) -> str:
        """The address, once it is printed."""
        deadline = time.monotonic() + WAIT_S
        while " on http" not in (text := self.output.read_text(encoding="utf-8")):
            assert self.process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.02)
        return text.split(" on ", 1)[1].split(". ", 1)[0]

    @contextmanager
    def client(self, *, patience_s: float = PATIENCE_S) -> Iterator[Client]:
        with Client(self.url, app=self.app, patience_s=patience_s) as client:
            yield client

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self, number: signal.Signals) -> int:
        """Send a signal, and return the exit code."""
        self.send(number)
        return self.process.wait(WAIT_S)


@dataclass(frozen=True, slots=True)
class Account:
    """What the database holds of all runs: stored answers, attempts that were noted, and those that never ended."""

    answers: int
    attempts: int
    open_calls: int


@dataclass(eq=False)
class ServedDesk:
    """The project, its database, and its model."""

    place: Path
    store: str
    app: str
    model: ModelServer | None = None
    options: Sequence[str] = ()
    processes: list[ServerProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.write_project()

    @property
    def project(self) -> Path:
        return self.place / "desk"

    @property
    def arrivals(self) -> int:
        """The requests that the model's server has received."""
        assert self.model is not None, "simulated models have no server"
        return len(self.model.arrivals)

    def write_project(self) -> None:
        """Write the files that a person has written, and nothing else."""
        shutil.rmtree(self.project, ignore_errors=True)
        shutil.copytree(str(files("promptiter") / "starter"), self.project)
        sets = {}
        for name in ("train", "validation"):
            text = (self.project / "data" / f"{name}.jsonl").read_text(encoding="utf-8")
            some = "".join(text.splitlines(keepends=True)[:CASES])
            for number in range(len(OVERLAYS)):
                path = self.project / "data" / f"{name}-{number}.jsonl"
                path.write_text(re.sub(r"([A-Z]-)(\d+)", rf"\g<1>{number}\2", some), encoding="utf-8")
                sets[f"{name}-{number}"] = f"data/{path.name}"
        if self.model is None:
            in_file(self.project, metrics="metrics.json", models={"simulated": {"compliance": 1.0}})
        else:
            on_the_server(self.project, self.model, {})
        path = self.project / "promptiter.yaml"
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("evaluation")]
        server = orjson.dumps({"app": self.app, "eval_sets": sets}).decode()
        path.write_text("\n".join([*kept, "evaluation: {concurrency: 4}", f"server: {server}", ""]), encoding="utf-8")

    def start(self) -> ServerProcess:
        """Start a server in a folder of its own."""
        folder = self.place / f"server {len(self.processes)}"
        folder.mkdir()
        command = [sys.executable, "-m", "promptiter", "serve", str(self.project), "--store", self.store]
        output = folder / "output"
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), *sys.path])}
        with output.open("wb") as file:
            process = subprocess.Popen(
                [*command, "--port", "0", "--max-runs", "2", *self.options],
                cwd=folder,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environ,
            )
        self.processes.append(ServerProcess(process, output, self.app))
        return self.processes[-1]

    def lose_folders(self) -> None:
        """Delete everything that servers may have written, but not the database."""
        for each in self.place.glob("server *"):
            shutil.rmtree(each)
            each.mkdir()
        self.write_project()

    def count(self, *, has_late_answers: bool = False) -> Account:
        """What the database holds now. A process that was suspended may store an answer late."""
        return Database(parse_address(self.store)).read(partial(self._count, has_late_answers=has_late_answers))

    def _count(self, connection: Connection, *, has_late_answers: bool) -> Account:
        keys = list(connection.scalars(select(RUNS.c.run_key).where(RUNS.c.app == self.app)))
        answers = connection.execute(select(ANSWERS.c.run_key).where(ANSWERS.c.run_key.in_(keys))).all()
        notes = connection.execute(
            select(CALLS.c.run_key, CALLS.c.place, CALLS.c.kind, CALLS.c.call_hash).where(CALLS.c.run_key.in_(keys))
        ).all()
        balance: Counter[object] = Counter()
        answered: set[object] = set()
        for run_key, place, kind, call_hash in sorted(notes, key=lambda note: note.place):
            balance[run_key, place // PLACES, call_hash] += 1 if kind == "asked" else -1
            assert has_late_answers or (run_key, call_hash) not in answered, f"a stored answer was {kind} again"
            if kind == "answered":
                answered.add((run_key, call_hash))
        attempts = sum(note.kind == "asked" for note in notes)
        return Account(len(answers), attempts, sum(balance.values()))

    def find_holders(self) -> dict[str, int]:
        """The processes that hold the leases of runs."""
        found = select(RUNS.c.run_id, RUNS.c.lease_holder).where(
            RUNS.c.app == self.app, RUNS.c.lease_holder.is_not(None)
        )
        rows = Database(parse_address(self.store)).read(lambda connection: connection.execute(found).all())
        return {run_id: orjson.loads(raw)["pid"] for run_id, raw in rows}

    def count_arrivals(self) -> int:
        """The requests that the model's server has received, once no more arrive."""
        return wait_until_steady(lambda: self.arrivals)

    def end_all(self) -> None:
        for each in self.processes:
            if each.process.poll() is None:
                each.send(signal.SIGCONT)
                each.end(signal.SIGKILL)


@contextmanager
def serving_desk(place: Path, store: str, *, app: str = "desk", options: Sequence[str] = ()) -> Iterator[ServedDesk]:
    model = ModelServer(answer)
    with run_server(model):
        desk = ServedDesk(place, store, app, model, options)
        try:
            yield desk
        except Exception as error:
            for each in desk.processes:
                error.add_note(f"server {each.process.pid}: {each.output.read_text(encoding='utf-8')[-3000:]}")
            raise
        finally:
            desk.end_all()


def run_all(server: ServerProcess) -> list[RunResult]:
    """Start all runs, and wait for their results."""
    with server.client() as client:
        ids = [client.start(each).run_id for each in OVERLAYS]
        return [client.wait(run_id) for run_id in ids]


def wait_until_steady(count: Callable[[], int]) -> int:
    """A count, once it has not changed for a moment."""
    before, after = -1, count()
    while before != after:
        time.sleep(0.2)
        before, after = after, count()
    return after


def wait_until(is_true: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not is_true():
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)
