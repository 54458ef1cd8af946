from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from examples.working_example.agent import agent as desk
from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Edge, Join
from promptiter.agents.function import agent, chain
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.agents.surface_scope import surface
from promptiter.errors import BudgetEndedError, SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Turn
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.executor import Executor, LocalExecutor, ThreadExecutor
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Finding, Score
from promptiter.evaluation.trace_store import encode_trace
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.redaction import Redactor
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from traces import Failure, Usage


def eval_set(*cases: EvalCase) -> EvalSet:
    return EvalSet(id="set", cases=cases)


def questions(count: int) -> EvalSet:
    return eval_set(*(EvalCase(id=f"c{n:04}", turns=(Turn(user=f"q{n}", expected=f"Q{n}"),)) for n in range(count)))


def exact(case: EvalCase, run: AgentRun) -> float:
    return float(run.output == case.turns[-1].expected)


def metric(function: Any = exact, *, name: str = "exact", threshold: float = 1.0) -> FunctionMetric:
    return FunctionMetric(name=name, function=function, threshold=threshold)


def evaluator(*metrics: Any, gateway: Gateway | None = None, **options: Any) -> Evaluator:
    return Evaluator(metrics or (metric(),), gateway=gateway, options=EvaluationOptions(**options))


@agent(instruction="upper")
async def shout(text: str) -> str:
    await asyncio.sleep(random.random() / 1000)
    return text.upper() if surface("instruction") == "upper" else text


@pytest.mark.slow
async def test_every_case_is_run_and_scored() -> None:
    found = await evaluator().evaluate(shout, questions(5))
    assert (found.mean_score, found.pass_rate, len(found.rows)) == (1.0, 1.0, 5)
    worse = await evaluator().evaluate(shout, questions(5), Profile.of(shout.describe(), {"shout#instruction": "no"}))
    assert (worse.mean_score, worse.pass_rate) == (0.0, 0.0)
    assert worse.profile_digest != found.profile_digest


@dataclass
class Answers:
    """A model whose answer is a function of the request and the repeat; it notes what was asked."""

    asked: list[str]

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.asked.append(request.messages[0].content)
        await asyncio.sleep(random.random() / 1000)
        words = f"{request.messages[0].content}({request.messages[-1].content})"
        noise = random.Random(f"{request.digest} {repeat}").randint(0, 9)
        return ModelReply(text=f"{words}{noise}", usage=Usage(input_tokens=len(words), output_tokens=1))


def six_nodes() -> GraphAgent:
    names = [f"n{number}" for number in range(6)]
    return GraphAgent(
        name="six",
        nodes=tuple(ModelNode(name=name, instruction=name, model="m") for name in names),
        edges=(
            Edge("n0", "n1"),
            Edge("n0", "n2"),
            Join(("n1", "n2"), "n3"),
            Edge("n3", "n4"),
            Edge("n4", "n5"),
        ),
    )


async def rows_of(concurrency: int, repeats: int = 2, executor: Executor | None = None) -> Evaluation:
    gateway = Gateway(models={"m": Answers([])}, concurrency=concurrency)
    last_digit = metric(lambda _, run: float(run.output[-1]) / 9, name="digit")
    options = EvaluationOptions(concurrency=concurrency, repeats=repeats)
    subject = Evaluator([last_digit], gateway=gateway, options=options, executor=executor)
    return await subject.evaluate(six_nodes(), questions(30))


@pytest.mark.slow
async def test_rows_are_the_same_at_concurrency_1_and_64() -> None:
    one, many = await rows_of(1), await rows_of(64)
    assert one.rows == many.rows
    assert (one.mean_score, one.metric_means) == (many.mean_score, many.metric_means)
    assert len({row.output for row in one.rows}) > 30  # repeats differ


@pytest.mark.slow
async def test_rows_are_the_same_in_threads() -> None:
    local, threads = await rows_of(16), await rows_of(16, executor=ThreadExecutor(threads=6))
    assert local.rows == threads.rows
    assert {row.measured.paid_calls for row in threads.rows} == {6}


