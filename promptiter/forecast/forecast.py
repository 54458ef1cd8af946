"""Forecast: what a run will take, before anything is spent.

    print(forecast_run(engine, request, runs="runs").total.calls)

Calls, tokens, dollars and seconds of each stage and node. Each figure is a range: what a short run takes, a typical one
and a long one. The same inputs give the same forecast.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from promptiter.engine.engine import Engine
from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.evaluation.stats.new_cases import explain_too_few_new_cases
from promptiter.forecast.caps import (
    count_allowed_rounds,
    describe_cap,
    describe_metric_calls,
    fit_into_cap,
    read_caps,
)
from promptiter.forecast.estimate import Estimate
from promptiter.forecast.history import measure_unit_costs
from promptiter.forecast.unit_costs import ANSWER_TOKENS, CALL_S, UnitCosts, guess_unit_costs, price_candidates
from promptiter.forecast.workload import Workload, read_workload
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import is_simulated
from promptiter.policies.combine import iter_policies
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.runs.cost_ranges import NO_COST
from promptiter.runs.forecast_file import Forecast
from promptiter.runs.stage_costs import AGENT_STAGES, STAGES
from promptiter.wording import join_names, plural

RULES = "no matching earlier run: rule-of-thumb figures"


def forecast_run(
    engine: Engine, request: RunRequest | CheckedRequest, *, runs: str | os.PathLike[str] | None = None
) -> Forecast:
    """The forecast of a run, based on matching earlier runs in the folder `runs`. Asks no model and writes nothing.

    RequestError if the run could not be served.
    """
    workload = read_workload(engine, request)
    measured = UnitCosts() if runs is None else measure_unit_costs(runs, engine, workload)
    return make_forecast(workload, measured, engine.evaluator.gateway)


def make_forecast(workload: Workload, measured: UnitCosts, gateway: Gateway) -> Forecast:
    """The forecast of a workload: rules of thumb where nothing was measured."""
    guessed = guess_unit_costs(workload, gateway)
    nodes = measured.nodes or guessed.nodes
    candidates = price_candidates(workload, gateway, nodes)
    units = replace(measured, nodes=nodes, candidates=candidates, calls={**guessed.calls, **measured.calls})
    estimate, caps = Estimate(workload, units), read_caps(gateway.budget)
    allowed = count_allowed_rounds(estimate)
    if allowed is not None:
        estimate.limit_rounds(allowed)
    costs = estimate.run()
    whole = sum(costs.values(), NO_COST).round()
    for figure, cap in caps.items():
        costs = fit_into_cap(costs, estimate, figure, cap)
    stages = {stage: [cost for place, cost in costs.items() if place[0] == stage] for stage in STAGES}
    by_node = {name: [costs.get((stage, name), NO_COST) for stage in AGENT_STAGES] for name in units.nodes}
    total = sum(costs.values(), NO_COST).round()
    priced = (each for each in total.unpriced if each != UNKNOWN_MODEL and gateway.price(each) is not None)
    return Forecast(
        total=total,
        rounds=estimate.rounds,
        stages={stage: sum(each, NO_COST).round() for stage, each in stages.items() if each},
        nodes={name: sum(each, NO_COST).round() for name, each in by_node.items()},
        budget=(
            *(describe_cap(estimate, figure, cap) for figure, cap in caps.items()),
            *(() if allowed is None else (describe_metric_calls(estimate, allowed),)),
        ),
        needed={figure: whole.figure(figure) for figure in caps},
        source=f"based on {plural(len(units.runs), 'earlier run')}: {', '.join(units.runs)}" if units.runs else RULES,
        runs=units.runs,
        uncounted=tuple(priced),
        notes=tuple(_notes(workload, measured, units, gateway)),
    )


def _notes(workload: Workload, measured: UnitCosts, units: UnitCosts, gateway: Gateway) -> Iterator[str]:
    """What is unknown or left out."""
    models = {*workload.models.values(), *(each.model for each in workload.stage_models)}
    guessed = [each.stage for each in workload.stage_models if (each.stage, each.model) not in measured.calls]
    if not measured.nodes:
        yield (
            "tokens are estimated from the length of instructions and inputs (4 characters per token), answers at "
            f"{ANSWER_TOKENS} tokens, calls at {CALL_S:g} seconds; each node is assumed to run once per turn"
        )
    is_scorer = workload.shape == "scorer"
    if workload.test and not is_scorer and (few := explain_too_few_new_cases(workload.test)) is not None:
        yield f"the test set will not be run: {few}"
    if measured.failing is None:
        yield "how many cases fail at first is unknown"
    if guessed:
        yield f"calls of the {', '.join(dict.fromkeys(guessed))} have not been measured yet: rules of thumb"
    if workload.outline is None:
        yield "your own search has no outline: each round is assumed to validate one candidate"
    if any(isinstance(part, SigmaGain) for part in iter_policies(workload.request.acceptance)):
        yield "further repeats that the acceptance policy may ask for are not counted"
    if is_scorer:
        yield "the calls of the scorer are unknown and not counted"
    elif not any(each.calls.high for each in units.nodes.values()):
        yield "no node is known to ask a model; calls that bypass promptiter's gateway are not counted"
    nodes = [f"node {node_id!r}" for node_id, model in workload.models.items() if model == UNKNOWN_MODEL]
    stages = [f"the {each.stage}" for each in workload.stage_models if each.model == UNKNOWN_MODEL]
    if unknown := [*nodes, *dict.fromkeys(stages)]:
        yield f"which model these ask is unknown: {join_names(unknown, limit=5)}"
    if any(is_simulated(gateway.model(model)) for model in models - {UNKNOWN_MODEL}):
        yield "an offline model answers: its tokens and seconds say nothing about a real one"
    if gateway.shared_cache is not None:
        yield "calls that the shared cache answers cost nothing, so the run may take less"
