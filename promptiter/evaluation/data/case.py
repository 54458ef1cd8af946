"""EvalSet and EvalCase: what an agent is asked and what a good answer looks like."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Literal, TypeAlias

from promptiter.errors import EvalSetError
from promptiter.llm.messages import Message
from promptiter.wording import shorten
from traces import digest
from traces.model import Json

CaseMode: TypeAlias = Literal["run", "trace"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedToolCall:
    """A tool call that a good answer makes. Recorded calls of a case in trace mode have this form, too."""

    name: str
    arguments: Json = None
    result: Json = None
    id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One exchange: the user's message, the expected answer (None: no reference) and tool calls (None: any)."""

    user: str
    expected: str | None = None
    expected_tool_calls: tuple[ExpectedToolCall, ...] | None = None
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """A conversation that is driven by a simulated user."""

    starting_prompt: str
    plan: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalCase:
    """One case: turns with references, a scenario, or a recorded conversation.

    In `mode` trace the agent is not run: `actual` holds the recorded turns, with the agent's answer as `expected`.
    `eval_set_id` is the eval set that it came from, if several were merged.
    """

    id: str
    turns: tuple[Turn, ...] = ()
    scenario: Scenario | None = None
    mode: CaseMode = "run"
    actual: tuple[Turn, ...] = ()
    context: tuple[Message, ...] = ()
    state: Mapping[str, Json] = field(default_factory=dict)
    metadata: Mapping[str, Json] = field(default_factory=dict)
    eval_set_id: str = ""

    def __post_init__(self) -> None:
        for turn in self.turns:
            if not isinstance(turn, Turn):
                raise EvalSetError(
                    f"case {self.id!r} has the turn {shorten(turn)}; give a Turn, as in Turn(user='...')"
                )

    @property
    def content_digest(self) -> str:
        """The hash of everything the case asks and expects. Its id and metadata do not count."""
        return digest([self.turns, self.scenario, self.mode, self.actual, self.context, self.state])

    def find_turn(self, number: int) -> Turn | None:
        """The turn of this number; None if the case has fewer, as a scenario does."""
        return self.turns[number] if number < len(self.turns) else None

    def find_question(self, number: int) -> str | None:
        """The user's message in a turn, from the conversation or the recording; None if neither has it."""
        return next((turns[number].user for turns in (self.turns, self.actual) if number < len(turns)), None)


@dataclass(frozen=True, kw_only=True)
class EvalSet:
    """Cases with unique ids."""

    id: str
    cases: tuple[EvalCase, ...]
    name: str = ""
    description: str = ""

    @cached_property
    def content_digest(self) -> str:
        return digest(sorted(case.content_digest for case in self.cases))

    @cached_property
    def by_id(self) -> Mapping[str, EvalCase]:
        """The cases by id. Each names the eval set that it came from: this one, unless several were merged."""
        return {case.id: replace(case, eval_set_id=case.eval_set_id or self.id) for case in self.cases}


def advise_eval_set(value: object) -> str:
    """How to make an eval set of a path or of rows; empty for anything else."""
    if isinstance(value, str | PathLike):
        return f"; load_eval_set({shorten(str(value))}) reads one from a file"
    if isinstance(value, list | tuple) and value and all(isinstance(each, Mapping) for each in value):
        return "; build_eval_set('name', rows) makes one of rows"
    return ""
