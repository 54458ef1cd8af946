"""What a long run costs: through the real engine, with a journal on disk and an agent that takes no time.

A round is what a strategy does in one: three train cases, a candidate, two validation cases, a decision, and whether
to stop. Every hundredth candidate is accepted. Goals for 10,000 rounds: the last tenth of the appends costs at most
1.5 times the first; a run that was cut off at its last event goes on within seconds; and no more than 200 bytes of
memory stay per round, while it runs and with its result in hand.

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

from benchmarks.measure import goal, measure, of_rounds
from promptiter.agents.function import agent
from promptiter.agents.nodes import surface
from promptiter.engine.engine import Engine
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.policies.acceptance import MinGain
from promptiter.policies.stopping import TargetScore
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.events import Event
from promptiter.runlog.results import RunRequest, RunResult
from promptiter.runs.file_journal import DECISIONS, FileJournal

TENTHS = 10
MOST_TIMES, MOST_SECONDS, MOST_BYTES = 1.5, 15.0, 200
SURFACE = "answer#instruction"
TEXT = "Answer the customer in a friendly tone, name the order, and say what happens next. " * 10


def report(folder: Path, rounds: int) -> None:
    path = folder / "journal.jsonl"
    ran = measure(run_whole, str(path), rounds)
    appends, whole = ran.result
    lines = sum(1 for _ in path.open("rb"))
    print(f"{rounds:,} rounds, {lines:,} events, {path.stat().st_size / 1e6:.0f} MB, {ran.seconds:.0f} s\n")
    print(f"append, us per event: first tenth {appends[0] * 1e6:.1f}, last tenth {appends[-1] * 1e6:.1f}")
    print(goal("times the first tenth of the appends", appends[-1] / appends[0], MOST_TIMES))
    print(f"a whole round, ms: first tenth {whole[0] * 1e3:.1f}, last tenth {whole[-1] * 1e3:.1f}")

    cut_off(path)
    resumed = measure(resume, str(path), rounds)
    print(f"\n{goal('s to go on from the last event', resumed.result, MOST_SECONDS)}")
    once, far, written = measure(looked_at, str(path)).result
    print(f"with the result in hand: {once:.2f} s to go through its rounds, {far * 1e3:.1f} ms for one of them,")
    print(f"{written:.2f} s to write result.json")

    running, held = measure(memory_kept, str(folder / "memory.jsonl"), rounds).result
    print("\n" + goal("bytes of memory kept per round while it runs", running, MOST_BYTES))
    print(goal("bytes with the result in hand", held, MOST_BYTES))

    _, synced = measure(run_whole, str(folder / "synced.jsonl"), rounds // 20, tuple(DECISIONS)).result
    print(f"\nwith the disk waited for at decisions: {median(synced) * 1e3:.1f} ms a round")


def run_whole(path: str, rounds: int, fsync: Collection[str] = ()) -> tuple[list[float], list[float]]:
    """The seconds of one append, and of one round, in each tenth of the run: medians, so that a hiccup is no trend."""
    appends, whole = [], []
    last = time.perf_counter()

    def at_round(journal: Timed) -> None:
        nonlocal last
        appends.append(journal.seconds / journal.events)
        whole.append(time.perf_counter() - last)
        journal.seconds, journal.events, last = 0.0, 0, time.perf_counter()

    with Timed(path, fsync=fsync) as journal:
        asyncio.run(engine(lambda: at_round(journal)).run(request(rounds), journal=journal))
    return by_tenth(appends), by_tenth(whole)


def by_tenth(figures: list[float]) -> list[float]:
    step = max(1, len(figures) // TENTHS)
    return [median(figures[start : start + step]) for start in range(0, step * TENTHS, step)]


def cut_off(path: Path) -> None:
    """The journal without its last event."""
    raw = path.read_bytes()
    path.write_bytes(raw[: raw.rindex(b"\n", 0, -1) + 1])


def resume(path: str, rounds: int) -> float:
    started = time.perf_counter()
    with FileJournal(path, fsync=()) as journal:
        result = asyncio.run(engine().run(request(rounds), journal=journal))
    seconds = time.perf_counter() - started
    check(result, rounds)
    return seconds


def looked_at(path: str) -> tuple[float, float, float]:
    """The seconds to go through all rounds of a finished run, to read one of them, and to write it to a file."""
    with FileJournal(path, fsync=()) as journal:
        result = asyncio.run(engine().run(request(0), journal=journal))
    rounds = len(result.rounds)
    started = time.perf_counter()
    assert sum(1 for _ in result.rounds) == rounds
    once = time.perf_counter() - started
    places = [rounds * part // 7 for part in (6, 1, 4, 2, 5, 3)]
    started = time.perf_counter()
    assert [result.rounds[place].round for place in places] == [place + 1 for place in places]
    far = (time.perf_counter() - started) / len(places)
    started = time.perf_counter()
    with tempfile.TemporaryFile() as file:
        result.write_json(file)
    return once, far, time.perf_counter() - started


def memory_kept(path: str, rounds: int) -> tuple[float, float]:
    """How many bytes stay in memory for each round after the first tenth; and how many more a round with the result."""
    seen: list[int] = []
    first = rounds // TENTHS

    def at_round() -> None:
        nonlocal first
        first -= 1
        if first == 0:
            seen.append(now_in_memory())

    with FileJournal(path, fsync=()) as journal:
        tracemalloc.start()
        searching = engine(at_round, at_end=lambda: seen.append(now_in_memory()))
        result = asyncio.run(searching.run(request(rounds), journal=journal))
        held = now_in_memory()
    check(result, rounds)
    later = rounds - rounds // TENTHS
    return (seen[1] - seen[0]) / later, (held - seen[0]) / later


def now_in_memory() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def check(result: RunResult, rounds: int) -> None:
    assert (result.status, len(result.rounds)) == ("succeeded", rounds), (result.status, result.error)


class Timed(FileJournal):
    """A journal that says how long appends took."""

    seconds = 0.0
    events = 0

    async def append(self, event: Event) -> None:
        started = time.perf_counter()
        await super().append(event)
        self.seconds += time.perf_counter() - started
        self.events += 1


class Tries:
    """A strategy that changes a number in the text, and learns nothing."""

    def __init__(self, at_round: Callable[[], None], at_end: Callable[[], None]) -> None:
        self.at_round = at_round
        self.at_end = at_end

    async def search(self, session: Session) -> None:
        while not await session.should_stop():
            await session.begin_round()
            await session.evaluate(session.train, session.accepted.profile, phase="train")
            patch = SurfacePatch(surface_id=SURFACE, value=f"{TEXT}Try {session.round}.", reason="the next number")
            await session.validate(session.candidate(PatchSet((patch,))))
            await session.complete_round()
            self.at_round()
        self.at_end()


@agent(instruction=f"{TEXT}Try 0.")
async def answer(question: str) -> str:
    return f"{question}: {surface('instruction').rsplit(maxsplit=1)[1]}"


def score(_case: EvalCase, run: object) -> float:
    """A little more at every hundredth number."""
    return int(str(getattr(run, "output", "")).rstrip(".").rsplit(maxsplit=1)[1]) // 100 / 1000


def engine(at_round: Callable[[], None] = lambda: None, *, at_end: Callable[[], None] = lambda: None) -> Engine:
    evaluator = Evaluator([FunctionMetric(name="number", function=score)])
    return Engine(answer, evaluator, search=Tries(at_round, at_end))


def request(rounds: int) -> RunRequest:
    return RunRequest(
        train=cases("train", 3),
        validation=cases("validation", 2),
        max_rounds=rounds,
        acceptance=MinGain(0.0005),
        stop=TargetScore(1.0),
        run_id="bench",
    )


def cases(name: str, count: int) -> EvalSet:
    turns = [Turn(user=f"{name} question {number}", expected="1") for number in range(count)]
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(turn,)) for n, turn in enumerate(turns)))


if __name__ == "__main__":
    of_rounds(report, __doc__)
