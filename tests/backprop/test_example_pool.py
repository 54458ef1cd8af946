from __future__ import annotations

from promptiter.backprop.example_pool import MAX_CHARACTERS, ExamplePool, Exchange
from promptiter.backprop.judged_traces import JudgedTrace, JudgedTraces
from promptiter.evaluation.score import Finding
from promptiter.stages.losses import Loss
from promptiter.stages.optimizer import StepExample
from promptiter.structure import Surface
from traces import ExecutionTrace, Snapshot, Step


def step(case_id: str, user: str = "", *, passed: bool = True, **changes: object) -> StepExample:
    values: dict[str, object] = {
        "case_id": case_id,
        "step_id": "n",
        "input": user or f"question {case_id}",
        "output": f"answer {case_id}",
        "passed": passed,
        "expected": f"reference {case_id}",
        "is_terminal": True,
    }
    return StepExample(**(values | changes))  # type: ignore[arg-type]


def collect(*steps: StepExample) -> tuple[Exchange, ...]:
    pool = ExamplePool()
    pool.add("n", steps)
    return pool.list_exchanges("n")


def test_a_passing_step_is_an_example_with_its_own_output() -> None:
    [found] = collect(step("a"))
    assert (found.input, found.output, found.source) == ("question a", "answer a", "passing")
    assert found.messages == [{"role": "user", "content": "question a"}, {"role": "assistant", "content": "answer a"}]


def test_the_reference_is_the_answer_where_no_run_of_a_case_passes() -> None:
    [failing, mixed] = collect(step("a", passed=False), step("b"), step("b", passed=False))
    assert (failing.output, failing.source) == ("reference a", "reference")
    assert (mixed.output, mixed.source) == ("answer b", "passing")


def test_a_failing_inner_step_and_a_pattern_are_no_references() -> None:
    pattern = Finding(kind="wrong", predicate="regex", expected="a+")
    assert collect(step("a", passed=False, is_terminal=False)) == ()
    assert collect(step("a", passed=False, findings=(pattern,))) == ()


def test_steps_with_tool_calls_or_earlier_turns_and_long_ones_are_left_out() -> None:
    assert collect(step("a", tool_calls=({"name": "search"},))) == ()
    assert collect(step("a", earlier="user: hello")) == ()
    assert collect(step("a", output="x" * MAX_CHARACTERS)) == ()


def test_an_input_is_shown_once() -> None:
    assert [each.case_id for each in collect(step("a", "Hello  there"), step("b", "hello there"))] == ["a"]


def test_texts_are_redacted_and_forbidden_ones_are_left_out() -> None:
    pool = ExamplePool(
        redact=lambda text: text.replace("secret", "***"), is_forbidden=lambda messages: "hidden" in str(messages)
    )
    pool.add("n", [step("a", "a secret question"), step("b", "a hidden question")])
    assert [each.input for each in pool.list_exchanges("n")] == ["a *** question"]
    assert pool.find_cases("n", pool.list_exchanges("n")[0].messages) == {"a"}


def test_examples_of_the_users_own_are_told_from_those_of_the_pool() -> None:
    pool = ExamplePool()
    pool.add("n", [step("a")])
    own = [{"role": "user", "content": "mine"}, {"role": "assistant", "content": "yours"}]
    [exchange] = pool.list_exchanges("n")
    assert pool.list_foreign(Surface(node_id="n", type="examples", value=[*exchange.messages, *own])) == own


def test_examples_of_the_users_own_stay_if_they_show_a_train_case() -> None:
    own = [{"role": "user", "content": "Question A"}, {"role": "assistant", "content": "my answer"}]
    pool = ExamplePool(own={"n": own})
    pool.add("n", [step("a", "Question A"), step("b")])
    assert [each.case_id for each in pool.list_exchanges("n")] == ["b"]
    surface = Surface(node_id="n", type="examples", value=[*own, *pool.list_exchanges("n")[0].messages])
    assert pool.list_foreign(surface) == own
    assert pool.find_cases("n", surface.value) == {"a", "b"}


def record(user: str, output: str) -> ExecutionTrace:
    only = Step(id="n", node_id="n", input=Snapshot(user), output=Snapshot(output))
    return ExecutionTrace(id=user, steps=(only,))


async def test_the_runs_of_a_node_are_added_with_what_was_wrong() -> None:
    wrong = Loss(metric="m", text="wrong", expected="yes")
    traces = JudgedTraces(
        [
            JudgedTrace(case_id="a", trace=record("one", "fine"), input="one"),
            JudgedTrace(case_id="b", trace=record("two", "no"), input="two", losses=(wrong,), expected="yes"),
        ]
    )
    pool = ExamplePool()
    await pool.add_runs(traces, ["n", "absent"])
    assert [(each.output, each.source) for each in pool.list_exchanges("n")] == [
        ("fine", "passing"),
        ("yes", "reference"),
    ]
    assert [each.passed for each in pool.list_inputs("n")] == [True, False]
    assert pool.list_exchanges("absent") == ()


async def test_a_passing_run_of_the_teacher_serves_a_case_until_a_run_of_its_own_passes() -> None:
    wrong = Loss(metric="m", text="wrong", expected="yes")
    pool = ExamplePool()
    pool.add("n", [step("a"), step("b", passed=False), step("c", passed=False)])
    taught = JudgedTraces(
        [
            JudgedTrace(case_id="a", trace=record("question a", "better"), input="a"),
            JudgedTrace(case_id="b", trace=record("what the teacher was given", "good"), input="b"),
            JudgedTrace(case_id="c", trace=record("question c", "bad"), input="c", losses=(wrong,), expected="yes"),
        ]
    )
    await pool.add_taught_runs(taught, ["n"])

    def list_all() -> list[tuple[str, str]]:
        return [(each.output, each.source) for each in pool.list_exchanges("n")]

    assert list_all() == [("answer a", "passing"), ("good", "teacher"), ("reference c", "reference")]
    assert [each.passed for each in pool.list_inputs("n")] == [True, False, False]
    [_, shown, _] = pool.list_exchanges("n")
    assert pool.find_cases("n", shown.messages) == {"b"}
    pool.add("n", [step("b", passed=False)])
    assert list_all()[1] == ("good", "teacher")
    pool.add("n", [step("b")])
    assert list_all()[1] == ("answer b", "passing")
