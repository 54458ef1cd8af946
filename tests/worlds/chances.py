"""An agent whose cases pass with known probabilities, so that verdicts can be compared with the truth.

The texts of the profile determine the probability that a case passes; case, repeat and profile seed the outcome, so the
same run gives the same result. The agent makes no call through the gateway, so nothing comes from the cache. `Proposes`
is a search that validates given patches without linting them.
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
"""A search of 20 rounds returns to the same few surfaces; each of 10 candidates has a surface of its own."""

Kind: TypeAlias = Literal["alike", "placebo", "one of ten", "settled", "settled, alike"]
"""The patches: none has an effect, all reshuffle which cases pass, one in ten helps. Settled cases have no noise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """One run of the Engine: which patches, accepted by which rule, on how many cases."""

    kind: Kind
    size: int
    number: int
    rule: str = "default"
    gain: float = 0.0

    @property
    def seed(self) -> str:
        """The seed of the run. Changing its text changes the figures in docs/statistics.md."""
        fields = f"kind={self.kind!r}, size={self.size}, number={self.number}, rule={self.rule!r}, gain={self.gain!r}"
        return f"Wanted({fields})"


RESTYLES, RESHUFFLES, FIXES = "Words", "Rewritten", "Better"


def list_patches(spec: RunSpec, random: Random) -> Iterator[tuple[str, str]]:
    """The surface and the text of each candidate."""
    if spec.kind == "one of ten":
        real = random.randrange(CANDIDATES)
        for number in range(CANDIDATES):
            yield f"part{number}#instruction", f"{FIXES if number == real else RESTYLES} {number}."
        return
    word = {"placebo": RESHUFFLES, "settled": FIXES}.get(spec.kind, RESTYLES)
    for number in range(1 if spec.kind == "settled" else ROUNDS):
        yield f"part{number % SURFACES}#instruction", f"{word} {number}."


class Proposes:
    """Validates one patch per round; with `until_accepted`, stops at the first that is accepted."""

    def __init__(self, patches: Sequence[tuple[str, str]], *, until_accepted: bool) -> None:
        self.patches = patches
        self.until_accepted = until_accepted

    async def search(self, session: Session) -> None:
        for surface_id, text in self.patches:
            await session.begin_round()
            patch = SurfacePatch(surface_id=surface_id, value=text, reason="proposed")
            decision = await session.validate(PatchSet((patch,)))
            await session.complete_round()
            if decision.accepted and self.until_accepted:
                return


class PassRates:
    """Passes each case with a probability of its own, which the texts of the profile change."""

    def __init__(self, spec: RunSpec, *, seed: str) -> None:
        self.spec = spec
        self.seed = seed
        names = [f"part{number}" for number in range(CANDIDATES if spec.kind == "one of ten" else SURFACES)]
        nodes = tuple(ModelNode(name=name, instruction="As it was.") for name in names)
        edges = tuple(Edge(first, second) for first, second in pairwise(names))
        self.snapshot = GraphAgent(name="pass_rates", nodes=nodes, edges=edges).describe()
        self.texts = [f"{name}#instruction" for name in names]
        known = [self.sample_chance(f"validation-{number}") for number in range(spec.size)]
        self.fixed_share = min(1.0, spec.gain / (1 - fmean(known))) if spec.gain else 0.0
        failing = (f"validation-{number}" for number, chance in enumerate(known) if chance < 1)
        self.first_failing = next(failing, "")

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        dice = Random(f"{self.seed} {context.case_id} {context.repeat} {profile.digest}")
        return AgentRun(output="right" * (dice.random() < self.find_chance(context.case_id, profile)))

    def sample_chance(self, case_id: str, rewritten: tuple[str, ...] = ()) -> float:
        random = Random(f"{self.seed} {case_id} {' '.join(rewritten)}")
        if self.spec.kind in ("settled", "settled, alike"):
            return float(random.random() < 0.6)
        return random.betavariate(*BETA)

    def find_chance(self, case_id: str, profile: Profile) -> float:
        texts = [str(profile.value(surface_id, self.snapshot)) for surface_id in self.texts]
        chance = self.sample_chance(case_id, tuple(text for text in texts if text.startswith(RESHUFFLES)))
        if any(text.startswith(FIXES) for text in texts):
            if self.spec.kind == "settled":
                return 1.0 if case_id == self.first_failing else chance
            return chance + self.fixed_share * (1 - chance)
        return chance


def make_eval_set(name: str, count: int) -> EvalSet:
    cases = (EvalCase(id=f"{name}-{n}", turns=(Turn(user=f"{name} {n}", expected="right"),)) for n in range(count))
    return EvalSet(id=name, cases=tuple(cases))


async def is_right(_case: EvalCase, run: AgentRun) -> bool:
    return run.output == "right"
