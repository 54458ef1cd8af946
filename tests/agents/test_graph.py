from __future__ import annotations

import asyncio
import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.declarations import Parameter, Tool
from promptiter.agents.edges import Choice, Edge, FanOut, Join
from promptiter.agents.function import agent, ask, ask_sync, chain, node
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.agents.surface_scope import surface
from promptiter.errors import SetupError, StructureMismatchError, UnexpectedCallError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from traces import Failure, digest


def function(name: str, does: Any = None) -> FunctionNode:
    async def run(node_context: NodeContext) -> Any:
        await asyncio.sleep(random.random() / 500)
        return does(node_context) if does else f"{name}({node_context.incoming})"

    return FunctionNode(name=name, function=run)


def working_example() -> GraphAgent:
    """Planner fans out to retrieve and compose, reviewer joins them and sends back once."""
    return GraphAgent(
        name="desk",
        nodes=tuple(map(function, ("planner", "retrieve", "compose", "reviewer", "rewrite", "finalize"))),
        edges=(
            Edge("planner", "retrieve"),
            Edge("planner", "compose"),
            Join(("retrieve", "compose"), "reviewer"),
            Choice(
                "reviewer",
                lambda context: "finalize" if context.visits("rewrite") else "need_revision",
                ROUTES,
            ),
            Edge("rewrite", "planner"),
        ),
    )


ROUTES = {"need_revision": "rewrite", "finalize": "finalize"}


async def run(subject: GraphAgent, text: str = "hi", values: dict[str, Any] | None = None, **context: Any) -> AgentRun:
    profile = Profile.of(subject.describe(), values or {})
    return await subject.run(CaseInput(text=text), profile, RunContext(**context))


def shape(done: AgentRun) -> dict[str, tuple[str, ...]]:
    assert done.trace is not None
    return {step.id: step.predecessors for step in done.trace.steps}


@pytest.mark.parametrize("seed", range(4))
async def test_the_working_example_has_exactly_the_steps_of_the_guide(seed: int) -> None:
    random.seed(seed)
    done = await run(working_example())
    assert done.error is None
    assert shape(done) == {
        "planner": (),
        "retrieve": ("planner",),
        "compose": ("planner",),
        "reviewer": ("compose", "retrieve"),
        "rewrite": ("reviewer",),
        "planner~2": ("rewrite",),
        "retrieve~2": ("planner~2",),
        "compose~2": ("planner~2",),
        "reviewer~2": ("compose~2", "retrieve~2"),
        "finalize": ("reviewer~2",),
    }


def test_the_structure_has_the_edges_of_the_guide() -> None:
    edges = {(edge.source, edge.target, edge.condition) for edge in working_example().describe().edges}
    assert edges == {
        ("planner", "retrieve", None),
        ("planner", "compose", None),
        ("retrieve", "reviewer", None),
        ("compose", "reviewer", None),
        ("reviewer", "rewrite", "need_revision"),
        ("reviewer", "finalize", "finalize"),
        ("rewrite", "planner", None),
    }


async def test_a_join_sees_the_outputs_of_all_its_sources() -> None:
    seen: list[NodeContext] = []

    def look(node_context: NodeContext) -> str:
        seen.append(node_context)
        return "done"

    subject = GraphAgent(
        name="g",
        nodes=(function("a"), function("b"), function("c"), function("end", look)),
        edges=(Edge("a", "b"), Edge("a", "c"), Join(("b", "c"), "end")),
    )
    await run(subject)
    assert seen[0].outputs == {"a": "a(hi)", "b": "b(a(hi))", "c": "c(a(hi))"}
    assert seen[0].incoming == {"b": "b(a(hi))", "c": "c(a(hi))"}


async def test_a_fan_out_runs_once_per_item_and_is_followed_once() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("split", lambda _: ["x", "y", "z"]), function("work"), function("merge")),
        edges=(FanOut("split", "work"), Edge("work", "merge")),
    )
    done = await run(subject)
    assert shape(done)["merge"] == ("work[0]", "work[1]", "work[2]")
    assert done.output == "merge(['work(x)', 'work(y)', 'work(z)'])"


