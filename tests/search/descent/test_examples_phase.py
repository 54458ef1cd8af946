import pytest

from promptiter.backprop.trial_record import get_trials, list_phases
from promptiter.search.descent.search import CoordinateDescent
from tests.worlds.convention import has_reached, run_search

pytestmark = pytest.mark.slow

EXAMPLES, INSTRUCTION = "sorter#examples", "sorter#instruction"


async def test_examples_are_a_phase_of_their_own() -> None:
    result = await run_search(CoordinateDescent(textual_patience=2), 0, targets=[EXAMPLES, INSTRUCTION])

    assert has_reached(result)
    assert [(each.phase, each.ended) for each in list_phases(result.rounds)] == [("textual", "exhausted")]
    trials = [trial for each in result.rounds for trial in get_trials(each) if trial.phase == "examples"]
    assert trials[0].outcome == "accepted"
    assert trials[0].changed == (EXAMPLES,)


async def test_the_next_trials_start_from_the_accepted_examples() -> None:
    result = await run_search(CoordinateDescent(examples_max_trials=1, max_cycles=2), 0, targets=[EXAMPLES])
    trials = [trial for each in result.rounds for trial in get_trials(each)]

    assert trials[0].outcome == "accepted"
    assert all(each.parent == trials[0].candidate for each in trials[1:2])
