"""ModelDownsizing: the search for the same quality at a lower price. It tries cheaper models node by node.

The largest expected saving is tried first: the price difference times the tokens that the node used in the accepted
profile's validation runs, which this search therefore reads. A node's cheapest model comes first, and its other models
only if that one was rejected. Every candidate is validated; NonInferior accepts it if the score holds and the run costs
less.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from promptiter.engine.hidden_validation import ValidationRecord
from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.evaluation.result import CaseRow
from promptiter.llm.prices import Price
from promptiter.policies.goals import list_other_models
from promptiter.profile import PatchEvidence, PatchSet, SurfacePatch
from promptiter.runlog.events import Payload, event_type
from promptiter.runlog.results import RunShape
from promptiter.structure import StructureSnapshot, Surface
from traces import Usage
from traces.model import sum_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Another model for a node, and the dollars it is expected to save per run, by the usage of these steps."""

    surface_id: str
    current: str
    model: str
    saves_usd: float
    evidence: PatchEvidence

    def build_patches(self) -> PatchSet:
        reason = f"{self.model} instead of {self.current} saves about ${self.saves_usd:.3g} per run"
        patch = SurfacePatch(surface_id=self.surface_id, value=self.model, reason=reason, evidence=self.evidence)
        return PatchSet((patch,))


@event_type("swaps")
@dataclass(frozen=True, slots=True, kw_only=True)
class SwapsRanked(Payload):
    """The swaps to try, the largest saving first."""

    swaps: tuple[Swap, ...] = ()


class ModelDownsizing:
    """The search for the goal `cheaper`. Its models are those of the goal, or the choices of each node."""

    async def search(self, session: Session) -> None:
        known = await session.read_validation()
        swaps = (await session.record(SwapsRanked, lambda: _rank_swaps(session, known))).swaps
        done: set[str] = set()
        for swap in swaps:
            if swap.surface_id in done:
                continue
            if await session.should_stop():
                return
            await session.begin_round()
            decision = await session.validate(swap.build_patches())
            await session.complete_round()
            if decision.accepted:
                done.add(swap.surface_id)  # the other models of this node save less

    def outline(self) -> SearchOutline:
        """What a round may call, for the forecast: validation only."""
        return SearchOutline(screened_cases=0, reads_validation=True)

    def find_kept_targets(
        self,
        snapshot: StructureSnapshot,
        targets: Collection[str],
        *,
        shape: RunShape,  # noqa: ARG002
    ) -> set[str]:
        """The targets that are not models."""
        return {each for each in targets if snapshot.surface(each).type != "model"}


async def _rank_swaps(session: Session, known: ValidationRecord) -> SwapsRanked:
    """All swaps that save money, the largest saving first."""
    await session.restore_traces(known.accepted, known.eval_set, session.accepted.profile)
    surfaces = [session.snapshot.surface(target) for target in sorted(session.targets)]
    models = [surface for surface in surfaces if surface.type == "model"]
    found = [swap for surface in models for swap in await _find_swaps(surface, session, known.accepted.rows)]
    ranked = sorted(found, key=lambda swap: (-swap.saves_usd, swap.surface_id, swap.model))
    return SwapsRanked(swaps=tuple(ranked))


async def _find_swaps(surface: Surface, session: Session, rows: Sequence[CaseRow]) -> list[Swap]:
    current = str(session.accepted.profile.value(surface.id, session.snapshot))
    usage, evidence = await _measure_usage(surface.node_id, session, rows)
    now = _price_usage(session.evaluator.gateway.price(current), usage)
    if now is None:
        return []  # price or usage is unknown, so no saving can be estimated
    swaps = []
    for model in list_other_models(session.request.goal, surface, current):
        then = _price_usage(session.evaluator.gateway.price(model), usage)
        if then is not None and then < now:
            saves = round((now - then) / len(rows), 12)
            swaps.append(Swap(surface_id=surface.id, current=current, model=model, saves_usd=saves, evidence=evidence))
    return swaps


async def _measure_usage(node_id: str, session: Session, rows: Sequence[CaseRow]) -> tuple[Usage, PatchEvidence]:
    """The usage of a node over all validation runs of the accepted profile, and its steps, the largest first.

    If no step has usage, the usage is that of the whole runs, and there are no steps.
    """
    found = [(row, step) for row in rows for name in row.trace_digests for step in (await session.trace(name)).steps]
    if all(step.usage is None for _, step in found):
        return sum_usage(row.usage for row in rows), PatchEvidence(
            cases=tuple(dict.fromkeys(row.case_id for row in rows))
        )
    own = [
        (row.case_id, step.id, step.usage) for row, step in found if step.node_id == node_id and step.usage is not None
    ]
    own.sort(key=lambda each: -each[2].tokens)
    evidence = PatchEvidence(
        cases=tuple(dict.fromkeys(case_id for case_id, _, _ in own)),
        steps=tuple(dict.fromkeys(f"{case_id}/{step_id}" for case_id, step_id, _ in own)),
    )
    return sum_usage(usage for _, _, usage in own), evidence


def _price_usage(price: Price | None, usage: Usage) -> float | None:
    return None if price is None else price.cost_usd(usage)
