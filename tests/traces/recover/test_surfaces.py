"""Surfaces that spans show."""

from __future__ import annotations

import json

from tests.traces.recover.spans import Tree, agent, build, chain
from traces.structure import SURFACES

PERSONA = {"role": "Clerk", "goal": "Be quick.", "backstory": "Ten years at the desk."}
PROMPT = "You are Clerk. Ten years at the desk.\nYour personal goal is: Be quick."


def read_instruction(*roots: Tree) -> object:
    return build(*roots).attributes[SURFACES]["Clerk#instruction"]["value"]


def test_the_instruction_of_an_agent_of_crewai_is_made_of_its_role_backstory_and_goal() -> None:
    of_crew = chain("Crew.kickoff", 0, 9, agent("Clerk", 1, 5))
    of_crew.attributes["crew_agents"] = json.dumps([{"role": "Other"}, PERSONA])
    own = {"traceloop.span.kind": "agent"} | {f"crewai.agent.{key}": value for key, value in PERSONA.items()}
    assert read_instruction(of_crew) == PROMPT
    assert read_instruction(Tree("Clerk.agent", 1, 5, attributes=own)) == PROMPT
