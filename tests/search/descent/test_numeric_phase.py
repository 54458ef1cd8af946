"""Joint moves: numbers that are tried together with a rejected text."""

from __future__ import annotations

import pytest

from promptiter.backprop.trial_record import TextualProposal, get_trials
from promptiter.engine.session import Session
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.results import RunResult
from promptiter.search.descent.axes import find_axes
from promptiter.search.descent.numeric_phase import NumericPhase
from promptiter.search.descent.phase import PhaseLimits
from promptiter.search.descent.study import StudySettings
from promptiter.search.descent.trials import Attempt, Trials
from tests.worlds import quadratic_world
from tests.worlds.quadratic_world import RULE, TEXT, build_engine, build_request

DROPPED = "its numbers alone do as well, so the text stays as it was"


class Joint:
    """A search of one numeric phase whose points are tried together with a text."""

    def __init__(self, text: str) -> None:
        patch = SurfacePatch(surface_id=TEXT, value=text, reason="rejected before")
        self.text = Attempt(surfaces=(TEXT,), patches=PatchSet((patch,)), textual=TextualProposal(critic="c"))

    async def search(self, session: Session) -> None:
        phase = NumericPhase(
            Trials(session),
            find_axes(session.snapshot, session.targets),
            settings=StudySettings(startup_trials=10),
            seed=0,
            limits=PhaseLimits(max_trials=6, patience=None),
            batch_size=2,
            convergence=0.0,
        )
        await phase.run(1, text=self.text)


def run(text: str) -> RunResult:
    return build_engine(Joint(text), seed=1).run_sync(build_request(cases=3))


def list_rejections(result: RunResult) -> list[str]:
    return [one.decision.reason for each in result.rounds for one in each.candidates if one.decision is not None]


def test_a_text_that_adds_nothing_is_not_accepted_together_with_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quadratic_world, "NOISE", 0.0)
    result = run("Answer in plain words.")
    trials = [trial for each in result.rounds for trial in get_trials(each)]
    accepted = [each for each in trials if each.is_accepted]
    assert accepted
    assert not any(TEXT in each.changed or each.textual for each in accepted)
    assert TEXT not in result.working_profile.overrides
    assert list_rejections(result).count(DROPPED) >= len(accepted)
    assert all(each.candidate is not None for each in accepted)


def test_a_text_that_is_part_of_the_gain_is_accepted_together_with_numbers() -> None:
    result = run(f"Answer in plain words. {RULE}")
    trials = [trial for each in result.rounds for trial in get_trials(each)]
    first = next(each for each in trials if each.is_accepted)
    assert TEXT in first.changed
    assert first.textual is not None
    assert RULE in str(result.working_profile.overrides[TEXT])
    assert "the numbers alone gain less than together with the text" in list_rejections(result)
