"""Decorated functions: called as before, with the baseline or a profile, in production and inside other agents."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import traces
from promptiter.agents.base import CaseInput, RunContext
from promptiter.agents.declarations import Parameter, Tool
from promptiter.agents.edges import Edge
from promptiter.agents.function import agent, ask, ask_sync, chain, node
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.agents.surface_scope import surface
from promptiter.errors import AgentError, SetupError, StructureMismatchError, UnknownSurfaceError
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest, ToolRequest
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from promptiter.references import find_reference, load_reference
from traces import digest


@agent(instruction="Be brief.")
async def triage(question: str, *, shout: bool = False) -> str:
    """Answer a question."""
    await asyncio.sleep(0)
    answer = f"{surface('instruction')} {question}"
    return answer.upper() if shout else answer


@agent(instruction={"plan": "Plan.", "write": "Write."}, parameter={"depth": Parameter(value=2), "width": 3})
def write(question: str) -> list[Any]:
    with traces.step("planning"):
        plan = surface("instruction.plan")
    return [plan, surface("instruction.write"), surface("parameter.depth"), surface("parameter.width"), question]


def loud(profile: str = "Be loud.") -> Profile:
    return Profile.of(triage.describe(), {"triage#instruction": profile})


async def test_a_decorated_function_is_called_as_before() -> None:
    assert await triage("hi") == "Be brief. hi"
    assert await triage(question="hi", shout=True) == "BE BRIEF. HI"
    assert (triage.__name__, triage.__doc__) == ("triage", "Answer a question.")
    assert list(inspect.signature(triage).parameters) == ["question", "shout"]


def test_a_synchronous_function_stays_synchronous_and_returns_what_it_returns() -> None:
    assert write("hi") == ["Plan.", "Write.", 2, 3, "hi"]


def test_agents_can_be_keys_of_dicts_as_functions_can() -> None:
    graph, again = (chain("graph", ModelNode(name="bot", instruction="Answer.")) for _ in range(2))
    handlers = {triage: 1, triage.with_profile(loud()): 2, write: 3, graph: 4, again: 5}
    assert handlers == {triage: 1, triage.with_profile(loud()): 2, write: 3, graph: 5}


async def test_a_call_uses_the_active_profile_of_its_structure() -> None:
    other = Profile.of(write.describe(), {"write#instruction.plan": "Plan twice."})
    with loud().active(), other.active():
        assert await triage("hi") == "Be loud. hi"
        assert write("hi")[:2] == ["Plan twice.", "Write."]
        with loud("Be louder.").active():
            assert await triage("hi") == "Be louder. hi"
        late = triage("hi")
    assert await triage("hi") == "Be brief. hi"
    assert await late == "Be loud. hi"  # the profile of the call, not of the await


async def test_an_agent_with_a_profile_has_it_as_its_baseline_and_ignores_active_ones(tmp_path: Path) -> None:
    loud().save(tmp_path / "best.json")
    served = triage.with_profile(tmp_path / "best.json")
    with loud("Be silent.").active():
        assert await served("hi") == "Be loud. hi"
    assert served.describe().structure_id == triage.describe().structure_id
    assert served.describe().surface("triage#instruction").value == "Be loud."
    assert (await served.run(CaseInput(text="hi"))).output == "Be loud. hi"
    again = served.with_profile(Profile.of(served.describe(), {"triage#instruction": "Be kind."}))
    assert await again("hi") == "Be kind. hi"
    assert await triage("hi") == "Be brief. hi"


async def test_an_agent_that_activates_a_profile_for_itself_is_called_with_it() -> None:
    @agent(instruction="baseline")
    def fix(question: str) -> str:
        if question == "end":
            return str(surface("instruction"))
        with Profile.of(fix.describe(), {"fix#instruction": "other"}).active():
            other = fix("end")
        return f"{surface('instruction')} {other} {fix('end')}"

    candidate = Profile.of(fix.describe(), {"fix#instruction": "candidate"})
    with loud().active():  # of another agent
        assert (await fix.run(CaseInput(text="hi"), candidate)).output == "candidate other candidate"
    with candidate.active():
        assert fix("hi") == "candidate other candidate"
        assert (await fix.run(CaseInput(text="hi"), Profile.baseline(fix.describe()))).output == (
            "baseline other baseline"
        )


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
async def test_a_call_that_is_cancelled_before_it_starts_leaves_nothing_behind() -> None:
    task = asyncio.ensure_future(triage("hi"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    gc.collect()  # a coroutine that was never awaited would warn


def test_an_async_function_is_known_as_one() -> None:
    for each in (triage, triage.with_profile(loud())):
        assert asyncio.iscoroutinefunction(each)
        assert inspect.iscoroutinefunction(each) == (sys.version_info >= (3, 12))  # before, only functions can be
    assert not asyncio.iscoroutinefunction(write)


async def test_a_profile_of_another_agent_is_never_ignored_silently() -> None:
    other = Profile.of(write.describe(), {"write#instruction.plan": "Plan twice."})
    with other.active(), pytest.raises(StructureMismatchError, match=r"the agent has no write#instruction\.plan"):
        await triage("hi")
    with pytest.raises(StructureMismatchError):
        triage.with_profile(other)


async def test_the_profile_of_an_inner_agent_needs_one_of_the_outer() -> None:
    @agent(instruction="Pass on.")
    async def desk(question: str) -> str:
        return f"{surface('instruction')} {await triage(question)}"

    advice = r"for an agent that 'desk' calls, activate a profile of 'desk', too, such as Profile\.baseline"
    with loud().active():
        with pytest.raises(StructureMismatchError, match=advice):
            await desk("hi")
        with Profile.baseline(desk.describe()).active():
            assert await desk("hi") == "Pass on. Be loud. hi"
        assert await desk.with_profile(Profile.baseline(desk.describe()))("hi") == "Pass on. Be loud. hi"


async def test_calls_with_different_profiles_do_not_affect_each_other() -> None:
    async def call(number: int) -> str:
        with loud(f"v{number}").active():
            return await triage(str(number))

    assert await asyncio.gather(*map(call, range(50))) == [f"v{number} {number}" for number in range(50)]
    served = [triage.with_profile(loud(f"v{number}")) for number in range(20)]
    with ThreadPoolExecutor() as threads:
        answers = threads.map(lambda number: asyncio.run(served[number](str(number))), range(20))
    assert list(answers) == [f"v{number} {number}" for number in range(20)]


def test_parts_have_ids_and_bounds_of_their_own() -> None:
    snapshot = write.describe()
    assert snapshot.surface_ids == (
        "write#instruction.plan",
        "write#instruction.write",
        "write#parameter.depth",
        "write#parameter.width",
    )
    assert snapshot.surface("write#parameter.depth").limits.kind == "integer"


async def test_a_nested_step_reads_and_records_the_surfaces_of_its_function() -> None:
    run = await write.run(CaseInput(text="hi"))
    assert run.trace is not None
    reads = {step.id: step.surface_reads for step in run.trace.steps}
    assert reads["write/planning"] == {"write#instruction.plan": digest("Plan.")}
    assert reads["write"] == {
        "write#instruction.write": digest("Write."),
        "write#parameter.depth": digest(2),
        "write#parameter.width": digest(3),
    }


async def test_a_step_around_a_question_has_its_prompt_as_input_and_its_answer_as_output() -> None:
    @agent(instruction={"plan": "Plan.", "draft": "Draft."})
    async def compose(question: str) -> str:
        with traces.step("plan"):
            plan = await ask(question, instruction=surface("instruction.plan"), model="shout")
        with traces.step("draft", input={"plan": plan}) as step:
            draft = await ask(plan, instruction=surface("instruction.draft"), model="shout")
            step.output = f"{draft}?"
        with traces.step("both"):
            first, second = await asyncio.gather(ask("slow", model="shout"), ask("fast", model="shout"))
            await asyncio.to_thread(ask_sync, f"{first} {second}", model="shout")
        return draft

    async def shout(messages: Sequence[dict[str, str]]) -> str:
        await asyncio.sleep(0.01 if messages[-1]["content"] == "slow" else 0)
        return messages[-1]["content"] + "!"

    with Gateway(models={"shout": shout}).active():
        run = await compose.run(CaseInput(text="hi"))
    assert run.trace is not None
    assert [(step.node_id, step.input.data or step.input.text, step.output.text) for step in run.trace.steps] == [
        ("plan", "hi", "hi!"),
        ("draft", {"plan": "hi!"}, "hi!!?"),
        ("both", "slow", "slow! fast!!"),
        ("compose", "hi", "hi!!"),
    ]


async def test_an_unknown_part_is_refused_with_the_known_ones() -> None:
    @agent(instruction={"plan": "Plan.", "write": "Write."})
    async def two(question: str) -> str:
        return str(surface("instruction")) + question

    with pytest.raises(UnknownSurfaceError, match=r"'two#instruction'.*known are two#instruction\.plan, two#instruc"):
        await two("hi")
    with pytest.raises(UnknownSurfaceError, match=r"known are two#instruction\.plan"):
        await two.run(CaseInput(text="hi"))


def test_prompts_under_names_of_their_own_are_refused_with_how_to_write_them() -> None:
    with pytest.raises(SetupError, match=r'instruction=\{"plan": "\.\.\.", "write": "\.\.\."\}'):
        agent(plan="...", write="...")
    with pytest.raises(SetupError, match="by the names of its parts"):
        agent(instruction={"": "..."})


def test_generators_and_methods_are_refused() -> None:
    async def stream(question: str) -> AsyncIterator[str]:
        yield question

    class Bot:
        def answer(self, question: str) -> str:
            return question

    with pytest.raises(SetupError, match="stream yields its answer in parts; return the whole answer"):
        agent(instruction="...")(stream)
    with pytest.raises(SetupError, match=r"Bot\.answer is a method; decorate a function"):
        agent(instruction="...")(Bot.answer)


def test_a_surface_is_not_read_outside_of_a_run() -> None:
    with pytest.raises(SetupError, match="was read outside of a run"):
        surface("instruction")

    @agent()
    def empty(question: str) -> str:
        return str(surface("instruction")) + question

    with pytest.raises(SetupError, match="'empty' has no surfaces; declare them"):
        empty("hi")


async def test_models_are_asked_without_a_cache_and_tools_too() -> None:
    @agent(instruction="Count.")
    async def count(question: str) -> str:
        return await ask(question, instruction=surface("instruction"), model="scripted")

    with Gateway(models={"scripted": ScriptedModel(["one", "two"])}).active():
        assert [await count("hi"), await count("hi")] == ["one", "two"]


async def test_a_graph_is_called_with_a_message() -> None:
    called: list[str] = []

    def script(request: ModelRequest) -> ModelReply | str:
        if request.messages[-1].role == "tool":
            return f"{request.messages[0].content} {request.messages[-1].content}"
        return ModelReply(tool_requests=(ToolRequest("c1", "weather", {"city": "Rome"}),))

    def weather(city: str) -> str:
        called.append(city)
        return "sunny"

    tool = Tool(name="weather", description="Tell the weather.", function=weather)
    desk = chain(
        "desk",
        ModelNode(name="bot", instruction="Help.", model="scripted", tools=(tool,)),
        FunctionNode(name="pack", function=lambda bot: {"answer": bot}),
    )
    with Gateway(models={"scripted": ScriptedModel(script)}).active():
        assert await desk("hi") == {"answer": "Help. sunny"}
        served = desk.with_profile(Profile.of(desk.describe(), {"bot#instruction": "Tell."}))
        assert await served(CaseInput(text="hi")) == {"answer": "Tell. sunny"}
    assert called == ["Rome", "Rome"]  # production never answers from the cache


async def test_an_error_is_raised_as_it_is() -> None:
    @agent()
    async def broken(question: str) -> str:
        raise KeyError(question)

    for subject in (broken, chain("outer", broken)):
        with pytest.raises(KeyError, match="hi"):
            await subject("hi")


def test_a_synchronous_function_asks_models_in_production_without_an_event_loop() -> None:
    @agent(instruction="Help.")
    def support(question: str) -> str:
        return ask_sync(question, instruction=surface("instruction"), model="scripted")

    def call(number: int) -> None:
        with gateway.active():
            answers[number] = support(str(number))

    answers: dict[int, str] = {}
    gateway = Gateway(models={"scripted": ScriptedModel(lambda request: request.messages[-1].content)})
    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == {number: str(number) for number in range(8)}


async def test_a_synchronous_question_in_an_event_loop_is_refused_instead_of_blocking_it() -> None:
    @agent()
    def support(question: str) -> str:
        return ask_sync(question, model="scripted")

    with Gateway(models={"scripted": ScriptedModel(["Yes"])}).active():
        with pytest.raises(SetupError, match="would block the event loop"):
            support("hi")
        assert await asyncio.to_thread(support, "hi") == "Yes"


async def test_a_function_that_another_agent_calls_has_its_own_surfaces_and_the_calls_of_that_step() -> None:
    @agent(instruction="inner")
    async def inner(question: str) -> str:
        return await ask(f"{surface('instruction')} {question}", model="scripted")

    graph = chain("graph", ModelNode(name="bot", instruction="graph", model="scripted"))

    @agent(instruction="outer")
    async def outer(question: str) -> str:
        both = await asyncio.gather(inner(question), graph(question))
        return f"{surface('instruction')}: {', '.join(both)}"

    model = ScriptedModel(lambda request: f"<{request.text}>")
    profile = Profile.of(outer.describe(), {"outer#instruction": "changed"})
    with Gateway(models={"scripted": model}).active():
        for repeat in (0, 0, 1):
            run = await outer.run(CaseInput(text="hi"), profile, RunContext(case_id="c", repeat=repeat))
            assert run.output == "changed: <inner hi>, <graph\nhi>"
            assert run.trace is not None
            assert [step.id for step in run.trace.steps] == ["outer"]
            assert run.usage.output_tokens == 4  # of both
        assert len(model.requests) == 4  # the second run was answered from the cache, the second repeat was not
        with profile.active(), Profile.of(inner.describe(), {"inner#instruction": "served"}).active():
            assert await outer("hi") == "changed: <served hi>, <graph\nhi>"


async def test_steps_of_a_function_are_not_recorded_in_production() -> None:
    seen: list[str] = []

    @agent(instruction="Look.")
    async def look(question: str) -> str:
        async def search(number: int) -> str:
            with traces.step("search") as step:  # in a run, parallel steps need an index
                with step.call_tool("find", {"number": number}) as call:
                    call.result = surface("instruction")
                step.output = call.result
                seen.append(traces.read_surface("look#instruction"))
                return f"{step.output}{number}"

        return question + "".join(await asyncio.gather(*map(search, range(3))))

    assert await look("hi ") == "hi Look.0Look.1Look.2"
    assert seen == ["Look."] * 3
    assert await asyncio.to_thread(lambda: asyncio.run(look("hi "))) == "hi Look.0Look.1Look.2"


async def test_an_agent_that_records_itself_inside_a_function_reads_its_own_surfaces() -> None:
    @agent(instruction="outer")
    async def outer(question: str) -> str:
        with traces.record("inside", resolve={"bot#instruction": "inner"}.__getitem__), traces.step("bot"):
            inside = surface("instruction")
        return f"{inside} {surface('instruction')} {question}"

    assert await outer("hi") == "inner outer hi"
    assert (await outer.run(CaseInput(text="hi"))).output == "inner outer hi"


def test_the_function_behind_a_decorated_one_can_be_imported_elsewhere() -> None:
    served = triage.with_profile(loud())
    [only] = served.nodes
    assert isinstance(only, FunctionNode)
    reference = find_reference(only.function)
    assert reference == "tests.agents.test_function:triage.__wrapped__"
    assert load_reference(reference) is only.function


async def test_a_decorated_function_is_a_node_of_a_graph() -> None:
    @node(instruction="first")
    def first(question: str) -> str:
        return f"{surface('instruction')}({question})"

    both = GraphAgent(name="both", nodes=(first, triage), edges=(Edge("first", "triage"),))
    assert both.describe().surface_ids == ("first#instruction", "triage/triage#instruction")
    assert await both("hi") == "Be brief. first(hi)"


async def test_an_agent_that_calls_itself_keeps_the_values_of_its_run() -> None:
    @agent(instruction="baseline")
    async def inner(number: int) -> str:
        return f"{surface('instruction')}({await solve(number)})"

    @agent(instruction="baseline", parameter={"depth": 2})
    async def solve(number: Any) -> str:
        if int(number) < 1:
            return f"{surface('instruction')} {surface('parameter.depth')}"
        return await (solve if int(number) > 1 else inner)(int(number) - 1)

    @node(instruction="baseline")
    async def repeat(question: str) -> str:
        return f"{surface('instruction')} {question}" if question == "end" else await graph("end")

    graph = chain("graph", repeat)
    candidate = Profile.of(solve.describe(), {"solve#instruction": "candidate"})
    done = await solve.run(CaseInput(text="2"), candidate)
    assert done.output == "baseline(candidate 2)"
    assert done.trace is not None
    assert done.trace.steps[0].surface_reads == {
        "solve#instruction": digest("candidate"),
        "solve#parameter.depth": digest(2),
    }
    assert await solve.with_profile(candidate)(2) == "baseline(candidate 2)"
    with candidate.active():
        assert await solve(2) == "baseline(candidate 2)"
    assert await solve(2) == "baseline(baseline 2)"
    other = Profile.of(graph.describe(), {"repeat#instruction": "candidate"})
    run = await graph.run(CaseInput(text="hi"), other)
    assert run.output == "candidate end"
    assert run.trace is not None
    assert run.trace.steps[0].surface_reads == {"repeat#instruction": digest("candidate")}
    assert await graph.with_profile(other)("hi") == "candidate end"


@pytest.mark.parametrize("decorator", [agent, node])
def test_a_decorator_without_parentheses_is_refused(decorator: Any) -> None:
    with pytest.raises(SetupError) as caught:
        decorator(len)
    name = decorator.__name__
    assert str(caught.value) == f'len: write @{name}(instruction="..."), with the texts that may change in parentheses'


async def test_a_function_that_returns_a_coroutine_is_refused_with_how_to_write_it() -> None:
    @agent(instruction="Be brief.")
    def forgot_async(question: str) -> Any:
        return ask(question, instruction=surface("instruction"), model="echo")

    @agent(instruction="Be brief.")
    async def forgot_await(question: str) -> Any:
        return ask(question, instruction=surface("instruction"), model="echo")

    with Gateway(models={"echo": lambda _: "hi"}).active():
        first, second = [await each.run(CaseInput(text="hi")) for each in (forgot_async, forgot_await)]
        with pytest.raises(AgentError, match="write `async def forgot_async` and `return await ask"):
            forgot_async("hi")
    assert "'forgot_async' returned a coroutine; write `async def forgot_async`" in str(first.error)
    assert str(second.error).endswith("'forgot_await' returned a coroutine; await it, such as `return await ask(...)`")


async def test_a_wrapper_of_an_async_function_may_return_its_coroutine() -> None:
    async def inner(question: str) -> str:
        return f"{surface('instruction')} {question}"

    @agent(instruction="Be brief.")
    @functools.wraps(inner)
    def wrapper(question: str) -> Any:
        return inner(question)

    assert (await wrapper.run(CaseInput(text="hi"))).output == await wrapper("hi") == "Be brief. hi"
