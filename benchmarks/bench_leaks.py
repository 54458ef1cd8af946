"""How many patches that give away train cases are refused, and how many good ones.

The corpus is generated: 200 leaks of ten families (ids, values, case-to-answer tables, paraphrased cases with their
labels, copied examples, ...) hidden among good sentences, and 200 good patches, over 22 domains. "Held out" are the
domains and families that were not looked at while the guard was developed.

Goals: at least 95% of the leaks are refused, and at most 2% of the good patches.

    python -m benchmarks.bench_leaks [--seed N] [--show]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Sequence

from benchmarks.measure import format_reached
from tests.worlds.leak_corpus import PatchSample, lint_samples, make_good_patches, make_leaks

COUNT = 200
MIN_REFUSED, MAX_REFUSED = 0.95, 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="another corpus")
    parser.add_argument("--show", action="store_true", help="print what was missed, and good patches that were refused")
    arguments = parser.parse_args()
    report(arguments.seed, show=arguments.show)


def report(seed: int, *, show: bool) -> None:
    started = time.perf_counter()
    leaks, good = make_leaks(COUNT, seed), make_good_patches(COUNT, seed)
    problems = lint_samples([*leaks, *good])
    seconds = time.perf_counter() - started
    table: dict[str, list[PatchSample]] = defaultdict(list)
    for sample in leaks:
        table[sample.family].append(sample)
    print(f"{'family':14}{'leaks':>7}{'refused':>9}{'held out':>10}{'refused':>9}")
    for family, samples in table.items():
        print(f"{family:14}{_format_rate(samples, problems)}")
    print(f"{'all':14}{_format_rate(leaks, problems)}")
    print(f"{'good patches':14}{_format_rate(good, problems)}\n")
    for goal, samples in (("at least 95%", leaks), ("at most 2%", good)):
        rate = sum(map(bool, map(problems.get, samples))) / len(samples)
        is_reached = rate >= MIN_REFUSED if samples is leaks else rate <= MAX_REFUSED
        what = "leaks" if samples is leaks else "good patches"
        print(f"{rate:.1%} of {len(samples)} {what} refused; goal: {goal}: {format_reached(is_reached)}")
    print(f"{seconds / (len(leaks) + len(good)) * 1000:.2f} ms per patch, with the index of its domain")
    if show:
        _show(leaks, good, problems)


def _format_rate(samples: Sequence[PatchSample], problems: dict[PatchSample, tuple[str, ...]]) -> str:
    cells = ""
    for some in ([each for each in samples if not each.is_held_out], [each for each in samples if each.is_held_out]):
        refused = sum(bool(problems[each]) for each in some)
        cells += f"{len(some):>7}{f'{refused / len(some):.1%}' if some else '':>9}   "
    return cells.rstrip()


def _show(
    leaks: Sequence[PatchSample], good: Sequence[PatchSample], problems: dict[PatchSample, tuple[str, ...]]
) -> None:
    for sample in leaks:
        if not problems[sample] and not sample.is_held_out:
            print(f"\nMISSED {sample.domain} {sample.family}\n{sample.value}")
    for sample in good:
        if problems[sample] and not sample.is_held_out:
            print(f"\nREFUSED {sample.domain}\n{sample.value}\n=> {problems[sample]}")


if __name__ == "__main__":
    main()
