"""Tables of the honesty benchmarks, and how many false positives are too many."""

from __future__ import annotations

from math import comb

SIZES = (12, 30, 100)
GAINS = (0.1, 0.2, 0.4)
ALPHA = 0.05


def print_header(first: str, *names: str) -> None:
    print(f"{first:>12}" + "".join(f"{name:>18}" for name in names))


def print_row(first: str, *cells: str) -> None:
    print(f"{first:>12}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def format_goal(what: str, count: int, runs: int) -> str:
    allowed = count_allowed(runs)
    return f"{'ok  ' if count <= allowed else 'MISS'} {count} of {runs:,} {what}, at most {allowed}"


def count_allowed(runs: int) -> int:
    """The most false positives allowed: a rate of 5% yields more in about 1 of 100 benchmarks."""
    count, chance = 0, (1 - ALPHA) ** runs
    while chance < 0.989:
        count += 1
        chance += comb(runs, count) * ALPHA**count * (1 - ALPHA) ** (runs - count)
    return count