async def test_a_fan_out_over_nothing_continues() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("split", lambda _: []), function("work"), function("merge")),
        edges=(FanOut("split", "work"), Edge("work", "merge")),
    )
    done = await run(subject)
    assert (done.output, shape(done)["merge"]) == ("merge([])", ("split",))


async def test_an_endless_loop_ends_with_advice() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("a"), function("b"), function("end")),
        edges=(Edge("a", "b"), Choice("b", lambda _: "again", {"again": "a", "stop": "end"})),
        max_visits=5,
    )
    done = await run(subject)
    assert done.error is not None
    assert "'a' was reached more than 5 times" in done.error.message
    assert len(shape(done)) == 10


async def test_agents_nest_and_their_surfaces_too() -> None:
    inner = chain("inner", node(instruction="be brief")(shout), function("last"))
    outer = GraphAgent(name="outer", nodes=(function("ask"), inner), edges=(Edge("ask", "inner"),))
    assert outer.describe().surface_ids == ("inner/shout#instruction",)
    done = await run(outer, values={"inner/shout#instruction": "be loud"})
    assert done.output == "last(be loud: ask(hi))"
    assert shape(done) == {
        "ask": (),
        "inner/shout": ("ask",),
        "inner/last": ("inner/shout",),
        "inner": ("inner/last",),
    }


def shout(text: str) -> str:
    return f"{surface('instruction')}: {text}"


async def test_five_lines_make_an_agent() -> None:
    @agent(instruction="Answer in one word.")
    async def support(question: str) -> str:
        return await ask(question, instruction=surface("instruction"), model="scripted")

    model = ScriptedModel({"Answer in one word.": "Yes", "Shout.": "YES"})
    with Gateway(models={"scripted": model}).active():
        assert (await run(support)).output == "Yes"
        done = await run(support, values={"support#instruction": "Shout."})
    assert done.output == "YES"
    assert done.trace is not None
    assert done.trace.steps[0].surface_reads == {"support#instruction": digest("Shout.")}
    assert support.describe().surface("support#instruction").value == "Answer in one word."


async def test_a_chain_of_plain_functions_is_an_agent() -> None:
    def upper(text: str) -> str:
        return text.upper()

    def exclaim(text: str) -> str:
        return text + "!"

    done = await run(chain("loud", upper, exclaim))
    assert (done.output, shape(done)) == ("HI!", {"upper": (), "exclaim": ("upper",)})


async def test_synchronous_nodes_ask_models_from_their_thread() -> None:
    def support(question: str) -> str:
        return ask_sync(question, model="scripted")

    with Gateway(models={"scripted": ScriptedModel(["Yes"])}).active():
        done = await run(chain("support", support))
    assert done.output == "Yes"
    assert done.trace is not None
    assert done.trace.steps[0].usage is not None


def model_agent(**options: Any) -> GraphAgent:
    return chain("bot", ModelNode(name="bot", instruction="Help.", model="scripted", **options))


async def test_a_model_node_sends_the_values_of_its_surfaces() -> None:
    model = ScriptedModel(["first", "second"])
    subject = model_agent(
        examples=(Message("user", "2+2"), Message("assistant", "4")),
        parameters={"temperature": Parameter(value=0.5, minimum=0, maximum=1)},
    )
    with Gateway(models={"scripted": model}).active():
        await run(subject)
        changed = {"bot#instruction": "Help more.", "bot#examples": [], "bot#parameter.temperature": 0.1}
        await run(subject, values=changed)
    first, second = model.requests
    assert [message.content for message in first.messages] == ["Help.", "2+2", "4", "hi"]
    assert [message.content for message in second.messages] == ["Help more.", "hi"]
    assert (first.options["temperature"], second.options["temperature"]) == (0.5, 0.1)


