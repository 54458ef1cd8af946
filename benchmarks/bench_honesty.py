"""How often each rule claims what is not there, how often it finds what is, and what that costs in case runs.

First policies alone, without an engine. A case passes a run with a chance of its own, drawn from Beta(0.6, 0.4): most
cases are nearly settled, some are coin flips; six runs in ten pass, and a run has a variance of 0.12. Scores are 0 or
1, and all runs are independent unless said otherwise. A real candidate mends failing runs, so many that the mean over
these cases rises by just its gain. A placebo rewrite gives each case a new chance: it helps some and hurts as many.

    default        as the Engine does it: the first candidate is held against the baseline's record, each later one runs
                   beside the working profile, one fresh repeat of both, and a gain above 0 is kept; then parts that do
                   no good are taken out, and there is one claim
    common repeats   the default, where one random number decides a repeat of a case in both arms while searching
    on record      the default, but what was kept is not run again: its lucky record stands in the way of the next
    mean gain      one run of each case, held against the recorded mean of the best: a gain above 0.01 is accepted
    sigma rule     3 sweeps over train and as many hold-out cases, 1 pooled std, held against the recorded best
    sigma / sqrt 2 the same with the other meaning of a pooled std: the root of the mean square, not of the sum
    paired 1 SE    one run of each case, paired with the recorded runs of the best: the gain exceeds its standard error

The default claims when its test does; the others whenever they accept. Then the same through the Engine, where both
arms are always run afresh, also for the rules that others use (see `honest_runs`). Goals: the default claims in at most
5% of the runs in which nothing changes, and as few placebos are claimed for new cases. That fails if more runs claim
than 5% make in about one benchmark of a hundred: above 66 of 1,000, above 7 of 50.

    python -m benchmarks.bench_honesty [--quick] [--engine-runs N]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from math import sqrt
from random import Random
from statistics import fmean, stdev
from typing import TypeAlias

from benchmarks.honest_runs import through_the_engine
from benchmarks.tables import GAINS, SIZES, goal, head, row
from promptiter.engine.ablation import choose_part_to_drop
from promptiter.evaluation.stats.final_test import BLOCKS, decide_for_new_cases, decide_for_these_cases
from promptiter.evaluation.stats.permutation import PairedScores, sign_flip
from promptiter.evaluation.stats.power import noise_bar
from tests.worlds.chances import BETA, CANDIDATES, ROUNDS

SWEEPS = 3
ROUNDING = 1e-12
"""A gain that just equals its bar is accepted, whatever the last digit of a float says."""

REPEATS = sum(block.repeats for block in BLOCKS)

Chances: TypeAlias = list[float]
"""A profile: with which chance each case passes."""

Patch: TypeAlias = Callable[[Chances], Chances]
"""What a candidate makes of the profile that was kept last."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a run of the policy ended in a claim, for which profile, and how often it ran a case."""

    claimed: bool
    profile: Chances
    case_runs: int


Rule: TypeAlias = Callable[[Chances, Sequence[Patch], Random], Outcome]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 runs of each instead of 1,000; of the Engine, 10")
    parser.add_argument("--engine-runs", type=int, metavar="N", help="runs of the Engine of each kind, instead of 50")
    options = parser.parse_args()
    runs = 100 if options.quick else 1_000
    engine_runs = (10 if options.quick else 50) if options.engine_runs is None else options.engine_runs
    print(f"{runs:,} runs of each, cases that pass by Beta{BETA}")
    started = time.perf_counter()
    nothing_changes(runs)
    placebos(runs)
    one_of_ten(runs)
    touched_only(runs)
    if engine_runs:
        through_the_engine(engine_runs)
    print(f"\n{time.perf_counter() - started:.0f} s")


def nothing_changes(runs: int) -> None:
    print(f"\nA/A: {ROUNDS} patches that change nothing; runs that claim a gain\n")
    head("cases", *RULES)
    for size in SIZES:
        rates = []
        for name, rule in RULES.items():
            random = Random(f"nothing {size} {name}")
            claimed = 0
            for _ in range(runs):
                claimed += rule(new_chances(size, random), [nothing] * ROUNDS, random).claimed
            rates.append(claimed / runs)
        row(f"{size}", *(f"{rate:.1%}" for rate in rates))
        print(goal("claimed by the default", round(rates[0] * runs), runs))
    print("reference: default at most 5%, mean gain 91 to 93%, sigma rule 54 to 67%, paired 1 SE 68%")


def placebos(runs: int) -> None:
    """Sealed cases have chances of their own under each profile, that no search has seen."""
    print(f"\nplacebo: {ROUNDS} rewrites that reshuffle which cases pass; as many test cases, 2 repeats\n")
    head("cases", "these cases", "new cases", "both claimed")
    for size in SIZES:
        random = Random(f"placebo {size}")
        these = new = both = 0
        for _ in range(runs):
            rewrites = [reshuffled(new_chances(size, random)) for _ in range(ROUNDS)]
            found = default(new_chances(size, random), rewrites, random)
            sealed = paired(new_chances(size, random), new_chances(size, random), random, repeats=2)
            is_new = decide_for_new_cases(sealed).is_shown
            these, new, both = these + found.claimed, new + is_new, both + (is_new and found.claimed)
        row(f"{size}", f"{these / runs:.1%}", f"{new / runs:.1%}", f"{both / runs:.1%}")
        print(goal("claimed for new cases", new, runs))
    print("these cases: the kept rewrite was picked because it fits them, and really does; new cases: at most 5%")


