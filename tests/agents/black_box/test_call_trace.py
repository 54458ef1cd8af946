"""Model calls through the endpoint as the steps of a trace."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from promptiter.agents.base import CaseInput
from promptiter.agents.black_box.call_trace import BlackBoxRun, build_steps
from promptiter.agents.black_box.prompts import PromptSet
from promptiter.endpoint.sessions import EndpointCall
from promptiter.evaluation.surface_reads import collect_reads, may_touch
from promptiter.llm.messages import EmbeddingRequest, Message, ModelReply, ModelRequest, ToolRequest, ToolSpec
from traces import ExecutionTrace, Failure, Step, Usage

PROMPTS = {
    "plan": "You plan the work of a small team.",
    "write": "You write the answer for the customer, from the plan of {planner}, in a friendly tone.",
    "write#tool.search": "Searches the handbook of the company.",
}
CASE = "May I return the kettle that I have opened last week?"
PLAN = "First look up how long customers may return goods, then answer politely."


def call(
    system: str,
    *messages: str | Message,
    reply: str | tuple[ToolRequest, ...] = "",
    at: int,
    until: int | None = None,
    node: str = "",
    tools: Sequence[ToolSpec] = (),
    **fields: Any,
) -> EndpointCall:
    talk = [Message("user", each) if isinstance(each, str) else each for each in messages]
    request = ModelRequest(
        model="m", messages=(*([Message("system", system)] if system else []), *talk), tools=tuple(tools)
    )
    answer = ModelReply(text=reply) if isinstance(reply, str) else ModelReply(tool_requests=reply)
    usage = Usage(input_tokens=3, output_tokens=2)
    values: dict[str, Any] = {"reply": ModelReply(text=answer.text, tool_requests=answer.tool_requests, usage=usage)}
    values |= {"error": None, **fields}
    return EndpointCall(node=node, request=request, start_ns=at, end_ns=at + 1 if until is None else until, **values)


def build(
    *calls: EndpointCall, answer: str = "", prompts: Mapping[str, Any] | None = None, error: Failure | None = None
) -> dict[str, Step]:
    known = PromptSet("bot", PROMPTS if prompts is None else prompts)
    values = {each.id: each.value for each in known.snapshot.surfaces}
    run = BlackBoxRun(
        snapshot=known.snapshot,
        values=values,
        case=CaseInput(text=CASE),
        answer=answer,
        data=None,
        error=error,
        calls=calls,
        start_ns=1,
        end_ns=1000,
    )
    trace = ExecutionTrace(id="t", steps=build_steps(run))
    return {step.id: step for step in trace.steps}


def filled(planner: str = "Ada") -> str:
    return PROMPTS["write"].replace("{planner}", planner)


SEARCH = ToolSpec("search", PROMPTS["write#tool.search"])
WANTED = (ToolRequest("c1", "search", {"query": "returns"}),)


def make_chain() -> list[EndpointCall]:
    talk = (f"Plan: {PLAN}", Message("assistant", "", WANTED), Message("tool", '{"days": 14}', tool_request_id="c1"))
    return [
        call(f"  {PROMPTS['plan']}\n\nToday is Monday.", CASE, reply=PLAN, at=10),
        call(filled(), talk[0], reply=WANTED, at=20, tools=[SEARCH]),
        call(filled(), *talk, reply="Yes, within 14 days.", at=30, tools=[SEARCH]),
    ]


def test_a_tool_loop_is_one_step_and_prompts_tell_the_nodes() -> None:
    steps = build(*make_chain(), answer="Yes, within 14 days.\n")
    assert list(steps) == ["plan", "write"]
    plan, write = steps.values()
    assert (plan.input.text, plan.output.text, plan.predecessors) == (CASE, PLAN, ())
    assert (write.input.text, write.output.text) == (f"Plan: {PLAN}", "Yes, within 14 days.")
    assert [(edge.source, edge.kind, edge.evidence) for edge in write.edges] == [("plan", "data", "text")]
    [tool] = write.tool_calls
    assert (tool.name, tool.id, tool.arguments, tool.result) == ("search", "c1", {"query": "returns"}, {"days": 14})
    assert write.usage == Usage(input_tokens=6, output_tokens=4)
    assert set(plan.surface_reads or ()) == {"plan#instruction"}
    assert set(write.surface_reads or ()) == {"write#instruction", "write#tool.search"}
    assert len(write.attributes["promptiter.requests"]) == 2


@pytest.mark.parametrize(("header", "node"), [("plan", "plan"), ("admin", "write"), ("bot", "bot"), ("", "write")])
def test_a_header_names_a_known_node_and_a_forged_one_is_ignored(header: str, node: str) -> None:
    steps = build(call(filled(), CASE, reply="Yes.", at=1, node=header), answer="Yes.")
    assert next(iter(steps.values())).node_id == node


def test_a_call_that_no_prompt_explains_is_a_step_of_the_agent() -> None:
    steps = build(call("Something else.", CASE, reply="Yes.", at=1), answer="Yes.")
    assert list(steps) == ["bot", "bot~2"]
    assert steps["bot"].surface_reads == {}
    assert set(steps["bot~2"].surface_reads or ()) == {"plan#instruction", "write#instruction", "write#tool.search"}


def test_a_prompt_that_is_in_no_request_may_have_been_read_by_the_agents_own_code() -> None:
    trace = ExecutionTrace(id="t", steps=tuple(build(make_chain()[0], answer=PLAN).values()))
    assert [step.id for step in trace.steps] == ["plan", "bot"]
    assert trace.steps[1].predecessors == ("plan",)
    reads = collect_reads([trace])
    for surface in ("plan#instruction", "write#instruction", "write#tool.search"):
        assert may_touch(reads, [surface])


@pytest.mark.parametrize("value", ["", 3, "x"])
def test_a_value_that_cannot_be_recognized_counts_as_read(value: Any) -> None:
    name = "plan#parameter.k" if value == 3 else "other"
    steps = build(*make_chain(), answer="Yes, within 14 days.", prompts={**PROMPTS, name: value})
    wanted = "plan#parameter.k" if value == 3 else "other#instruction"
    readers = [each for each in steps.values() if wanted in (each.surface_reads or ())]
    assert readers


def test_an_answer_that_is_no_models_answer_is_made_by_the_agent() -> None:
    steps = build(*make_chain(), answer="Dear customer, yes.")
    assert list(steps) == ["plan", "write", "bot"]
    assert (steps["bot"].kind, steps["bot"].predecessors) == ("agent", ("write",))
    assert steps["bot"].output.text == "Dear customer, yes."


def test_a_failed_run_ends_with_the_error_of_the_agent() -> None:
    steps = build(*make_chain(), error=Failure("CommandError", "exit code 1"))
    assert steps["bot"].error == Failure("CommandError", "exit code 1")


def test_a_failed_call_is_a_failed_step() -> None:
    failure = Failure("ModelUnavailableError", "down")
    steps = build(call(PROMPTS["plan"], CASE, at=1, reply="", error=failure), error=Failure("CommandError", "x"))
    assert steps["plan"].error == failure


def test_a_short_prompt_inside_of_a_longer_one_is_not_read() -> None:
    prompts = {"short": "Be kind to guests.", "long": "Be kind to guests. Never mention prices."}
    steps = build(call(prompts["long"], CASE, reply="Yes.", at=1), answer="Yes.", prompts=prompts)
    assert set(steps["long"].surface_reads or ()) == {"long#instruction"}
    both = build(
        call(f"{prompts['long']}\n{prompts['short']}", CASE, reply="Yes.", at=1), answer="Yes.", prompts=prompts
    )
    assert set(both["long"].surface_reads or ()) == {"long#instruction", "short#instruction"}


def test_a_prompt_in_the_message_of_the_user_is_found() -> None:
    steps = build(call("", f"{PROMPTS['plan']}\n\n{CASE}", reply="Yes.", at=1), answer="Yes.")
    assert steps["plan"].surface_reads is not None


def test_a_tool_is_recognized_by_its_name_and_description() -> None:
    other = ToolSpec("search", "Searches the web.")
    steps = build(call(filled(), CASE, reply="Yes.", at=1, tools=[other]), answer="Yes.")
    assert set(steps["write"].surface_reads or ()) == {"write#instruction"}


def test_step_ids_do_not_depend_on_the_order_of_parallel_calls() -> None:
    """A fan-out: three calls of one node at the same time, then one that reads all of them."""
    parts = [f"part {number}: the kettle has {number} scratches on its left side" for number in (1, 2, 3)]
    prompts = {"look": "You look at one part of the kettle.", "sum": "You sum up what your colleagues saw."}

    def make(order: Sequence[int], *, is_cached: bool) -> dict[str, Step]:
        calls = [
            call(prompts["look"], f"{CASE} {at}", reply=parts[at], at=10 + place, until=11 + place if is_cached else 20)
            for place, at in enumerate(order)
        ]
        calls.append(call(prompts["sum"], "\n".join(parts), reply="Six scratches.", at=30))
        return build(*calls, answer="Six scratches.", prompts=prompts)

    expected = make([0, 1, 2], is_cached=False)
    assert set(expected) == {"look", "look~2", "look~3", "sum"}
    assert expected["sum"].predecessors == ("look", "look~2", "look~3")
    for seed in range(4):
        order = random.Random(seed).sample(range(3), 3)
        for is_cached in (False, True):
            found = make(order, is_cached=is_cached)
            assert {each: step.input for each, step in found.items()} == {k: s.input for k, s in expected.items()}
            assert {each: step.predecessors for each, step in found.items()} == {
                each: step.predecessors for each, step in expected.items()
            }


def test_equal_calls_are_numbered_by_the_endpoint() -> None:
    twice = [call(PROMPTS["plan"], CASE, reply="Yes.", at=at, number=number) for number, at in enumerate((1, 5))]
    assert list(build(*twice, answer="Yes.")) == ["plan", "plan~2", "bot"]


def test_a_step_that_no_other_reads_is_followed_by_the_next() -> None:
    check = call(PROMPTS["plan"], CASE, reply="ok", at=1)
    steps = build(check, call(filled(), CASE, reply="Yes.", at=5), answer="Yes.", prompts=PROMPTS)
    assert [(edge.source, edge.kind, edge.evidence) for edge in steps["write"].edges] == [("plan", "control", "time")]


def test_another_user_message_is_another_step_of_the_node() -> None:
    first = call(PROMPTS["plan"], CASE, reply=PLAN, at=1)
    again = call(PROMPTS["plan"], CASE, Message("assistant", PLAN), Message("user", "Shorter."), reply="Look up.", at=5)
    steps = build(first, again, answer="Look up.")
    assert steps["plan~2"].predecessors == ("plan",)


def test_a_tool_that_asks_a_model_is_read_by_the_loop_around_it() -> None:
    found = "Goods may be returned within fourteen days of the purchase, in their box."
    talk = (CASE, Message("assistant", "", WANTED), Message("tool", found, tool_request_id="c1"))
    steps = build(
        call(filled(), talk[0], reply=WANTED, at=10, tools=[SEARCH]),
        call(PROMPTS["plan"], '{"query": "returns"}', reply=found, at=20),
        call(filled(), *talk, reply="Yes.", at=30, tools=[SEARCH]),
        answer="Yes.",
    )
    assert list(steps) == ["plan", "write"]
    assert steps["write"].sources == ("plan",)


def test_an_embedding_is_not_a_step() -> None:
    embedded = replace(
        call("", CASE, at=5), request=EmbeddingRequest(model="e", messages=(Message("user", CASE),)), reply=ModelReply()
    )
    chain = make_chain()
    assert build(embedded, *chain, answer="Yes, within 14 days.") == build(*chain, answer="Yes, within 14 days.")
    assert [step.kind for step in build(embedded, answer="Yes.").values()] == ["agent"]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_all_parallel_steps_that_said_the_same_are_read(order: tuple[int, ...]) -> None:
    """A vote: two of three say the same, whichever of them is the last to end."""
    prompts = {"vote": "You say what the customer may do.", "count": "You count the votes of your colleagues."}
    votes = ["exchange", "refund", "refund"]
    calls = [
        call(prompts["vote"], f"{CASE} {number}", reply=votes[number], at=10 + place)
        for place, number in enumerate(order)
    ]
    counted = call(prompts["count"], "\n".join(votes), reply="refund!", at=30)
    steps = build(*calls, counted, answer="refund!", prompts=prompts)
    assert steps["count"].sources == ("vote", "vote~2", "vote~3")
    assert {step.input.text: step.id for step in steps.values()} == {
        step.input.text: step.id
        for step in build(*reversed(calls), counted, answer="refund!", prompts=prompts).values()
    }


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_a_phrase_that_all_branches_share_does_not_connect_them(order: tuple[int, ...]) -> None:
    prompts = {"find": "You find one part of the answer.", "polish": "You polish one part of the answer."}
    polite = "Thank you very much for writing to us about this matter."
    drafts = [
        f"{polite} Item {number} may go back until the {number + 10}th of the month, unopened." for number in (1, 2, 3)
    ]
    calls = [
        call(prompts["find"], f"{CASE} {number}", reply=drafts[number], at=10 + at) for at, number in enumerate(order)
    ]
    calls += [
        call(prompts["polish"], f"Polish: {drafts[number]}", reply=f"{number}", at=30 + at)
        for at, number in enumerate(order)
    ]
    steps = build(*calls, prompts=prompts)
    by_text = {step.input.text: step for step in steps.values()}
    for number, draft in enumerate(drafts):
        assert by_text[f"Polish: {draft}"].sources == (by_text[f"{CASE} {number}"].id,)


@pytest.mark.parametrize("headers", [("a", "b"), ("b", "a")])
def test_equal_requests_under_unknown_node_names_have_ids_of_their_own_whatever_the_order(
    headers: tuple[str, str],
) -> None:
    calls = [call(PROMPTS["plan"], CASE, reply=header, at=at, node=header) for at, header in enumerate(headers, 1)]
    steps = build(*calls, answer="")
    assert [steps[each].output.text for each in ("plan", "plan~2")] == ["a", "b"]


def test_calls_that_continue_one_of_many_parallel_loops_find_it() -> None:
    first = [call(filled(), f"question {at}", reply=WANTED, at=10 + at, until=100, tools=[SEARCH]) for at in range(5)]
    talk = (Message("assistant", "", WANTED), Message("tool", "found", tool_request_id="c1"))
    then = [
        call(filled(), f"question {at}", *talk, reply=f"answer {at}", at=200 - at, tools=[SEARCH]) for at in range(5)
    ]
    steps = build(*first, *then, prompts={"write": PROMPTS["write"]})
    answers = {step.input.text: step.output.text for step in steps.values() if step.kind == "llm"}
    assert answers == {f"question {at}": f"answer {at}" for at in range(5)}


def test_a_prompt_whose_text_is_part_of_the_case_is_found_only_where_it_is_besides() -> None:
    prompts = {"plan": PROMPTS["plan"], "write": "return the kettle"}
    plan = call(prompts["plan"], f"{CASE}\n", reply=PLAN, at=1)
    steps = build(plan, call("Write it.", f"{CASE} {PLAN}", reply="Yes.", at=5), answer="Yes.", prompts=prompts)
    assert [(step.node_id, set(step.surface_reads or ())) for step in steps.values()] == [
        ("plan", {"plan#instruction"}),
        ("bot", set()),
        ("bot", {"write#instruction"}),
    ]
    steps = build(plan, call(prompts["write"], CASE, reply="Yes.", at=5), answer="Yes.", prompts=prompts)
    assert set(steps["write"].surface_reads or ()) == {"write#instruction"}
