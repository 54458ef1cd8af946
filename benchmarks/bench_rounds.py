"""What a long run costs in the real engine, with a journal on disk and an agent that takes no time.

A round evaluates three train cases, validates a candidate on two cases, decides, and checks whether to stop. Every
hundredth candidate is accepted. Goals for 10,000 rounds: an append in the last tenth costs at most 1.5 times one in the
first; a run that was killed before its last event resumes within 15 seconds; and at most 200 bytes of memory are kept
per round, during the run and with its result.

A search with a pool proposes three candidates a round with two parents each, screens all of them at once on the train
cases, and validates each. Goals for 10,000 rounds: a round in the last tenth takes at most 1.5 times one in the first,
and at most 200 bytes are kept per round.

    python -m benchmarks.bench_rounds [--quick]
"""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Collection
from pathlib import Path
from statistics import median

from benchmarks.measure import format_goal, measure, report_rounds
from promptiter.agents.function import agent
from promptiter.agents.surface_scope import surface
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.policies.acceptance import MinGain
from promptiter.policies.stopping import TargetScore
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.events import Event
from promptiter.runlog.journal import DECISIONS
from promptiter.runlog.results import RunResult
from promptiter.runs.file_journal import FileJournal

TENTHS = 10
MAX_RATIO, MAX_SECONDS, MAX_BYTES = 1.5, 15.0, 200
CHILDREN = 3
SURFACE = "answer#instruction"
TEXT = "Answer the customer in a friendly tone, name the order, and say what happens next. " * 10


def report(folder: Path, rounds: int) -> None:
    path = folder / "journal.jsonl"
    ran = measure(time_run, str(path), rounds)
    appends, whole = ran.result
    lines = sum(1 for _ in path.open("rb"))
    print(f"{rounds:,} rounds, {lines:,} events, {path.stat().st_size / 1e6:.0f} MB, {ran.seconds:.0f} s\n")
    print(f"append, us per event: first tenth {appends[0] * 1e6:.1f}, last tenth {appends[-1] * 1e6:.1f}")
    print(format_goal("times the first tenth of the appends", appends[-1] / appends[0], MAX_RATIO))
    print(f"a whole round, ms: first tenth {whole[0] * 1e3:.1f}, last tenth {whole[-1] * 1e3:.1f}")

    drop_last_event(path)
    resumed = measure(time_resume, str(path), rounds)
    print(f"\n{format_goal('s to resume at the last event', resumed.result, MAX_SECONDS)}")
    all_rounds, one_round, written = measure(time_result, str(path)).result
    print(f"the result: {all_rounds:.2f} s to iterate over its rounds, {one_round * 1e3:.1f} ms to read one of them,")
    print(f"{written:.2f} s to write result.json")

    running, held = measure(measure_memory, str(folder / "memory.jsonl"), rounds).result
    print("\n" + format_goal("bytes of memory kept per round during the run", running, MAX_BYTES))
    print(format_goal("bytes of memory kept per round with the result", held, MAX_BYTES))

    report_pool(folder, rounds)
    _, synced = measure(time_run, str(folder / "synced.jsonl"), rounds // 20, tuple(DECISIONS)).result
    print(f"\nsynced to disk at decisions: {median(synced) * 1e3:.1f} ms a round")


def report_pool(folder: Path, rounds: int) -> None:
    path = folder / "pool.jsonl"
    appends, whole = measure(time_run, str(path), rounds, (), CHILDREN).result
    lines = sum(1 for _ in path.open("rb"))
    print(f"\n{CHILDREN} candidates a round: {lines:,} events, {path.stat().st_size / 1e6:.0f} MB")
    print(f"append, us per event: first tenth {appends[0] * 1e6:.1f}, last tenth {appends[-1] * 1e6:.1f}")
    print(f"a whole round, ms: first tenth {whole[0] * 1e3:.1f}, last tenth {whole[-1] * 1e3:.1f}")
    print(format_goal("times the first tenth of the rounds", whole[-1] / whole[0], MAX_RATIO))
    running, held = measure(measure_memory, str(folder / "pool-memory.jsonl"), rounds, CHILDREN).result
    print(format_goal("bytes of memory kept per round during the run", running, MAX_BYTES))
    print(format_goal("bytes of memory kept per round with the result", held, MAX_BYTES))


def time_run(path: str, rounds: int, fsync: Collection[str] = (), children: int = 1) -> tuple[list[float], list[float]]:
    """The seconds of one append, and of one round, in each tenth of the run: medians, so that outliers do not count."""
    appends, whole = [], []
    last = time.perf_counter()

    def at_round(journal: TimedJournal) -> None:
        nonlocal last
        appends.append(journal.seconds / journal.events)
        whole.append(time.perf_counter() - last)
        journal.seconds, journal.events, last = 0.0, 0, time.perf_counter()

    with TimedJournal(path, fsync=fsync) as journal:
        engine = make_engine(lambda: at_round(journal), children=children)
        asyncio.run(engine.run(make_request(rounds), journal=journal))
    return take_medians(appends), take_medians(whole)


def take_medians(figures: list[float]) -> list[float]:
    step = max(1, len(figures) // TENTHS)
    return [median(figures[start : start + step]) for start in range(0, step * TENTHS, step)]


def drop_last_event(path: Path) -> None:
    """Cut the last event off the journal, as if the run had been killed before it."""
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.rindex(b"\n", 0, -1) + 1])


