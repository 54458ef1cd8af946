"""Which spans are steps."""

from __future__ import annotations

from tests.traces.recover.spans import Tree, agent, build, call, chain, edges, list_spans
from traces.model import ExecutionTrace
from traces.otel.recover.concepts import read_role


def names(trace: ExecutionTrace) -> list[tuple[str, str]]:
    return [(step.id, step.node_id) for step in trace.steps]


def test_spans_of_the_application_around_model_calls_are_steps() -> None:
    trace = build(
        Tree(
            "handle ticket",
            0,
            30,
            Tree("classify", 0, 10, call(1, 9, system="Classify.")),
            Tree("reply", 11, 20, call(12, 19, system="Reply.")),
        )
    )
    assert names(trace) == [("classify", "classify"), ("reply", "reply")]
    assert (trace.steps[0].surface_reads or {}).keys() == {"classify#instruction", "classify#model"}


def test_a_span_around_one_conversation_is_one_step_and_around_several_a_group() -> None:
    loop = (call(12, 14, tool_call="c1"), call(16, 18, result="c1", answered="done"))
    other = (call(32, 34, system="One.", answered="first"), call(36, 38, system="Two.", answered="second"))
    trace = build(
        Tree(
            "run", 0, 50, Tree("plan", 0, 10, call(1, 9)), Tree("research", 11, 20, *loop), Tree("pair", 30, 40, *other)
        )
    )
    assert [step.id for step in trace.steps] == ["plan", "research", "chat-4", "chat-5"]
    assert [call.name for call in trace.steps[1].tool_calls] == ["search"]


def test_a_task_is_a_step_even_if_it_is_alone_and_its_functions_are_with_others() -> None:
    task = {"traceloop.span.kind": "task", "traceloop.entity.name": "summarise"}
    trace = build(Tree("job", 0, 20, Tree("summarise.task", 1, 9, call(2, 8), attributes=task)))
    assert names(trace) == [("summarise.task", "summarise")]


def test_functions_beside_wrapped_calls_are_steps_if_they_returned_something() -> None:
    trace = build(
        chain(
            "Flow.run",
            0,
            40,
            chain("Flow.load", 0, 5, output_value="rows"),
            chain("Flow.wait", 5, 6),
            chain("Flow.write", 11, 20, call(12, 19)),
        )
    )
    assert names(trace) == [("Flow.load", "load"), ("Flow.write", "write")]


def test_a_class_that_many_steps_share_does_not_name_them() -> None:
    trace = build(
        chain(
            "Program.forward",
            0,
            40,
            chain("Predict.forward", 0, 10, call(1, 9, system="Ask.")),
            chain("Predict.forward", 11, 20, call(12, 19, system="Judge.")),
        )
    )
    assert [step.id for step in trace.steps] == ["Predict.forward", "Predict.forward-2"]
    assert [step.node_id.rpartition("-")[0] for step in trace.steps] == ["ask", "judge"]


def test_turns_of_an_agent_are_no_steps() -> None:
    turns = (chain("Step 1", 1, 9, call(2, 8)), chain("Step 2", 10, 19, call(11, 18)))
    trace = build(Tree("scout.run", 0, 20, *turns, attributes={"openinference.span.kind": "AGENT"}))
    assert names(trace) == [("chat", "scout"), ("chat-2", "scout")]


def test_an_agent_that_a_tool_runs_may_be_written_beside_the_tool() -> None:
    tool = {"openinference.span.kind": "TOOL", "tool.name": "delegate"}
    trace = build(
        agent(
            "lead",
            0,
            50,
            call(1, 9),
            Tree("delegate", 10, 20, attributes=tool),
            agent("scout", 11, 19, call(12, 18)),
            Tree("delegate", 21, 30, attributes=tool),
            agent("auditor", 22, 29, call(23, 28)),
            call(31, 39),
        )
    )
    assert edges(trace) == {
        "lead": set(),
        "scout": {"lead"},
        "auditor": {"lead"},
        "lead#2": {"scout", "auditor"},
    }


def test_the_call_inside_a_call_is_read_if_only_it_has_messages() -> None:
    outer = Tree(
        "llm", 0, 20, call(1, 19, answered="Yes."), attributes={"openinference.span.kind": "LLM", "input.value": "repr"}
    )
    (step,) = build(outer).steps
    assert step.output.text == "Yes."


