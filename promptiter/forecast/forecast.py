"""Forecast: what a run will take, before anything is spent.

    print(forecast_run(engine, request, runs="runs").total.calls)

Calls, tokens, dollars and seconds of each stage and node. Each figure is a range: what a short run takes, a typical one
and a long one. The same inputs give the same forecast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import orjson

from promptiter.engine.engine import Engine
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.forecast.estimate import Estimate, add_up, courses_for
from promptiter.forecast.history import NO_HISTORY, History, read_history
from promptiter.forecast.stage_costs import AGENT_STAGES, STAGES, Stage
from promptiter.forecast.unit_costs import ANSWER_TOKENS, CALL_S, NO_COST, Cost, Figure, UnitCosts, estimate_unit_costs
from promptiter.forecast.workload import Workload, read_workload
from promptiter.llm.amount import Caps
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import is_simulated
from promptiter.policies.combine import parts_of
from promptiter.policies.paired_gain import PairedGain
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.results import RunRequest
from promptiter.wording import plural
from traces.files import write_atomically

FILE_NAME = "forecast.json"
SCHEMA_VERSION = 1
MAX_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Range:
    """A figure in a short run, a typical run and a long run. Most runs stay between `low` and `high`."""

    low: float
    typical: float
    high: float

    def __contains__(self, figure: float) -> bool:
        return self.low <= figure <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What a stage, a node or a run is expected to take. `usd` is None if no price is known.

    If only some prices are known, `usd` is the sum of those, and `unpriced` names the models without a price.
    """

    calls: Range
    tokens: Range
    usd: Range | None
    seconds: Range
    unpriced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run is expected to take: in all, each stage over all rounds, and each node over all stages.

    `budget` says how many rounds the caps allow, `source` what the figures are based on, `runs` which earlier runs were
    used, and `notes` what is unknown or left out.
    """

    schema_version: int = SCHEMA_VERSION
    total: Expected
    rounds: Range
    stages: Mapping[Stage, Expected]
    nodes: Mapping[str, Expected]
    budget: tuple[str, ...] = ()
    source: str = ""
    runs: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def forecast_run(engine: Engine, request: RunRequest, *, runs: str | os.PathLike[str] | None = None) -> Forecast:
    """The forecast of a run, based on matching earlier runs in the folder `runs`. Asks no model and writes nothing.

    RequestError if the run could not be served.
    """
    workload = read_workload(engine, request)
    history = NO_HISTORY if runs is None else read_history(runs, engine, workload)
    return make_forecast(workload, history, engine.evaluator.gateway)


def make_forecast(workload: Workload, history: History, gateway: Gateway) -> Forecast:
    """The forecast of a workload with the costs of a history."""
    measured = history.costs
    by_rule = estimate_unit_costs(workload, gateway, call_s=measured.call_s)
    units = UnitCosts(
        nodes=measured.nodes or by_rule.nodes,
        case_s=measured.case_s or by_rule.case_s,
        calls={**by_rule.calls, **measured.calls},
    )
    caps = _caps(gateway.budget)
    estimates = [Estimate(workload, units, history, course) for course in courses_for(history)]
    costs = [estimate.run(caps) for estimate in estimates]
    stages = {stage for each in costs for stage, _ in each}
    return Forecast(
        total=_expect([add_up(each.values()) for each in costs]),
        rounds=_range([estimate.rounds for estimate in estimates]),
        stages={
            stage: _expect([add_up(cost for place, cost in each.items() if place[0] == stage) for each in costs])
            for stage in STAGES
            if stage in stages
        },
        nodes={
            name: _expect([add_up(each.get((stage, name), NO_COST) for stage in AGENT_STAGES) for each in costs])
            for name in units.nodes
        },
        budget=tuple(_describe_cap(figure, cap, workload, *estimates[1:]) for figure, cap in caps.items()),
        source=_source(history),
        runs=history.run_ids,
        notes=tuple(_notes(workload, history, units, gateway)),
    )


def write_forecast(folder: str | os.PathLike[str], forecast: Forecast) -> Path:
    """Write forecast.json into the folder of a run, whole or not at all."""
    path = Path(folder) / FILE_NAME
    with write_atomically(path) as file:
        file.write(orjson.dumps(to_plain(forecast), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def read_forecast(folder: str | os.PathLike[str]) -> Forecast | None:
    """The forecast that a run was started with; None if there is none that can be read."""
    try:
        found: Forecast = from_plain(Forecast, orjson.loads((Path(folder) / FILE_NAME).read_bytes()))
    except (OSError, ValueError):
        return None
    return found


def _expect(costs: Sequence[Cost]) -> Expected:
    """What a short, a typical and a long run take."""
    unpriced = frozenset[str]().union(*(cost.unpriced for cost in costs))
    return Expected(
        calls=_range([cost.calls for cost in costs]),
        tokens=_range([cost.tokens for cost in costs]),
        usd=None if unpriced and not costs[-1].usd else _range([cost.usd for cost in costs], digits=6),
        seconds=_range([cost.seconds for cost in costs], digits=2),
        unpriced=tuple(sorted(unpriced)),
    )


def _range(figures: Sequence[float], *, digits: int = 0) -> Range:
    """A figure of a short, a typical and a long run. A long run that a budget cuts may take less than a short one."""
    low, typical, high = min(figures), figures[1], max(figures)
    return Range(round(low, digits), round(typical, digits), round(high, digits))


def _source(history: History) -> str:
    if not history.run_ids:
        return "no matching earlier run: rule-of-thumb figures"
    count, sizes = len(history.run_ids), "" if history.has_same_sizes else " with eval sets of other sizes"
    return f"based on {plural(count, 'earlier run')}{sizes}: {', '.join(history.run_ids)}"


def _describe_cap(figure: Figure, cap: float, workload: Workload, typical: Estimate, long: Estimate) -> str:
    """How many rounds a cap allows, and what it holds back for the final test."""
    rounds = min(workload.request.max_rounds, MAX_ROUNDS)
    most, least = (_rounds_within(estimate, figure, cap, rounds) for estimate in (typical, long))
    counts = str(most) if most == least else f"{max(0, least)} to {most}"
    allowed = f"allows {counts} of {plural(rounds, 'round')}"
    if most <= 0:
        allowed = "does not even allow the baseline" if most else "allows only the baseline"
    sentence = f"max_{figure} {_amount(figure, cap)} {allowed}"
    if (held := typical.hold_back({figure: cap})[figure]) and most >= 0:
        sentence += f"; {_amount(figure, held)} is held back for the final test"
    if figure == "usd" and (unpriced := typical.cost_after(rounds).unpriced):
        sentence += f"; the price of {', '.join(sorted(unpriced))} is unknown"
    return sentence


def _rounds_within(estimate: Estimate, figure: Figure, cap: float, rounds: int) -> int:
    """How many rounds fit besides what is held back; -1 if not even the baseline does."""
    held = estimate.hold_back({figure: cap})[figure]
    needed = [estimate.cost_after(number).figure(figure) + (held if number else 0.0) for number in range(rounds + 1)]
    return sum(each <= cap for each in needed) - 1


def _caps(budget: Budget | Budgets | None) -> dict[Figure, float]:
    """The caps of a budget by the figure that each limits."""
    caps = Caps() if budget is None else budget.caps
    known: dict[Figure, float | None] = {"calls": caps.max_calls, "tokens": caps.max_tokens, "usd": caps.max_usd}
    return {figure: cap for figure, cap in known.items() if cap is not None}


def _amount(figure: Figure, amount: float) -> str:
    return f"${amount:.4g}" if figure == "usd" else f"{amount:,.0f}"


def _notes(workload: Workload, history: History, units: UnitCosts, gateway: Gateway) -> Iterator[str]:
    """What is unknown or left out."""
    if not history.costs.nodes:
        yield (
            "tokens are estimated from the length of instructions and inputs (4 characters per token), answers at "
            f"{ANSWER_TOKENS} tokens, calls at {CALL_S:g} seconds; each node is assumed to run once per turn"
        )
    if history.failing is None:
        yield "how many cases fail at first is unknown"
    if not workload.has_outline:
        yield "your own search has no outline: each round is assumed to validate one candidate"
    if any(isinstance(part, PairedGain | SigmaGain) for part in parts_of(workload.request.acceptance)):
        yield "further repeats that the acceptance policy may ask for are not counted"
    guessed = [each.stage for each in workload.asked if (each.stage, each.model) not in history.costs.calls]
    if guessed:
        yield f"calls of the {', '.join(dict.fromkeys(guessed))} have not been measured yet: rules of thumb"
    if not units.nodes:
        yield "no node is known to ask a model; calls that bypass promptiter's gateway are not counted"
    models = {*workload.models.values(), *(each.model for each in workload.asked)}
    if UNKNOWN_MODEL in models:
        yield "some nodes or stages ask models that are unknown"
    if any(is_simulated(gateway.model(model)) for model in models - {UNKNOWN_MODEL}):
        yield "a simulated model answers: its tokens and seconds say nothing about a real one"
    if not isinstance(gateway.cache, MemoryCache):
        yield "calls that the shared cache answers cost nothing, so the run may take less"
