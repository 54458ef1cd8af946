"""Which nodes of an agent are managers and workers in a refinement, and how few steps an iteration may have."""

from __future__ import annotations

from dataclasses import replace

from promptiter.agents.base import Agent
from promptiter.config.refine_section import RefineSection
from promptiter.errors import SetupError, nearest
from promptiter.tasks.refine.budget import BudgetFloors
from promptiter.tasks.refine.iteration_guard import NodeRoles
from promptiter.tasks.refine.run_seeds import suggest_roles
from promptiter.tasks.refine.seeds import Seed

RUN_TOKENS = 20_000
"""The least number of tokens of an iteration of a run of ours: a call reserves the longest answer it may get."""


def choose_roles(section: RefineSection, agent: Agent | None, *, is_command: bool) -> NodeRoles:
    """The roles of the configuration; without any, those that the structure of the agent suggests."""
    if section.manager or section.prefix_node is not None:
        first = section.manager[0] if section.manager else None
        roles = NodeRoles(managers=section.manager, workers=section.workers, prefix_node=section.prefix_node or first)
    elif is_command or agent is None:
        return NodeRoles(workers=section.workers)
    else:
        return replace(suggest_roles(agent.describe()), workers=section.workers)
    if agent is not None and not is_command:
        known = [node.id for node in agent.describe().nodes]
        named = (*roles.managers, *roles.workers, *filter(None, [roles.prefix_node]))
        for name in named if len(known) > 1 else ():  # the nodes of a black box are known by its calls only
            if name not in known:
                raise SetupError(f"refine: the agent has no node {name!r}{nearest(name, known)}")
    return roles


def choose_floors(agent: Agent, roles: NodeRoles, seed: Seed) -> BudgetFloors:
    """The least steps that a run of ours can do its task in: one of each node; of a black box, those that it made."""
    nodes, use = agent.describe().nodes, seed.record.use
    loops, workers = len(roles.managers), sum(node.kind == "llm" and roles.is_worker(node.id) for node in nodes)
    if any(node.kind == "agent" for node in nodes):  # the code of a black box decides how often it calls a model
        loops, workers = max(loops, use.loops or 0), max(workers, use.workers or 0)
    return BudgetFloors(loops=max(1, loops), workers=max(1, workers), tokens=RUN_TOKENS)