def test_the_outermost_chain_is_no_agent_even_if_its_operation_says_so() -> None:
    workflow = {
        "traceloop.span.kind": "workflow",
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "chain",
    }
    trace = build(
        Tree("chain", 0, 30, Tree("plan", 0, 9, call(1, 8)), Tree("write", 10, 19, call(11, 18)), attributes=workflow)
    )
    assert [step.id for step in trace.steps] == ["plan", "write"]


def test_a_call_that_asked_for_tools_goes_on_in_the_next_even_without_content() -> None:
    asking = call(12, 14)
    asking.attributes["gen_ai.response.finish_reasons"] = ["tool_calls"]
    plan, research = Tree("plan", 0, 10, call(1, 9)), Tree("research", 11, 20, asking, call(16, 18))
    assert [step.id for step in build(Tree("run", 0, 30, plan, research)).steps] == ["plan", "research"]


def test_a_tool_call_that_is_written_twice_is_one_and_belongs_to_the_agent_around_it() -> None:
    """As AutoGen and OpenInference write it together; the client of the model writes nothing."""
    inner = Tree("execute_tool transfer", 3, 5, attributes={"gen_ai.operation.name": "execute_tool"})
    outer = Tree("front.transfer", 2, 6, inner, attributes={"openinference.span.kind": "TOOL"})
    assert names(build(agent("front", 0, 10, outer))) == [("front", "front")]


def test_an_agent_whose_model_calls_are_unseen_is_a_step_if_its_tools_ran_agents() -> None:
    tool = {"openinference.span.kind": "TOOL"}
    scout = Tree("ask scout", 10, 20, agent("scout", 11, 19, call(12, 18)), attributes=tool)
    auditor = Tree("ask auditor", 21, 30, agent("auditor", 22, 29, call(23, 28)), attributes=tool)
    trace = build(agent("lead", 0, 50, scout, auditor))
    assert edges(trace) == {"lead": set(), "scout": {"lead"}, "auditor": {"lead"}}


def test_a_generator_that_closes_its_span_late_does_not_prolong_the_agent() -> None:
    def run(name: str, start: int, end: int, closed: int) -> Tree:
        stream = agent(name, start, closed, input_value=name)
        return Tree(name, start, end, stream, attributes={"gen_ai.operation.name": "invoke_agent", "agent.name": name})

    trace = build(Tree("ticket", 0, 50, run("writer", 1, 10, 16), run("reviewer", 12, 20, 20)))
    assert edges(trace) == {"writer-2": set(), "reviewer-2": {"writer-2"}}


def test_a_span_that_only_prepares_a_model_call_is_none() -> None:
    """LlamaIndex prepares messages for tools in a span that OpenInference takes for a model call."""
    question = 'The customer asks: "who allowed the surcharge on the invoices of this quarter?"'

    def prepare(returned: str) -> Tree:
        values = {"input.value": f"chat_history={question!r}", "output.value": returned}
        return Tree("prepare", 2, 4, attributes={"openinference.span.kind": "LLM", "llm.model_name": "m", **values})

    def steps(returned: str) -> list[str]:
        answer = chain("answer", 1, 9, prepare(returned), call(5, 8, asked=question))
        return [step.id for step in build(chain("run", 0, 20, answer, chain("check", 10, 19, call(11, 18)))).steps]

    assert steps(f"messages={question!r}") == ["answer", "check"]
    assert steps("nobody did") == ["prepare", "chat", "check"]


def test_an_operation_that_asked_a_model_and_has_its_answer_is_a_model_call_whatever_it_is_called() -> None:
    asked = call(1, 9, asked="Who pays?", answered="The customer.")
    asked.attributes["gen_ai.operation.name"] = "acompletion"
    (step,) = build(asked).steps
    assert (step.kind, step.output.text) == ("llm", "The customer.")
    del asked.attributes["gen_ai.output.messages"]
    (span,) = list_spans(asked)
    assert read_role(span) == "chain"  # an embedding, say
    assert read_role(span._replace(is_error=True)) == "llm"