def time_resume(path: str, rounds: int) -> float:
    started = time.perf_counter()
    with FileJournal(path, fsync=()) as journal:
        result = asyncio.run(make_engine().run(make_request(rounds), journal=journal))
    seconds = time.perf_counter() - started
    check_result(result, rounds)
    return seconds


def time_result(path: str) -> tuple[float, float, float]:
    """The seconds to iterate over all rounds of a finished run, to read one of them, and to write the result."""
    with FileJournal(path, fsync=()) as journal:
        result = asyncio.run(make_engine().run(make_request(0), journal=journal))
    rounds = len(result.rounds)
    started = time.perf_counter()
    assert sum(1 for _ in result.rounds) == rounds
    all_rounds = time.perf_counter() - started
    places = [rounds * part // 7 for part in (6, 1, 4, 2, 5, 3)]
    started = time.perf_counter()
    assert [result.rounds[place].round for place in places] == [place + 1 for place in places]
    one_round = (time.perf_counter() - started) / len(places)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as file:
        result.write_json(file)
    return all_rounds, one_round, time.perf_counter() - started


def measure_memory(path: str, rounds: int, children: int = 1) -> tuple[float, float]:
    """The bytes of memory that are kept per round after the first tenth, during the run and with its result."""
    seen: list[int] = []
    first = rounds // TENTHS

    def at_round() -> None:
        nonlocal first
        first -= 1
        if first == 0:
            seen.append(count_traced_bytes())

    with FileJournal(path, fsync=()) as journal:
        tracemalloc.start()
        searching = make_engine(at_round, at_end=lambda: seen.append(count_traced_bytes()), children=children)
        result = asyncio.run(searching.run(make_request(rounds), journal=journal))
        held = count_traced_bytes()
    check_result(result, rounds)
    later = rounds - rounds // TENTHS
    return (seen[1] - seen[0]) / later, (held - seen[0]) / later


def count_traced_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def check_result(result: RunResult, rounds: int) -> None:
    assert (result.status, len(result.rounds)) == ("succeeded", rounds), (result.status, result.error)


class TimedJournal(FileJournal):
    """A journal that measures how long appends take."""

    seconds = 0.0
    events = 0

    async def append(self, event: Event) -> None:
        started = time.perf_counter()
        await super().append(event)
        self.seconds += time.perf_counter() - started
        self.events += 1


class CountingSearch:
    """A search that only changes a number in the text."""

    def __init__(self, at_round: Callable[[], None], at_end: Callable[[], None]) -> None:
        self.at_round = at_round
        self.at_end = at_end

    async def search(self, session: Session) -> None:
        while not await session.should_stop():
            await session.begin_round()
            await session.evaluate(session.train, session.accepted.profile, phase="train")
            patch = SurfacePatch(surface_id=SURFACE, value=f"{TEXT}Try {session.round}.", reason="the next number")
            await session.validate(PatchSet((patch,)))
            await session.complete_round()
            self.at_round()
        self.at_end()


class PoolSearch(CountingSearch):
    """A search with a pool: three children of the accepted profile and of another member."""

    async def search(self, session: Session) -> None:
        other = session.accepted.profile
        while not await session.should_stop():
            await session.begin_round()
            accepted = session.accepted.profile
            texts = [f"{TEXT}Child {number}. Try {session.round}." for number in range(CHILDREN)]
            children = [Profile.of(session.snapshot, {SURFACE: text}) for text in texts]
            for child in children:
                await session.propose(child, parents=[accepted, other], reason="the next number")
            await session.evaluate_many([(session.train, child) for child in children], phase="screening")
            for child in children:
                await session.validate(child)
            other = children[-1]
            await session.complete_round()
            self.at_round()
        self.at_end()


@agent(instruction=f"{TEXT}Try 0.")
async def answer(question: str) -> str:
    return f"{question}: {surface('instruction').rsplit(maxsplit=1)[1]}"


def score(_case: EvalCase, run: object) -> float:
    """A score that rises a little with every hundredth number."""
    return int(str(getattr(run, "output", "")).rstrip(".").rsplit(maxsplit=1)[1]) // 100 / 1000


def make_engine(
    at_round: Callable[[], None] = lambda: None, *, at_end: Callable[[], None] = lambda: None, children: int = 1
) -> Engine:
    evaluator = Evaluator([FunctionMetric(name="number", function=score)])
    search = CountingSearch if children == 1 else PoolSearch
    return Engine(answer, evaluator, search=search(at_round, at_end))


def make_request(rounds: int) -> RunRequest:
    return RunRequest(
        train=make_eval_set("train", 3),
        validation=make_eval_set("validation", 2),
        max_rounds=rounds,
        acceptance=MinGain(0.0005),
        stop=TargetScore(1.0),
        run_id="bench",
    )


def make_eval_set(name: str, count: int) -> EvalSet:
    turns = [Turn(user=f"{name} question {number}", expected="1") for number in range(count)]
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(turn,)) for n, turn in enumerate(turns)))


if __name__ == "__main__":
    report_rounds(report, __doc__)
