"""Runs on planted worlds: do they reach the ceiling, at what cost, and do they leave innocent surfaces alone?

The stages ask a scripted expert that knows nothing but what its prompts show (`tests/worlds/sighted_expert.py`). It is
right, or misreads a tenth of the runs it is shown. The task model makes no slips, or one in 5% of the case runs. A run
reaches the ceiling if its final profile scores as well as the perfect one with slips switched off. Case runs and node
calls are those of the search and, in brackets, all with ablation and final test. `found` counts the runs whose search
ended at the ceiling, `adopted` those whose final test adopted it: a search may find a gain that is too small for the
final test to show beyond run noise, and then the baseline stays. With slips, the fix of `rare` moves one of twelve
validation cases; the final test shows that with the sixteen repeats of a test with an extra block, seldom with six.
Tokens are characters / 4 of prompts and answers. Innocent surfaces are those without a planted fault.

GEPA is measured in the same process if gepa is installed: gepa's own `optimize`, and `here`, the search `gepa` on the
same engine, with the same seeds. The reflection model is the same expert if it is `sighted`; if it is `blind`, it
writes down all that the feedback names. `full` reflects on all train cases at once instead of three; with `blame`, the
backward pass chooses what is rewritten. Each of these runs ends at a perfect validation or after 1,500 case runs.

    python -m benchmarks.bench_worlds [--quick] [--seeds 10] [--worlds one,rare] [--without-gepa]
        [--only-gepa] [--selectors all,blame] [--without-slips] [--without-final-test] [--repeats 2]
"""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import TypeAlias

from benchmarks.gepa_runs import BLAME, VARIANTS, GepaOutcome, Variant, load_gepa, run_gepa, run_gepa_here
from benchmarks.measure import format_reached
from promptiter.policies.final_test import FinalTest
from tests.worlds.planted_world import optimize_world
from tests.worlds.planted_worlds import WORLDS, make_world
from traces.model import Json

Setting: TypeAlias = tuple[float, float]
"""The chance of a slip, and the share of runs that the expert misreads."""

