"""Agent: anything that can be described and run under a profile."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from promptiter.llm.messages import Message, Role
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, Failure, ToolCall, Usage
from traces.model import Json, sum_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseInput:
    """What an agent is asked: the user's words, what was said before, and the session's state."""

    text: str
    history: tuple[Message, ...] = ()
    state: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Substitute:
    """An output that stands in for a step, which is then not executed. Steps are named as traces name them."""

    step_id: str
    output: Json
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """Where a run belongs: plain data that also travels to other processes. `deadline_s` counts from its start.

    `substitutes` are for agents that can replay: see SubstitutingAgent.
    """

    run_id: str = ""
    case_id: str = ""
    repeat: int = 0
    turn: int = 0
    seed: int = 0
    role: Role = "agent"
    deadline_s: float | None = None
    substitutes: tuple[Substitute, ...] = ()

    def substitute_for(self, step_id: str) -> Substitute | None:
        """What stands in for a step of this turn; None: it is executed."""
        mine = (each for each in self.substitutes if (each.step_id, each.turn) == (step_id, self.turn))
        return next(mine, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRun:
    """What came of one run: an output or an error, the trace if there is one, and what it cost.

    A conversation of several turns has each in `turns`, and its last output and summed usage here.
    """

    output: str = ""
    data: Json = None
    trace: ExecutionTrace | None = None
    usage: Usage = field(default_factory=Usage)
    error: Failure | None = None
    duration_s: float = 0.0
    turns: tuple[AgentRun, ...] = ()

    @staticmethod
    def of_turns(runs: Sequence[AgentRun], error: Failure | None = None) -> AgentRun:
        """The runs of a conversation's turns as one; its error is the given one, or that of the turn that failed."""
        if len(runs) == 1 and error is None:
            return runs[0]
        last = runs[-1] if runs else AgentRun()
        return AgentRun(
            output=last.output,
            data=last.data,
            trace=last.trace,
            usage=sum_usage(run.usage for run in runs),
            error=error or next((run.error for run in runs if run.error), None),
            duration_s=math.fsum(run.duration_s for run in runs),
            turns=tuple(runs),
        )

    @property
    def by_turn(self) -> tuple[AgentRun, ...]:
        """The runs of the single turns; of a single question, this run itself."""
        return self.turns or (self,)

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """All tool calls of the run, in the order of the trace."""
        return tuple(call for step in self.trace.steps for call in step.tool_calls) if self.trace else ()


class Agent(Protocol):
    """Called by the evaluator, many times at once; must not change itself."""

    def describe(self) -> StructureSnapshot:
        """The static graph and its editable surfaces; the same at every call."""

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        """Run once under a profile. An error of the agent's own is an AgentRun with an error, not an exception."""


@runtime_checkable
class RestoringAgent(Agent, Protocol):
    """An agent that puts candidates somewhere outside while it runs, and must bring the baseline back."""

    async def aclose(self) -> object:
        """Bring the baseline back. Called by the engine at the end of each run, however it ended."""


SUBSTITUTED = "promptiter.substituted"
"""The attribute of a step that was not executed: its output was given."""


@runtime_checkable
class SubstitutingAgent(Agent, Protocol):
    """An agent that can be run again with other outputs of some steps, so that blame can be checked.

    A step with a substitute in the RunContext gives that output: it asks no model, calls no tool, reads no surface, and
    says so in its attribute SUBSTITUTED. What comes before it is as it was, what comes after follows from it.
    """

    def can_substitute(self, node_id: str) -> bool:
        """Whether the steps of a node can be given their outputs. Called before a replay; must not block."""
