"""The EvalSet JSON of ADK and trpc-agent (Python and Go): read in both spellings, written in snake_case.

What an EvalCase has no field for is checked and dropped: app_name, user_id, timestamps, and the text of intermediate
responses. The format has no metadata, so a case that has some is written with one more key, `metadata`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.data.content import (
    Content,
    Messages,
    Part,
    Question,
    ToolResponse,
    ToolUse,
    add_results,
    list_calls,
    list_responses,
    read_messages,
    write_call,
    write_messages,
)
from promptiter.user_files import FileObject, Location, read_object
from traces.model import Json


class _InvocationEvent(FileObject):
    author: str
    content: Content | None = None


class _IntermediateData(FileObject):
    """What happened between question and answer: IntermediateData or InvocationEvents."""

    tool_uses: list[ToolUse] = Field(default_factory=list)
    tool_responses: list[ToolResponse] = Field(default_factory=list)
    intermediate_responses: list[Annotated[tuple[str, list[Part]], Field(strict=False)]] = Field(default_factory=list)
    invocation_events: list[_InvocationEvent] = Field(default_factory=list)


class _Invocation(FileObject):
    invocation_id: str = ""
    user_content: Question
    final_response: Content | None = None
    intermediate_data: _IntermediateData | None = None
    creation_timestamp: float | None = None

    @property
    def turn(self) -> Turn:
        return Turn(
            user=self.user_content.text or "",
            expected=None if self.final_response is None else self.final_response.text,
            expected_tool_calls=self._expected_tool_calls(),
            id=self.invocation_id,
        )

    def _expected_tool_calls(self) -> tuple[ExpectedToolCall, ...] | None:
        """The calls on the way and in the answer, each with its result; None, which allows any, if nothing says."""
        answer = self.final_response.all_parts if self.final_response is not None else []
        calls, responses = list_calls(answer), list_responses(answer)
        if (between := self.intermediate_data) is None:
            return add_results(calls, responses) if calls or responses else None
        events = [part for event in between.invocation_events if event.content for part in event.content.all_parts]
        texts = [part for _, parts in between.intermediate_responses for part in parts]
        return add_results(
            _merge_by_id(list_calls(events), [use.call for use in between.tool_uses], list_calls(texts), calls),
            _merge_by_id(
                list_responses(events),
                [response.call for response in between.tool_responses],
                list_responses(texts),
                responses,
            ),
        )


class _Scenario(FileObject):
    starting_prompt: str
    conversation_plan: str


class _SessionInput(FileObject):
    app_name: str
    user_id: str
    state: dict[str, Any] = Field(default_factory=dict)


class _Case(FileObject):
    eval_id: str
    eval_mode: str = ""
    conversation: list[_Invocation] | None = None
    actual_conversation: list[_Invocation] | None = None
    conversation_scenario: _Scenario | None = None
    session_input: _SessionInput | None = None
    context_messages: Messages = Field(default_factory=list)
    creation_timestamp: float | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _check_mode(self) -> Self:
        if self.eval_mode not in ("", "trace"):
            raise ValueError(f"'eval_mode' is {self.eval_mode!r}; write 'trace', or leave it out to run the agent")
        if self.eval_mode == "trace":
            if not self.actual_conversation:
                raise ValueError("a case in trace mode needs 'actual_conversation' with at least one invocation")
            if self.conversation_scenario is not None:
                raise ValueError("'conversation_scenario' has no meaning in trace mode; remove it")
            return self
        if self.actual_conversation is not None:
            raise ValueError(
                '\'actual_conversation\' is only read in trace mode; add "eval_mode": "trace", or remove it'
            )
        if (self.conversation is None) == (self.conversation_scenario is None):
            both = "neither" if self.conversation is None else "both"
            raise ValueError(f"needs one of 'conversation' and 'conversation_scenario', and has {both}")
        if self.conversation == []:
            raise ValueError("'conversation' is empty; write at least one invocation")
        return self

    @property
    def case(self) -> EvalCase:
        scenario = self.conversation_scenario
        return EvalCase(
            id=self.eval_id,
            turns=tuple(invocation.turn for invocation in self.conversation or ()),
            scenario=None
            if scenario is None
            else Scenario(starting_prompt=scenario.starting_prompt, plan=scenario.conversation_plan),
            mode="trace" if self.eval_mode == "trace" else "run",
            actual=tuple(invocation.turn for invocation in self.actual_conversation or ()),
            context=read_messages(self.context_messages),
            state={} if self.session_input is None else self.session_input.state,
            metadata=self.metadata,
        )


class _EvalSet(FileObject):
    eval_set_id: str
    app_name: str = ""
    name: str = ""
    description: str = ""
    eval_cases: list[Any]
    creation_timestamp: float | None = None


def is_eval_set(document: Json) -> bool:
    """Whether a document is meant to be in this format."""
    keys = ("eval_cases", "evalCases", "eval_set_id", "evalSetId")
    return isinstance(document, dict) and any(key in document for key in keys)


def read_eval_set(document: Json, location: Location) -> tuple[EvalSet, list[Location]]:
    """The eval set of a document, and the location of each case."""
    header = read_object(_EvalSet, document, location, error=EvalSetError)
    key = "eval_cases" if "eval_cases" in document else "evalCases"
    locations = [location.below(key, index) for index in range(len(header.eval_cases))]
    cases = tuple(
        read_object(_Case, case, at, error=EvalSetError).case
        for case, at in zip(header.eval_cases, locations, strict=True)
    )
    return EvalSet(id=header.eval_set_id, cases=cases, name=header.name, description=header.description), locations


def write_eval_set(eval_set: EvalSet) -> dict[str, Json]:
    """The eval set as the document that `read_eval_set` reads."""
    header = {"name": eval_set.name, "description": eval_set.description}
    return {
        "eval_set_id": eval_set.id,
        **{key: value for key, value in header.items() if value},
        "eval_cases": [_write_case(case) for case in eval_set.cases],
    }


def _merge_by_id(*lists: Iterable[ExpectedToolCall]) -> list[ExpectedToolCall]:
    """One list of all. A call may be both a tool use and a part; its id shows that an earlier list has it already."""
    merged: list[ExpectedToolCall] = []
    for calls in lists:
        known = {call.id for call in merged} - {None}
        merged += [call for call in calls if call.id not in known]
    return merged


def _write_case(case: EvalCase) -> dict[str, Json]:
    document: dict[str, Json] = {"eval_id": case.id}
    if case.mode == "trace":
        document["eval_mode"] = "trace"
    if case.turns:
        document["conversation"] = [_write_invocation(turn) for turn in case.turns]
    if case.actual:
        document["actual_conversation"] = [_write_invocation(turn) for turn in case.actual]
    if case.scenario is not None:
        document["conversation_scenario"] = {
            "starting_prompt": case.scenario.starting_prompt,
            "conversation_plan": case.scenario.plan,
        }
    if case.state:
        document["session_input"] = {"app_name": "promptiter", "user_id": "user", "state": dict(case.state)}
    if case.context:
        document["context_messages"] = write_messages(case.context)
    if case.metadata:
        document["metadata"] = dict(case.metadata)
    return document


def _write_invocation(turn: Turn) -> dict[str, Json]:
    document: dict[str, Json] = {"invocation_id": turn.id} if turn.id else {}
    document["user_content"] = {"parts": [{"text": turn.user}], "role": "user"}
    if turn.expected is not None:
        document["final_response"] = {"parts": [{"text": turn.expected}], "role": "model"}
    if turn.expected_tool_calls is not None:
        calls = turn.expected_tool_calls
        between: dict[str, Json] = {
            "tool_uses": [write_call(call.id, call.name, args=call.arguments) for call in calls]
        }
        if any(call.result is not None for call in calls):
            # One for every call, also for those without a result: their order distinguishes calls of the same name.
            between["tool_responses"] = [write_call(call.id, call.name, response=call.result) for call in calls]
        document["intermediate_data"] = between
    return document
