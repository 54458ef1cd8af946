"""What one case run and one model call cost: measured in earlier runs (see `history`), or by rules of thumb.

A rule of thumb knows how long the texts are, and nothing about what models answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.forecast.workload import Workload
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import estimate_tokens, is_simulated
from promptiter.runs.cost_ranges import Cost, Range
from promptiter.runs.stage_costs import ModelStage
from traces import Usage

ANSWER_TOKENS, STAGE_PROMPT_TOKENS, BATCH_PROMPT_TOKENS = 100, 1_000, 4_000
CALL_S, OFFLINE_CALL_S = 2.0, 0.05
CALLS_WITH_TOOLS = 2
GUESSED = Range(0.3, 1.0, 3.0)
"""How far off tokens and seconds by rule of thumb may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """The cost of a case run by node, and of a call by stage and model.

    `candidates` is what a case run of a candidate costs, for nodes whose model the search may choose. `failing` is the
    share of cases that fail at first, None if unknown; `changed_nodes` are those that candidates of earlier runs
    changed. `rounds` is how many to expect after those runs, None if they say nothing about it. `runs` are the earlier
    runs that were measured.
    """

    nodes: Mapping[str, Cost] = field(default_factory=dict)
    candidates: Mapping[str, Cost] = field(default_factory=dict)
    calls: Mapping[tuple[ModelStage, str], Cost] = field(default_factory=dict)
    failing: float | None = None
    changed_nodes: frozenset[str] = frozenset()
    rounds: Range | None = None
    runs: tuple[str, ...] = ()


def guess_unit_costs(workload: Workload, gateway: Gateway) -> UnitCosts:
    """Unit costs by rules of thumb."""
    snapshot, profile = workload.snapshot, workload.profile
    turns = [[turn.user for turn in case.turns] or [""] for case in workload.cases]
    case_tokens = fmean(estimate_tokens(text) for texts in turns for text in texts)
    nodes: dict[str, Cost] = {}
    for node_id, model in workload.models.items():
        surfaces = snapshot.surfaces_of(node_id)
        calls = fmean(map(len, turns)) * (CALLS_WITH_TOOLS if any(each.type == "tool" for each in surfaces) else 1)
        texts = sum(estimate_tokens(str(profile.value(each.id, snapshot))) for each in surfaces)
        nodes[node_id] = guess_call(gateway, model, case_tokens + texts).times(Range.exactly(calls))
    models = {(each.stage, each.model) for each in workload.stage_models}
    is_batch = workload.outline is not None and workload.outline.blamed_per_call == "batch"
    prompts = {"backwarder": BATCH_PROMPT_TOKENS} if is_batch else {}
    calls_of = {
        (stage, model): guess_call(gateway, model, prompts.get(stage, STAGE_PROMPT_TOKENS))
        for stage, model in sorted(models)
    }
    return UnitCosts(nodes=nodes, calls=calls_of)


def price_candidates(workload: Workload, gateway: Gateway, nodes: Mapping[str, Cost]) -> dict[str, Cost]:
    """What nodes cost under the models that a search may choose, for as many tokens as under their first model.

    The typical price is the mean over all of them; a short run stays with the cheapest, a long one with the dearest.
    """
    found: dict[str, Cost] = {}
    for node_id, others in workload.choices.items():
        first, unit = workload.models.get(node_id, UNKNOWN_MODEL), nodes.get(node_id)
        if unit is None or not unit.tokens.typical or first == UNKNOWN_MODEL:
            continue
        output = min(ANSWER_TOKENS * unit.calls.typical, unit.tokens.typical)
        usage = Usage(input_tokens=round(unit.tokens.typical - output), output_tokens=round(output))
        prices = {model: gateway.price(model) for model in (first, *others)}
        costs = {model: price.cost_usd(usage) or 0.0 for model, price in prices.items() if price is not None}
        known = 0.0 if unit.usd is None else unit.usd.typical
        scale = known / costs[first] if known and costs.get(first) else 1.0
        usd = Range(min(costs.values()), fmean(costs.values()), max(costs.values())) * scale if costs else None
        found[node_id] = replace(
            unit,
            usd=None if usd is None else usd * unit.tokens * (1 / unit.tokens.typical),
            unpriced=tuple(sorted(model for model in prices if model not in costs)),
        )
    return found


def guess_call(gateway: Gateway, model: str, input_tokens: float) -> Cost:
    """The cost of a call with a prompt of this length."""
    price = None if model == UNKNOWN_MODEL else gateway.price(model)
    is_offline = model != UNKNOWN_MODEL and is_simulated(gateway.model(model))
    usd = None
    if price is not None:
        per_token = price.input_usd_per_million / 1e6, price.output_usd_per_million / 1e6
        usd = GUESSED * (input_tokens * per_token[0] + ANSWER_TOKENS * per_token[1])
    return Cost(
        calls=Range.exactly(1),
        tokens=GUESSED * (input_tokens + ANSWER_TOKENS),
        usd=usd,
        seconds=GUESSED * (OFFLINE_CALL_S if is_offline else CALL_S),
        unpriced=(model,) if price is None else (),
    )
