"""GradientCheck: tests blame by experiment. It corrects the outputs of a sample of blamed steps and replays the rest.

Failed runs are checked one by one. All blamed nodes of a run are corrected in turn, each visit in the run that the
earlier corrections led to; then the correction of each node is left out. Blame is supported if the score is lower
without it. Otherwise it is unsupported: the correction changes nothing, or the node could not do better with its input.
Blame of a tool or a route is not checked: another output would not show what another action would have led to.
Everything before a corrected step comes from the cache. Surfaces that many other runs blame are corrected as well,
because they would be patched as well: only then does a fault show that is hidden behind theirs.

The last step needs no special rule: a corrector may give it the expected answer only if all parts of that answer had
reached it, and once an earlier correction makes the run pass, the last step has nothing left to be blamed for.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from promptiter.agents.base import SubstitutingAgent
from promptiter.backprop.corrections import Corrector
from promptiter.backprop.record import GradientsChecked
from promptiter.concurrency import run_together
from promptiter.errors import SetupError
from promptiter.grouping import group_by
from promptiter.registry import OFFLINE_STAGES
from promptiter.search.blame_sample import find_most_blamed, run_of, sample_runs
from promptiter.search.replays import ReplayContext
from promptiter.search.run_check import RunCheck
from promptiter.stages.contracts import SurfaceGradient
from promptiter.structure import StructureSnapshot

MOST_CHECKED = 12
"""Maximum number of checks per round; one check is one blamed surface in one failed run."""

BEYOND_OUTPUTS = ("wrong_tool", "wrong_arguments", "route")
"""Categories about what a step did, not about its output. Replacing the output cannot correct them."""


def is_about_output(gradient: SurfaceGradient, snapshot: StructureSnapshot) -> bool:
    """Whether another output of the step could show that the blame is right; not if it is about tools or routes."""
    return gradient.category not in BEYOND_OUTPUTS and snapshot.surface(gradient.surface_id).type != "tool"


class GradientCheck:
    """Checks blame by replay. Correctors are asked in turn until one knows; the default one needs no model."""

    def __init__(self, *correctors: Corrector, most: int = MOST_CHECKED) -> None:
        if most < 1:
            raise SetupError(
                f"a gradient check needs at least one check, got most={most}; leave it out to check nothing"
            )
        self.correctors: tuple[Corrector, ...] = correctors or (OFFLINE_STAGES.get("corrector")(),)
        self.most = most

    async def check(
        self, gradients: Iterable[SurfaceGradient], runs: ReplayContext, *, rng: Random
    ) -> GradientsChecked:
        """Check a sample that is spread over surfaces and cases. Budget and setup errors are raised."""
        if not isinstance(runs.agent, SubstitutingAgent):
            return GradientsChecked()
        blame = sorted(gradients, key=lambda each: (*run_of(each), each.surface_id, each.step_id, each.text))
        snapshot = runs.agent.describe()
        kinds = group_by(blame, lambda each: is_about_output(each, snapshot))
        checkable, open_runs = kinds.get(True, []), {run_of(each) for each in kinds.get(False, [])}
        common = find_most_blamed(checkable)
        run_checks = [
            await RunCheck.begin(runs, self.correctors, each, common, is_open=run_of(each[0]) in open_runs)
            for each in sample_runs(checkable, rng, most=self.most)
        ]
        found = await run_together(each.run() for each in run_checks)
        checks = tuple(check for each in found for check in each)
        return GradientsChecked(checks=checks, replays=sum(each.replays.count for each in run_checks))
