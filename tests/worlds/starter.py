"""The starter's support desk with fewer cases and a model that counts its calls, in a run that can be killed.

    python -m tests.worlds.starter FOLDER [--kill-at SEQ] [--how before|after|torn] [--concurrency N]
                                          [--file-limit BYTES] [--pool]

starts a run in FOLDER/runs, or resumes the existing one, and prints its verdict. With --kill-at it kills itself at an
event; with --file-limit the disk is full at that size; with --pool the search is an evolutionary one.
"""

from __future__ import annotations

import argparse
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import orjson

from examples.own_search.main import Evolution
from promptiter.config.loading import build_evaluator
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.evaluator import EvaluationOptions
from promptiter.evaluation.metrics.metric_config import load_eval_config
from promptiter.llm.cache.cache import Cache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.policies.final_test import FinalTest
from promptiter.runlog.events import Event, Observer
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.runs.file_journal import FileJournal
from promptiter.starter.agent import agent
from promptiter.testing.store_hooks import Killed

How = Literal["before", "after", "torn"]
REPLIES: dict[tuple[str, int], ModelReply] = {}
"""The model answers the same request in the same way, so all runs of a process share its work."""
STARTER = Path(str(files("promptiter") / "starter"))


class CountingModel:
    """The simulated model, at a price; `asked` counts its calls."""

    def __init__(self) -> None:
        self.asked = 0
        self._model = SimulatedModel(compliance=1.0)

    async def __call__(self, request: ModelRequest, *, repeat: int = 0) -> ModelReply:
        self.asked += 1
        key = (request.digest, repeat)
        if key not in REPLIES:
            reply = await self._model(request, repeat=repeat)
            REPLIES[key] = replace(reply, usage=replace(reply.usage, cost_usd=0.001))
        return REPLIES[key]


class Shop:
    """What each process creates: agent, evaluator, gateway, and a run."""

    def __init__(self, *, concurrency: int = 4, cache: Cache | None = None, **gateway: object) -> None:
        self.model = CountingModel()
        self.gateway = Gateway(models={"simulated": self.model}, cache=cache, **gateway)  # type: ignore[arg-type]
        config = load_eval_config(STARTER / "metrics.json")
        evaluator = build_evaluator(config, self.gateway, EvaluationOptions(concurrency=concurrency))
        self.engine = Engine(agent, evaluator)

    @property
    def request(self) -> RunRequest:
        return RunRequest(train=cases("train", 8), validation=cases("validation", 6))

    def run(self, folder: Path, *, observers: tuple[Observer, ...] = ()) -> RunResult:
        """Start a run below a folder, or resume the existing one."""
        return self.directory(folder).run_sync(observers=observers)

    def directory(self, folder: Path) -> RunDirectory:
        there = sorted(folder.glob("*/run.json"))
        if there:
            return RunDirectory.resume(there[0].parent, self.engine, self.request)
        return RunDirectory.begin(folder, self.engine, self.request)


class SmallShop(Shop):
    """A run with every type of event, small enough to be killed at each of its events."""

    @property
    def request(self) -> RunRequest:
        return RunRequest(
            train=cases("train", 3), validation=cases("validation", 2), final_test=FinalTest(repeats=3), max_rounds=1
        )


class SmallPool(Shop):
    """A run with two generations of a pool: three children each, one accepted. SmallShop has a final test."""

    def __init__(self, *, concurrency: int = 4) -> None:
        super().__init__(concurrency=concurrency)
        search = Evolution(phrases=("purchase date",), pool_size=3, batch_size=1)
        self.engine = Engine(agent, self.engine.evaluator, search=search)

    @property
    def request(self) -> RunRequest:
        return RunRequest(
            train=cases("train", 2),
            validation=cases("validation", 1),
            targets=("reception#instruction", "filing#instruction"),
            final_test=None,
            max_rounds=2,
            seed=9,
        )


@cache
def cases(name: str, count: int) -> EvalSet:
    found = load_eval_set(STARTER / "data" / f"{name}.jsonl")
    return replace(found, cases=found.cases[:count])


def _raise_killed() -> None:
    raise Killed


@contextmanager
def kill_runs_at(seq: int, how: How = "before", *, die: Callable[[], None] = _raise_killed) -> Iterator[None]:
    """In this block, the process of a run dies at an event: before it is written, in the middle of its line, or after.

    With Killed, everything in memory is lost.
    """
    append = FileJournal.append

    async def append_or_die(journal: FileJournal, event: Event) -> None:
        if event.seq != seq or how == "after":
            await append(journal, event)
        elif how == "torn":
            with journal.path.open("ab") as file:
                file.write(b'{"checksum":"0123abcd","event":{"schema_vers')
        if event.seq == seq:
            die()

    FileJournal.append = append_or_die  # type: ignore[assignment, method-assign]  # the folder store makes the journal
    try:
        yield
    finally:
        FileJournal.append = append  # type: ignore[method-assign]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--kill-at", type=int, default=-1)
    parser.add_argument("--how", default="before")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--file-limit", type=int)
    parser.add_argument("--pool", action="store_true")
    given = parser.parse_args()
    if given.file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (given.file_limit, given.file_limit))
    shop = (SmallPool if given.pool else SmallShop)(concurrency=given.concurrency)
    with kill_runs_at(given.kill_at, given.how, die=lambda: os.kill(os.getpid(), signal.SIGKILL)):
        result = shop.run(given.folder / "runs")
    sys.stdout.write(orjson.dumps({"verdict": result.verdict, "asked": shop.model.asked}).decode())


if __name__ == "__main__":
    main()