@pytest.mark.slow
async def test_rows_of_a_graph_with_a_loop_tools_and_failures_are_the_same_everywhere() -> None:
    def flaky(text: str) -> str:
        if "3" in text:
            raise ValueError("no threes")
        return text

    orders = load_eval_set(Path(__file__).parents[2] / "examples" / "working_example" / "train.jsonl")

    async def rows(concurrency: int, executor: Executor | None = None) -> Evaluation:
        nodes = (FunctionNode(name="flaky", function=flaky), *desk.nodes[:2], *desk.nodes[5:])
        edges = (Edge("flaky", "planner"), Edge("planner", "retrieve"), Edge("retrieve", "finalize"))
        mixed = GraphAgent(name="mixed", nodes=nodes, edges=edges)
        options = EvaluationOptions(concurrency=concurrency, repeats=3)
        found = await Evaluator([metric()], options=options, executor=executor).evaluate(mixed, questions(12))
        looping = await Evaluator([metric()], options=options, executor=executor).evaluate(desk, orders)
        return replace(found, rows=found.rows + tuple(replace(row, case_id=f"l{row.case_id}") for row in looping.rows))

    one, many, threads = await rows(1), await rows(64), await rows(8, ThreadExecutor(threads=5))
    assert one.rows == many.rows == threads.rows
    assert one.errored_fraction > 0


@pytest.mark.slow
async def test_a_candidate_pays_only_from_the_first_changed_request_on() -> None:
    asked: list[str] = []
    gateway = Gateway(models={"m": Answers(asked)}, concurrency=64)
    subject = evaluator(metric(), gateway=gateway, concurrency=64)
    cases = questions(200)
    await subject.evaluate(six_nodes(), cases)
    assert len(asked) == 6 * 200
    asked.clear()
    candidate = Profile.of(six_nodes().describe(), {"n3#instruction": "better"})
    warm = await subject.evaluate(six_nodes(), cases, candidate)
    assert sorted(set(asked)) == ["better", "n4", "n5"]
    assert len(asked) == 3 * 200
    cold = await evaluator(metric(), gateway=Gateway(models={"m": Answers([])}), concurrency=8).evaluate(
        six_nodes(), cases, candidate
    )
    assert warm.rows == cold.rows
    assert {row.measured.cache_hits for row in warm.rows} == {3}
    unchanged = await subject.evaluate(six_nodes(), cases, candidate)
    assert {row.origin for row in unchanged.rows} == {"cache"}


async def test_a_failing_case_is_a_row_and_not_a_zero() -> None:
    async def sometimes(text: str) -> str:
        if text == "q1":
            raise ValueError("cannot")
        return text.upper()

    found = await evaluator(max_errored_fraction=0.25).evaluate(chain("some", sometimes), questions(5))
    failed = found.rows[1]
    assert failed.error is not None
    assert failed.error.message == "cannot"
    assert (failed.scores[0].value, failed.is_scored) == (None, False)
    assert (found.mean_score, found.pass_rate) == (1.0, 0.8)
    assert (found.errored_fraction, found.is_reliable) == (0.2, True)
    strict = await evaluator(max_errored_fraction=0.1).evaluate(chain("some", sometimes), questions(5))
    assert not strict.is_reliable


async def test_a_metric_that_raises_makes_its_score_unscored_and_the_case_does_not_pass() -> None:
    class Broken:
        name, threshold, needs_reference = "broken", 0.0, False

        async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
            raise RuntimeError(f"{case.id} {run.output}")

    found = await evaluator(metric(), Broken()).evaluate(shout, questions(2))
    assert found.rows[0].scores[1].error == "MetricError: metric 'broken' raised RuntimeError: c0000 Q0"
    assert (found.pass_rate, found.mean_score, found.errored_fraction) == (0.0, None, 1.0)


class BusyError(ConnectionError):
    """An error of the agent's own, for a service that is down."""


async def raise_busy(_: object, __: object = None) -> float:
    raise BusyError("the line is down")


async def raise_after_retries(_: object, __: object = None) -> float:
    try:
        await raise_busy(None)
    except BusyError as error:
        raise KeyError("no answer") from error
    return 1.0


