"""Learning from production on worlds with two planted faults: which texts are named, and whether the patches help.

Each world has answered 200 cases, of which only spans of OpenTelemetry's GenAI conventions are left, with feedback on
30% of the runs. A sighted expert, who knows nothing but what prompts show, blames and patches. The live agent has a
renamed node and an edited prompt. Named: both faulty texts come first. Innocent: the largest evidence of another text,
as a share of the smaller evidence of the two. Fresh: the score on new cases, before and after.

Goals: both named in every world, innocent at most 0.5, every verdict improved or improved_on_validation.

    python -m benchmarks.bench_learning [--seeds 5]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from pathlib import Path
from random import Random

from benchmarks.measure import format_reached
from promptiter.evaluation.data.case import EvalSet
from tests.worlds import rules_world, triage_world
from tests.worlds.lessons import learn_with_expert, record, validate
from tests.worlds.planted_world import PlantedWorld
from tests.worlds.production import change_node

RUNS, SHARE, FRESH = 200, 0.3, 40
GOOD = ("improved", "improved_on_validation")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, help="worlds of each kind")
    seeds = parser.parse_args().seeds
    print(f"{'world':12}{'named':>7}{'innocent':>10}{'guessed':>9}  {'verdict':24}{'fresh':>14}")
    reached = []
    for seed in range(seeds):
        reached.append(asyncio.run(report("rules", *make_rules(seed))))
        reached.append(asyncio.run(report("triage", *make_triage(seed))))
    print(f"\ngoals in all worlds: {format_reached(all(reached))}")


def make_rules(seed: int) -> tuple[PlantedWorld, EvalSet, EvalSet]:
    world = rules_world.make_rules_world("coupled", seed)
    return world, rules_world.make_cases("production", RUNS), rules_world.make_cases("fresh", FRESH)


def make_triage(seed: int) -> tuple[PlantedWorld, EvalSet, EvalSet]:
    asked, later = Random(f"asked {seed}"), Random(f"later {seed}")
    cases = triage_world.make_cases("production", RUNS, asked), triage_world.make_cases("fresh", FRESH, later)
    return triage_world.make_triage_world(seed), *cases


async def report(name: str, world: PlantedWorld, cases: EvalSet, fresh: EvalSet) -> bool:
    node = min(each.partition("#")[0] for each in world.faulty if each.endswith("#instruction"))
    live = change_node(world.agent, node, new_name=f"{node}_desk", added="Write plain English.")
    faulty = {each.replace(f"{node}#", f"{node}_desk#") for each in world.faulty}
    with tempfile.TemporaryDirectory() as folder:
        runs = await record(world, cases, Path(folder), share=SHARE)
        lessons = await learn_with_expert(world, runs, live=live.describe())
        result = await validate(world, live, lessons, Path(folder))
    first, others = lessons.surfaces[:2], lessons.surfaces[2:]
    is_named = {each.surface_id for each in first} == faulty
    least = min((each.evidence for each in first), default=0.0)
    innocent = max((each.evidence for each in others), default=0.0) / least if least else 1.0
    guessed = sum(each.guessed for each in first) / max(1, sum(len(each.case_ids) for each in first))
    evaluator = world.build_evaluator()
    before, after = [
        (await evaluator.evaluate(live, fresh, profile)).mean_score or 0.0
        for profile in (None, result.accepted_profile)
    ]
    gain = f"{before:.2f} -> {after:.2f}"
    print(f"{name:12}{is_named!s:>7}{innocent:>10.2f}{guessed:>9.0%}  {result.verdict!s:24}{gain:>14}")
    return is_named and innocent <= 0.5 and result.verdict in GOOD


if __name__ == "__main__":
    main()
