from __future__ import annotations

from typing import Any

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.declarations import Tool
from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.loss import category_of
from promptiter.evaluation.data.case import ExpectedToolCall
from promptiter.evaluation.metrics.trajectory import TrajectoryCriterion, compare_tool_calls
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from promptiter.stages.contracts import AttributeRequest, SurfaceGradient
from promptiter.stages.losses import CaseLoss, Loss
from promptiter.structure import Surface
from tests.offline.attribution.cases import attribute, gradients, peer, request, step
from traces import Step, ToolCall
from traces.model import Json

SEARCH = Surface(node_id="agent", type="tool", part="search", value="Searches.")
WEATHER = Surface(node_id="agent", type="tool", part="weather", value="Tells the weather.")


def call(name: str, **arguments: Json) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, result="fine")


def run_of(*calls: ToolCall, planned: str = "weather in Berlin", said: str = "weather in Berlin") -> list[Step]:
    return [
        step("planner", said, planned),
        step("agent", planned, "It is fine.", after="planner", tool_calls=calls),
        step("end", "It is fine.", "It is fine.", after="agent"),
    ]


async def judged(
    steps: list[Step], *expected: ExpectedToolCall, ordered: bool = False, **more: Any
) -> list[SurfaceGradient]:
    criterion = TrajectoryCriterion(order_sensitive=ordered)
    findings = compare_tool_calls([made for each in steps for made in each.tool_calls], expected, criterion)
    assert findings
    return await gradients(request(steps, None, findings=findings, surfaces=[SEARCH, WEATHER], **more))


def wanted(name: str, **arguments: Json) -> ExpectedToolCall:
    return ExpectedToolCall(name=name, arguments=arguments)


async def test_a_missing_call_is_blamed_on_the_instruction_of_its_node() -> None:
    [gradient] = await judged(run_of(), wanted("weather", city="Berlin"))
    assert (gradient.surface_id, gradient.category) == ("agent#instruction", "wrong_tool")
    assert 'weather({"city":"Berlin"})' in gradient.text


async def test_without_such_a_target_it_is_blamed_on_the_instruction() -> None:
    [gradient] = await judged(run_of(), wanted("weather", city="Berlin"), targets=["agent#instruction"])
    assert gradient.surface_id == "agent#instruction"


async def test_a_call_in_place_of_another_is_one_fault() -> None:
    [gradient] = await judged(run_of(call("search", q="weather")), wanted("weather", city="Berlin"))
    assert gradient.surface_id == "agent#instruction"


async def test_a_needless_call_is_blamed_on_the_step_that_made_it() -> None:
    [gradient] = await judged(
        run_of(call("weather", city="Berlin"), call("search", q="x")), wanted("weather", city="Berlin")
    )
    assert (gradient.surface_id, gradient.category) == ("agent#instruction", "wrong_tool")


async def test_the_wrong_order_is_blamed_on_the_instruction() -> None:
    steps = run_of(call("weather", city="Berlin"), call("search", q="x"))
    found = await judged(steps, wanted("search", q="x"), wanted("weather", city="Berlin"), ordered=True)
    assert {gradient.surface_id for gradient in found} == {"agent#instruction"}
    assert {gradient.category for gradient in found} == {"wrong_tool"}


async def test_a_wrong_argument_is_the_callers_fault_if_it_received_the_right_one() -> None:
    [gradient] = await judged(run_of(call("weather", city="Paris")), wanted("weather", city="Berlin"))
    assert (gradient.surface_id, gradient.category) == ("agent#instruction", "wrong_arguments")
    assert "expected 'Berlin', got 'Paris'" in gradient.text


async def test_an_argument_that_was_lost_earlier_is_blamed_there() -> None:
    steps = run_of(call("weather", city="Paris"), planned="the weather")
    [gradient] = await judged(steps, wanted("weather", city="Berlin"))
    assert (gradient.surface_id, gradient.category) == ("planner#instruction", "response")
    assert "a later tool call needs, and its output lacks them: the city 'Berlin'" in gradient.text


async def test_a_missing_call_is_blamed_on_the_step_that_lost_its_argument() -> None:
    [gradient] = await judged(run_of(planned="the weather"), wanted("weather", city="Berlin"))
    assert gradient.surface_id == "planner#instruction"