def one_of_ten(runs: int) -> None:
    rules: dict[str, Rule] = {
        "default": default,
        "common repeats": on_common_draws,
        "on record": against_record,
        "sigma rule": RULES["sigma rule"],
    }
    print(f"\npower: 1 real candidate of {CANDIDATES}, the others change nothing; found and claimed, and case runs\n")
    head("cases, gain", *rules, *(f"runs: {name}" for name in rules if name != "common repeats"))
    for size in SIZES:
        for gain in GAINS:
            results = {name: found_and_paid(rule, name, size, gain, runs) for name, rule in rules.items()}
            paid = [f"{cost:,.0f}" for name, (_, cost) in results.items() if name != "common repeats"]
            row(f"{size}, +{gain}", *(f"{rate:.2f}" for rate, _ in results.values()), *paid)
    print("reference for the default at +0.2: .82, .98, 1.0; a claim counts if the claimed profile has the real patch")


def found_and_paid(rule: Rule, name: str, size: int, gain: float, runs: int) -> tuple[float, float]:
    random = Random(f"power {size} {gain} {name}")
    found, paid = 0, 0
    for _ in range(runs):
        baseline = new_chances(size, random)
        patches: list[Patch] = [nothing] * CANDIDATES
        patches[random.randrange(CANDIDATES)] = mended(gain)
        outcome = rule(baseline, patches, random)
        found += outcome.claimed and outcome.profile != baseline
        paid += outcome.case_runs
    return found / runs, paid / runs


def touched_only(runs: int) -> None:
    """Failed cases are touched; a patch that changes nothing is tested on them alone, by the sign-flip test at 5%."""
    print(
        "\ntouched only: one patch that changes nothing, tried on the cases whose record failed, sign-flip test at 5%\n"
    )
    head("cases", "on record", "both arms afresh")
    for size in SIZES:
        random = Random(f"touched {size}")
        naive = afresh = 0
        for _ in range(runs):
            touched = [chance for chance in new_chances(size, random) if random.random() >= chance]
            again, other = run(touched, random), run(touched, random)
            naive += shows_gain([float(passed) for passed in again])
            afresh += shows_gain([float(a) - float(b) for a, b in zip(again, other, strict=True)])
        row(f"{size}", f"{naive / runs:.1%}", f"{afresh / runs:.1%}")
    print("reference against the record: 20 to 47% with 30 cases, 98% with 100")


def shows_gain(deltas: Sequence[float]) -> bool:
    return bool(deltas) and sign_flip(deltas).p_value <= 0.05


def default(baseline: Chances, patches: Sequence[Patch], random: Random) -> Outcome:
    """Keep leniently, both arms afresh but for the first, take out what does no good, and claim once."""
    working, kept = baseline, list[Patch]()
    beside = sum(run(baseline, random))
    for patch in patches:
        candidate = patch(working)
        if sum(run(candidate, random)) > beside:
            working = candidate
            kept.append(patch)
        beside = sum(run(working, random))
    return claimed_once(baseline, kept, 2 * len(patches) * len(baseline), random)


def on_common_draws(baseline: Chances, patches: Sequence[Patch], random: Random) -> Outcome:
    working, kept = baseline, list[Patch]()
    for patch in patches:
        candidate = patch(working)
        repeats = [random.random() for _ in baseline]
        if passes(candidate, repeats) > passes(working, repeats):
            working = candidate
            kept.append(patch)
    return claimed_once(baseline, kept, 2 * len(patches) * len(baseline), random)


def against_record(baseline: Chances, patches: Sequence[Patch], random: Random) -> Outcome:
    working, record, kept = baseline, sum(run(baseline, random)), list[Patch]()
    for patch in patches:
        candidate = patch(working)
        if (found := sum(run(candidate, random))) > record:
            working, record = candidate, found
            kept.append(patch)
    return claimed_once(baseline, kept, (1 + len(patches)) * len(baseline), random)


def claimed_once(baseline: Chances, kept: Sequence[Patch], runs: int, random: Random) -> Outcome:
    if not kept:
        return Outcome(claimed=False, profile=baseline, case_runs=runs)
    working, ablation_runs = ablated(baseline, kept, random)
    claim = decide_for_these_cases(paired(baseline, working, random, repeats=REPEATS))
    runs += ablation_runs + 2 * len(baseline) * claim.looks[-1].repeats
    return Outcome(claimed=claim.is_shown, profile=working, case_runs=runs)


