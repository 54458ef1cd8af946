"""Forecast: what a run is going to take, before anything is spent.

    print(forecast_run(engine, request).total.calls)

Calls, tokens, dollars and seconds of each stage and node, each as the figure that one run in twenty stays below (p5),
the middle (p50), and the one that one in twenty exceeds (p95): over some hundred rehearsals of the run, with dice in
the place of models. The same inputs give the same forecast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random

from promptiter.engine.engine import Engine
from promptiter.engine.expectation import NOTHING_RECORDED, Recorded
from promptiter.engine.plan import UNKNOWN_MODEL, RunPlan, plan_of
from promptiter.engine.rehearsal import MOST_ROUNDS, rehearse
from promptiter.engine.till import AGENT_STAGES, STAGES, Amount, Rehearsal, Stage, held_back
from promptiter.llm.cache.cache import MemoryCache
from promptiter.runlog.results import RunRequest

MOST_REHEARSALS, FEWEST_REHEARSALS = 200, 60
WORK = 20_000
"""So many times a node may be looked at in one round of a rehearsal: a large agent is rehearsed less often."""

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class Band:
    """Where a figure is expected: nine in ten between p5 and p95."""

    p5: float
    p50: float
    p95: float

    def __contains__(self, figure: float) -> bool:
        return self.p5 <= figure <= self.p95


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What is expected of a stage, a node or a run. `usd` is None if no price is known.

    Where only some are, it is their sum, and `unpriced` names the models without a price.
    """

    calls: Band
    tokens: Band
    usd: Band | None
    seconds: Band
    unpriced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeForecast:
    """One node (or metric, for a judge) in one stage. Stages that ask about surfaces have no node."""

    node_id: str
    model: str | None
    expected: Expected


