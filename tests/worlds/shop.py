"""A clerk of a shop, on simulated models of several prices. Three sentences of its verbose instruction matter."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from promptiter.agents.base import AgentRun
from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.session import Search
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message
from promptiter.llm.prices import Price, Prices
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.structure import NO_LIMITS, Limits

MATTERS = ("Include the order id in your answer.", 'End your answer with "Thank you".', 'Mention "warranty".')
VERBOSE = f"""You are the clerk of a shop that is known for years in the whole region.
The shop was founded a long time ago by two sisters who loved good tea. {MATTERS[0]}

- It is a fine thing to work here. {MATTERS[1]}
- Our customers are fond of us, and the weather is often nice.
{MATTERS[2]}
There is a garden behind the house."""
Scorer = Callable[[EvalCase, AgentRun], float]
PRICES_PER_MILLION = {"large": 10.0, "small": 1.0, "tiny": 0.1}


def agent(
    *, instruction: str = VERBOSE, limits: Limits = NO_LIMITS, examples: tuple[Message, ...] = (), nodes: int = 1
) -> GraphAgent:
    clerks = tuple(
        ModelNode(
            name=f"clerk{at or ''}",
            instruction=instruction,
            model="large",
            limits=limits,
            examples=examples,
            models=tuple(PRICES_PER_MILLION),
        )
        for at in range(nodes)
    )
    edges = tuple(Edge(one.name, other.name) for one, other in pairwise(clerks))
    return GraphAgent(name="shop", nodes=clerks, edges=edges)


def eval_set(name: str, count: int) -> EvalSet:
    cases = []
    for at in range(count):
        order = f"{name[0].upper()}-{at}7"
        turn = Turn(user=f"Where is my parcel? (order_id: {order}; city: Rome)", expected=order)
        cases.append(EvalCase(id=f"{name}-{at}", turns=(turn,)))
    return EvalSet(id=name, cases=tuple(cases))


def score(case: EvalCase, run: AgentRun) -> float:
    wanted = (str(case.turns[0].expected), "warranty")
    return (sum(word in run.output for word in wanted) + run.output.rstrip(".").endswith("Thank you")) / 3


def engine(search: Search, built: GraphAgent, *, scored: Scorer = score, **compliance: float) -> Engine:
    """Each model follows a rule with the given probability, or always if there is none."""
    models = {
        name: SimulatedModel(seed=seed, compliance=compliance.get(name, 1.0), price_per_token_usd=price / 1e6)
        for seed, (name, price) in enumerate(PRICES_PER_MILLION.items())
    }
    prices = {
        name: Price(input_usd_per_million=price, output_usd_per_million=price)
        for name, price in PRICES_PER_MILLION.items()
    }
    evaluator = Evaluator(
        [FunctionMetric(name="right", function=scored, threshold=1.0)],
        gateway=Gateway(models=models, prices=Prices(prices)),
    )
    return Engine(built, evaluator, search=search)