async def test_a_wrong_argument_is_blamed_on_the_step_that_introduced_it() -> None:
    steps = run_of(call("weather", city="Paris"), planned="weather in Paris", said="weather at home")
    [gradient] = await judged(steps, wanted("weather", city="Berlin"))
    assert gradient.surface_id == "planner#instruction"
    assert "'Paris'" in gradient.text


async def test_a_wrong_result_blames_the_caller_with_low_confidence() -> None:
    from promptiter.evaluation.score import Finding

    steps = run_of(call("weather", city="Berlin"))
    finding = Finding(
        kind="wrong", expected="rain", actual="fine", where="tool call 0, result $", predicate="tool_result"
    )
    [gradient] = await gradients(request(steps, None, findings=[finding], surfaces=[WEATHER]))
    assert (gradient.surface_id, gradient.confidence) == ("agent#instruction", 0.3)


async def test_a_missing_call_is_blamed_on_the_node_that_makes_it_in_passing_runs() -> None:
    passing = peer([step("planner", "x", "y", tool_calls=(call("forecast"),)), step("end", "y", "z", after="planner")])
    [gradient] = await judged(run_of(), wanted("forecast"), peers=[passing])
    assert gradient.step_id == "planner"
    [gradient] = await judged(run_of(), wanted("forecast"))
    assert gradient.step_id == "agent"


async def test_what_the_answer_lacks_because_of_a_missing_call_is_not_blamed_on_the_answering_step() -> None:
    steps = run_of()
    findings = compare_tool_calls([], [wanted("weather", city="Berlin")], TrajectoryCriterion())
    asked = request(steps, "17 degrees", findings=[*findings], surfaces=[WEATHER])
    [loss] = asked.case_loss.losses
    answer = Loss(
        metric="exact", step_id="end", severity="P0", category="response", text="wrong", expected="17 degrees"
    )
    both = CaseLoss(case_id="c1", input=asked.case_loss.input, trace_digest="d", losses=(loss, answer))
    results = await attribute(
        AttributeRequest(
            case_loss=both,
            trace=asked.trace,
            snapshot=asked.snapshot,
            profile=asked.profile,
            targets=asked.targets,
        )
    )
    assert [gradient.surface_id for result in results for gradient in result.gradients] == ["agent#instruction"]


@pytest.mark.parametrize(
    ("made", "surface_id"),
    [(("search", {"query": "rain"}), "desk#instruction"), (("weather", {"city": "Paris"}), "desk#instruction")],
)
async def test_a_graph_agent_that_uses_the_wrong_tool(made: tuple[str, dict[str, str]], surface_id: str) -> None:
    def script(asked: ModelRequest) -> str | ModelReply:
        if asked.messages[0].content == "Answer." and asked.messages[-1].role == "user":
            return ModelReply(text="", tool_requests=(ToolRequest("1", *made),))
        return "It is fine in Berlin."

    tools = tuple(Tool(name=name, description=name, function=lambda **_: "fine") for name in ("search", "weather"))
    agent = GraphAgent(
        name="g",
        nodes=(
            ModelNode(name="plan", model="m", instruction="Plan."),
            ModelNode(name="desk", model="m", instruction="Answer.", tools=tools),
        ),
        edges=(Edge("plan", "desk"),),
    )
    snapshot = agent.describe()
    with Gateway(models={"m": ScriptedModel(script)}).active():
        run: AgentRun = await agent.run(CaseInput(text="Rain in Berlin?"), Profile.baseline(snapshot), RunContext())
    assert run.trace is not None
    findings = compare_tool_calls(run.tool_calls, [wanted("weather", city="Berlin")], TrajectoryCriterion())
    loss = Loss(
        metric="t",
        step_id="desk",
        severity="P0",
        category=category_of(findings),
        text="wrong calls",
        findings=findings,
    )
    asked = AttributeRequest(
        case_loss=CaseLoss(case_id="c", input="Rain in Berlin?", trace_digest="d", losses=(loss,)),
        trace=run.trace,
        snapshot=snapshot,
        profile=Profile.baseline(snapshot),
        targets=frozenset(snapshot.surface_ids),
    )
    assert [gradient.surface_id for gradient in await gradients(asked)] == [surface_id]


async def test_a_step_that_takes_the_blame_of_another_is_not_asked_to_call_its_tools() -> None:
    [gradient] = await judged(run_of(), wanted("weather", city="Berlin"), targets=["planner#instruction"])
    assert (gradient.surface_id, gradient.findings) == ("planner#instruction", ())
