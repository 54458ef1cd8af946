from __future__ import annotations

import pytest

from promptiter.agents.base import AgentRun
from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.result import Evaluation
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.runlog.journal import MemoryJournal
from promptiter.search.minibatches import MINIBATCH, Minibatches
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.optimizer import OptimizeRequest
from tests.worlds import desk
from tests.worlds.desk_stages import Blames, Merges, Writes

pytestmark = pytest.mark.slow


class RunsBatches:
    """A search that runs the train cases of some rounds and keeps the results."""

    def __init__(self, *, size: int, rounds: int = 1) -> None:
        self.size, self.rounds = size, rounds
        self.found: list[Evaluation] = []

    async def search(self, session: Session) -> None:
        batches = Minibatches(session, size=self.size)
        for _ in range(self.rounds):
            await session.begin_round()
            batch, found = await batches.evaluate(session.accepted.profile)
            assert {case.id for case in batch.cases} == {case.case_id for case in found.cases}
            self.found.append(found)
            await session.complete_round()


def run_batches(
    size: int, failing: int, *, count: int = 40, rounds: int = 1, seed: int = 1, unscored: int = 0
) -> list[Evaluation]:
    """Run batches of train cases of which the first fail or are not scored. Every fourth case goes to the left node."""

    def judge(case: EvalCase, _: AgentRun) -> float:
        number = int(case.id.split("-")[-1])
        if case.id.startswith("train") and number < unscored:
            raise ValueError("no score")
        return float(number >= failing)

    def answer(request: ModelRequest) -> ModelReply:
        return ModelReply(text=request.messages[-1].content)

    def route(context: NodeContext) -> str:
        return "left" if int(str(context.outputs["read"]).split("-")[-1]) % 4 == 0 else "right"

    agent = GraphAgent(
        name="router",
        nodes=(
            FunctionNode(name="read", function=lambda text: text),
            ModelNode(name="left", instruction="Left.", model="scripted"),
            ModelNode(name="right", instruction="Right.", model="scripted"),
        ),
        edges=(Choice("read", route, {"left": "left", "right": "right"}),),
    )
    train, validation = (
        EvalSet(
            id=name, cases=tuple(EvalCase(id=f"{name}-{n}", turns=(Turn(user=f"{name}-{n}"),)) for n in range(size))
        )
        for name, size in (("train", count), ("validation", 2))
    )
    metric = FunctionMetric(name="passes", function=judge)
    search = RunsBatches(size=size, rounds=rounds)
    evaluator = Evaluator([metric], gateway=Gateway(models={"scripted": ScriptedModel(answer)}))
    request = RunRequest(train=train, validation=validation, seed=seed)
    Engine(agent, evaluator, search=search).run_sync(request)
    return search.found


def name_cases(name: str, count: int) -> list[str]:
    return [f"{name}-{number}" for number in range(count)]


def list_numbers(found: Evaluation) -> list[int]:
    return sorted(int(case.case_id.split("-")[-1]) for case in found.cases)


def test_a_set_of_up_to_two_batches_is_run_whole() -> None:
    [found] = run_batches(20, failing=40)
    assert list_numbers(found) == list(range(40))


def test_a_batch_is_a_random_sample_that_depends_on_the_seed() -> None:
    one, same, other = (list_numbers(run_batches(8, failing=40, seed=seed)[0]) for seed in (1, 1, 2))
    assert len(one) == 8
    assert one == same
    assert one != other


def test_a_batch_with_few_failures_is_doubled_and_no_case_is_run_twice() -> None:
    sizes = set()
    for seed in range(4):
        [found] = run_batches(16, failing=3, seed=seed)
        smaller = [row for row in found.rows if row.origin == "kept"]
        sizes.add((len(smaller), len(found.rows)))
        assert sum(not row.passed for row in smaller) < 2, "two failures are enough for a batch of 16"
        assert sum(not row.passed for row in found.rows) >= 2 or len(found.rows) == 40
    assert sizes <= {(0, 16), (16, 32), (32, 40)}
    assert len(sizes) > 1
    [none] = run_batches(8, failing=0)
    assert list_numbers(none) == list(range(40)), "without a failure, the whole set is run"


def test_a_case_that_could_not_be_scored_is_not_a_failure_to_learn_from() -> None:
    first, second = run_batches(8, failing=0, unscored=2, rounds=2)
    assert list_numbers(first) == list_numbers(second) == list(range(40))


def test_half_of_a_later_batch_failed_before_and_each_route_is_in_it() -> None:
    first, second = run_batches(8, failing=20, rounds=2)
    failed = {case.case_id for case in first.cases if not case.passed}
    again = failed & {case.case_id for case in second.cases}
    assert len(again) == min(4, len(failed))
    assert len({number % 4 == 0 for number in list_numbers(second)}) == 2


def test_the_size_of_a_batch_is_checked() -> None:
    with pytest.raises(SetupError, match="minibatch is 0"):
        BackpropRounds(minibatch=0)


async def test_a_round_blames_only_the_cases_of_its_batch() -> None:
    backwarder = Blames()
    search = BackpropRounds(backwarder, Merges(), Writes(), minibatch=2, check=None)
    asked = desk.request(train=desk.eval_set("train", 9), max_rounds=1)
    result = await Engine(desk.agent(), desk.evaluator(), search=search).run(asked)
    [only] = result.rounds
    assert only.train is not None
    assert len(only.train.rows) == 2
    assert len(backwarder.asked) == 4
    assert result.accepted_score == 1.0


@pytest.mark.long
async def test_a_run_with_ten_thousand_train_cases_runs_a_first_batch_of_them() -> None:
    search = BackpropRounds(Blames(), Merges(), Writes(), check=None)
    asked = desk.request(train=desk.eval_set("train", 10_000), max_rounds=2)
    result = await Engine(desk.agent(), desk.evaluator(), search=search).run(asked)
    assert result.accepted_score == 1.0
    assert [len(each.train.rows) for each in result.rounds if each.train is not None] == [MINIBATCH]
    assert result.measured.case_runs < 4 * MINIBATCH


async def test_a_resumed_run_has_the_same_batches() -> None:
    def make_engine() -> Engine:
        search = BackpropRounds(Blames(), Merges(), Writes(write), minibatch=4, check=None)
        return Engine(desk.agent(), desk.evaluator(), search=search)

    def write(request: OptimizeRequest) -> str:
        value = str(request.surface.value)
        return f"{value} Be careful." if "twice" in value else f"{value} Think twice."

    asked = desk.request(train=desk.eval_set("train", 30), max_rounds=3)
    whole = MemoryJournal()
    expected = await make_engine().run(asked, journal=whole)
    events = list(whole.events)
    for count in range(1, len(events) - 1, 9):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        assert await make_engine().run(asked, journal=journal) == expected


async def test_the_first_batch_of_one_case_set_was_run_by_its_baseline() -> None:
    search = BackpropRounds(Blames(), Merges(), Writes(), minibatch=2, check=None)
    asked = RunRequest(cases=desk.eval_set("cases", 9), max_rounds=1)
    result = await Engine(desk.agent(), desk.evaluator(), search=search).run(asked)
    [only] = result.rounds
    assert only.train is not None
    assert [row.origin for row in only.train.rows] == ["kept", "kept"]
