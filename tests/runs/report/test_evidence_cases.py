from __future__ import annotations

import pytest

from promptiter.runs.hunk_evidence import read_hunks
from promptiter.runs.report.blame_diagram import BlamedTraces
from promptiter.runs.report.evidence_cases import collect_evidence
from tests.worlds.planted_world import optimize_world
from tests.worlds.planted_worlds import make_world


@pytest.mark.slow
async def test_blame_of_an_earlier_turn_comes_with_the_loss_of_the_turn_that_failed() -> None:
    """The third turn fails, and the answer to the first is to blame."""
    result = (await optimize_world(make_world("third-turn", seed=0))).result
    hunks = [hunk for found in read_hunks(result).values() for hunk in found]
    found = collect_evidence(hunks, result.rounds, lambda _: None)
    assert found
    assert all(case.input and case.expected and case.losses for case in found)
    traces = BlamedTraces(read_hunks(result))
    for each in result.rounds:
        traces.add(each)
    [chosen] = traces.choose()
    assert (chosen.blame.turn, chosen.loss.turn) == (0, 2)
    assert chosen.trace_digest == next(
        gradient.trace_digest
        for hunk in hunks
        for gradient in hunk.gradients
        if gradient.case_id == chosen.loss.case_id
    )
