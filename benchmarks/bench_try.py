"""`promptiter try`: does it give the answer of a full evaluation, and for how many calls?

An agent of 50 model calls has 100 cases. In each of four projects, the baseline is recorded once, as the command does
it, and five edits of one sentence in step 46 are tried: they help, hurt, or have no effect. For each edit, a full
evaluation runs both profiles from the first step, with new answers, and decides by the final test, for a gain and for a
loss at half of alpha each.

`calls` are those that the model answered for one edit. `share` compares them with an evaluation of both profiles from
the first step, with the same number of repeats. The last line counts the recordings, too: for 20 edits, each recording
is paid once.

    python -m benchmarks.bench_try [--quick] [--cases 100] [--steps 50]
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.measure import format_goal, format_reached
from promptiter.config.configured_run import ConfiguredEvaluation
from promptiter.config.edit_trial import EditTrial
from promptiter.config.file import RunConfig
from promptiter.llm.cache.cache import MemoryCache
from tests.worlds.long_chain import Effect, LongChain, evaluate_fully

PROJECTS: tuple[tuple[float, tuple[Effect, ...]], ...] = (
    (0.15, ("better", "no effect", "worse", "no effect", "better")),
    (0.2, ("worse", "better", "no effect", "worse", "no effect")),
    (0.25, ("no effect", "better", "worse", "better", "no effect")),
    (0.3, ("better", "no effect", "worse", "no effect", "worse")),
)
"""The size of the effects in each project, and its edits."""

EXPECTED: dict[Effect, str] = {"better": "improved", "worse": "worse", "no effect": "within_noise"}
LARGEST_SHARE, WORKERS = 0.1, 2


@dataclass(frozen=True, slots=True)
class TriedEdit:
    """One edit: its answer and its calls, and the answer of a full evaluation.

    `full_calls` are those of both profiles from the first step, with the repeats of the trial.
    """

    effect: Effect
    answer: str
    calls: int
    full_answer: str
    full_calls: int

    @property
    def share(self) -> float:
        return self.calls / self.full_calls


@dataclass(frozen=True, slots=True)
class Project:
    """The edits of one project, and the calls that recorded its baseline."""

    number: int
    edits: tuple[TriedEdit, ...]
    recorded_calls: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one project instead of four")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--steps", type=int, default=50, help="model calls of the agent; the fifth last is edited")
    options = parser.parse_args()
    numbers = range(1 if options.quick else len(PROJECTS))
    run = partial(run_project, cases=options.cases, steps=options.steps)
    started = time.perf_counter()
    with ProcessPoolExecutor(max_workers=WORKERS, mp_context=get_context("spawn")) as pool:
        print(f"{'project':>8}{'effect':>12}{'try':>14}{'full':>14}{'calls':>8}{'full':>8}{'share':>8}", flush=True)
        projects = []
        for project in pool.map(run, numbers):
            print_edits(project)
            projects.append(project)
        report(projects)
    print(f"{time.perf_counter() - started:.0f} s")


def run_project(number: int, *, cases: int, steps: int) -> Project:
    world = LongChain(
        seed=f"project {number}", effect=PROJECTS[number][0], cases=cases, steps=steps, edited=max(0, steps - 4)
    )
    with tempfile.TemporaryDirectory() as folder:
        return try_edits(world, number, folder=Path(folder))


def try_edits(world: LongChain, number: int, *, folder: Path) -> Project:
    """Record the baseline of a project, and try its edits."""
    evaluator = world.make_evaluator(cache=MemoryCache())
    built = ConfiguredEvaluation(
        agent=world.make_agent(), cases=world.make_eval_set(), evaluator=evaluator, gateway=evaluator.gateway
    )
    config = RunConfig(runs=folder)
    EditTrial(built, config).record()
    recorded, edits = world.calls.total(), []
    for place, effect in enumerate(PROJECTS[number][1]):
        before, after = world.make_profiles(effect, place)
        trial = EditTrial(built, config)
        trial.set_values(after.overrides)
        world.calls.clear()
        found = trial.compare()
        calls, full_calls = world.calls.total(), 2 * world.cases * found.repeats * world.steps
        answer = asyncio.run(evaluate_fully(world, before, after, seed=1 + 2 * place))
        edits.append(TriedEdit(effect, found.answer, calls, answer, full_calls))
    return Project(number, tuple(edits), recorded)


def print_edits(project: Project) -> None:
    for edit in project.edits:
        print(
            f"{project.number:>8}{edit.effect:>12}{edit.answer:>14}{edit.full_answer:>14}{edit.calls:>8,}"
            f"{edit.full_calls:>8,}{edit.share:>8.1%}",
            flush=True,
        )


def report(projects: Sequence[Project]) -> None:
    edits = [edit for project in projects for edit in project.edits]
    same = sum(edit.answer == edit.full_answer for edit in edits)
    right = sum(edit.answer == EXPECTED[edit.effect] for edit in edits)
    largest = max(edit.share for edit in edits)
    print(f"\nthe answer of the full evaluation in {same} of {len(edits)}: {format_reached(same == len(edits))}")
    print(f"the true answer in {right} of {len(edits)}")
    print(format_goal("of the calls, at most, for one edit", largest, LARGEST_SHARE))
    recorded, full = sum(project.recorded_calls for project in projects), sum(edit.full_calls for edit in edits)
    share = (recorded + sum(edit.calls for edit in edits)) / full
    print(f"{share:.1%} of the calls for all edits and their {len(projects)} recordings together")


if __name__ == "__main__":
    main()
