"""Finds models that a cap in dollars cannot cover: those without a price, and those of which one call exceeds the cap.

Also lists the models that a search may choose for a node, which forecast and final test have to expect.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

from promptiter.agents.base import Agent
from promptiter.agents.flow import Graph
from promptiter.agents.nodes import ModelNode
from promptiter.engine.model_checks import list_models_of_agent, list_models_of_evaluator
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import Evaluator
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelRequest
from promptiter.llm.options import OUTPUT_BOUNDS
from promptiter.llm.pool import bound_output_tokens
from promptiter.numbers import is_number
from promptiter.policies.goals import list_other_models
from promptiter.profile import Profile
from promptiter.references import is_reference
from promptiter.structure import StructureSnapshot, child_ids
from traces.model import Json


def list_model_choices(
    request: RunRequest, snapshot: StructureSnapshot, targets: Collection[str]
) -> dict[str, tuple[str, ...]]:
    """The nodes for which a search may choose a model, each with the models other than its first one.

    A search for a cheaper model tries none that costs more, so there are none.
    """
    if request.goal.kind != "score":
        return {}
    profile = request.initial_profile or Profile.baseline(snapshot)
    surfaces = [snapshot.surface(target) for target in sorted(targets) if target in snapshot.surface_ids]
    others = {
        surface.node_id: list_other_models(request.goal, surface, profile.value(surface.id, snapshot))
        for surface in surfaces
        if surface.type == "model"
    }
    return {node_id: models for node_id, models in others.items() if models}


def find_price_problems(
    request: RunRequest,
    snapshot: StructureSnapshot,
    evaluator: Evaluator,
    *,
    targets: Collection[str],
    agent: Agent | None,
) -> Iterator[str]:
    """Find models without a known price, for which max_usd could not be enforced, and those that it never allows.

    Those of agent, judges, user and teacher need a price. What a node's answers may cost is only known of an `agent`.
    """
    choices = list_model_choices(request, snapshot, targets)
    named = {str(surface.value) for surface in snapshot.surfaces if surface.type == "model"}
    named |= {model for models in choices.values() for model in models}
    named |= {model for _, model in list_models_of_evaluator(evaluator)}
    named |= {each for each in (request.teacher, request.judge) if isinstance(each, str) and not is_reference(each)}
    if request.teacher is not None and not isinstance(request.teacher, str):
        named |= {model for _, model in list_models_of_agent(request.teacher)}
    if request.initial_profile is not None:
        values = request.initial_profile.overrides
        named |= {str(value) for name, value in values.items() if name.partition("#")[2] == "model"}
    yield from evaluator.gateway.find_unpriced_models(named)
    if isinstance(agent, Graph) and request.scorer is None:
        profile = request.initial_profile or Profile.baseline(snapshot)
        for node_id, node in _list_model_nodes(agent):
            options = _find_smallest_options(node, node_id, snapshot, profile, targets)
            yield from _find_unaffordable(node_id, choices.get(node_id, ()), options, evaluator.gateway)


def _find_unaffordable(
    node_id: str, models: Collection[str], options: Mapping[str, Json], gateway: Gateway
) -> Iterator[str]:
    """One line for each model of which a single call exceeds the cap. If the cache has answers, it may need none."""
    cap = None if gateway.budget is None else gateway.budget.caps.max_usd
    if cap is None or not models or gateway.cache.stats().entries:
        return
    for model in models:
        price = gateway.price(model)
        tokens = bound_output_tokens(gateway.limit_output(ModelRequest(model=model, messages=(), options=options)))
        if price is not None and (usd := price.bound_usd(tokens)) > cap:
            yield (
                f"{node_id}#model: one call of model {model!r} may cost ${usd:.4g} or more (an answer of up to "
                f"{tokens:,} tokens), but max_usd is ${cap:g}, so it could never be called; raise max_usd, remove "
                f"{model!r} from the models of node {node_id!r}, or set a lower max_tokens in the options of the node"
            )


def _find_smallest_options(
    node: ModelNode, node_id: str, snapshot: StructureSnapshot, profile: Profile, targets: Collection[str]
) -> dict[str, Json]:
    """The options of a node's requests. A limit of the answer that the search may change has its lowest value."""
    options = dict(node.options)
    for name in node.parameters:
        surface = snapshot.surface(f"{node_id}#parameter.{name}")
        options[name] = profile.value(surface.id, snapshot)
        if name in OUTPUT_BOUNDS and surface.id in targets:
            lowest = (surface.limits.minimum, *surface.limits.choices)
            options[name] = int(min((each for each in lowest if is_number(each, least=1)), default=1))
    return options


def _list_model_nodes(graph: Graph, parent: str = "") -> Iterator[tuple[str, ModelNode]]:
    for node, node_id in zip(graph.nodes, child_ids((each.name for each in graph.nodes), parent=parent), strict=True):
        if isinstance(node, ModelNode):
            yield node_id, node
        elif isinstance(node, Graph):
            yield from _list_model_nodes(node, node_id)
