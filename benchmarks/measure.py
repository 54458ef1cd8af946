"""Time and peak memory of one piece of work, each try in a fresh process, so that none disturbs another."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from typing import Any


@dataclass(frozen=True, slots=True)
class Measurement:
    """The best of several tries."""

    seconds: float
    peak_bytes: int
    base_bytes: int
    result: Any

    @property
    def grown_bytes(self) -> int:
        return self.peak_bytes - self.base_bytes


def measure(work: Callable[..., Any], *arguments: Any, tries: int = 3) -> Measurement:
    """Run `work(*arguments)` in `tries` fresh processes. It must be importable, and its result picklable and small."""
    found = []
    for _ in range(tries):
        with ProcessPoolExecutor(max_workers=1, mp_context=get_context("spawn")) as pool:
            found.append(pool.submit(_once, work, arguments).result())
    return min(found, key=lambda measurement: measurement.seconds)


def _once(work: Callable[..., Any], arguments: tuple[Any, ...]) -> Measurement:
    base = _peak_bytes()
    start = time.perf_counter()
    result = work(*arguments)
    seconds = time.perf_counter() - start
    return Measurement(seconds, _peak_bytes(), base, result)


def _peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
