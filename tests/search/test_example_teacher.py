"""The teacher of few-shot examples: a stronger model that runs the train cases of which no run passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pytest

from promptiter.agents.edges import Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.outline import ModelCallingSearch
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Search
from promptiter.errors import RequestError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.acceptance import MinGain
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.search.descent.search import CoordinateDescent
from promptiter.search.few_shot import FewShotSearch
from promptiter.search.gepa import GepaSearch
from promptiter.search.rounds import BackpropRounds

pytestmark = pytest.mark.slow

EXAMPLES, INSTRUCTION = "clerk#examples", "clerk#instruction"
SEARCHES: Mapping[str, Callable[[str | None], Search]] = {
    "few_shot": lambda teacher: FewShotSearch(k=4, trials=2, batch_size=2, teacher=teacher),
    "backprop": lambda teacher: BackpropRounds(teacher=teacher),
    "gepa": lambda teacher: GepaSearch(reflection_minibatch_size=4, module_selector="all", teacher=teacher),
    "gepa, a model reflects": lambda teacher: GepaSearch(
        reflection_minibatch_size=4, module_selector="all", reflection_model="reflecting", teacher=teacher
    ),
    "coordinate_descent": lambda teacher: CoordinateDescent(phases=("examples",), teacher=teacher),
}
EASY = {10, 11}
"""The cases that the small model answers without an example."""

BEYOND = {12}
"""The cases that the teacher gets wrong."""


def answer_small(request: ModelRequest) -> ModelReply:
    """A clerk that writes numbers as they should be written only if it is shown how."""
    *shown, asked = request.messages
    number = int(asked.content.rpartition(" ")[2])
    is_shown = any(each.role == "assistant" and each.content.startswith("No. ") for each in shown)
    return ModelReply(text=f"No. {number}" if is_shown or number in EASY else str(number))


def answer_as_teacher(request: ModelRequest) -> ModelReply:
    number = int(request.messages[-1].content.rpartition(" ")[2])
    return ModelReply(text="unsure" if number in BEYOND else f"No. {number}")


class World:
    """A clerk whose answer a function formats, so that no reference says what the clerk should have written."""

    def __init__(self, *, models: tuple[str, ...] = (), last: str = "function") -> None:
        self.small, self.teacher = ScriptedModel(answer_small), ScriptedModel(answer_as_teacher)
        clerk = ModelNode(name="clerk", model="small", instruction="Read the number.", models=models)
        close = FunctionNode(name="close", function=lambda text: f"<{text}>")
        nodes, edges = ((clerk, close), (Edge("clerk", "close"),)) if last == "function" else ((clerk,), ())
        self.form = "<No. {}>" if last == "function" else "No. {}"
        self.agent = GraphAgent(name="office", nodes=nodes, edges=edges)

    async def run(
        self,
        *,
        train: range = range(10, 20),
        teacher: str | None = "strong",
        budget: Budget | None = None,
        max_rounds: int = 1,
        search: str = "few_shot",
        targets: Sequence[str] = (EXAMPLES,),
        repeats: int = 1,
        journal: MemoryJournal | None = None,
    ) -> RunResult:
        models = {"small": self.small, "strong": self.teacher, "reflecting": ScriptedModel([])}
        gateway = Gateway(models=models, budget=budget)
        evaluator = Evaluator(
            build_metrics([{"metric_name": "exact_match"}]), gateway=gateway, options=EvaluationOptions(repeats=repeats)
        )
        request = RunRequest(
            train=build_set("train", train, self.form),
            validation=build_set("validation", range(50, 56), self.form),
            targets=tuple(targets),
            acceptance=MinGain(0.01),
            final_test=None,
            max_rounds=max_rounds,
            run_id="taught",
        )
        return await Engine(self.agent, evaluator, search=SEARCHES[search](teacher)).run(request, journal=journal)

    @property
    def taught(self) -> list[int]:
        """The cases that the teacher was asked about."""
        return [int(each.messages[-1].content.rpartition(" ")[2]) for each in self.teacher.requests]


def build_set(name: str, numbers: range, form: str) -> EvalSet:
    turns = [Turn(user=f"{name} form {number}", expected=form.format(number)) for number in numbers]
    return EvalSet(id=name, cases=tuple(EvalCase(id=f"{name}{at}", turns=(each,)) for at, each in enumerate(turns)))


def find_reason(result: RunResult) -> str:
    decision = result.rounds[0].decision
    assert decision is not None
    return decision.reason


def list_shown(result: RunResult) -> set[int]:
    """The numbers of all examples that were tried."""
    patches = [patch for each in result.rounds for candidate in each.candidates for patch in candidate.patches]
    return {int(each["content"].rpartition(" ")[2]) for patch in patches for each in patch.value[::2]}


@pytest.mark.parametrize("search", SEARCHES)
async def test_every_search_makes_examples_of_what_the_teacher_passes(search: str) -> None:
    world = World()
    result = await world.run(search=search, train=range(12, 20), max_rounds=3)
    assert result.accepted_score == 1.0
    assert set(world.taught) <= {*range(12, 20)}
    assert len(world.taught) == len(set(world.taught)), "each case once"
    assert not list_shown(result) & BEYOND
    assert list_shown(result) <= set(world.taught)
    assert result.measured.spent.by_model()["strong"].calls == len(world.taught)
    without = await World().run(search=search, train=range(12, 20), max_rounds=3, teacher=None)
    assert without.accepted_score == 0.0, "no step passes, and references are those of another node"


@pytest.mark.parametrize("search", SEARCHES)
async def test_no_search_asks_the_teacher_about_cases_that_pass(search: str) -> None:
    world = World()
    await world.run(search=search, max_rounds=3)
    assert not set(world.taught) & EASY


@pytest.mark.parametrize("search", SEARCHES)
async def test_a_run_with_a_teacher_resumes_with_the_same_result(search: str) -> None:
    whole = MemoryJournal()
    result = await World().run(search=search, train=range(12, 20), max_rounds=3, journal=whole)
    taught = [place for place, event in enumerate(whole.events) if event.phase == "teacher"]
    assert taught
    for kept in (taught[0], taught[len(taught) // 2], taught[-1] + 1):
        journal = MemoryJournal()
        for event in whole.events[:kept]:
            await journal.append(event)
        resumed = await World().run(search=search, train=range(12, 20), max_rounds=3, journal=journal)
        assert resumed == result


@pytest.mark.parametrize("search", [each for each in SEARCHES if each != "few_shot"])
async def test_a_teacher_without_examples_to_change_is_refused(search: str) -> None:
    with pytest.raises(RequestError, match="teacher is 'strong', but no target of this run holds few-shot examples; "):
        await World().run(search=search, targets=[INSTRUCTION])
    with pytest.raises(RequestError, match="teacher is 'strong', but no node of this agent can use this model"):
        await World(models=("small", "other")).run(search=search)
    priced = Gateway(models={"strong": World().teacher}, budget=Budget(max_usd=1.0))
    found = SEARCHES[search]("strong")
    assert isinstance(found, ModelCallingSearch)
    assert any("the price of model 'strong' is unknown" in each for each in found.find_setup_problems(priced))


async def test_gepa_asks_only_about_cases_that_its_examples_may_show() -> None:
    world = World()
    await world.run(search="gepa", train=range(12, 20), max_rounds=1)
    assert world.taught == [], "all cases so far are those of the mini-batch"
    await world.run(search="gepa", train=range(12, 20), max_rounds=2)
    assert len(world.taught) == 4, "those of the mini-batch before"


async def test_a_descent_without_a_phase_for_examples_refuses_a_teacher() -> None:
    found = CoordinateDescent(phases=("textual",), teacher="strong").find_target_problems(
        World().agent.describe(), [INSTRUCTION, EXAMPLES], shape="two_sets"
    )
    assert found == ["teacher is 'strong', but phases has no examples; add it, or leave the teacher out"]


def test_a_teacher_needs_train_cases_that_do_not_judge_its_examples() -> None:
    [found] = BackpropRounds(teacher="strong").find_target_problems(
        World().agent.describe(), [EXAMPLES], shape="one_set"
    )
    assert found.startswith("teacher is 'strong', but few-shot examples are made of train cases, and this run judges")
    assert found.endswith("; give a validation set of its own, or leave it out")


async def test_the_teacher_runs_a_case_once_whatever_the_repeats() -> None:
    world = World()
    await world.run(train=range(12, 20), repeats=2)
    assert sorted(world.taught) == [*range(12, 20)]


async def test_the_step_before_a_function_gets_examples_from_passing_steps() -> None:
    world = World()
    result = await world.run(teacher=None)
    assert result.accepted_score == 1.0
    assert list_shown(result) == EASY
    [change] = result.changes
    assert {each["content"] for each in change.after[1::2]} <= {"No. 10", "No. 11"}, "what the clerk wrote"


async def test_a_run_without_a_passing_step_says_what_examples_need() -> None:
    result = await World().run(train=range(12, 20), teacher=None)
    needed = (
        "no examples could be made of the train cases: a node needs a step without tool calls that passed, or that "
        "gives the answer of a case with a reference; "
    )
    assert find_reason(result) == f"{needed}a teacher can make some pass"
    taught = await World().run(train=range(12, 13))
    assert find_reason(taught) == f"{needed}no run of the teacher passed either"


async def test_the_teacher_runs_the_cases_that_fail_and_examples_are_made_of_what_passes() -> None:
    world = World()
    result = await world.run(train=range(12, 20))
    assert sorted(world.taught) == [*range(12, 20)]
    assert result.accepted_score == 1.0
    assert not list_shown(result) & BEYOND, "the metric says that its answer is wrong"
    [change] = result.changes
    [patch] = [each for each in result.rounds[0].patches if each.value == change.after]
    assert (
        patch.reason
        == f"{len(change.after) // 2} examples of train cases: {len(change.after) // 2} from steps of the teacher"
    )
    assert all(each["content"].startswith("No. ") for each in change.after[1::2])


async def test_the_teacher_is_not_asked_about_cases_that_pass() -> None:
    world = World()
    await world.run()
    assert not set(world.taught) & EASY
    assert sorted(world.taught) == [*range(12, 20)]
    idle = World()
    await idle.run(train=range(10, 12))
    assert idle.taught == []


async def test_the_teacher_is_asked_once_about_a_case() -> None:
    world = World()
    await world.run(train=range(12, 20), max_rounds=3)
    assert len(world.taught) == len(set(world.taught))


async def test_an_answer_of_the_teacher_is_preferred_to_a_reference() -> None:
    world = World(last="clerk")
    result = await world.run(train=range(12, 20))
    reasons = {patch.reason.partition(": ")[2] for each in result.rounds for patch in each.patches}
    assert reasons <= {"4 from steps of the teacher", "3 from steps of the teacher, 1 from references"}


async def test_calls_of_the_teacher_are_in_the_ledger_and_under_the_budget() -> None:
    world = World()
    result = await world.run()
    assert result.measured.spent.by_model()["strong"].calls == len(world.taught) == 8
    poor = World()
    ended = await poor.run(budget=Budget(max_calls=6 + 10 + 3))
    assert len(poor.taught) == 3
    assert ended.stop is not None
    assert ended.stop.reasons[0].kind == "max_calls"


async def test_a_teacher_that_no_node_can_use_is_refused() -> None:
    with pytest.raises(RequestError, match="teacher is 'strong', but no node of this agent can use this model"):
        await World(models=("small", "other")).run()
