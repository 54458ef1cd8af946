"""The evolutionary search of examples/: everything that it does is in the record."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest

from examples.own_search.main import Evolution, PoolChosen
from promptiter.engine.engine import Engine
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.policies.evidence import AcceptanceDecision
from promptiter.profile import Profile
from promptiter.runlog.fold import fold
from promptiter.runlog.results import RoundResult, RunResult
from promptiter.runs.event_file import EventFile
from promptiter.runs.summary import read_summary
from tests.cli.conftest import Run, run
from tests.worlds.starter import SmallPool

__all__ = ["run"]

ROOT = Path(__file__).parent.parent


@dataclass
class Generation:
    """What the search asked for in one round, and what it was answered."""

    proposed: list[tuple[Profile, list[Profile]]] = field(default_factory=list)
    screened: dict[str, Evaluation] = field(default_factory=dict)
    decisions: list[tuple[str, AcceptanceDecision]] = field(default_factory=list)
    pool: PoolChosen | None = None


class WatchedSession:
    """A session that keeps an account of its own."""

    def __init__(self, session: Session, generations: list[Generation]) -> None:
        self._session = session
        self._generations = generations

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def begin_round(self) -> None:
        self._generations.append(Generation())
        await self._session.begin_round()

    async def propose(self, candidate: Profile, *, parents: Sequence[Profile], reason: str) -> Profile:
        safe = await self._session.propose(candidate, parents=parents, reason=reason)
        self._generations[-1].proposed.append((safe, list(parents)))
        return safe

    async def evaluate_many(self, pairs: Sequence[tuple[EvalSet, Profile]], *, phase: str) -> list[Evaluation]:
        found = await self._session.evaluate_many(pairs, phase=phase)
        self._generations[-1].screened = {each.profile_digest: each for each in found}
        return found

    async def validate(self, candidate: Profile) -> AcceptanceDecision:
        decision = await self._session.validate(candidate)
        self._generations[-1].decisions.append((candidate.digest, decision))
        return decision

    async def note(self, payload: PoolChosen) -> None:
        self._generations[-1].pool = await self._session.note(payload)


@dataclass(frozen=True)
class WatchedEvolution:
    search_itself: Evolution
    generations: list[Generation]

    async def search(self, session: Session) -> None:
        await self.search_itself.search(WatchedSession(session, self.generations))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Generation]]:
    """The folder of a small run, and the account of what its search did."""
    generations: list[Generation] = []
    world = SmallPool()
    search = world.engine.search
    assert isinstance(search, Evolution)
    world.engine = Engine(world.engine.agent, world.engine.evaluator, search=WatchedEvolution(search, generations))
    directory = world.directory(tmp_path_factory.mktemp("pool"))
    directory.run_sync()
    return directory.path, generations


def check_round(found: RoundResult, did: Generation, result: RunResult) -> None:
    """Every child is there with its profile, parents, patches, evaluations with their rows, decision and reason."""
    assert len(found.candidates) == len(did.proposed) == len(did.decisions) == 3
    assert [each.profile for each in found.candidates] == [child for child, _ in did.proposed]
    for candidate, (child, parents), (digest, decision) in zip(
        found.candidates, did.proposed, did.decisions, strict=True
    ):
        assert candidate.parents == tuple(dict.fromkeys(each.digest for each in parents))
        changes = parents[0].changes(child, result.structure)
        assert {patch.surface_id: patch.value for patch in candidate.patches} == {
            change.surface_id: change.after for change in changes
        }
        assert all(patch.reason.startswith("a cross, and the purchase date in ") for patch in candidate.patches)
        assert candidate.decision is not None
        known = candidate.decision if candidate.evidence is None else candidate.decision.without_figures
        assert (candidate.profile.digest, known) == (digest, decision)
        assert decision.reason
    evaluations = found.all_evaluations
    screened = {each.profile_digest: each for each in evaluations if each.phase == "screening"}
    assert screened == did.screened
    assert all(each.rows and each.rows[0].scores for each in screened.values())
    children = {each.profile.digest for each in found.candidates}
    assert {each.profile_digest for each in found.evaluations if each.phase == "screening"} == set(screened) - children
    assert did.pool is not None
    [note] = found.notes
    assert (note.type, note.data) == (
        "evolution.pool",
        {"members": list(did.pool.members), "scores": list(did.pool.scores)},
    )


def test_nothing_that_the_search_did_is_lost(finished: tuple[Path, list[Generation]]) -> None:
    folder, generations = finished
    folded = fold(EventFile(folder / "journal.jsonl").read())
    read = RunResult.from_json((folder / "result.json").read_bytes())
    assert len(folded.rounds) == len(generations) == 2
    for result in (folded, read):
        for found, did in zip(result.rounds, generations, strict=True):
            check_round(found, did, result)
    assert read == folded


@pytest.mark.parametrize("width", [80, 120])
def test_rounds_are_shown_with_candidates_parents_decisions_and_the_pool(
    width: int, finished: tuple[Path, list[Generation]], run: Run
) -> None:
    folder, generations = finished
    lines = run("show", folder, "--rounds", width=width).splitlines()
    assert max(map(len, lines)) <= width
    shown = " ".join(" ".join(lines).split())
    accepted = read_summary(folder).initial_digest
    for each, did in zip(read_summary(folder).rounds, generations, strict=True):
        for candidate in each.candidates:
            screened = did.screened[candidate.digest]
            passed = sum(case.passed for case in screened.cases)
            assert candidate.validation is not None
            assert (
                f"{candidate.digest[:8]} screening {screened.mean_score:.3f}, {passed}/{len(screened.cases)} pass; "
                f"validation {candidate.validation.score:.3f}, {candidate.validation.passed}/"
            ) in shown
            word = "accepted" if candidate.accepted else "rejected"
            parents = ", ".join(parent[:8] for parent in candidate.parents)
            compared = f" (compared with the accepted {accepted[:8]})" if candidate.compared_with else ""
            assert f"{word}: {candidate.reason}{compared} from {parents}: a cross, and the purchase date in " in shown
            assert f"changes {', '.join(candidate.patched)} " in shown
            accepted = candidate.digest if candidate.accepted else accepted
        assert did.pool is not None
        members = ", ".join(member[:8] for member in did.pool.members)
        assert f"evolution.pool: members {members}; scores {', '.join(map(str, did.pool.scores))}" in shown


@pytest.mark.slow
def test_events_of_a_search_that_is_not_installed_are_kept_and_shown(
    finished: tuple[Path, list[Generation]], tmp_path: Path
) -> None:
    folder, generations = finished
    script = (
        "import sys; from promptiter.runlog.fold import fold; from promptiter.runs.event_file import EventFile\n"
        "sys.modules['examples.own_search.main'] = None\n"
        f"result = fold(EventFile({str(folder / 'journal.jsonl')!r}).read())\n"
        "sys.stdout.buffer.write(result.to_json())"
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    folded = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, env=environ).stdout
    assert orjson.loads(folded) == orjson.loads((folder / "result.json").read_bytes())
    command = [sys.executable, "-m", "promptiter", "show", str(folder), "--rounds"]
    shown = subprocess.run(command, capture_output=True, check=True, env=environ, cwd=tmp_path).stdout.decode()
    assert shown.count("evolution.pool: ") == 2
    assert generations[-1].pool is not None
    assert f"members {generations[-1].pool.members[0][:8]}, " in shown