SLIP, ERROR_RATE = 0.05, 0.1
SETTINGS: tuple[Setting, ...] = ((0.0, 0.0), (SLIP, 0.0), (0.0, ERROR_RATE), (SLIP, ERROR_RATE))
MAX_INNOCENT = 0.02
MAX_GEPA_RATIO = 1.1
GEPA_SOLVES = ("one", "coupled", "join", "rare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What one run reached and took."""

    found: bool
    adopted: bool
    case_runs: int
    node_calls: int
    all_case_runs: int
    all_node_calls: int
    stage_calls: int
    stage_tokens: float
    node_tokens: float
    innocent: int
    innocent_changed: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two seeds")
    parser.add_argument("--seeds", type=int, default=10, help="number of seeds")
    parser.add_argument("--worlds", default=",".join(WORLDS), help="names of worlds, separated by commas")
    parser.add_argument("--only-gepa", action="store_true", help="measure GEPA only")
    parser.add_argument("--selectors", default="round_robin,all,blame", help="module selectors of GEPA to measure")
    parser.add_argument(
        "--without-slips", action="store_true", help="measure GEPA with a model that makes no slips only"
    )
    parser.add_argument("--without-gepa", action="store_true", help="measure promptiter only")
    parser.add_argument("--without-final-test", action="store_true", help="measure searches only")
    parser.add_argument("--repeats", type=int, default=FinalTest().repeats, help="repeats of a block of the final test")
    options = parser.parse_args()
    names, seeds = options.worlds.split(","), range(2 if options.quick else options.seeds)
    gepa = None if options.without_gepa else load_gepa()
    if gepa is None:
        print("gepa is not measured: it is not installed, or was not asked for\n")
    final_test = None if options.without_final_test else FinalTest(repeats=options.repeats)
    settings = () if options.only_gepa else SETTINGS
    found = {each: report_setting(names, seeds, each, final_test=final_test) for each in settings}
    if gepa is not None:
        slips = (0.0,) if options.without_slips else (0.0, SLIP)
        report_gepa(names, seeds, slips=slips, selectors=options.selectors.split(","))
    if found:
        report_goals(found)


def report_setting(
    names: Sequence[str], seeds: Sequence[int], setting: Setting, *, final_test: FinalTest | None
) -> dict[str, list[Figures]]:
    slip, error_rate = setting
    expert = "right" if not error_rate else f"wrong about {error_rate:.0%} of the runs"
    print(f"promptiter, {slip:.0%} slips, an expert that is {expert}")
    print_header()
    found = {}
    for name in names:
        runs = [asyncio.run(run_promptiter(name, seed, setting, final_test=final_test)) for seed in seeds]
        print_row(name, "promptiter", runs)
        found[name] = runs
    print()
    return found


async def run_promptiter(name: str, seed: int, setting: Setting, *, final_test: FinalTest | None) -> Figures:
    slip, error_rate = setting
    world = make_world(name, seed, slip=slip)
    outcome = await optimize_world(world, error_rate=error_rate, final_test=final_test)
    result = outcome.result
    found = await is_at_ceiling(name, seed, result.working_profile.overrides)
    is_kept = result.accepted_profile.digest == result.working_profile.digest
    return Figures(
        found=found,
        adopted=found if is_kept else await is_at_ceiling(name, seed, result.accepted_profile.overrides),
        case_runs=outcome.case_runs_of_search,
        node_calls=outcome.search_calls,
        all_case_runs=result.measured.case_runs,
        all_node_calls=outcome.task.calls,
        stage_calls=outcome.expert.spent.calls,
        stage_tokens=outcome.expert.spent.tokens,
        node_tokens=outcome.task.tokens,
        innocent=len(world.innocent),
        innocent_changed=len(outcome.changed & world.innocent),
    )


def report_gepa(
    names: Sequence[str], seeds: Sequence[int], *, slips: Sequence[float], selectors: Sequence[str]
) -> None:
    theirs: dict[tuple[str, str], list[Figures]] = {}
    here: dict[tuple[str, str], list[Figures]] = {}
    for slip in slips:
        variants = (VARIANTS[-1], BLAME) if slip else (*VARIANTS, BLAME)
        print(f"GEPA, {slip:.0%} slips")
        print_header()
        for name in names:
            for variant in (each for each in variants if each.selector in selectors):
                if variant is not BLAME:
                    runs = [measure_gepa(name, seed, slip, variant, is_here=False) for seed in seeds]
                    print_row(name, f"gepa {variant.name}", runs)
                    theirs[name, variant.name] = runs
                runs = [measure_gepa(name, seed, slip, variant, is_here=True) for seed in seeds]
                print_row(name, f"here {variant.name}", runs)
                here[name, variant.name] = runs
        print()
        if not slip:
            report_gepa_goals(theirs, here)


def measure_gepa(name: str, seed: int, slip: float, variant: Variant, *, is_here: bool) -> Figures:
    world = make_world(name, seed, slip=slip)
    found: GepaOutcome = asyncio.run(run_gepa_here(world, variant)) if is_here else run_gepa(world, variant, seed=seed)
    changed = {each for each, value in found.values.items() if world.texts[each] != value}
    is_found = asyncio.run(is_at_ceiling(name, seed, found.values))
    return Figures(
        found=is_found,
        adopted=is_found,
        case_runs=found.case_runs,
        node_calls=found.task.calls,
        all_case_runs=found.case_runs,
        all_node_calls=found.task.calls,
        stage_calls=found.reflection.calls,
        stage_tokens=found.reflection.tokens,
        node_tokens=found.task.tokens,
        innocent=len(world.innocent),
        innocent_changed=len(changed & world.innocent),
    )


def report_gepa_goals(
    theirs: Mapping[tuple[str, str], Sequence[Figures]], here: Mapping[tuple[str, str], Sequence[Figures]]
) -> None:
    if not theirs:
        return
    worst = max((fmean(_list_case_runs(here[key])) / fmean(_list_case_runs(runs)), key) for key, runs in theirs.items())
    is_reached = format_reached(worst[0] <= MAX_GEPA_RATIO)
    where = " ".join(worst[1])
    print(
        f"goal: GEPA here takes at most {MAX_GEPA_RATIO} times gepa's case runs: {worst[0]:.2f} ({where}): {is_reached}"
    )
    for name in GEPA_SOLVES:
        if (name, BLAME.name) in here:
            runs = here[name, BLAME.name]
            count = sum(each.found for each in runs)
            print(f"goal: with blame it solves {name}: {count}/{len(runs)}: {format_reached(count == len(runs))}")
    print()


def _list_case_runs(runs: Sequence[Figures]) -> list[int]:
    return [each.case_runs for each in runs]


async def is_at_ceiling(name: str, seed: int, values: Mapping[str, Json]) -> bool:
    """Whether these values score as well as the perfect profile does with slips switched off, which is 1."""
    world = make_world(name, seed)
    return await world.measure_score(world.make_profile(values)) == 1.0


def print_header() -> None:
    print(
        f"{'world':14}{'who':28}{'found':>7}{'adopted':>9}{'case runs':>14}{'node calls':>18}{'stage calls':>12}"
        f"{'stage tokens':>13}{'with nodes':>11}{'innocents changed':>19}"
    )


def print_row(name: str, who: str, runs: Sequence[Figures]) -> None:
    def mean(values: Iterable[float]) -> float:
        return fmean(list(values))

    found, adopted = (
        f"{sum(each)}/{len(runs)}" for each in zip(*((one.found, one.adopted) for one in runs), strict=True)
    )
    case_runs = f"{mean(each.case_runs for each in runs):,.0f} ({mean(each.all_case_runs for each in runs):,.0f})"
    calls = f"{mean(each.node_calls for each in runs):,.0f} ({mean(each.all_node_calls for each in runs):,.0f})"
    tokens = mean(each.stage_tokens for each in runs)
    innocent = f"{sum(each.innocent_changed for each in runs)} of {sum(each.innocent for each in runs)}"
    print(
        f"{name:14}{who:28}{found:>7}{adopted:>9}{case_runs:>14}{calls:>18}"
        f"{mean(each.stage_calls for each in runs):12,.0f}{tokens / 1000:12,.1f}k"
        f"{(tokens + mean(each.node_tokens for each in runs)) / 1000:10,.0f}k{innocent:>19}",
        flush=True,
    )


def report_goals(found: dict[tuple[float, float], dict[str, list[Figures]]]) -> None:
    print("goal: every run without slips and with a right expert reaches the ceiling")
    report_reached(found[0.0, 0.0], share=1.0)
    print("goal: with 5% slips, 19 of 20 runs of each world reach it")
    report_reached(found[SLIP, 0.0], share=0.95)
    every = [each for setting in found.values() for runs in setting.values() for each in runs]
    changed, innocent = sum(each.innocent_changed for each in every), sum(each.innocent for each in every)
    share = changed / innocent if innocent else 0.0
    is_reached = format_reached(share <= MAX_INNOCENT)
    print(f"goal: at most {MAX_INNOCENT:.0%} of the innocent surfaces change: {changed} of {innocent}: {is_reached}")


def report_reached(found: Mapping[str, Sequence[Figures]], *, share: float) -> None:
    """Print how many searches reached the ceiling, how many runs adopted it, and the worlds with too few of either."""
    reached = {
        "found": {name: sum(each.found for each in runs) for name, runs in found.items()},
        "adopted": {name: sum(each.adopted for each in runs) for name, runs in found.items()},
    }
    for what, counts in reached.items():
        missed = [
            f"{name} {counts[name]}/{len(runs)}" for name, runs in found.items() if counts[name] < share * len(runs)
        ]
        total = f"{sum(counts.values())} of {sum(map(len, found.values()))}"
        print(f"  {what} {total}: {format_reached(not missed)}", *missed, sep="; " if missed else "")


if __name__ == "__main__":
    main()
