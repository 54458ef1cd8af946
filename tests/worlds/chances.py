"""An agent that is a table of chances: what a search claims can be held against what is true.

A case passes a run with a probability that the texts of the profile decide, by dice of the case, the repeat and the
profile. The agent asks nothing through the gateway, so nothing comes from the cache; a run that is made again gives the
same result. `Proposes` is a search that validates the patches it is given and lints nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from statistics import fmean
from typing import Literal, TypeAlias

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.structure import StructureSnapshot

BETA = (0.6, 0.4)
ROUNDS, CANDIDATES = 20, 10
SURFACES = 4
"""A search of 20 rounds comes back to the same few texts; each of 10 candidates has one of its own."""

Kind: TypeAlias = Literal["alike", "placebo", "one of ten", "settled", "settled, alike"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One run of the Engine: which patches, kept by which rule, on how many cases."""

    kind: Kind
    size: int
    number: int
    rule: str = "default"
    gain: float = 0.0


RESTYLES, RESHUFFLES, MENDS = "Words", "Rewritten", "Better"


def proposals(wanted: Wanted, random: Random) -> Iterator[tuple[str, str]]:
    """The surface and the text of each candidate."""
    if wanted.kind == "one of ten":
        real = random.randrange(CANDIDATES)
        for number in range(CANDIDATES):
            yield f"part{number}#instruction", f"{MENDS if number == real else RESTYLES} {number}."
        return
    word = {"placebo": RESHUFFLES, "settled": MENDS}.get(wanted.kind, RESTYLES)
    for number in range(1 if wanted.kind == "settled" else ROUNDS):
        yield f"part{number % SURFACES}#instruction", f"{word} {number}."


class Proposes:
    """Validates one patch a round; without a claim to come, until one is kept."""

    def __init__(self, patches: Sequence[tuple[str, str]], *, until_kept: bool) -> None:
        self.patches = patches
        self.until_kept = until_kept

    async def search(self, session: Session) -> None:
        for surface_id, text in self.patches:
            await session.begin_round()
            patch = SurfacePatch(surface_id=surface_id, value=text, reason="proposed")
            decision = await session.validate(session.candidate(PatchSet((patch,))))
            await session.complete_round()
            if decision.accepted and self.until_kept:
                return


class Table:
    """Passes each case with a chance of its own, which the texts of the profile change."""

    def __init__(self, wanted: Wanted, *, seed: str) -> None:
        self.wanted = wanted
        self.seed = seed
        names = [f"part{number}" for number in range(CANDIDATES if wanted.kind == "one of ten" else SURFACES)]
        nodes = tuple(ModelNode(name=name, instruction="As it was.") for name in names)
        edges = tuple(Edge(first, second) for first, second in pairwise(names))
        self.snapshot = GraphAgent(name="table", nodes=nodes, edges=edges).describe()
        self.texts = [f"{name}#instruction" for name in names]
        known = [self.baseline(f"validation-{number}") for number in range(wanted.size)]
        self.mended = min(1.0, wanted.gain / (1 - fmean(known))) if wanted.gain else 0.0
        failing = (f"validation-{number}" for number, chance in enumerate(known) if chance < 1)
        self.first_failing = next(failing, "")

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        dice = Random(f"{self.seed} {context.case_id} {context.repeat} {profile.digest}")
        return AgentRun(output="right" * (dice.random() < self.chance(context.case_id, profile)))

    def baseline(self, case_id: str, rewritten: tuple[str, ...] = ()) -> float:
        random = Random(f"{self.seed} {case_id} {' '.join(rewritten)}")
        if self.wanted.kind in ("settled", "settled, alike"):
            return float(random.random() < 0.6)
        return random.betavariate(*BETA)

    def chance(self, case_id: str, profile: Profile) -> float:
        texts = [str(profile.value(surface_id, self.snapshot)) for surface_id in self.texts]
        chance = self.baseline(case_id, tuple(text for text in texts if text.startswith(RESHUFFLES)))
        if any(text.startswith(MENDS) for text in texts):
            if self.wanted.kind == "settled":
                return 1.0 if case_id == self.first_failing else chance
            return chance + self.mended * (1 - chance)
        return chance


def eval_set(name: str, count: int) -> EvalSet:
    cases = (EvalCase(id=f"{name}-{n}", turns=(Turn(user=f"{name} {n}", expected="right"),)) for n in range(count))
    return EvalSet(id=name, cases=tuple(cases))


async def right(_case: EvalCase, run: AgentRun) -> bool:
    return run.output == "right"