@dataclass(frozen=True, slots=True, kw_only=True)
class StageForecast:
    """One stage, over all rounds."""

    stage: Stage
    expected: Expected
    nodes: tuple[NodeForecast, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run is expected to take. `nodes` has each node over all stages that run the agent.

    `budget` says how many rounds the caps allow, `source` where the figures come from, `notes` what is not known.
    """

    schema_version: int = SCHEMA_VERSION
    total: Expected
    rounds: Band
    stages: tuple[StageForecast, ...]
    nodes: tuple[NodeForecast, ...]
    budget: tuple[str, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()


def forecast_run(engine: Engine, request: RunRequest, recorded: Recorded = NOTHING_RECORDED) -> Forecast:
    """The forecast of a run; RequestError if it could not be served. Asks no model."""
    plan = plan_of(engine, request, recorded)
    seed = engine.evaluator_for(request).options.seed
    rehearsals = [rehearse(plan, Random(f"forecast {seed} {number}")) for number in range(_rehearsals(plan))]
    has_cache = not isinstance(engine.evaluator.gateway.cache, MemoryCache)
    return Forecast(
        total=_expected(plan, [each.total for each in rehearsals], models=_asked_models(plan, rehearsals)),
        rounds=_band([each.rounds for each in rehearsals]),
        stages=tuple(_stage(plan, stage, rehearsals) for stage in STAGES if _occurs(stage, rehearsals)),
        nodes=_nodes(plan, rehearsals, stages=AGENT_STAGES),
        budget=tuple(_budget(plan, seed)),
        source=recorded.source,
        notes=tuple(_notes(plan, has_cache=has_cache)),
    )


def _rehearsals(plan: RunPlan) -> int:
    work = max(1, len(plan.models)) * max(1, min(plan.max_rounds, MOST_ROUNDS))
    return max(FEWEST_REHEARSALS, min(MOST_REHEARSALS, WORK // work))


def _occurs(stage: Stage, rehearsals: Sequence[Rehearsal]) -> bool:
    return any(name == stage for each in rehearsals for name, _ in each.spent)


def _stage(plan: RunPlan, stage: Stage, rehearsals: Sequence[Rehearsal]) -> StageForecast:
    places = {place for each in rehearsals for place in each.spent if place[0] == stage}
    amounts = [_sum(each.spent[place] for place in places if place in each.spent) for each in rehearsals]
    models = {_model(plan, stage, node_id) for _, node_id in places}
    return StageForecast(
        stage=stage,
        expected=_expected(plan, amounts, models=models),
        nodes=_nodes(plan, rehearsals, stages=(stage,)),
    )


def _nodes(plan: RunPlan, rehearsals: Sequence[Rehearsal], *, stages: Sequence[Stage]) -> tuple[NodeForecast, ...]:
    found = dict.fromkeys(name for each in rehearsals for stage, name in each.spent if stage in stages and name)
    order = {node_id: number for number, node_id in enumerate(plan.models)}
    forecasts = []
    for node_id in sorted(found, key=lambda name: (order.get(name, len(order)), name)):
        places = [(stage, node_id) for stage in stages]
        amounts = [_sum(each.spent[place] for place in places if place in each.spent) for each in rehearsals]
        model = _model(plan, stages[0], node_id)
        expected = _expected(plan, amounts, models={model})
        forecasts.append(NodeForecast(node_id=node_id, model=model, expected=expected))
    return tuple(forecasts)


def _model(plan: RunPlan, stage: Stage, node_id: str) -> str | None:
    """Which model is asked there; None if none is."""
    if stage in AGENT_STAGES:
        return plan.model_of(node_id)
    others: dict[tuple[str, str], str] = {
        **{("judge", each.node_id): each.model for each in plan.judges},
        **{("teacher", each.node_id): each.model for each in plan.teacher},
        **{(role, each.node_id): each.model for role, each in plan.stages.items()},
        **({("user", plan.user.node_id): plan.user.model} if plan.user else {}),
    }
    return others.get((stage, node_id))


def _asked_models(plan: RunPlan, rehearsals: Sequence[Rehearsal]) -> set[str | None]:
    return {_model(plan, stage, node_id) for each in rehearsals for stage, node_id in each.spent}


def _expected(plan: RunPlan, amounts: Sequence[Amount], *, models: Iterable[str | None]) -> Expected:
    asked = sorted({model for model in models if model is not None})
    unpriced = tuple(model for model in asked if plan.prices.get(model) is None)
    is_unknown = bool(asked) and len(unpriced) == len(asked)
    return Expected(
        calls=_band([each.calls for each in amounts], digits=0),
        tokens=_band([each.tokens for each in amounts], digits=0),
        usd=None if is_unknown else _band([each.usd for each in amounts], digits=6),
        seconds=_band([each.seconds for each in amounts], digits=2),
        unpriced=unpriced,
    )


def _sum(amounts: Iterable[Amount]) -> Amount:
    total = Amount()
    for each in amounts:
        total.add(each)
    return total


def _band(figures: Sequence[float], *, digits: int = 0) -> Band:
    ordered = sorted(figures)
    p5, p50, p95 = (round(ordered[round(share * (len(ordered) - 1))], digits) for share in (0.05, 0.5, 0.95))
    return Band(p5, p50, p95)


def _budget(plan: RunPlan, seed: int) -> Iterable[str]:
    """How many rounds each cap allows, in words: if what they take is in the middle, and if it is near the top."""
    caps = plan.caps
    figures: tuple[tuple[float | None, float, str, Callable[[Amount], float]], ...] = (
        (caps.max_usd, plan.reserved_usd, f"max_usd ${caps.max_usd or 0:g}", lambda amount: amount.usd),
        (caps.max_calls, 0.0, f"max_calls {caps.max_calls or 0:,}", lambda amount: amount.calls),
        (caps.max_tokens, plan.reserved_tokens, f"max_tokens {caps.max_tokens or 0:,}", lambda amount: amount.tokens),
    )
    if all(cap is None for cap, *_ in figures):
        return
    rehearsals = [
        rehearse(plan, Random(f"budget {seed} {number}"), is_endless=True) for number in range(_rehearsals(plan))
    ]
    unpriced = sorted(model for model, price in plan.prices.items() if price is None and model != UNKNOWN_MODEL)
    for cap, reserved, name, figure in figures:
        if cap is None:
            continue
        bands = [
            _band([_needed(each, number, figure, cap) for each in rehearsals], digits=9)
            for number in range(min(len(each.after_round) for each in rehearsals))
        ]
        middle, high = (sum(getattr(band, place) <= cap - reserved for band in bands) - 1 for place in ("p50", "p95"))
        both = [_rounds(middle), _rounds(high)]
        allowed = f"{both[0]} at p50 and at p95" if both[0] == both[1] else f"{both[0]} at p50, {both[1]} at p95"
        told = f"{name} allows {allowed}, of at most {len(bands) - 1}"
        held = _band([_held(each, figure, cap) for each in rehearsals], digits=9).p50
        if held and middle >= 0:
            told += f", with {f'${held:.2g}' if cap is caps.max_usd else f'{held:,.0f}'} held back for the claim"
        is_partly_unknown = unpriced and name.startswith("max_usd")
        yield told + (f"; what {', '.join(unpriced)} costs is unknown" if is_partly_unknown else "")


def _needed(rehearsal: Rehearsal, number: int, figure: Callable[[Amount], float], cap: float) -> float:
    """What a cap must have for so many rounds: what they take, and what the search leaves for the claim."""
    taken = figure(rehearsal.after_round[number])
    return taken + _held(rehearsal, figure, cap) if number else taken


def _held(rehearsal: Rehearsal, figure: Callable[[Amount], float], cap: float) -> float:
    return held_back(cap, figure(rehearsal.after_round[0]), figure(rehearsal.held))


def _rounds(count: int) -> str:
    if count < 0:
        return "not even the baseline"
    return "only the baseline" if count == 0 else f"{count} round{'s' * (count != 1)}"


def _notes(plan: RunPlan, *, has_cache: bool) -> Iterable[str]:
    if not plan.is_recorded:
        yield (
            "tokens are estimated by the length of instructions and inputs (4 characters a token), answers at 120 "
            "tokens, 2 seconds a call; a loop is taken up to three times, a condition in half of the cases"
        )
    if not (plan.recorded.passed or plan.recorded.failed):
        yield "how many cases fail at first is not known"
    if not plan.is_outlined:
        yield "the search is your own: each round is taken to run all train and validation cases once"
    if plan.wishful:
        yield f"repeats that {' and '.join(plan.wishful)} wants to see beside the first are not counted"
    own = [role for role, asked in plan.stages.items() if asked.model == UNKNOWN_MODEL]
    if own:
        yield f"the {' and the '.join(own)} of your own is taken to ask a model of unknown price"
    if not plan.recorded.calls and plan.stages:
        yield f"what {', '.join(plan.stages)} ask has not been recorded yet: rules of thumb"
    asking = {node_id for case in plan.cases for node_id in case.nodes}
    if not asking:
        yield "no node is known to ask a model: calls that do not go through promptiter's gateway are not counted"
    if unknown := sorted(node_id for node_id in asking if plan.model_of(node_id) == UNKNOWN_MODEL):
        yield f"which model is asked by {', '.join(unknown)} is not known"
    others = {model for node_id, model in plan.recorded.models.items() if model != plan.model_of(node_id)}
    if others:
        yield f"what was recorded was answered by other models: {', '.join(sorted(others))}"
    if any(plan.model_of(node_id) == "simulated" for node_id in asking):
        yield "a simulated model answers: its tokens and seconds say nothing about a real one"
    if plan.max_rounds > MOST_ROUNDS:
        yield f"only {MOST_ROUNDS} of {plan.max_rounds:,} rounds were looked at"
    if has_cache:
        yield "answers in the cache that runs share are not paid again, and make it less"
