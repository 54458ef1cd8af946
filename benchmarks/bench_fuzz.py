"""What an import does with damaged exports: real files with flipped bytes, lost lines, odd values, cycles and nesting.

Each gives traces, which are the same after they were written and read again, or a `TraceError` that says what is wrong.

Goals: no other exception, and none takes more than ten seconds.

    python -m benchmarks.bench_fuzz [--count N] [--seed N]
"""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter

from benchmarks.measure import format_reached
from tests.worlds.mutations import list_mutations
from traces import TraceError, read_otel
from traces.documents import from_json, to_json
from traces.otel.recover.coverage import Coverage

COUNT, LIMIT_S = 2_000, 10.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=COUNT, help="how many mutations")
    parser.add_argument("--seed", type=int, default=100, help="other mutations")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    report(arguments.count, arguments.seed)


def report(count: int, seed: int) -> None:
    ends: Counter[str] = Counter()
    slowest, failed = 0.0, 0
    for name, raw in list_mutations(count, seed=seed):
        started = time.process_time()
        try:
            end = _import(raw)
        except Exception as error:  # noqa: BLE001 - what this looks for
            failed += 1
            print(f"{name}: {error!r:.200}")
            end = "another exception"
        slowest = max(slowest, time.process_time() - started)
        ends[end] += 1
    print(f"{count:,} damaged exports: " + ", ".join(f"{number:,} {end}" for end, number in ends.most_common()))
    print(f"other exceptions: {failed}; goal: 0: {format_reached(failed == 0)}")
    print(f"slowest: {slowest:.2f} s; goal: at most {LIMIT_S:.0f} s: {format_reached(slowest <= LIMIT_S)}")


def _import(raw: bytes) -> str:
    coverage = Coverage()
    try:
        found = read_otel(raw, coverage=coverage)
    except TraceError:
        return "refused"
    if any(from_json(to_json(trace)) != trace for trace in found):
        raise AssertionError("a trace changed when it was written and read again")
    if coverage.warnings:
        return "read with warnings"
    return "read" if found else "without spans"


if __name__ == "__main__":
    main()
