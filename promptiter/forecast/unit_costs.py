"""What one case run and one model call cost: measured in earlier runs (see history), or by rules of thumb.

A rule of thumb knows how long the texts are, and nothing about what models answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean

from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.forecast.workload import Workload
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Role
from promptiter.llm.models import estimate_tokens, is_simulated

ANSWER_TOKENS = 100
CALL_S, SIMULATED_CALL_S = 2.0, 0.05
CALLS_WITH_TOOLS = 2

STAGE_TOKENS: Mapping[Role, tuple[int, int]] = {
    "teacher": (200, ANSWER_TOKENS),
    "user": (500, 60),
    "judge": (800, 120),
    "backwarder": (1_000, 150),
    "aggregator": (1_000, 150),
    "optimizer": (1_800, 250),
}
"""Tokens that a call of each role reads, besides the surface it is about, and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCost:
    """What a node takes in one case run, or what one call of a role takes. `usd` is None if the price is unknown."""

    model: str
    calls: float = 1.0
    tokens: float = 0.0
    usd: float | None = None
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """The cost of a case run by node, its seconds from start to end, and the cost of a call by role and model."""

    nodes: Mapping[str, UnitCost] = field(default_factory=dict)
    case_s: float = 0.0
    calls: Mapping[tuple[Role, str], UnitCost] = field(default_factory=dict)

    @property
    def case_calls(self) -> float:
        return sum(cost.calls for cost in self.nodes.values())

    @property
    def call_s(self) -> float | None:
        """The seconds of one call of the agent; None if it made none."""
        return sum(cost.seconds for cost in self.nodes.values()) / self.case_calls if self.case_calls else None


def estimate_unit_costs(workload: Workload, gateway: Gateway, *, call_s: float | None) -> UnitCosts:
    """Unit costs by rules of thumb; `call_s` is how long a call of the agent takes, if that was measured."""
    snapshot, texts = workload.snapshot, workload.surface_tokens
    turns = [[turn.user for turn in case.turns] or [""] for case in workload.cases]
    case_tokens = fmean(estimate_tokens(text) for said in turns for text in said)
    nodes: dict[str, UnitCost] = {}
    for node_id, model in workload.models.items():
        surfaces = snapshot.surfaces_of(node_id)
        calls = fmean(map(len, turns)) * (CALLS_WITH_TOOLS if any(each.type == "tool" for each in surfaces) else 1)
        read = sum(edge.target == node_id for edge in snapshot.edges) * ANSWER_TOKENS or case_tokens
        asked = calls * (read + sum(texts[each.id] for each in surfaces))
        nodes[node_id] = _unit_cost(gateway, model, calls, asked, calls * ANSWER_TOKENS)
    text = fmean(texts.values()) if texts else 0.0
    return UnitCosts(
        nodes=nodes,
        case_s=sum(cost.seconds for cost in nodes.values()),
        calls={
            (each.role, each.model): _unit_cost(gateway, each.model, 1.0, text + shown, written, call_s=call_s)
            for each in workload.asked
            for shown, written in [STAGE_TOKENS[each.role]]
        },
    )


def _unit_cost(
    gateway: Gateway,
    model: str,
    calls: float,
    input_tokens: float,
    output_tokens: float,
    *,
    call_s: float | None = None,
) -> UnitCost:
    price = None if model == UNKNOWN_MODEL else gateway.price(model)
    usd = None
    if price is not None:
        usd = (input_tokens * price.input_usd_per_million + output_tokens * price.output_usd_per_million) / 1e6
    if call_s is None:
        call_s = SIMULATED_CALL_S if model != UNKNOWN_MODEL and is_simulated(gateway.model(model)) else CALL_S
    return UnitCost(model=model, calls=calls, tokens=input_tokens + output_tokens, usd=usd, seconds=calls * call_s)
