"""The neighbours' EvalSet JSON (ADK, trpc-agent in Python and Go): read in both spellings, written in snake_case.

What has no place in an EvalCase is checked and left behind: app_name, user_id, timestamps, and the text of intermediate
responses. Their format has no room for metadata, so a case that has some is written with one more key, `metadata`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.data.content import (
    Content,
    call_document,
    message_documents,
    read_call,
    read_content,
    read_messages,
    read_parts,
    read_response,
    with_results,
)
from promptiter.evaluation.data.document import Fields, Item, ReadSet
from traces.model import Json

_SET = ("eval_set_id", "app_name", "name", "description", "eval_cases", "creation_timestamp")
_CASE = (
    "eval_id",
    "eval_mode",
    "conversation",
    "actual_conversation",
    "conversation_scenario",
    "session_input",
    "context_messages",
    "creation_timestamp",
    "metadata",
)
_INVOCATION = ("invocation_id", "user_content", "final_response", "intermediate_data", "creation_timestamp")
_INTERMEDIATE = ("tool_uses", "tool_responses", "intermediate_responses", "invocation_events")


def is_eval_set(document: Item) -> bool:
    """Whether a document is meant to be in this format."""
    keys = document.value if isinstance(document.value, dict) else {}
    return any(key in keys for key in ("eval_cases", "evalCases", "eval_set_id", "evalSetId"))


def read_eval_set(document: Item) -> ReadSet:
    """The eval set of a whole document."""
    fields = document.fields(_SET)
    fields.text("app_name")
    _check_timestamp(fields)
    return ReadSet(
        id=fields.need("eval_set_id").text(),
        source=fields.need("eval_cases"),
        cases=[(item, _case(item)) for item in fields.need("eval_cases").elements()],
        name=fields.text("name"),
        description=fields.text("description"),
    )


def eval_set_document(eval_set: EvalSet) -> dict[str, Json]:
    """The eval set as the JSON document that `read_eval_set` reads."""
    header = {"name": eval_set.name, "description": eval_set.description}
    return {
        "eval_set_id": eval_set.id,
        **{key: value for key, value in header.items() if value},
        "eval_cases": [_case_document(case) for case in eval_set.cases],
    }


def _case(item: Item) -> EvalCase:
    fields = item.fields(_CASE)
    _check_timestamp(fields)
    is_trace = _is_trace(fields)
    _check_mode(fields, is_trace=is_trace)
    return EvalCase(
        id=fields.need("eval_id").text(),
        turns=_turns(fields.elements("conversation")),
        scenario=_scenario(fields.get("conversation_scenario")),
        mode="trace" if is_trace else "run",
        actual=_turns(fields.elements("actual_conversation")),
        context=read_messages(fields.elements("context_messages")),
        state=_state(fields.get("session_input")),
        metadata=fields.mapping("metadata"),
    )


def _is_trace(fields: Fields) -> bool:
    mode = fields.text("eval_mode")
    if mode not in ("", "trace"):
        raise fields.need("eval_mode").wrong(f"is {mode!r}; write 'trace', or leave it out to run the agent")
    return mode == "trace"


def _check_mode(fields: Fields, *, is_trace: bool) -> None:
    if is_trace:
        if not fields.elements("actual_conversation"):
            raise fields.owner.wrong("a case in trace mode needs 'actual_conversation' with at least one invocation")
        if "conversation_scenario" in fields:
            raise fields.need("conversation_scenario").wrong("has no meaning in trace mode; remove it")
        return
    if "actual_conversation" in fields:
        raise fields.need("actual_conversation").wrong(
            'is only read in trace mode; add "eval_mode": "trace", or remove it'
        )
    if ("conversation" in fields) == ("conversation_scenario" in fields):
        both = "both" if "conversation" in fields else "neither"
        raise fields.owner.wrong(f"needs one of 'conversation' and 'conversation_scenario', and has {both}")
    if "conversation" in fields and not fields.elements("conversation"):
        raise fields.need("conversation").wrong("is empty; write at least one invocation")


def _check_timestamp(fields: Fields) -> None:
    if "creation_timestamp" in fields:
        fields.need("creation_timestamp").number()


def _scenario(item: Item | None) -> Scenario | None:
    if item is None:
        return None
    fields = item.fields(("starting_prompt", "conversation_plan"))
    return Scenario(starting_prompt=fields.need("starting_prompt").text(), plan=fields.need("conversation_plan").text())


def _state(item: Item | None) -> Mapping[str, Json]:
    if item is None:
        return {}
    fields = item.fields(("app_name", "user_id", "state"))
    fields.need("app_name").text()
    fields.need("user_id").text()
    return fields.mapping("state")


def _turns(invocations: Iterable[Item]) -> tuple[Turn, ...]:
    return tuple(_turn(item) for item in invocations)


def _turn(item: Item) -> Turn:
    fields = item.fields(_INVOCATION)
    _check_timestamp(fields)
    asked = read_content(fields.need("user_content"))
    if not asked.texts or asked.calls or asked.responses:
        raise fields.need("user_content").wrong('must hold text and nothing else: {"parts": [{"text": "…"}]}')
    answer = read_content(fields.need("final_response")) if "final_response" in fields else Content()
    return Turn(
        user="\n".join(asked.texts),
        expected="\n".join(answer.texts) if answer.texts else None,
        expected_tool_calls=_expected_tool_calls(fields.get("intermediate_data"), answer),
        id=fields.text("invocation_id"),
    )


def _expected_tool_calls(between: Item | None, answer: Content) -> tuple[ExpectedToolCall, ...] | None:
    """The calls on the way and in the answer, each with its result. Without intermediate data, none means any."""
    steps = [] if between is None else _intermediate(between)
    if between is None and not answer.calls and not answer.responses:
        return None
    contents = (*steps, answer)
    return with_results(
        _once([content.calls for content in contents]), _once([content.responses for content in contents])
    )


def _once(lists: Iterable[list[ExpectedToolCall]]) -> list[ExpectedToolCall]:
    """One list of all; what an earlier list has is told by its id, as a call may be a tool use and stand in a part."""
    together: list[ExpectedToolCall] = []
    for calls in lists:
        known = {call.id for call in together} - {None}
        together += [call for call in calls if call.id not in known]
    return together


def _intermediate(item: Item) -> list[Content]:
    """What lies between question and answer, from IntermediateData or InvocationEvents."""
    fields = item.fields(_INTERMEDIATE)
    happened = Content()
    for event in fields.elements("invocation_events"):
        event_fields = event.fields(("author", "content"))
        event_fields.need("author").text()
        if "content" in event_fields:
            happened.add(read_content(event_fields.need("content")))
    listed = Content(
        calls=[read_call(use) for use in fields.elements("tool_uses")],
        responses=[read_response(response) for response in fields.elements("tool_responses")],
    )
    said = Content()
    for response in fields.elements("intermediate_responses"):
        pair = response.elements()
        if len(pair) != 2:
            raise response.wrong(f"must be [author, [part, …]], got a list of {len(pair)}")
        pair[0].text()
        said.add(read_parts(pair[1]))
    return [happened, listed, said]


def _case_document(case: EvalCase) -> dict[str, Json]:
    document: dict[str, Json] = {"eval_id": case.id}
    if case.mode == "trace":
        document["eval_mode"] = "trace"
    if case.turns:
        document["conversation"] = [_invocation(turn) for turn in case.turns]
    if case.actual:
        document["actual_conversation"] = [_invocation(turn) for turn in case.actual]
    if case.scenario is not None:
        document["conversation_scenario"] = {
            "starting_prompt": case.scenario.starting_prompt,
            "conversation_plan": case.scenario.plan,
        }
    if case.state:
        document["session_input"] = {"app_name": "promptiter", "user_id": "user", "state": dict(case.state)}
    if case.context:
        document["context_messages"] = message_documents(case.context)
    if case.metadata:
        document["metadata"] = dict(case.metadata)
    return document


def _invocation(turn: Turn) -> dict[str, Json]:
    document: dict[str, Json] = {"invocation_id": turn.id} if turn.id else {}
    document["user_content"] = {"parts": [{"text": turn.user}], "role": "user"}
    if turn.expected is not None:
        document["final_response"] = {"parts": [{"text": turn.expected}], "role": "model"}
    if turn.expected_tool_calls is not None:
        calls = turn.expected_tool_calls
        between: dict[str, Json] = {
            "tool_uses": [call_document(call.id, call.name, args=call.arguments) for call in calls]
        }
        if any(call.result is not None for call in calls):
            # One for every call, also for those without a result: the order then tells calls of one name apart.
            between["tool_responses"] = [call_document(call.id, call.name, response=call.result) for call in calls]
        document["intermediate_data"] = between
    return document
