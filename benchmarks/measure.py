"""Time and peak memory of a function. Each try runs in a new process, so that tries do not affect each other."""

from __future__ import annotations

import argparse
import gc
import resource
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """What one call of a function took."""

    seconds: float
    peak_bytes: int
    base_bytes: int
    result: Any

    @property
    def grown_bytes(self) -> int:
        return self.peak_bytes - self.base_bytes


def measure(work: Callable[..., Any], *arguments: Any) -> Measurement:
    """Run `work(*arguments)` in a new process. `work` must be importable, and its result picklable and small."""
    with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
        return pool.submit(_measure_here, work, arguments).result()


def measure_in_turn(works: Sequence[Callable[..., Any]], *arguments: Any, tries: int = 5) -> list[Measurement]:
    """The best of several tries of each function. They take turns, so that load on the machine affects all alike."""
    rounds = [[measure(work, *arguments) for work in works] for _ in range(tries)]
    return [min(found, key=lambda measurement: measurement.seconds) for found in zip(*rounds, strict=True)]


def measure_cpu_in_turn(works: Sequence[Callable[[], object]], *, tries: int = 20) -> list[float]:
    """The least CPU seconds of each function in this process. They take turns, and the collector runs between them."""
    best = [float("inf")] * len(works)
    for _ in range(tries):
        for number, work in enumerate(works):
            gc.collect()
            start = time.process_time()
            work()
            best[number] = min(best[number], time.process_time() - start)
    return best


def format_goal(what: str, found: float, limit: float) -> str:
    """A figure beside its limit."""
    return f"{found:.2f} {what}; goal: at most {limit:g}: {format_reached(found <= limit)}"


def format_reached(is_reached: bool) -> str:
    return "reached" if is_reached else "MISSED"


def report_rounds(report: Callable[[Path, int], None], description: str | None) -> None:
    """Report on 10,000 rounds in a temporary folder; with --quick, on 1,000."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="1,000 rounds")
    rounds = 1_000 if parser.parse_args().quick else 10_000
    with tempfile.TemporaryDirectory() as folder:
        report(Path(folder), rounds)


def _measure_here(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Measurement:
    base = _peak_bytes()
    start = time.perf_counter()
    result = work(*arguments)
    seconds = time.perf_counter() - start
    return Measurement(seconds, _peak_bytes(), base, result)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