async def test_tool_calls_are_recorded_and_answered_by_the_tool() -> None:
    def script(request: ModelRequest) -> ModelReply | str:
        if request.messages[-1].role == "tool":
            return f"It is {request.messages[-1].content}"
        wishes = (ToolRequest("c1", "weather", {"city": "Rome"}), ToolRequest("c2", "nothing", {}))
        return ModelReply(tool_requests=wishes)

    def weather(city: str) -> str:
        return f"sunny in {city}"

    tool = Tool(name="weather", description="Tell the weather.", function=weather)
    with Gateway(models={"scripted": ScriptedModel(script)}).active():
        done = await run(model_agent(tools=(tool,)))
    assert [(call.name, call.result) for call in done.tool_calls] == [
        ("weather", "sunny in Rome"),
        ("nothing", {"error": "there is no tool 'nothing'; known are weather"}),
    ]
    assert "bot#tool.weather" in (done.trace.steps[0].surface_reads or {} if done.trace else {})


async def test_a_tool_that_fails_is_reported_to_the_model() -> None:
    def script(request: ModelRequest) -> ModelReply | str:
        last = request.messages[-1]
        return last.content if last.role == "tool" else ModelReply(tool_requests=(ToolRequest("c1", "broken", {}),))

    def broken() -> str:
        raise OSError("no network")

    tool = Tool(name="broken", description="", function=broken)
    with Gateway(models={"scripted": ScriptedModel(script)}).active():
        done = await run(model_agent(tools=(tool,)))
    assert done.output == '{"error":"OSError: no network"}'


async def test_two_candidates_run_at_once_without_touching_each_other() -> None:
    @agent(instruction="baseline")
    async def echo(text: str) -> str:
        first = surface("instruction")
        await asyncio.sleep(0.001)
        assert surface("instruction") == first
        return f"{first} {text}"

    done = await asyncio.gather(*(run(echo, str(n), {"echo#instruction": f"v{n}"}) for n in range(50)))
    assert [each.output for each in done] == [f"v{n} {n}" for n in range(50)]
    assert (await run(echo)).output == "baseline hi"


async def test_a_node_with_a_version_runs_once_per_arguments_and_surfaces() -> None:
    ran: list[str] = []

    def index(text: str) -> str:
        ran.append(text)
        return f"{surface('instruction')}: {text}"

    def subject(version: str | None) -> GraphAgent:
        declared: Any = {"instruction": "by word"}
        return chain("g", FunctionNode(name="index", function=index, declared=declared, version=version))

    with Gateway().active():
        for text in ("a", "a", "b"):
            await run(subject("1"), text)
        assert ran == ["a", "b"]
        changed = await run(subject("1"), "a", {"index#instruction": "by line"})
        assert changed.output == "by line: a"
        await run(subject("2"), "a")
        assert ran == ["a", "b", "a", "a"]
        done = await run(subject("2"), "a")
        assert done.trace is not None
        assert done.trace.steps[0].surface_reads == {"index#instruction": digest("by word")}
        for _ in range(2):
            await run(subject(None), "a")
    assert len(ran) == 6


def wrap_any(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **options: Any) -> Any:
        return wrapped(*args, **options)

    return call


