"""Graphs: which node has the answer, how often a loop runs, what nodes read, and what their traces say about it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from typing import Any, NamedTuple

import pytest

import traces
from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Choice, Edge, FanOut, Join
from promptiter.agents.function import chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.errors import SetupError
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from traces import Failure, Step, TraceGraph


def function(name: str, does: Callable[..., Any] | None = None) -> FunctionNode:
    return FunctionNode(name=name, function=does or (lambda text: f"{name}({text})"))


def model(name: str, **options: Any) -> ModelNode:
    return ModelNode(name=name, instruction="", model="echo", **options)


async def run(subject: GraphAgent, text: str = "hi") -> AgentRun:
    echo = ScriptedModel(lambda request: f"<{request.messages[-1].content}>")
    with Gateway(models={"echo": echo}).active():
        return await subject.run(CaseInput(text=text), context=RunContext())


def steps(done: AgentRun) -> dict[str, Step]:
    assert done.error is None, done.error
    assert done.trace is not None
    return {step.id: step for step in done.trace.steps}


def kinds(step: Step) -> dict[str, str]:
    return {edge.source: edge.kind for edge in step.edges}


def router() -> GraphAgent:
    return GraphAgent(
        name="router",
        nodes=(function("entry"), function("refund"), function("repair")),
        edges=(
            Choice("entry", lambda context: context.input, {"refund": "refund", "repair": "repair", "both": "repair"}),
        ),
    )


async def test_the_answer_is_that_of_the_final_node_that_ran() -> None:
    assert (await run(router(), "refund")).output == "refund(entry(refund))"
    assert (await run(router(), "repair")).output == "repair(entry(repair))"


async def test_two_answers_are_an_error_that_names_both_nodes() -> None:
    both = GraphAgent(
        name="both",
        nodes=(function("entry"), function("a"), function("b")),
        edges=(
            Choice("entry", lambda _: "a", {"a": "a"}),
            Choice("entry", lambda context: "b" if context.input == "both" else None, {"b": "b"}),
        ),
    )
    assert (await run(both)).output == "a(entry(hi))"
    error = (await run(both, "both")).error
    assert error is not None
    assert error.message.startswith("the run of 'both' ended in several final nodes, 'a' and 'b'; join them, or name")


async def test_a_run_without_an_answer_names_the_final_nodes() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("entry"), function("a"), function("b")),
        edges=(Choice("entry", lambda _: None, {"a": "a", "b": "b"}),),
    )
    error = (await run(subject)).error
    assert error is not None
    assert error.message == "the run of 'g' ended before node 'a' or 'b' had run"


def revising(limit: int) -> GraphAgent:
    """A draft that is revised a number of times, without a node that counts."""
    return GraphAgent(
        name="revising",
        nodes=(model("draft", prompt="{input}{rewrite}"), model("rewrite"), function("finish", lambda draft: draft)),
        edges=(
            Choice(
                "draft",
                lambda context: "rewrite" if context.visits("rewrite") < limit else "finish",
                {"rewrite": "rewrite", "finish": "finish"},
            ),
            Edge("rewrite", "draft"),
        ),
    )


async def test_a_route_sees_visits_so_that_a_loop_ends_after_two_revisions() -> None:
    done = await run(revising(2))
    assert list(steps(done)) == ["draft", "rewrite", "draft~2", "rewrite~2", "draft~3", "finish"]
    assert done.output == "<hi<<hi<<hi>>>>>"  # a node that has not run yet is empty in a prompt


async def test_a_route_that_asks_for_an_unknown_node_is_a_wrong_setup() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("a"), function("b")),
        edges=(Choice("a", lambda context: "b" if context.visits("c") == 0 else None, {"b": "b"}),),
    )
    with pytest.raises(SetupError, match=r"visits\('c'\): no node has this name; known are a, b"):
        await run(subject)


async def test_a_route_that_returns_no_branch_is_an_error_of_the_case_that_says_what_to_return() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("a"), function("b"), function("c")),
        edges=(Choice("a", lambda context: context.outputs["a"], {"b": "b", "c": "c"}),),
    )
    done = await run(subject)
    message = (
        "the route after 'a' returned 'a(hi)', not one of its branches (b, c); choose a branch for other outputs too, "
        "or return None"
    )
    assert done.error == Failure("AgentError", message)


def join_all(draft: str, input: str, extra: int = 1) -> str:  # noqa: A002 - the name of the user's message
    return draft + input + str(extra)


async def test_a_function_node_records_the_arguments_it_got() -> None:
    subject = GraphAgent(
        name="desk",
        nodes=(
            function("draft"),
            function("tries", lambda _: 2),
            function("finish", join_all),
        ),
        edges=(Edge("draft", "tries"), Edge("tries", "finish")),
    )
    finish = steps(await run(subject))["finish"]
    assert finish.input.data == {"draft": "draft(hi)", "input": "hi"}
    assert finish.output.text == "draft(hi)hi1"
    assert kinds(finish) == {"draft": "data", "tries": "control"}


async def test_a_function_cannot_change_what_was_recorded_as_its_input() -> None:
    def spoil(plan: list[str]) -> str:
        plan.append("more")
        return "done"

    subject = chain("g", function("plan", lambda _: ["one"]), function("spoil", spoil))
    assert steps(await run(subject))["spoil"].input.data == ["one"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda plan: plan["steps"].append("more") or "done",
        lambda node_context: node_context.outputs["plan"]["steps"].append("more") or "done",
        lambda node_context: [each["steps"].append("more") for each in node_context.outputs.values()],
        lambda node_context: node_context.item.append("more") or "done",
        lambda item: item.append("more") or "done",
    ],
)
async def test_a_function_cannot_change_what_other_nodes_get(spoil: Callable[..., Any]) -> None:
    def take_steps(context: NodeContext) -> list[Any]:
        found = context.outputs["plan"]["steps"]
        found.append("from the fan-out")
        return [found]

    def route(context: NodeContext) -> str:
        context.outputs["plan"]["steps"].append("from the route")
        return "last"

    subject = GraphAgent(
        name="g",
        nodes=(
            function("plan", lambda _: {"steps": ["one"]}),
            function("spoil", spoil),
            function("last", lambda plan: plan),
        ),
        edges=(FanOut("plan", "spoil", items=take_steps), Choice("spoil", route, {"last": "last"})),
    )
    done = await run(subject)
    assert done.data == {"steps": ["one"]}
    assert steps(done)["last"].input.data == {"steps": ["one"]}


async def test_a_fan_out_over_a_text_is_refused_instead_of_run_for_each_letter() -> None:
    subject = GraphAgent(name="g", nodes=(function("plan"), function("work")), edges=(FanOut("plan", "work"),))
    error = (await run(subject)).error
    assert error is not None
    assert error.message.startswith("the fan-out after 'plan' got 'plan(hi)'; its items must be a list: return one ")


class Ticket(NamedTuple):
    id: int


@pytest.mark.parametrize(
    "value", [None, b"%PDF", {"a": (1, {2})}, Ticket(1), {"at": date(2024, 1, 1)}, 2**70, "\ud800"]
)
async def test_nodes_pass_on_any_data(value: Any) -> None:
    last = function("last", lambda first: f"got {first == value}")
    assert (await run(chain("g", function("first", lambda _: value), last))).output == "got True"


@pytest.mark.parametrize("value", [object(), [{"a": object()}], ValueError("no"), {object(): 1}, print])
async def test_a_node_that_returns_an_object_is_an_error_that_names_it(value: Any) -> None:
    done = await run(chain("g", function("first", lambda _: value), function("last", lambda _: "done")))
    assert done.error is not None
    assert done.error.message.startswith("'first' returned ")
    assert done.error.message.endswith(", which is not data; return a text, a dict or a list")
    assert done.trace is not None
    assert [step.id for step in done.trace.steps] == ["first"]


async def test_a_function_of_nothing_has_no_input_and_was_only_triggered() -> None:
    last = steps(await run(chain("g", function("first"), function("last", lambda: "done"))))["last"]
    assert (last.input.text, last.input.data, kinds(last)) == (None, None, {"first": "control"})


async def test_a_prompt_reads_the_nodes_that_it_names() -> None:
    subject = GraphAgent(
        name="desk",
        nodes=(model("plan"), model("check"), model("write", prompt="{plan} for {input}")),
        edges=(Edge("plan", "check"), Edge("check", "write")),
    )
    done = await run(subject)
    write = steps(done)["write"]
    assert (write.input.text, kinds(write)) == ("<hi> for hi", {"check": "control", "plan": "data"})
    assert write.predecessors == ("check", "plan")
    assert done.trace is not None
    graph = TraceGraph(done.trace).digraph
    assert ("data" in graph.edges["plan", "write"], "data" in graph.edges["check", "write"]) == (True, False)


async def test_the_data_of_a_loop_is_that_of_the_last_visit() -> None:
    done = await run(revising(1))
    assert steps(done)["finish"].predecessors == ("draft~2",)
    assert steps(done)["draft~2"].predecessors == ("rewrite",)


async def test_what_reads_exactly_what_triggered_it_has_no_edges() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(
            function("split", lambda _: ["x", "y"]),
            function("work", lambda item: item),
            model("side"),
            model("merge", prompt="{side} {work}"),
            chain("inner", function("a"), model("b")),
            function("look", lambda node_context: node_context.incoming),
        ),
        edges=(
            FanOut("split", "work"),
            Edge("split", "side"),
            Join(("work", "side"), "merge"),
            Edge("merge", "inner"),
            Edge("inner", "look"),
        ),
    )
    found = steps(await run(subject))
    assert {step.id for step in found.values() if step.edges} == set()
    assert found["merge"].predecessors == ("side", "work[0]", "work[1]")


DRAFT = {"draft": "data", "tries": "control"}
BOTH = {"draft": "data", "tries": "data"}
BOTH_OUTPUTS = {"draft": "draft(hi)", "tries": 2}


@pytest.mark.parametrize(
    ("look", "edges", "recorded"),
    [
        (lambda node_context: node_context.outputs["draft"], DRAFT, "draft(hi)"),
        (lambda node_context: node_context.outputs.get("none", ""), {"tries": "control"}, "hi"),
        (lambda node_context: node_context.outputs.get("draft"), DRAFT, "draft(hi)"),
        (lambda node_context: [*node_context.outputs], BOTH, BOTH_OUTPUTS),
        (lambda node_context: {**node_context.outputs}, BOTH, BOTH_OUTPUTS),
        (lambda node_context: dict(node_context.outputs.items()), BOTH, BOTH_OUTPUTS),
        (lambda node_context: node_context.outputs.copy(), BOTH, BOTH_OUTPUTS),
        (lambda node_context: f"{node_context.outputs}", BOTH, BOTH_OUTPUTS),
        (lambda node_context: node_context.incoming, {}, 2),
        (lambda node_context, draft: draft + node_context.input, DRAFT, "draft(hi)"),
        (lambda node_context, draft: [draft, node_context.outputs["tries"]], BOTH, BOTH_OUTPUTS),
    ],
)
async def test_what_a_function_looks_up_in_its_context_was_read_and_is_its_input(
    look: Callable[..., Any], edges: dict[str, str], recorded: Any
) -> None:
    subject = GraphAgent(
        name="desk",
        nodes=(function("draft"), function("tries", lambda _: 2), function("finish", look)),
        edges=(Edge("draft", "tries"), Edge("tries", "finish")),
    )
    finish = steps(await run(subject))["finish"]
    assert (kinds(finish), finish.input.data or finish.input.text) == (edges, recorded)


async def test_a_function_with_inner_steps_keeps_what_it_read_from_elsewhere() -> None:
    def polish(draft: str) -> str:
        with traces.step("polish", input=draft) as step:
            step.output = draft.upper()
        return draft.upper()

    subject = GraphAgent(
        name="desk",
        nodes=(function("draft"), function("tries", lambda _: 2), function("finish", polish)),
        edges=(Edge("draft", "tries"), Edge("tries", "finish")),
    )
    found = steps(await run(subject))
    assert found["finish/polish"].predecessors == ("tries",)
    assert kinds(found["finish"]) == {"draft": "data", "finish/polish": "data"}


async def test_a_parameter_named_after_a_node_that_did_not_run_is_not_the_input() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("a"), function("b"), function("last", lambda b: b)),
        edges=(Choice("a", lambda _: "last", {"b": "b", "last": "last"}), Edge("b", "last")),
    )
    error = (await run(subject)).error
    assert error is not None
    assert error.message == "node 'last' takes 'b', but no node of that name ran before it"


def test_a_misspelled_node_in_a_prompt_is_refused() -> None:
    with pytest.raises(SetupError, match=r"\{retreive\}, which is not a node \(did you mean 'retrieve'\?\)"):
        chain("g", model("retrieve"), model("write", prompt="{retreive}"))
    chain("g", model("retrieve"), model("write", prompt='{retrieve} as {"json": {x}}'))


async def test_a_nested_agent_with_a_profile_keeps_its_values() -> None:
    def show(node_context: NodeContext) -> str:
        return node_context.input

    inner = chain("inner", ModelNode(name="bot", instruction="baseline", model="echo"))
    bound = inner.with_profile(Profile.of(inner.describe(), {"bot#instruction": "bound"}))
    outer = chain("outer", function("show", show), bound)
    assert outer.describe().surface("inner/bot#instruction").value == "bound"
