"""Other searches than `edits`, in runs whose scorer returns traces and figures: they keep to the same policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Search
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.score import Score
from promptiter.evaluation.scorer import ScoredProfile, Scorer
from promptiter.policies.edit_limits import EditLimits
from promptiter.policies.figure_gain import Bound, FigureGain
from promptiter.policies.stop_limits import MaxFailures
from promptiter.policies.stopping import Patience
from promptiter.profile import Profile, SurfacePatch
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import CaseFinished
from promptiter.search.descent.numeric_search import OptunaSearch
from promptiter.search.descent.search import CoordinateDescent
from promptiter.search.edits import EditSearch
from promptiter.search.gepa import GepaSearch
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.optimizer import Optimizer, OptimizeRequest, PatchResult
from promptiter.structure import Limits, Node, StructureSnapshot, Surface
from tests.search.test_edits import Adds
from tests.worlds.guide_files import GUIDE, STRUCTURE, Scoring, build_request, read

pytestmark = pytest.mark.slow

SEARCHES: Mapping[str, Callable[[Optimizer], Search]] = {
    "edits": lambda optimizer: EditSearch(optimizer=optimizer),
    "backprop": lambda optimizer: BackpropRounds(optimizer=optimizer, passes=1),
    "gepa": lambda optimizer: GepaSearch(optimizer=optimizer, module_selector="blame"),
    "coordinate_descent": lambda optimizer: CoordinateDescent(
        optimizer=optimizer, phases=("textual",), min_confidence=0.2
    ),
}


def build_scorer(scoring: Scoring) -> Scorer:
    return Scorer(scoring, holdout=lambda profile: 1.0 if "greet" in read(profile) else 0.5)


@pytest.mark.parametrize("name", SEARCHES)
async def test_a_search_improves_a_scorer_with_traces_and_figures(name: str) -> None:
    journal = MemoryJournal()
    engine = Engine(STRUCTURE, Evaluator(), search=SEARCHES[name](Adds()))
    request = build_request(build_scorer(Scoring()), edit_limits=EditLimits(max_files=1), stop=Patience(3))
    result = await engine.run(request, journal=journal)
    assert read(result.accepted_profile).endswith("greet ask answer thank")
    assert result.verdict == "improved_on_validation"
    assert result.conclusion is not None
    assert any(
        "the hold-out, which the search never saw, is 1.000, was 0.500" in each for each in result.conclusion.reasons
    )
    kept = [
        candidate.decision.reason
        for each in result.rounds
        for candidate in each.candidates
        if candidate.decision is not None and candidate.decision.accepted
    ]
    assert kept
    assert all("words is " in reason for reason in kept)
    rows = [event.payload.row for event in journal.events if isinstance(event.payload, CaseFinished)]
    assert all(row.figures for row in rows if row.case_id == "scorer")


@pytest.mark.parametrize("name", SEARCHES)
async def test_a_bound_holds_in_every_search(name: str) -> None:
    """The second word would make the guide too long."""
    policy = Bound("length", "<=", 40) & FigureGain("words")
    engine = Engine(STRUCTURE, Evaluator(), search=SEARCHES[name](Adds()))
    result = await engine.run(build_request(Scoring(), acceptance=policy, stop=Patience(2)))
    assert len(read(result.accepted_profile)) <= 40
    assert read(result.accepted_profile, GUIDE).endswith("greet")


async def test_optuna_tunes_a_number_by_figures() -> None:
    structure = StructureSnapshot(
        nodes=(Node(id="tool"),),
        surfaces=(
            Surface(
                node_id="tool", type="parameter", part="k", value=2, limits=Limits(kind="integer", minimum=0, maximum=9)
            ),
        ),
    )

    def measure(profile: Profile) -> ScoredProfile:
        k = int(str(profile.value("tool#parameter.k", structure)))
        if k == 7:
            raise OSError("exit code 1")
        return ScoredProfile(scores=(Score(metric="score", value=k / 10),), figures={"speed": 10 * k})

    request = RunRequest(
        scorer=measure,
        acceptance=Bound("speed", "<", 80) & FigureGain("speed"),
        targets=["tool#parameter.k"],
        stop=MaxFailures(5),
        max_rounds=40,
        run_id="r",
    )
    result = await Engine(structure, Evaluator(), search=OptunaSearch(trials=30)).run(request)
    assert result.accepted_profile.overrides == {"tool#parameter.k": 6}
    assert result.verdict == "improved_on_validation"


class Avoids(Adds):
    """Writes a guide that crashes the scorer, until it sees that this was rejected."""

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        if request.surface.part != GUIDE or request.rejected:
            return await super().optimize(request)
        self.requests.append(request)
        return PatchResult(patch=SurfacePatch(surface_id=request.surface.id, value="CRASH", reason="a mistake"))


@pytest.mark.parametrize("name", SEARCHES)
async def test_a_rejected_candidate_is_not_written_again(name: str) -> None:
    """A scorer is one case, so the evidence of the next round is the same."""
    optimizer, scoring = Avoids(), Scoring()
    await Engine(STRUCTURE, Evaluator(), search=SEARCHES[name](optimizer)).run(build_request(scoring, max_rounds=4))
    shown = next(each.rejected[-1] for each in optimizer.requests if each.rejected)
    assert shown.value == "CRASH"
    assert scoring.runs["Please be so kind as to write.\n greet"]


class EditsBoth(Adds):
    """Also adds a line to the other file, which does not help."""

    async def optimize(self, request: OptimizeRequest) -> PatchResult:
        if request.surface.part == GUIDE:
            return await super().optimize(request)
        self.requests.append(request)
        text = f"{request.surface.value}More {len(request.rejected)}.\n"
        return PatchResult(patch=SurfacePatch(surface_id=request.surface.id, value=text, reason="more"))


@pytest.mark.parametrize("name", SEARCHES)
async def test_of_two_blamed_files_one_is_edited_at_a_time_if_the_limit_is_one(name: str) -> None:
    optimizer = EditsBoth()
    request = build_request(Scoring(), edit_limits=EditLimits(max_files=1, max_changed_lines=9), max_rounds=20)
    result = await Engine(STRUCTURE, Evaluator(), search=SEARCHES[name](optimizer)).run(request)
    assert read(result.accepted_profile).endswith("greet ask answer thank")
    assert {each.max_changed_lines for each in optimizer.requests} == {9}
    decisions = [candidate.decision for each in result.rounds for candidate in each.candidates]
    assert not any("may change" in each.reason for each in decisions if each is not None)
