"""What the journal of a long run costs: to append to, to read, and in memory.

A round is eight events: two evaluations of one case, a candidate, a decision and what stands around them. Goals for
10,000 rounds: the last tenth of the appends costs at most 1.5 times the first, reading takes seconds, and no more
than 200 bytes of memory stay per round. The floor is a bare write of the same lines. Waiting for the disk, which is
most of what a decision costs and depends on the disk alone, is measured apart, on fewer rounds.

    python -m benchmarks.bench_journal [--quick]
"""

from __future__ import annotations

import asyncio
import os
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.measure import goal, measure, of_rounds
from promptiter.runlog.events import Event
from promptiter.runs.file_journal import DECISIONS, FileJournal

KINDS: tuple[str, ...] = (
    *("round_started", "evaluation_started", "case", "evaluation_finished"),
    *("candidate", "decision", "round_completed", "stop"),
)
TENTHS = 10
MOST_TIMES, MOST_SECONDS, MOST_BYTES = 1.5, 10.0, 200


def report(folder: Path, rounds: int) -> None:
    path = folder / "journal.jsonl"
    tenths = measure(appended, str(path), rounds).result
    bare = measure(bare_writes, str(path), str(folder / "bare.jsonl")).result
    size = path.stat().st_size
    print(f"{rounds:,} rounds, {rounds * len(KINDS):,} events, {size / 1e6:.0f} MB\n")
    print(f"append, us per event: {micro(tenths)}; a bare write: {bare * 1e6:.1f}")
    print(goal("times the first tenth of the appends", tenths[-1] / tenths[0], MOST_TIMES))

    reading = measure(read_all, str(path))
    print(f"\nreading: {reading.seconds:.2f} s, peak memory {reading.grown_bytes / 1e6:+.1f} MB")
    print(goal("s to read it all", reading.seconds, MOST_SECONDS))
    last, far = measure(jumps, str(path)).result
    print(f"the last event: {last * 1e3:.2f} ms; one from somewhere inside: {far * 1e3:.2f} ms")

    kept = measure(memory_kept, str(folder / "memory.jsonl"), rounds // 5).result
    print(goal("bytes of memory kept per round", kept, MOST_BYTES))

    ours, floor = measure(waited, str(folder / "synced.jsonl"), str(folder / "floor.jsonl"), rounds // 50).result
    print(f"\nwith the disk waited for at decisions: {ours * 1e3:.1f} ms a round; bare writes: {floor * 1e3:.1f}")


def micro(tenths: list[float]) -> str:
    return f"first tenth {tenths[0] * 1e6:.1f}, last tenth {tenths[-1] * 1e6:.1f}"


def appended(path: str, rounds: int) -> list[float]:
    """The seconds of one append, in each tenth of the run: the median of its rounds, so that one hiccup is no trend."""

    async def run() -> list[float]:
        with FileJournal(path, fsync=()) as journal:
            return [await seconds_of_round(journal, number) for number in range(rounds)]

    seconds, step = asyncio.run(run()), rounds // TENTHS
    return [median(seconds[start : start + step]) / len(KINDS) for start in range(0, step * TENTHS, step)]


def waited(path: str, floor: str, rounds: int) -> tuple[float, float]:
    """The seconds of one round, and of as many bare writes and waits, in turn: disks have their moods."""

    async def run() -> tuple[float, float]:
        file = os.open(floor, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        ours, bare = [], []
        with FileJournal(path) as journal:
            for number in range(rounds):
                ours.append(await seconds_of_round(journal, number))
                bare.append(seconds_of_bare_round(file))
        os.close(file)
        return median(ours), median(bare)

    return asyncio.run(run())


async def seconds_of_round(journal: FileJournal, number: int) -> float:
    events = list(a_round(number))
    started = time.perf_counter()
    for event in events:
        await journal.append(event)
    return time.perf_counter() - started


def seconds_of_bare_round(file: int) -> float:
    started = time.perf_counter()
    for kind in KINDS:
        os.write(file, bytes(700))
        if kind in DECISIONS:
            os.fsync(file)
    return time.perf_counter() - started


def bare_writes(source: str, path: str) -> float:
    """The seconds of one write, of the lines that the journal wrote."""
    lines = Path(source).read_bytes().splitlines(keepends=True)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    started = time.perf_counter()
    for line in lines:
        os.write(file, line)
    seconds = time.perf_counter() - started
    os.close(file)
    return seconds / len(lines)


def read_all(path: str) -> int:
    return sum(1 for _ in FileJournal(path).read())


def jumps(path: str) -> tuple[float, float]:
    """The seconds to the last event of a journal, and to one from the middle, once it was read."""
    started = time.perf_counter()
    last = FileJournal(path).last()
    to_last = time.perf_counter() - started
    assert last is not None
    journal = FileJournal(path)
    assert sum(1 for _ in journal.read()) == last.seq + 1
    places = [last.seq * part // 101 for part in range(101)]
    started = time.perf_counter()
    assert [next(journal.read(place)).seq for place in places] == places
    return to_last, (time.perf_counter() - started) / len(places)


def memory_kept(path: str, rounds: int) -> float:
    """How many bytes stay in memory for each round of the second half, once the events are gone."""

    async def run() -> float:
        with FileJournal(path, fsync=()) as journal:

            async def write(numbers: range) -> int:
                for number in numbers:
                    for event in a_round(number):
                        await journal.append(event)
                return tracemalloc.get_traced_memory()[0]

            half = rounds // 2
            before = await write(range(half))
            return (await write(range(half, rounds)) - before) / (rounds - half)

    tracemalloc.start()
    return asyncio.run(run())


def a_round(number: int) -> Iterator[Event]:
    row = {"case_id": f"case-{number % 50}", "repeat": 0, "output": "an answer of some words " * 10, "error": None}
    row["scores"] = [{"metric": "exact", "value": 0.5, "reason": "the answer lacks the name of the customer"}]
    row["trace_digests"] = ["0123456789abcdef" * 4]
    for place, kind in enumerate(KINDS):
        data = {"request": "0123456789abcdef" * 4, "row" if kind == "case" else "value": row}
        yield Event(
            seq=number * len(KINDS) + place, run_id="bench", round=number + 1, phase="train", type=kind, data=data
        )


if __name__ == "__main__":
    of_rounds(report, __doc__)
