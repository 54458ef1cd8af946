"""Tables of the benchmarks of honesty, and how many wrong claims of so many runs are too many."""

from __future__ import annotations

from math import comb

SIZES = (12, 30, 100)
GAINS = (0.1, 0.2, 0.4)
ERROR = 0.05


def head(first: str, *names: str) -> None:
    print(f"{first:>12}" + "".join(f"{name:>18}" for name in names))


def row(first: str, *cells: str) -> None:
    print(f"{first:>12}" + "".join(f"{cell:>18}" for cell in cells), flush=True)


def goal(what: str, count: int, runs: int) -> str:
    most = most_of(runs)
    return f"{'ok  ' if count <= most else 'MISS'} {count} of {runs:,} {what}, at most {most}"


def most_of(runs: int) -> int:
    """The most that may claim: an error of 5% makes more in about one benchmark of a hundred."""
    count, chance = 0, (1 - ERROR) ** runs
    while chance < 0.989:
        count += 1
        chance += comb(runs, count) * ERROR**count * (1 - ERROR) ** (runs - count)
    return count
