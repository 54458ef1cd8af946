from __future__ import annotations

import pytest

from promptiter.engine.request import RunRequest
from promptiter.evaluation.mean_usage import average_usage
from promptiter.policies.final_test import FinalTest
from promptiter.policies.goals import Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.profile import Profile
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.search.cheaper import ModelDownsizing
from tests.worlds import shop
from tests.worlds.desk import Watcher


def request(**changes: object) -> RunRequest:
    values: dict[str, object] = {
        "train": shop.eval_set("train", 2),
        "validation": shop.eval_set("validation", 20),
        "goal": Goal(kind="cheaper"),
        "acceptance": NonInferior(0.05, "usd"),
        "final_test": None,
        "max_rounds": 9,
        "run_id": "r",
    }
    return RunRequest(**(values | changes))  # type: ignore[arg-type]


def list_tried(result: RunResult) -> list[tuple[object, bool]]:
    return [(patch.value, each.decision.accepted) for each in result.rounds if each.decision for patch in each.patches]


async def test_an_equally_good_cheaper_model_is_accepted_and_a_worse_one_rejected() -> None:
    result = await shop.engine(ModelDownsizing(), shop.agent(), tiny=0.3).run(request())
    assert list_tried(result) == [("tiny", False), ("small", True)]
    assert [(change.before, change.after) for change in result.changes] == [("large", "small")]
    assert (result.verdict, result.stop_reason, result.accepted_score) == ("no_evidence", "exhausted", 1.0)
    assert result.baseline is not None
    assert result.accepted is not None
    before, after = average_usage(result.baseline).usd, average_usage(result.accepted).usd
    assert before is not None
    assert after == pytest.approx(before / 10, rel=0.01)
    assert "beyond the margin 0.05" in str(result.rounds[0].decision)
    [patch] = result.rounds[0].patches
    assert patch.reason.startswith("tiny instead of large saves about $0.00")


async def test_the_cheapest_equally_good_model_ends_the_search_of_its_node() -> None:
    watcher = Watcher()
    result = await shop.engine(ModelDownsizing(), shop.agent()).run(request(), observers=[watcher])
    assert list_tried(result) == [("tiny", True)]
    assert watcher.types().count("evaluation_started") == 2


@pytest.mark.slow
async def test_several_nodes_change_one_after_the_other() -> None:
    result = await shop.engine(ModelDownsizing(), shop.agent(nodes=2), tiny=0.3).run(request())
    assert {change.surface_id: change.after for change in result.changes} == {
        "clerk#model": "small",
        "clerk1#model": "small",
    }
    assert result.accepted_score == 1.0


async def test_only_the_models_of_the_goal_are_tried() -> None:
    goal = Goal(kind="cheaper", models=("small",))
    result = await shop.engine(ModelDownsizing(), shop.agent()).run(request(goal=goal))
    assert list_tried(result) == [("small", True)]


async def test_a_more_expensive_model_is_never_tried() -> None:
    built = shop.agent()
    start = Profile.of(built.describe(), {"clerk#model": "tiny"})
    result = await shop.engine(ModelDownsizing(), built).run(request(initial_profile=start))
    assert (result.rounds, result.verdict, result.stop_reason) == ((), "no_evidence", "exhausted")


async def test_if_all_models_are_worse_nothing_changes() -> None:
    result = await shop.engine(ModelDownsizing(), shop.agent(), tiny=0.2, small=0.4).run(request())
    assert (result.verdict, result.changes) == ("no_evidence", ())


@pytest.mark.slow
async def test_a_resumed_run_ends_like_an_uninterrupted_one() -> None:
    whole = MemoryJournal()
    asked = request(validation=shop.eval_set("validation", 4))
    expected = await shop.engine(ModelDownsizing(), shop.agent(), tiny=0.3).run(asked, journal=whole)
    assert expected.changes
    events = list(whole.events)
    for count in range(1, len(events)):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        again = await shop.engine(ModelDownsizing(), shop.agent(), tiny=0.3).run(asked, journal=journal)
        assert again == expected


@pytest.mark.slow
@pytest.mark.parametrize(("cases", "verdict"), [(40, "improved_on_validation"), (6, "underpowered")])
async def test_an_accepted_model_is_adopted_if_a_loss_of_the_margin_is_ruled_out(cases: int, verdict: str) -> None:
    asked = request(validation=shop.eval_set("validation", cases), final_test=FinalTest())
    result = await shop.engine(ModelDownsizing(), shop.agent()).run(asked)
    assert (result.verdict, bool(result.changes)) == (verdict, verdict == "improved_on_validation")
    assert result.working_profile != result.initial_profile
    assert result.conclusion is not None
    assert result.conclusion.results[0].scope == "these cases"