async def raise_timeout(_: object, __: object = None) -> float:
    raise TimeoutError("ConnectionError: the line is down")


class Reporting:
    """An agent that returns its error instead of raising it."""

    def describe(self) -> StructureSnapshot:
        return shout.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        return AgentRun(error=Failure("openai.RateLimitError", "429"))


FAILING = {"subclass": raise_busy, "cause": raise_after_retries, "own time limit": raise_timeout}


@pytest.mark.parametrize("failing", FAILING)
async def test_an_error_of_a_service_that_the_agent_calls_is_an_outage(failing: str) -> None:
    async def answer(text: str) -> float:
        return await FAILING[failing](text)

    [row] = (await evaluator().evaluate(chain("bot", answer), questions(1))).rows
    assert (row.outage is not None) == (failing != "own time limit")
    assert row.code_error is None


async def test_an_agent_may_report_an_outage_by_name() -> None:
    [row] = (await evaluator().evaluate(Reporting(), questions(1))).rows
    assert row.outage == "openai.RateLimitError: 429"


@pytest.mark.parametrize("failing", FAILING)
async def test_an_error_of_a_service_that_a_metric_calls_is_an_outage(failing: str) -> None:
    [row] = (await evaluator(metric(FAILING[failing])).evaluate(shout, questions(1))).rows
    is_outage = failing != "own time limit"
    assert (row.outage is not None, row.setup_error is None) == (is_outage, is_outage)


async def test_repeats_are_averaged_before_the_threshold_applies() -> None:
    def by_draw(case: EvalCase, run: AgentRun) -> float:
        return 1.0 if run.trace is not None and "~0~" in run.trace.id else 0.5

    found = await evaluator(metric(by_draw, threshold=0.75), repeats=2).evaluate(shout, questions(3))
    assert (found.mean_score, found.pass_rate) == (0.75, 1.0)
    stricter = await evaluator(metric(by_draw, threshold=0.76), repeats=2).evaluate(shout, questions(3))
    assert stricter.pass_rate == 0.0


async def test_turns_include_the_conversation_so_far() -> None:
    async def echo(node_context: Any) -> str:
        return f"{node_context.input} after {len(node_context.case.history)}"

    case = EvalCase(id="talk", turns=tuple(Turn(user=f"t{n}", expected=f"t{n} after {2 * n}") for n in range(3)))

    def all_turns(case: EvalCase, run: AgentRun) -> float:
        pairs = zip(case.turns, run.by_turn, strict=True)
        return float(all(turn.expected == each.output for turn, each in pairs))

    found = await evaluator(metric(all_turns)).evaluate(chain("echo", echo), eval_set(case))
    assert found.mean_score == 1.0
    assert len(found.rows[0].trace_digests) == 3


async def test_recorded_conversations_are_scored_without_an_agent() -> None:
    call = ExpectedToolCall(name="weather", arguments={"city": "Rome"})
    said = Turn(user="weather?", expected="sunny", expected_tool_calls=(call,))
    case = EvalCase(id="r", mode="trace", turns=(said,), actual=(said,))

    def used_tool(case: EvalCase, run: AgentRun) -> float:
        return float([each.name for each in run.tool_calls] == ["weather"] and run.output == case.turns[0].expected)

    found = await evaluator(metric(used_tool)).evaluate(shout, eval_set(case))
    assert found.mean_score == 1.0


@pytest.mark.slow
async def test_a_case_that_takes_too_long_is_an_error() -> None:
    class Deaf:
        def describe(self) -> StructureSnapshot:
            return shout.describe()

        async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
            await asyncio.sleep(60)
            return AgentRun(output=case.text)

    async def slow(text: str) -> str:
        await asyncio.sleep(60)
        return text

    for subject in (chain("slow", slow), Deaf()):
        found = await evaluator(case_timeout_s=0.02).evaluate(subject, questions(1))
        assert found.rows[0].error is not None
        assert found.rows[0].error.type == "TimeoutError"