def wrap_one(wrapped: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(wrapped)
    def call(text: str) -> Any:
        return wrapped(text)

    return call


def exclaim(question: str, /, *, sign: str = "!") -> str:
    return question + sign


@pytest.mark.parametrize(
    ("called", "answer"),
    [
        (wrap_any(exclaim), "hi!"),
        (wrap_one(lambda question: question + "?"), "hi?"),
        (exclaim, "hi!"),
        (functools.partial(exclaim, sign="."), "hi."),
        (str.upper, "HI"),
        (len, "2"),
        (str, "hi"),
        (max, "i"),
    ],
)
async def test_functions_are_called_as_people_would_call_them(called: Callable[..., Any], answer: str) -> None:
    subject = chain("g", FunctionNode(name="only", function=called))
    done = await run(subject)
    assert (done.error, done.output) == (None, answer)
    assert done.trace is not None
    assert done.trace.steps[0].input.text == "hi"


async def test_a_builtin_is_part_of_a_chain() -> None:
    assert (await run(chain("g", str.upper, len))).output == "2"


async def test_an_error_of_a_node_is_the_error_of_the_run() -> None:
    def broken(text: str) -> str:
        raise ValueError(f"cannot do {text}")

    done = await run(chain("bad", broken))
    assert done.error == Failure("ValueError", "cannot do hi")
    assert done.trace is not None
    assert done.trace.status == "failed"


@pytest.mark.parametrize("first", ["b", "c"])
async def test_of_several_failures_the_first_in_the_graph_is_reported_whatever_the_timing(first: str) -> None:
    async def broken(node_context: NodeContext, name: str) -> str:
        await asyncio.sleep(0 if name == first else 0.02)
        raise ValueError(f"{name} failed after {node_context.input}")

    def failing(name: str) -> FunctionNode:
        return FunctionNode(name=name, function=lambda node_context: broken(node_context, name))

    subject = GraphAgent(
        name="g",
        nodes=(function("a"), failing("b"), failing("c"), function("d"), function("end")),
        edges=(Edge("a", "b"), Edge("a", "c"), Edge("a", "d"), Join(("b", "c", "d"), "end")),
    )
    done = await run(subject)
    assert done.error == Failure("ValueError", "b failed after hi")
    assert sorted(shape(done)) == ["a", "b", "c", "d"]


async def test_a_deadline_leaves_an_incomplete_trace() -> None:
    async def slow(text: str) -> str:
        await asyncio.sleep(30)
        return text

    done = await run(chain("slow", slow), deadline_s=0.02)
    assert done.error == Failure("TimeoutError", "no answer in 0.02 s")
    assert done.trace is not None
    assert done.trace.status == "incomplete"


async def test_a_call_that_is_not_in_the_script_fails_the_test() -> None:
    with Gateway(models={"scripted": ScriptedModel([])}).active(), pytest.raises(UnexpectedCallError, match="'hi'"):
        await run(model_agent())


async def test_a_profile_of_another_structure_is_refused_by_name() -> None:
    other = Profile.of(chain("x", node(instruction="")(shout)).describe(), {"shout#instruction": "a"})
    with pytest.raises(StructureMismatchError, match="the agent has no shout#instruction"):
        await working_example().run(CaseInput(text="hi"), other, RunContext())


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (("a", "a"), (), "must be unique"),
        ((), (), "has no nodes"),
        (("a", "b"), (), "no edge leads to 'b'"),
        (("a", "b", "c"), (Edge("a", "b"), Edge("a", "c")), "always ends in 'b' and 'c'.*join them, or name the node"),
        (("a", "b"), (Edge("a", "b"), Edge("b", "a")), "an edge leaves every node; name the one with the answer"),
        (("a",), (Edge("a", "b"),), "names 'b', which is not a node"),
    ],
)
def test_graphs_that_cannot_run_are_refused(nodes: tuple[str, ...], edges: tuple[Edge, ...], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        GraphAgent(name="g", nodes=tuple(map(function, nodes)), edges=edges)


def test_a_function_with_unknown_parameters_is_refused() -> None:
    def compose(plan: str, notes: str) -> str:
        return plan + notes

    with pytest.raises(SetupError, match="takes plan, notes, which are not nodes"):
        chain("g", compose)


async def test_a_failing_item_does_not_stop_the_others() -> None:
    finished: list[str] = []

    async def work(item: str) -> str:
        if item == "bad":
            raise ValueError("boom")
        await asyncio.sleep(0.02)
        finished.append(item)
        return item

    subject = GraphAgent(
        name="g",
        nodes=(function("split", lambda _: ["bad", "good"]), FunctionNode(name="work", function=work)),
        edges=(FanOut("split", "work"),),
    )
    assert (await run(subject)).error == Failure("ValueError", "boom")
    assert finished == ["good"]  # the other item finishes, whenever the first one failed


async def test_none_is_an_item_too() -> None:
    def show(item: Any) -> str:
        return repr(item)

    subject = GraphAgent(
        name="g",
        nodes=(function("split", lambda _: ["a", None]), FunctionNode(name="work", function=show)),
        edges=(FanOut("split", "work"),),
    )
    assert (await run(subject)).data == ["'a'", "None"]


async def test_a_join_that_never_fires_is_reported() -> None:
    subject = GraphAgent(
        name="g",
        nodes=(function("a"), function("b"), function("c"), function("end")),
        edges=(Edge("a", "b"), Choice("a", lambda _: None, {"c": "c"}), Join(("b", "c"), "end")),
    )
    error = (await run(subject)).error
    assert error is not None
    assert "the join before 'end' is still waiting" in error.message


async def test_a_run_cannot_change_the_values_of_another() -> None:
    @agent(examples=[{"role": "user", "content": "x"}])
    def greedy(_: str) -> int:
        examples = surface("examples")
        examples.append({"role": "user", "content": "more"})
        return len(examples)

    assert [(await run(greedy)).data for _ in range(3)] == [2, 2, 2]
    assert len(greedy.describe().surfaces[0].value) == 1


async def test_a_deadline_ends_a_loop_whose_nodes_never_wait() -> None:
    async def busy(_text: str) -> str:
        return "again"

    endless = GraphAgent(
        name="endless",
        nodes=(FunctionNode(name="busy", function=busy), function("end")),
        edges=(Choice("busy", lambda _: "again", {"again": "busy", "end": "end"}),),
        max_visits=1_000_000,
    )
    done = await run(endless, deadline_s=0.02)
    assert done.error == Failure("TimeoutError", "no answer in 0.02 s")


async def test_a_timeout_error_of_the_agent_is_not_mistaken_for_its_deadline() -> None:
    def locked(_: str) -> str:
        raise TimeoutError("database lock on orders")

    assert (await run(chain("g", locked), deadline_s=60)).error == Failure("TimeoutError", "database lock on orders")


async def test_a_function_that_returns_a_coroutine_is_awaited() -> None:
    async def later(text: str) -> str:
        return text.upper()

    class Lazy:
        def __call__(self, text: str) -> Any:
            return later(text)

    subject = chain("g", FunctionNode(name="lazy", function=Lazy()))
    assert (await run(subject)).output == "HI"


async def test_a_cached_node_does_not_keep_an_outage() -> None:
    answers: Iterator[Exception | str] = iter([ConnectionError("down"), "up"])

    def look_up(_: str) -> str:
        if isinstance(answer := next(answers), Exception):
            raise answer
        return answer

    subject = chain("g", FunctionNode(name="look_up", function=look_up, version="1"))
    with Gateway().active():
        lost, made_again = await run(subject), await run(subject)
    assert lost.error is not None
    assert lost.error.is_outage
    assert made_again.output == "up"


async def test_a_cached_node_keeps_its_usage() -> None:
    async def think(text: str) -> str:
        return await ask(text, model="scripted")

    subject = chain("g", FunctionNode(name="think", function=think, version="1"))
    with Gateway(models={"scripted": ScriptedModel(["one two"])}).active():
        cold, warm = await run(subject), await run(subject)
    assert cold.usage == warm.usage
    assert cold.usage.output_tokens == 2


async def test_a_node_whose_source_did_not_run_on_this_path_fails_only_its_case() -> None:
    def late(a: str, b: str) -> str:
        return a + b

    subject = GraphAgent(
        name="g",
        nodes=(function("a"), function("b"), FunctionNode(name="late", function=late)),
        edges=(Choice("a", lambda _: "late", {"b": "b", "late": "late"}), Edge("b", "late")),
    )
    error = (await run(subject)).error
    assert error == Failure("AgentError", "node 'late' takes 'b', but no node of that name ran before it")
