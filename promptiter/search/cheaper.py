"""ModelDownsizing: the same quality for fewer dollars. Node by node, cheaper models stand in for the current ones.

What saves most is tried first: the price of the model times the tokens that the node took in the baseline's runs. So a
node's cheapest model comes first, and its other models only if that one was not kept. Every candidate goes through
validation; NonInferior keeps it if nothing is lost and dollars are saved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from promptiter.engine.plan import SearchOutline
from promptiter.engine.session import Session
from promptiter.llm.prices import Price
from promptiter.policies.goals import other_models
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.results import PassResult
from promptiter.structure import Surface
from traces import Usage
from traces.model import sum_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Another model for a node, and the dollars that it is expected to save in a run."""

    surface_id: str
    current: str
    model: str
    saves_usd: float


class ModelDownsizing:
    """The Search of the goal `cheaper`. Its models are those of the goal, or the choices of each node."""

    async def search(self, session: Session) -> None:
        swaps: tuple[Swap, ...] = await session.record("work", tuple[Swap, ...], lambda: _swaps(session))
        done: set[str] = set()
        for swap in swaps:
            if swap.surface_id in done:
                continue
            if await session.should_stop():
                return
            await session.begin_round()
            patches = await _patches(session, swap)
            decision = await session.validate(session.candidate(patches))
            await session.complete_round()
            if decision.accepted:
                done.add(swap.surface_id)  # what else is known for this node costs more

    def outline(self) -> SearchOutline:
        """What a round asks for, so that a run can be forecast: validation only."""
        return SearchOutline(screens=0, screened=0)


async def _swaps(session: Session) -> tuple[Swap, ...]:
    """All that would save something, the most first."""
    accepted = session.accepted
    await session.restore_traces(accepted.validation, session.validation, accepted.profile)
    surfaces = [session.snapshot.surface(target) for target in sorted(session.targets)]
    found = [swap for surface in surfaces if surface.type == "model" for swap in _swaps_of(surface, session)]
    return tuple(sorted(found, key=lambda swap: (-swap.saves_usd, swap.surface_id, swap.model)))


def _swaps_of(surface: Surface, session: Session) -> Iterator[Swap]:
    current = str(session.accepted.profile.value(surface.id, session.snapshot))
    usage, runs = _taken_by(surface.node_id, session), len(session.accepted.validation.rows)
    now = _cost(session.evaluator.gateway.price(current), usage)
    if now is None:
        return  # the node was never asked, so nothing could be seen to be as good
    for model in other_models(session.request.goal, surface, current):
        then = _cost(session.evaluator.gateway.price(model), usage)
        if then is not None and then < now:
            yield Swap(surface_id=surface.id, current=current, model=model, saves_usd=round((now - then) / runs, 12))


def _taken_by(node_id: str, session: Session) -> Usage:
    """What a node took in all runs of the accepted profile; of an agent that records no steps, what the runs took."""
    rows = session.accepted.validation.rows
    steps = [step for row in rows for name in row.trace_digests for step in session.trace(name).steps]
    if any(step.usage is not None for step in steps):
        return sum_usage(step.usage for step in steps if step.node_id == node_id)
    return sum_usage(row.usage for row in rows)


def _cost(price: Price | None, usage: Usage) -> float | None:
    return None if price is None else price.cost_usd(usage)


async def _patches(session: Session, swap: Swap) -> PatchSet:
    async def work() -> PassResult:
        reason = f"{swap.model} in the place of {swap.current} saves about ${swap.saves_usd:.3g} per run"
        return PassResult(
            patches=PatchSet((SurfacePatch(surface_id=swap.surface_id, value=swap.model, reason=reason),))
        )

    result: PassResult = await session.record("patches", PassResult, work, request=[swap.surface_id, swap.model])
    return result.patches