async def test_a_spent_budget_ends_the_evaluation() -> None:
    gateway = Gateway(models={"m": Answers([])}, budget=Budget(max_calls=10))
    with pytest.raises(BudgetEndedError):
        await evaluator(gateway=gateway).evaluate(six_nodes(), questions(5))


async def test_traces_are_stored_on_disk_by_digest() -> None:
    subject = evaluator()
    found = await subject.evaluate(shout, questions(3))
    trace = await subject.trace_store.get(found.rows[0].trace_digests[0])
    assert trace.steps[0].output.text == "Q0"
    with pytest.raises(SetupError, match="cannot be read: "):
        await subject.trace_store.get("0" * 64)


async def test_on_row_is_called_as_rows_finish() -> None:
    heard: list[CaseRow] = []
    found = await evaluator().evaluate(shout, questions(4), on_row=heard.append)
    assert sorted(heard, key=lambda row: row.case_id) == list(found.rows)


def test_metrics_need_unique_names() -> None:
    with pytest.raises(SetupError, match="unique names"):
        Evaluator([metric(), metric()])


def test_there_are_three_objectives_and_weights_count() -> None:
    def row(case_id: str, first: float, second: float) -> CaseRow:
        scores = (Score(metric="a", value=first, threshold=0.5), Score(metric="b", value=second, threshold=0.5))
        return CaseRow(case_id=case_id, scores=scores)

    found = Evaluation(
        eval_set_id="s",
        profile_digest="p",
        rows=(row("y", 1.0, 0.0), row("x", 1.0, 1.0)),
        thresholds={"a": 0.5, "b": 0.5},
        weights={"a": 3.0},
    )
    assert [each.case_id for each in found.rows] == ["x", "y"]
    assert (found.mean_score, found.pass_rate, found.weighted_loss) == (0.875, 0.5, 0.125)
    assert [found.objective(name) for name in ("mean_score", "pass_rate", "weighted_loss")] == [0.875, 0.5, -0.125]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            {"exct": 2.0},
            r"unknown metric 'exct' in the weights \(did you mean 'exact'\?\); the metrics are exact, short",
        ),
        ({"exact": -1.0}, "the weight of 'exact' is -1.0; give a finite number of at least 0"),
        ({"exact": float("nan")}, "the weight of 'exact' is nan; give"),
        ({"exact": 0, "short": 0}, "all metrics have the weight 0; give one of them more"),
    ],
)
def test_weights_that_cannot_be_used_are_refused(weights: dict[str, float], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        Evaluator([metric(name="exact"), metric(name="short")], weights=weights)


@pytest.mark.parametrize("cap", [10, None])
async def test_threads_end_when_the_budget_does_or_the_run_is_cancelled(cap: int | None) -> None:
    gateway = Gateway(models={"m": Answers([])}, budget=Budget(max_calls=cap))
    subject = Evaluator([metric()], gateway=gateway, executor=ThreadExecutor(threads=4))
    evaluating = subject.evaluate(six_nodes(), questions(200))
    with pytest.raises(BudgetEndedError if cap else TimeoutError):
        await asyncio.wait_for(evaluating, None if cap else 0.1)


async def test_an_agent_that_returns_no_agent_run_is_an_errored_case() -> None:
    class Odd:
        def describe(self) -> StructureSnapshot:
            return shout.describe()

        async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
            return case.text  # type: ignore[return-value]

    class Older(Odd):
        async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
            return AgentRun(output={"answer": case.text})  # type: ignore[arg-type]

    found = await evaluator().evaluate(Odd(), questions(1))
    assert [row.error.message for row in found.rows if row.error] == [
        "Odd.run() returned 'q0'; return an AgentRun, such as AgentRun(output='...')"
    ]
    found = await evaluator().evaluate(Older(), questions(1))
    assert [row.error.message for row in found.rows if row.error] == [
        (
            "Older.run() returned an AgentRun with the output {'answer': 'q0'}; give a text as the output, and other "
            "data as `data`"
        )
    ]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "'forgetful' returned None; return the answer, as a text or as data"),
        (object, "'forgetful' returned the class object, which is not data; return a text, a dict or a list"),
        ({"reply": open}, "'forgetful' returned {'reply': <built-in function open>}, which is not data; "),
    ],
)
async def test_an_answer_that_is_not_data_is_an_errored_case(answer: object, message: str) -> None:
    @agent(instruction="Answer.")
    async def forgetful(question: str) -> object:
        return answer

    [row] = (await evaluator().evaluate(forgetful, questions(1))).rows
    assert row.error is not None
    assert row.error.message.startswith(message)
    assert [score.value for score in row.scores] == [None]


