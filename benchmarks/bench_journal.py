"""What the journal of a long run costs: to append to, to read, to fold, and in memory.

A round is eight events, among them an evaluation of one case, a candidate and a decision. Goals for 10,000 rounds: an
append in the last tenth costs at most 1.5 times one in the first, reading takes at most 10 seconds, and at most 200
bytes of memory are kept per round. The lower bound is a plain write of the same lines. Waiting for the disk is most of
the cost of a decision and depends only on the disk; it is measured separately, on fewer rounds.

Folding computes the result of a run from its events. These are the events of a real run, whose first round is repeated.
Goals: an event costs at most 1.3 times as much in a journal ten times as long, and memory hardly grows.

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

from benchmarks.measure import format_goal, measure, report_rounds
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold_lazily
from promptiter.runlog.journal import DECISIONS, MemoryJournal
from promptiter.runlog.payloads import RunStarted
from promptiter.runs.event_file import EventFile
from promptiter.runs.file_journal import FileJournal
from promptiter.testing.small_run import SmallRun

KINDS: tuple[str, ...] = (
    *("round_started", "evaluation_started", "case", "evaluation_finished"),
    *("candidate", "decision", "round_completed", "stop"),
)
TENTHS = 10
MAX_RATIO, MAX_SECONDS, MAX_BYTES = 1.5, 10.0, 200
MAX_FOLD_RATIO, MAX_FOLD_BYTES = 1.3, 50


def report(folder: Path, rounds: int) -> None:
    path = folder / "journal.jsonl"
    tenths = measure(time_appends, str(path), rounds).result
    plain = measure(time_plain_writes, str(path), str(folder / "plain.jsonl")).result
    size = path.stat().st_size
    print(f"{rounds:,} rounds, {rounds * len(KINDS):,} events, {size / 1e6:.0f} MB\n")
    print(f"append, us per event: {format_tenths(tenths)}; a plain write: {plain * 1e6:.1f}")
    print(format_goal("times the first tenth of the appends", tenths[-1] / tenths[0], MAX_RATIO))

    reading = measure(read_all, str(path))
    print(f"\nreading: {reading.seconds:.2f} s, peak memory {reading.grown_bytes / 1e6:+.1f} MB")
    print(format_goal("s to read it all", reading.seconds, MAX_SECONDS))
    last, inner = measure(time_lookups, str(path)).result
    print(f"the last event: {last * 1e3:.2f} ms; an event inside: {inner * 1e3:.2f} ms")

    kept = measure(measure_memory, str(folder / "memory.jsonl"), rounds // 5).result
    print(format_goal("bytes of memory kept per round", kept, MAX_BYTES))

    report_folding(folder, rounds * TENTHS)

    paths = str(folder / "synced.jsonl"), str(folder / "plain_synced.jsonl")
    ours, plain = measure(time_synced_rounds, *paths, rounds // 50).result
    print(f"\nsynced to disk at decisions: {ours * 1e3:.1f} ms a round; plain writes: {plain * 1e3:.1f}")


def report_folding(folder: Path, events: int) -> None:
    """Fold a journal, and one that is a tenth as long, in turn."""
    lengths = events // TENTHS, events
    paths = [str(folder / f"{length}_events.jsonl") for length in lengths]
    for path, length in zip(paths, lengths, strict=True):
        measure(write_run, path, length)
    tries = [[measure(fold_journal, path) for path in paths] for _ in range(3)]
    short, long = (min(found, key=lambda each: float(each.result)) for found in zip(*tries, strict=True))
    costs = [each.result / length for each, length in zip((short, long), lengths, strict=True)]
    print(f"\nfolding {lengths[0]:,} events: {short.result:.2f} s, {costs[0] * 1e6:.1f} us per event")
    print(f"folding {lengths[1]:,} events: {long.result:.2f} s, {costs[1] * 1e6:.1f} us per event")
    print(format_goal("times the cost of an event in the shorter journal", costs[1] / costs[0], MAX_FOLD_RATIO))
    grown = (long.grown_bytes - short.grown_bytes) / (lengths[1] - lengths[0])
    print(format_goal("bytes of memory kept per event", grown, MAX_FOLD_BYTES))


def write_run(path: str, events: int) -> None:
    """Write the journal of a run with so many rounds that it has this number of events."""

    async def write() -> None:
        recorded = MemoryJournal()
        small = SmallRun()
        await small.engine.run(small.request, journal=recorded)
        starts = [event.seq for event in recorded.events if event.type == "round_started"]
        head, first_round = recorded.events[: starts[0]], recorded.events[starts[0] : starts[1]]
        with FileJournal(path, fsync=()) as journal:
            for seq in range(events - 1):
                number, place = divmod(seq - len(head), len(first_round))
                event = head[seq] if number < 0 else first_round[place].model_copy(update={"round": number + 1})
                await journal.append(event.model_copy(update={"seq": seq}))
            await journal.append(recorded.events[-1].model_copy(update={"seq": events - 1}))

    asyncio.run(write())


def fold_journal(path: str) -> float:
    """The seconds to fold a journal and to read all of its rounds."""
    assert isinstance(
        next(EventFile(path).read()).payload, RunStarted
    )  # what decodes payloads is imported before the clock starts
    started = time.perf_counter()
    result = fold_lazily(EventFile(path))
    assert sum(1 for _ in result.rounds) == len(result.rounds) > 50
    return time.perf_counter() - started


def format_tenths(tenths: list[float]) -> str:
    return f"first tenth {tenths[0] * 1e6:.1f}, last tenth {tenths[-1] * 1e6:.1f}"


def time_appends(path: str, rounds: int) -> list[float]:
    """The seconds of one append in each tenth of the run; medians, so that outliers do not count."""

    async def run() -> list[float]:
        with FileJournal(path, fsync=()) as journal:
            return [await time_round(journal, number) for number in range(rounds)]

    seconds, step = asyncio.run(run()), rounds // TENTHS
    return [median(seconds[start : start + step]) / len(KINDS) for start in range(0, step * TENTHS, step)]


def time_synced_rounds(path: str, plain_path: str, rounds: int) -> tuple[float, float]:
    """The seconds of one round, and of the same plain writes and syncs; both take turns."""

    async def run() -> tuple[float, float]:
        file = os.open(plain_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        ours, plain = [], []
        with FileJournal(path) as journal:
            for number in range(rounds):
                ours.append(await time_round(journal, number))
                plain.append(time_plain_round(file))
        os.close(file)
        return median(ours), median(plain)

    return asyncio.run(run())


async def time_round(journal: FileJournal, number: int) -> float:
    events = list(make_round(number))
    started = time.perf_counter()
    for event in events:
        await journal.append(event)
    return time.perf_counter() - started


def time_plain_round(file: int) -> float:
    started = time.perf_counter()
    for kind in KINDS:
        os.write(file, bytes(700))
        if kind in DECISIONS:
            os.fsync(file)
    return time.perf_counter() - started


def time_plain_writes(source: str, path: str) -> float:
    """The seconds of a plain write of one line of the journal."""
    lines = Path(source).read_bytes().splitlines(keepends=True)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    started = time.perf_counter()
    for line in lines:
        os.write(file, line)
    seconds = time.perf_counter() - started
    os.close(file)
    return seconds / len(lines)


def read_all(path: str) -> int:
    return sum(1 for _ in EventFile(path).read())


def time_lookups(path: str) -> tuple[float, float]:
    """The seconds to find the last event of a journal, and one inside of it after it was read once."""
    started = time.perf_counter()
    last = EventFile(path).last()
    to_last = time.perf_counter() - started
    assert last is not None
    journal = EventFile(path)
    assert sum(1 for _ in journal.read()) == last.seq + 1
    places = [last.seq * part // 101 for part in range(101)]
    started = time.perf_counter()
    assert [next(journal.read(place)).seq for place in places] == places
    return to_last, (time.perf_counter() - started) / len(places)


def measure_memory(path: str, rounds: int) -> float:
    """The bytes of memory that are kept per round, over the second half of the rounds."""

    async def run() -> float:
        with FileJournal(path, fsync=()) as journal:

            async def write(numbers: range) -> int:
                for number in numbers:
                    for event in make_round(number):
                        await journal.append(event)
                return tracemalloc.get_traced_memory()[0]

            half = rounds // 2
            before = await write(range(half))
            return (await write(range(half, rounds)) - before) / (rounds - half)

    tracemalloc.start()
    return asyncio.run(run())


def make_round(number: int) -> Iterator[Event]:
    row = {"case_id": f"case-{number % 50}", "repeat": 0, "output": "an answer of some words " * 10, "error": None}
    row["scores"] = [{"metric": "exact", "value": 0.5, "reason": "the answer lacks the name of the customer"}]
    row["trace_digests"] = ["0123456789abcdef" * 4]
    for place, kind in enumerate(KINDS):
        data = {"request": "0123456789abcdef" * 4, "row" if kind == "case" else "value": row}
        yield Event(
            seq=number * len(KINDS) + place, run_id="bench", round=number + 1, phase="train", type=kind, data=data
        )


if __name__ == "__main__":
    report_rounds(report, __doc__)
