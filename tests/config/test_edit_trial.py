from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.cli.views.edit_trial import describe_evidence
from promptiter.config.configured_run import ConfiguredEvaluation
from promptiter.config.edit_trial import EditTrial
from promptiter.config.file import RunConfig
from promptiter.llm.cache.cache import MemoryCache
from tests.worlds.long_chain import LongChain

CASES, STEPS = 16, 5


class Project:
    """A chain of steps whose last but one can be edited, with a recording in a folder."""

    def __init__(self, folder: Path) -> None:
        self.world = LongChain(steps=STEPS, edited=STEPS - 2, cases=CASES, effect=0.25)
        evaluator = self.world.make_evaluator(cache=MemoryCache())
        self.config = RunConfig(runs=folder)
        self.built = ConfiguredEvaluation(
            agent=self.world.make_agent(),
            cases=self.world.make_eval_set(),
            evaluator=evaluator,
            gateway=evaluator.gateway,
        )

    def make_trial(self, text: str | None = None) -> EditTrial:
        trial = EditTrial(self.built, self.config)
        if text is not None:
            trial.set_values({self.world.surface_id: text})
        self.world.calls.clear()
        return trial


@pytest.mark.slow
def test_an_edit_pays_only_what_follows_it_though_it_needs_all_repeats(tmp_path: Path) -> None:
    project, announced = Project(tmp_path), list[str]()
    recorded = project.make_trial().record(announce=announced.append)
    assert recorded.is_noisy
    assert project.world.calls.total() == CASES * STEPS * 6
    [text] = announced
    assert text.startswith("scores vary between repeats: recording 4 more repeats of each case, about 320 calls")
    found = project.make_trial("Write the answer. Mind the style.").compare()
    assert found.repeats > 2
    assert found.first_profile_calls == 0
    assert project.world.calls.total() <= CASES * found.repeats * 2 < 2 * CASES * found.repeats * STEPS / 4


@pytest.mark.slow
def test_the_evidence_names_the_whole_alpha_and_the_headline_has_none(tmp_path: Path) -> None:
    trial = Project(tmp_path).make_trial("Write the answer. Check every figure twice.")
    found = trial.compare()
    assert found.threshold is not None
    assert "alpha" not in found.reason
    assert "look" not in found.reason
    lines = list(describe_evidence(trial, found, wanted_gain=0.1))
    alpha = "alpha 0.05, half of it for each direction, is shared by the tests after 2, 4 and 6 repeats"
    assert f"p must be at most {found.threshold:.3g} here: {alpha}" in lines