async def test_models_and_dates_are_data() -> None:
    class Reply(BaseModel):
        text: str
        days: set[int]

    @agent(instruction="Answer.")
    async def typed(question: str) -> Reply:
        return Reply(text=question, days={3})

    [row] = (await evaluator().evaluate(typed, questions(1))).rows
    assert (row.error, row.output) == (None, '{"text":"q0","days":[3]}')


@pytest.mark.slow
async def test_a_synchronous_agent_is_run_in_a_thread() -> None:
    threads: set[str] = set()

    class Blocking:
        def describe(self) -> StructureSnapshot:
            return shout.describe()

        def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
            threads.add(threading.current_thread().name)
            return AgentRun(output=case.text)

    class Hanging(Blocking):
        def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
            if case.text == "q1":
                release.wait()
            return super().run(case, profile, context)

    release = threading.Event()
    found = await evaluator(case_timeout_s=0.01).evaluate(Hanging(), questions(2))  # type: ignore[arg-type]
    release.set()
    assert [row.error and row.error.type for row in found.rows] == [None, "TimeoutError"]
    found = await evaluator().evaluate(Blocking(), questions(2))  # type: ignore[arg-type]
    assert [row.output for row in found.rows] == ["q0", "q1"]
    assert threads
    assert threading.current_thread().name not in threads


async def test_equal_calls_of_different_turns_are_different_calls() -> None:
    asked: list[str] = []
    subject = chain("bot", ModelNode(name="bot", instruction="", model="m", prompt="the same"))
    case = EvalCase(id="c", turns=(Turn(user="a"), Turn(user="b")), state={"cart": []})
    gateway = Gateway(models={"m": Answers(asked)})
    always = metric(lambda _, run: 1.0 if run.output else 0.0)
    await evaluator(always, gateway=gateway).evaluate(subject, eval_set(case))
    assert gateway.ledger.snapshot().total.calls == 2


async def test_each_seed_has_answers_of_its_own() -> None:
    gateway = Gateway(models={"m": Answers([])}, seed=1)
    subject = evaluator(metric(lambda _, __: 1.0), gateway=gateway)
    paid = []
    for seed in (None, 2, 1):  # by default, the gateway's
        await subject.with_options(EvaluationOptions(seed=seed)).evaluate(six_nodes(), questions(1))
        paid.append(gateway.ledger.snapshot().total.calls)
    assert paid == [6, 12, 12]


async def test_state_is_fresh_for_every_run() -> None:
    async def add(node_context: Any) -> str:
        node_context.case.state["cart"].append("x")
        return str(len(node_context.case.state["cart"]))

    case = EvalCase(id="c", turns=(Turn(user="a", expected="1"),), state={"cart": []})
    found = await evaluator(repeats=3).evaluate(chain("shop", add), eval_set(case))
    assert found.mean_score == 1.0


async def test_secrets_do_not_reach_rows() -> None:
    def leak(_: list[dict[str, Any]]) -> str:
        raise RuntimeError("401 for key topsecretvalue")

    class Leaky:
        name, threshold, needs_reference = "leaky", 0.0, False

        async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
            raise RuntimeError(f"topsecretvalue {case.id} {run.output}")

    gateway = Gateway(models={"m": leak}, redactor=Redactor(["topsecretvalue"]))
    found = await evaluator(Leaky(), gateway=gateway).evaluate(six_nodes(), questions(1))
    assert "topsecret" not in repr(found.rows)
    assert "***" in repr(found.rows)


