"""No search runs a candidate that changes more than the request allows, and the record says why."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.errors import RequestError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.policies.edit_limits import EditLimits
from promptiter.policies.stop_limits import MaxFailures
from promptiter.profile import Profile
from promptiter.runlog.results import RunResult
from tests.engine.test_run_shapes import BOTH, STRUCTURE, build_traces, carefulness, scored
from tests.worlds import desk
from tests.worlds.desk import DRAFT, Tries
from tests.worlds.desk_stages import Blames, Merges, Writes

ONE = EditLimits(max_files=1)
EXCESS = "it changes 2 surfaces (draft#instruction, polish#instruction), and at most 1 may change"


async def run(search: Any, request: RunRequest, *, seen: Counter[str] | None = None) -> RunResult:
    def score(profile: Profile) -> Any:
        if seen is not None:
            seen[profile.digest] += 1
        return build_traces(profile)

    return await Engine(STRUCTURE, Evaluator(), search=search).run(replace(request, scorer=score))


async def test_a_candidate_over_the_limits_is_rejected_before_anything_runs() -> None:
    seen = Counter[str]()
    result = await run(Tries(BOTH, DRAFT), scored(edit_limits=ONE), seen=seen)
    first, second = (each.decision for each in result.rounds)
    assert first is not None
    assert second is not None
    assert (first.accepted, first.reason) == (False, EXCESS)
    assert second.accepted
    assert Profile.of(STRUCTURE, BOTH).digest not in seen


async def test_what_counts_is_the_profile_that_a_candidate_is_made_from() -> None:
    result = await run(Tries(DRAFT, BOTH), scored(edit_limits=ONE))
    assert [each.decision.accepted for each in result.rounds if each.decision] == [True, True]


class Evaluates:
    """Runs candidates before it proposes them."""

    def __init__(self, *, proposes: bool) -> None:
        self.proposes = proposes
        self.reasons: list[str] = []

    async def search(self, session: Session) -> None:
        await session.begin_round()
        profile = Profile.of(STRUCTURE, BOTH)
        if self.proposes:
            profile = await session.propose(profile, parents=[session.accepted.profile])
        found = await session.evaluate(session.train, profile, phase="screening", repeats=range(1))
        assert not found.is_reliable
        decision = await session.reject(profile, "no better")
        self.reasons.append(decision.reason)
        await session.complete_round()
        await session.should_stop()


@pytest.mark.parametrize("proposes", [True, False])
async def test_a_search_that_runs_it_first_gets_rows_with_the_reason(proposes: bool) -> None:
    search, seen = Evaluates(proposes=proposes), Counter[str]()
    result = await run(search, scored(edit_limits=ONE, stop=MaxFailures(1)), seen=seen)
    assert search.reasons == [EXCESS]
    assert set(seen) == {Profile.baseline(STRUCTURE).digest}
    assert result.stop is not None
    assert result.stop.reason != "max_failures"  # nothing crashed


async def run_backprop(limits: EditLimits, *, max_rounds: int) -> tuple[RunResult, set[int]]:
    """The result, and how many surfaces the profiles change that were run."""
    changed: set[int] = set()

    def score(profile: Profile) -> Any:
        changed.add(len(profile.overrides))
        return build_traces(profile)

    engine = Engine(STRUCTURE, Evaluator(), Blames(), Merges(), Writes())
    return await engine.run(scored(scorer=score, edit_limits=limits, max_rounds=max_rounds)), changed


async def test_rounds_of_backprop_patch_as_many_surfaces_as_may_change() -> None:
    first, changed = await run_backprop(ONE, max_rounds=1)
    assert changed == {0, 1}
    assert [each.decision.accepted for each in first.rounds if each.decision] == [True]
    second, changed = await run_backprop(ONE, max_rounds=2)
    assert changed == {0, 1, 2}
    assert len(second.accepted_profile.overrides) == 2


async def test_rounds_of_backprop_that_change_too_many_lines_say_why() -> None:
    result, changed = await run_backprop(EditLimits(max_changed_lines=1), max_rounds=1)
    [decision] = [each.decision for each in result.rounds]
    assert decision is not None
    assert decision.reason == "it changes 2 lines, and at most 1 may change"
    assert changed == {0}


async def test_the_limits_are_checked_with_the_request() -> None:
    with pytest.raises(RequestError, match=r"edit_limits is 3; give EditLimits"):
        await Engine(STRUCTURE, Evaluator(), search=desk.Tries(DRAFT)).run(
            RunRequest(scorer=carefulness, edit_limits=3)  # type: ignore[arg-type]
        )
