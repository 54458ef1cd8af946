"""What one case run and one model call cost: measured in earlier runs (see history), or by rules of thumb.

A rule of thumb knows how long the texts are, and nothing about what models answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal, TypeAlias

from promptiter.engine.outline import UNKNOWN_MODEL
from promptiter.forecast.stage_costs import ModelStage
from promptiter.forecast.workload import Workload
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import estimate_tokens, is_simulated

Figure: TypeAlias = Literal["calls", "tokens", "usd"]
"""What a budget can cap."""

ANSWER_TOKENS = 100
CALL_S, SIMULATED_CALL_S = 2.0, 0.05
CALLS_WITH_TOOLS = 2

STAGE_TOKENS: Mapping[ModelStage, tuple[int, int]] = {
    "teacher": (200, ANSWER_TOKENS),
    "user": (500, 60),
    "judge": (800, 120),
    "backwarder": (1_000, 150),
    "aggregator": (1_000, 150),
    "optimizer": (1_800, 250),
}
"""Tokens that a call of each stage reads, besides the surface it is about, and writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Calls, tokens, dollars, and seconds on the clock. `unpriced` are the models whose dollars are missing."""

    calls: float = 0.0
    tokens: float = 0.0
    usd: float = 0.0
    seconds: float = 0.0
    unpriced: frozenset[str] = frozenset()

    def plus(self, other: Cost, times: float = 1.0) -> Cost:
        """This cost and another one, that many times."""
        return Cost(
            calls=self.calls + times * other.calls,
            tokens=self.tokens + times * other.tokens,
            usd=self.usd + times * other.usd,
            seconds=self.seconds + times * other.seconds,
            unpriced=self.unpriced | other.unpriced,
        )

    def figure(self, name: Figure) -> float:
        return {"calls": self.calls, "tokens": self.tokens, "usd": self.usd}[name]


NO_COST = Cost()


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitCosts:
    """The cost of a case run by node, its seconds from start to end, and the cost of a call by stage and model."""

    nodes: Mapping[str, Cost] = field(default_factory=dict)
    case_s: float = 0.0
    calls: Mapping[tuple[ModelStage, str], Cost] = field(default_factory=dict)

    @property
    def call_s(self) -> float | None:
        """The seconds of one call of the agent; None if it makes none."""
        calls = sum(cost.calls for cost in self.nodes.values())
        return sum(cost.seconds for cost in self.nodes.values()) / calls if calls else None


def estimate_unit_costs(workload: Workload, gateway: Gateway, *, call_s: float | None) -> UnitCosts:
    """Unit costs by rules of thumb; `call_s` is how long a call of the agent takes, if that was measured."""
    snapshot, texts = workload.snapshot, workload.surface_tokens
    turns = [[turn.user for turn in case.turns] or [""] for case in workload.cases]
    case_tokens = fmean(estimate_tokens(text) for said in turns for text in said)
    nodes: dict[str, Cost] = {}
    for node_id, model in workload.models.items():
        surfaces = snapshot.surfaces_of(node_id)
        calls = fmean(map(len, turns)) * (CALLS_WITH_TOOLS if any(each.type == "tool" for each in surfaces) else 1)
        read = sum(edge.target == node_id for edge in snapshot.edges) * ANSWER_TOKENS or case_tokens
        read += sum(texts[each.id] for each in surfaces)
        nodes[node_id] = NO_COST.plus(_call_cost(gateway, model, read, ANSWER_TOKENS), calls)
    text = fmean(texts.values()) if texts else 0.0
    stage_calls = {
        (each.stage, each.model): _call_cost(gateway, each.model, text + shown, written, call_s=call_s)
        for each in workload.asked
        for shown, written in [STAGE_TOKENS[each.stage]]
    }
    return UnitCosts(nodes=nodes, case_s=sum(cost.seconds for cost in nodes.values()), calls=stage_calls)


def _call_cost(
    gateway: Gateway, model: str, input_tokens: float, output_tokens: float, *, call_s: float | None = None
) -> Cost:
    price = None if model == UNKNOWN_MODEL else gateway.price(model)
    usd = 0.0
    if price is not None:
        usd = (input_tokens * price.input_usd_per_million + output_tokens * price.output_usd_per_million) / 1e6
    if call_s is None:
        call_s = SIMULATED_CALL_S if model != UNKNOWN_MODEL and is_simulated(gateway.model(model)) else CALL_S
    unpriced = frozenset([model] if price is None else [])
    return Cost(calls=1, tokens=input_tokens + output_tokens, usd=usd, seconds=call_s, unpriced=unpriced)