async def test_known_secrets_reach_neither_outputs_nor_reasons_nor_traces() -> None:
    """Of data only what is known is masked; of errors also what looks like a credential."""
    look = "sk-proj-abcDEF123456789xyz"

    def say(question: str) -> str:
        if question == "q1":
            raise ValueError(f"{look} topsecretvalue")
        return f"{look} topsecretvalue"

    class Leaky:
        name, threshold, needs_reference = "leaky", 1.0, False

        async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
            wrong = Finding(kind="wrong", expected=["topsecretvalue"], actual=run.output, where=case.id)
            reason = f"not {run.output}"
            return Score(metric="leaky", value=0.0, reason=reason, findings=(wrong,), turn_reasons=(reason, reason))

    gateway = Gateway(redactor=Redactor(["topsecretvalue"]))
    subject = evaluator(Leaky(), gateway=gateway)
    found = await subject.evaluate(chain("say", say), questions(2))
    traces = [await subject.trace_store.get(row.trace_digests[0]) for row in found.rows]
    assert "topsecret" not in repr([found.rows, traces])
    said = f"{look} ***"
    assert (found.rows[0].output, found.rows[0].scores[0].reason) == (said, f"not {said}")
    assert found.rows[0].scores[0].findings == (Finding(kind="wrong", expected=["***"], actual=said, where="c0000"),)
    assert (traces[0].steps[0].output.text, str(traces[1].steps[0].error)) == (said, "ValueError: *** ***")
    for row, trace in zip(found.rows, traces, strict=True):
        assert encode_trace(trace)[0] == row.trace_digests[0]


async def test_an_output_that_is_not_valid_utf8_is_escaped() -> None:
    found = await evaluator().evaluate(chain("odd", lambda _: "half \ud800"), questions(1))
    assert found.rows[0].output == "half \\ud800"


@pytest.mark.parametrize("threshold", [1.5, -0.1, float("nan"), "1"])
def test_a_threshold_outside_of_the_scores_is_refused(threshold: Any) -> None:
    with pytest.raises(SetupError, match=r"the threshold of metric 'exact' is .*; scores are from 0 to 1, so give a"):
        Evaluator([metric(threshold=threshold)])


async def test_a_score_outside_of_0_to_1_is_unscored() -> None:
    [row] = (await evaluator(metric(lambda _case, _run: 95, name="points")).evaluate(shout, questions(1))).rows
    [score] = row.scores
    assert not score.is_scored
    assert str(score.error).startswith("MetricError: metric 'points' returned 95; return a score from 0 to 1")


async def test_a_metric_of_ones_own_may_be_synchronous_and_must_return_a_score() -> None:
    class Exact:
        name, threshold, needs_reference = "exact", 1.0, False

        def __call__(self, case: EvalCase, run: AgentRun) -> Score:
            return Score(metric=self.name, value=exact(case, run))

    class Forgetful(Exact):
        def __call__(self, case: EvalCase, run: AgentRun) -> Score: ...  # type: ignore[empty-body]

    found = await evaluator(Exact()).evaluate(shout, questions(2))
    assert found.mean_score == 1.0
    [row] = (await evaluator(Forgetful()).evaluate(shout, questions(1))).rows
    assert [score.error for score in row.scores] == ["MetricError: metric 'exact' returned None; return a Score"]


def test_an_executor_keeps_its_concurrency_unless_the_options_change_theirs() -> None:
    subject = Evaluator(executor=LocalExecutor(concurrency=2))
    assert subject.with_options(EvaluationOptions(seed=3, repeats=2)).executor is subject.executor
    changed = subject.with_options(EvaluationOptions(concurrency=4)).executor
    assert isinstance(changed, LocalExecutor)
    assert changed.concurrency == 4
    threads = Evaluator(executor=ThreadExecutor(threads=2))
    assert threads.with_options(EvaluationOptions(concurrency=4)).executor is threads.executor


async def test_a_metric_whose_own_task_is_cancelled_is_unscored() -> None:
    async def judge(_case: EvalCase, _run: AgentRun) -> float:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task
        return 1.0

    [row] = (await evaluator(metric(judge)).evaluate(shout, questions(1))).rows
    [score] = row.scores
    assert score.value is None
    assert "CancelledError" in str(score.error)