def ablated(baseline: Chances, kept: Sequence[Patch], random: Random) -> tuple[Chances, int]:
    """The profile without the parts that do no good, one after the other, and the case runs that it took.

    Each patch is a part of its own. One that seems useless on the first repeat is looked at on a second one.
    """
    left = tuple(range(len(kept)))
    known: dict[tuple[tuple[int, ...], int], int] = {}

    def passed(parts: tuple[int, ...], repeat: int) -> int:
        if (parts, repeat) not in known:
            known[parts, repeat] = sum(run(with_parts(baseline, kept, parts), random))
        return known[parts, repeat]

    def loss(part: int) -> float:
        rest = tuple(each for each in left if each != part)
        seen = passed(left, 0) - passed(rest, 0)
        return seen if seen > 0 else (seen + passed(left, 1) - passed(rest, 1)) / 2

    while len(left) > 1 and (gone := choose_part_to_drop({part: loss(part) for part in left})) is not None:
        left = tuple(part for part in left if part != gone)
    return with_parts(baseline, kept, left), len(known) * len(baseline)


def with_parts(baseline: Chances, kept: Sequence[Patch], parts: Sequence[int]) -> Chances:
    return reduce(lambda profile, part: kept[part](profile), parts, baseline)


def above_mean(baseline: Chances, patches: Sequence[Patch], random: Random) -> Outcome:
    return on_record(baseline, patches, random, lambda best, found: fmean(found) - fmean(best) > 0.01)


def above_error(baseline: Chances, patches: Sequence[Patch], random: Random) -> Outcome:
    def accepts(best: Sequence[bool], found: Sequence[bool]) -> bool:
        deltas = [after - before for before, after in zip(best, found, strict=True)]
        return fmean(deltas) > stdev(deltas) / sqrt(len(deltas))

    return on_record(baseline, patches, random, accepts)


def on_record(
    baseline: Chances,
    patches: Sequence[Patch],
    random: Random,
    accepts: Callable[[Sequence[bool], Sequence[bool]], bool],
) -> Outcome:
    """Each candidate runs once and is held against the recorded runs of the best so far."""
    best, record, claimed = baseline, run(baseline, random), False
    for patch in patches:
        candidate = patch(best)
        found = run(candidate, random)
        if accepts(record, found):
            best, record, claimed = candidate, found, True
    return Outcome(claimed=claimed, profile=best, case_runs=len(baseline) * (1 + len(patches)))


def sigma_rule(sigma: float) -> Rule:
    """Document 000: a train gain of one pooled std, hold-out no worse than by its own; hold-out runs if train improves.

    The hold-out cases behave like the train cases under each profile.
    """

    def rule(baseline: Chances, patches: Sequence[Patch], random: Random) -> Outcome:
        best, claimed = baseline, False
        train, held = sweeps(baseline, SWEEPS, random), sweeps(baseline, SWEEPS, random)
        runs = 2 * SWEEPS * len(baseline)
        for patch in patches:
            candidate = patch(best)
            found = sweeps(candidate, SWEEPS, random)
            runs += SWEEPS * len(baseline)
            gain = fmean(found) - fmean(train)
            if gain <= 0 or gain < noise_bar(train, found, sigma=sigma) - ROUNDING:
                continue
            on_held = sweeps(candidate, SWEEPS, random)
            runs += SWEEPS * len(baseline)
            if fmean(held) - fmean(on_held) <= noise_bar(held, on_held, sigma=sigma) + ROUNDING:
                best, train, held, claimed = candidate, found, on_held, True
        return Outcome(claimed=claimed, profile=best, case_runs=runs)

    return rule


RULES: dict[str, Rule] = {
    "default": default,
    "mean gain": above_mean,
    "sigma rule": sigma_rule(1.0),
    "sigma / sqrt 2": sigma_rule(sqrt(0.5)),
    "paired 1 SE": above_error,
}


def nothing(profile: Chances) -> Chances:
    return profile


def mended(gain: float) -> Patch:
    def patch(profile: Chances) -> Chances:
        share = min(1.0, gain / (1 - fmean(profile)))
        return [chance + share * (1 - chance) for chance in profile]

    return patch


def reshuffled(chances: Chances) -> Patch:
    return lambda _: chances


def new_chances(size: int, random: Random) -> Chances:
    return [random.betavariate(*BETA) for _ in range(size)]


def run(chances: Chances, random: Random) -> list[bool]:
    draw = random.random
    return [draw() < chance for chance in chances]


def passes(chances: Chances, repeats: Sequence[float]) -> int:
    return sum(repeat < chance for repeat, chance in zip(repeats, chances, strict=True))


def sweeps(chances: Chances, repeats: int, random: Random) -> list[float]:
    return [fmean(run(chances, random)) for _ in range(repeats)]


def paired(before: Chances, after: Chances, random: Random, *, repeats: int) -> list[PairedScores]:
    befores = zip(*(run(before, random) for _ in range(repeats)), strict=True)
    afters = zip(*(run(after, random) for _ in range(repeats)), strict=True)
    return [
        PairedScores(case_id=f"{number:03}", before=b, after=a)
        for number, (b, a) in enumerate(zip(befores, afters, strict=True))
    ]


if __name__ == "__main__":
    main()
