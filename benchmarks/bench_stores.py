"""What a store in a database costs: to append events, to store answers, and to list runs.

Goals: an event after 10,000 others costs at most 1.3 times one at the beginning, and listing 10,000 runs takes at most
100 ms more than the raw query. The lower bounds are statements of the same rows through the driver, one transaction
per event. By default the database is a file of SQLite; with --url, those of a server are measured without lower bounds.

    python -m benchmarks.bench_stores [--quick] [--url postgresql://...]
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from sqlalchemy import update

from benchmarks.measure import format_goal
from promptiter.runs.run_list import MAX_PAGE, RunQuery
from promptiter.runs.sql.store import SqlStore
from promptiter.runs.sql.tables import RUNS
from promptiter.runs.stores import iterate_runs
from promptiter.testing.store_hooks import ask, make_event, make_header

TENTHS = 10
FEW = 300
"""Events of the run that has few."""
TRIES = 5
AT_ONCE = 32
MAX_RATIO = 1.3
MAX_LISTING_MS = 100
DETAILS = b'{"spent":{"calls":812,"attempts":812,"input_tokens":91000,"output_tokens":7000,"cost_usd":0.31}}'
RAW_LIST = """
SELECT run_id, created_at, status, verdict, round, baseline, best, duration_s, details, is_final, is_named,
is_cancel_requested, lease_holder, lease_expires_at FROM promptiter_runs
WHERE app = 'list' AND run_id LIKE ? ORDER BY run_id DESC LIMIT ?
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 events and runs")
    parser.add_argument("--url", help="the URL of an empty database")
    options = parser.parse_args()
    count = 1_000 if options.quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "runs.db"
        asyncio.run(report(SqlStore(options.url or f"sqlite:///{file}"), count, None if options.url else file))


async def report(store: SqlStore, count: int, file: Path | None) -> None:
    await report_events(store, count, file)
    await report_answers(store, count // TENTHS)
    await report_lists(store.for_app("list"), count, file)
    await store.close()


async def report_events(store: SqlStore, count: int, file: Path | None) -> None:
    """Append to a run with many events and to one with few, in turn, so that load on the machine affects both alike."""
    await store.create(make_header("many"))
    await store.create(make_header("few"))
    times: dict[str, list[float]] = {"many": [], "few": []}
    async with store.open("many") as many, store.open("few") as few:
        for seq in range(count):
            await many.journal.append(make_event(seq))
        for seq in range(FEW):
            for name, run, number in (("few", few, seq), ("many", many, count + seq)):
                event, started = make_event(number), time.perf_counter()
                await run.journal.append(event)
                times[name].append(time.perf_counter() - started)
    first, last = (median(times[name][TENTHS:]) for name in ("few", "many"))
    plain = "" if file is None else f"; raw statements: {time_raw_events(file.parent / 'raw.db', count) * 1e6:.0f}"
    print(f"appending an event: {first * 1e6:.0f} us; after {count:,} others {last * 1e6:.0f} us{plain}")
    print(format_goal("times an event at the beginning", last / first, MAX_RATIO))
    started, read = time.perf_counter(), 0
    async for _ in (await store.view("many")).read():
        read += 1
    print(f"reading them: {(time.perf_counter() - started) * 1e6 / read:.0f} us each\n")


def time_raw_events(path: Path, count: int) -> float:
    """The median seconds to insert an event and to update a row, in a transaction."""
    times = []
    with closing(sqlite3.connect(path, isolation_level=None)) as file:
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = NORMAL")
        file.execute("CREATE TABLE events (run_key INTEGER, seq INTEGER, body BLOB, PRIMARY KEY (run_key, seq))")
        file.execute("CREATE TABLE runs (run_key INTEGER PRIMARY KEY, next_seq INTEGER, details BLOB)")
        file.execute("INSERT INTO runs VALUES (1, 0, x'00')")
        body = make_event(0).model_dump_json().encode()
        for seq in range(count):
            started = time.perf_counter()
            file.execute("BEGIN IMMEDIATE")
            file.execute("UPDATE runs SET next_seq = ?, details = ? WHERE run_key = 1", (seq + 1, body))
            file.execute("INSERT INTO events VALUES (1, ?, ?)", (seq, body))
            file.execute("COMMIT")
            times.append(time.perf_counter() - started)
    return median(times)


async def report_answers(store: SqlStore, count: int) -> None:
    """Store answers one after the other, and many at the same time, each with the note that it was asked for."""
    await store.create(make_header("answers"))
    async with store.open("answers") as run:
        started = time.perf_counter()
        for number in range(count):
            await ask(run, number)
        alone = (time.perf_counter() - started) / count
        started = time.perf_counter()
        for start in range(count, 2 * count, AT_ONCE):
            await asyncio.gather(*(ask(run, start + number) for number in range(AT_ONCE)))
        together = (time.perf_counter() - started) / count
    print(f"answers, us each: {alone * 1e6:.0f} alone, {together * 1e6:.0f} if {AT_ONCE} arrive at the same time\n")


async def report_lists(store: SqlStore, count: int, file: Path | None) -> None:
    """List runs. Times are those of the processor, which other programs on the machine do not change."""
    header = make_header("run")
    for number in range(count):
        await store.create(header.model_copy(update={"run_id": f"run-{number:06}"}))
    end = {"status": "succeeded", "verdict": "improved", "round": 8, "baseline": 0.5, "best": 0.75, "is_final": 1}
    store._database.write(lambda connection: connection.execute(update(RUNS).values(**end, details=DETAILS)))
    queries = {"the newest 50": RunQuery(), "the newest 500": RunQuery(limit=MAX_PAGE), "none": RunQuery(text="none")}
    for name, query in queries.items():
        ours, plain = [], []
        for _ in range(TRIES):
            started = time.process_time()
            await store.list_runs(query)
            ours.append(time.process_time() - started)
            if file is not None:
                plain.append(time_raw_list(file, query))
        beside = f", raw query {min(plain) * 1e3:.1f}" if plain else ""
        print(f"listing {name} of {count:,} runs: {min(ours) * 1e3:.1f} ms{beside}")
        print(format_goal("ms", min(ours) * 1e3, MAX_LISTING_MS))
    ours, plain = [], []
    for _ in range(TRIES):
        started = time.process_time()
        listed = [run async for run in iterate_runs(store, RunQuery(limit=MAX_PAGE))]
        ours.append(time.process_time() - started)
        assert len(listed) == count
        plain.append(0.0 if file is None else time_raw_list(file, RunQuery(), limit=count))
    raw = "" if file is None else f", raw query {min(plain) * 1e3:.0f}"
    print(f"listing all of them, page by page: {min(ours) * 1e3:.0f} ms{raw}")
    if file is not None:
        print(format_goal("ms more than the raw query", (min(ours) - min(plain)) * 1e3, MAX_LISTING_MS))


def time_raw_list(file: Path, query: RunQuery, *, limit: int | None = None) -> float:
    with closing(sqlite3.connect(file)) as raw:
        started = time.process_time()
        raw.execute(RAW_LIST, (f"%{query.text}%", limit or query.limit)).fetchall()
        return time.process_time() - started


if __name__ == "__main__":
    main()
