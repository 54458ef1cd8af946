from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.engine.comparison_result import MetricChange
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.profile_comparison import compare_profiles, compare_profiles_sync
from promptiter.errors import AccessDeniedError, OutageError, SetupError, StructureMismatchError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.result import CaseRow
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from tests.worlds.long_chain import Effect, LongChain, evaluate_fully

STEPS, EDITED, CASES = 10, 7, 20


def make_world(seed: str = "0", **settings: float) -> LongChain:
    return LongChain(seed=seed, steps=STEPS, edited=EDITED, cases=CASES, **settings)  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("effect", "answer"), [("better", "improved"), ("worse", "worse"), ("no effect", "within_noise")]
)
async def test_only_what_follows_the_edited_text_is_paid(effect: Effect, answer: str) -> None:
    world, cache = make_world(), MemoryCache()
    evaluator, agent, cases = world.make_evaluator(cache=cache), world.make_agent(), world.make_eval_set()
    new = await compare_profiles(agent, evaluator, cases, *world.make_profiles("no effect", 9))  # records six repeats
    assert new.first_profile_calls == new.repeats * CASES * STEPS  # including the steps that both profiles share
    world.calls.clear()
    found = await compare_profiles(agent, evaluator, cases, *world.make_profiles(effect))
    assert found.answer == answer
    runs = found.repeats * CASES
    assert world.calls[f"step{EDITED}"] == runs
    assert not any(world.calls[f"step{number}"] for number in range(EDITED))
    assert found.spent.calls == world.calls.total() <= runs * (STEPS - EDITED)
    assert found.first_profile_calls == 0
    assert found.saved.calls == 2 * runs * STEPS - found.spent.calls
    assert found.saved.tokens == 12 * found.saved.calls
    assert found.saved.cost_usd == pytest.approx(0.001 * found.saved.calls)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
async def test_the_answer_is_that_of_a_full_evaluation(seed: int) -> None:
    world, cache = make_world(f"full {seed}"), MemoryCache()
    evaluator, agent, cases = world.make_evaluator(cache=cache), world.make_agent(), world.make_eval_set()
    effects: tuple[Effect, ...] = ("better", "no effect", "worse")
    for place, effect in enumerate(effects):
        profiles = world.make_profiles(effect)
        found = await compare_profiles(agent, evaluator, cases, *profiles)
        assert found.answer == await evaluate_fully(world, *profiles, seed=1 + 2 * place)


@pytest.mark.slow
async def test_the_result_says_what_changed() -> None:
    world = make_world()
    found = await compare_profiles(
        world.make_agent(), world.make_evaluator(), world.make_eval_set(), *world.make_profiles("better")
    )
    assert found.surface_ids == (world.surface_id,)
    assert found.gain is not None
    assert found.gain == pytest.approx(sum(case.change for case in found.changed_cases) / CASES)
    assert found.before_mean is not None
    assert found.after_mean == pytest.approx(found.before_mean + found.gain)
    assert [case.change for case in found.changed_cases] == sorted(case.change for case in found.changed_cases)
    best = found.changed_cases[-1]
    assert (best.before_output, best.after_output) == (f"{best.case_id} wrong", f"{best.case_id} right")
    assert best.metrics == (MetricChange(metric="right", before=0.0, after=1.0),)
    assert (found.runs.cases, found.runs.unreached, found.unexplained) == (CASES, 0, ())
    assert repr(found).count("\n") == 2
    assert repr(found).startswith("ProfileComparison(improved, mean_score 0.")
    assert f"changed: {world.surface_id}; {len(found.changed_cases)} cases better, 0 worse, of {CASES}" in repr(found)


async def test_a_changed_case_shows_the_repeat_that_changed_in_its_direction() -> None:
    """The case is worse in repeat 0, the same in repeat 1 but for the words, and better in the others."""
    agent = make_router(lambda: "")

    class Fickle(Echo):
        async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
            is_edited = "well" in request.messages[0].content
            good = is_edited if repeat > 1 else repeat == 0 and not is_edited
            return ModelReply(text=f"{'good' if good else 'bad'} {repeat} {'after' if is_edited else 'before'}")

    found = await compare_profiles(
        agent,
        make_evaluator(Fickle()),
        make_set(2),
        *edit(agent, "rare#instruction", "Answer well."),
        repeats=4,
    )
    [case] = found.changed_cases
    assert (case.before_output.strip(), case.after_output.strip()) == ("bad 2 before", "good 2 after")
    assert (case.repeat, case.metrics) == (2, (MetricChange(metric="good", before=0.0, after=1.0),))


async def test_means_and_gain_agree_if_a_run_cannot_be_scored() -> None:
    def score(case: EvalCase, run: AgentRun) -> float:
        if case.id == "1" and "good" in run.output:
            raise ValueError("no reference")
        return float("good" in run.output)

    agent = make_router(lambda: "")
    evaluator = Evaluator(
        [FunctionMetric(name="good", function=score)],
        gateway=Gateway(models={"echo": Echo()}, cache=MemoryCache()),
        options=EvaluationOptions(max_errored_fraction=0.5),
    )
    found = await compare_profiles(agent, evaluator, make_set(10), *edit(agent, "rare#instruction", "Answer well."))
    assert (found.before_mean, found.after_mean, found.gain) == pytest.approx((0.0, 0.4, 0.4))


@pytest.mark.slow
async def test_other_repeats_are_other_samples() -> None:
    world, cache = make_world(), MemoryCache()
    evaluator, profiles = world.make_evaluator(cache=cache), world.make_profiles("worse")
    first, again, other = [
        await compare_profiles(
            world.make_agent(), evaluator, world.make_eval_set(), *profiles, first_repeat=first_repeat
        )
        for first_repeat in (0, 0, 1_000)
    ]
    assert again.spent.calls == 0
    assert again.before == first.before
    assert other.spent.calls > 0
    assert [row.scores for row in other.before.rows] != [row.scores for row in first.before.rows]


def make_router(read: Callable[[], str]) -> GraphAgent:
    """Half of the cases are answered by `rare`, the others by `common`. What `read` returns is added to the answer."""

    def finish(answer: str) -> str:
        return f"{answer} {read()}"

    return GraphAgent(
        name="router",
        nodes=(
            FunctionNode(name="start", function=lambda text: text),
            ModelNode(name="rare", instruction="Answer.", model="echo"),
            ModelNode(name="common", instruction="Answer.", model="echo"),
            FunctionNode(name="end", function=finish),
        ),
        edges=(
            Choice("start", _choose, {"rare": "rare", "common": "common"}),
            Edge("rare", "end"),
            Edge("common", "end"),
        ),
    )


def _choose(context: NodeContext) -> str:
    return "rare" if int(str(context.outputs["start"])) % 2 else "common"


class Echo:
    """A model that answers `good` if its instruction asks for it, and counts its calls."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.asked.append(repeat)
        return ModelReply(text="good" if "well" in request.messages[0].content else "bad")


def make_set(cases: int) -> EvalSet:
    return EvalSet(id="router", cases=tuple(EvalCase(id=f"{n}", turns=(Turn(user=f"{n}"),)) for n in range(cases)))


def make_evaluator(model: Echo | None = None, *, budget: Budget | None = None) -> Evaluator:
    return Evaluator(
        [FunctionMetric(name="good", function=lambda _, run: "good" in run.output)],
        gateway=Gateway(models={"echo": model or Echo()}, cache=MemoryCache(), budget=budget),
        options=EvaluationOptions(concurrency=4),
    )


def edit(agent: GraphAgent, surface_id: str, text: str) -> tuple[Profile, Profile]:
    snapshot = agent.describe()
    return Profile.baseline(snapshot), Profile.of(snapshot, {surface_id: text})


@pytest.mark.slow
async def test_cases_that_do_not_read_the_edit_cost_nothing_and_stay_the_same() -> None:
    model, agent = Echo(), make_router(lambda: "")
    evaluator = make_evaluator(model)
    await compare_profiles(agent, evaluator, make_set(10), *edit(agent, "rare#instruction", "Answer it."))
    model.asked.clear()
    found = await compare_profiles(agent, evaluator, make_set(10), *edit(agent, "rare#instruction", "Answer well."))
    assert found.answer == "improved"
    assert sorted(model.asked) == sorted([*range(found.repeats)] * 5)
    assert found.runs.unreached == 5
    assert {case.case_id for case in found.changed_cases} == {"1", "3", "5", "7", "9"}


async def test_a_difference_that_no_recorded_input_explains_is_reported() -> None:
    numbers = count()
    agent = make_router(lambda: str(next(numbers)))
    found = await compare_profiles(
        agent, make_evaluator(), make_set(4), *edit(agent, "rare#instruction", "Answer well.")
    )
    assert found.unexplained == ("0", "2")


class OpaqueAgent:
    """An agent that calls nothing through the gateway and records nothing."""

    def __init__(self) -> None:
        self.snapshot = make_router(lambda: "").describe()
        self.runs: list[tuple[str, int]] = []

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        self.runs.append((case.text, context.repeat))
        return AgentRun(output="good" if "well" in str(profile.value("rare#instruction", self.snapshot)) else "bad")


async def test_an_agent_without_recorded_calls_runs_everything() -> None:
    agent = OpaqueAgent()
    profiles = Profile.baseline(agent.snapshot), Profile.of(agent.snapshot, {"rare#instruction": "Answer well."})
    found = await compare_profiles(agent, make_evaluator(), make_set(10), *profiles)
    assert found.answer == "improved"
    assert len(agent.runs) == 2 * 10 * found.repeats == 2 * len(set(agent.runs))
    assert (found.spent.calls, found.saved.calls) == (0, 0)


async def test_a_budget_that_ends_leaves_what_was_measured() -> None:
    agent = make_router(lambda: "")
    evaluator = make_evaluator(budget=Budget(max_calls=12))
    found = await compare_profiles(agent, evaluator, make_set(10), *edit(agent, "rare#instruction", "Answer well."))
    assert (found.answer, found.stop_reason) == ("undecided", "max_calls")
    assert found.spent.calls <= 12
    assert 0 < len(found.before.rows) == len(found.after.rows) < 20
    assert "before the test was complete" in found.reason
    assert (found.saved.tokens, found.saved.cost_usd) == (None, None)  # the rows of stopped runs are missing


async def test_an_interrupt_leaves_what_was_measured() -> None:
    agent, interrupt = make_router(lambda: ""), Interrupt()
    rows: list[CaseRow] = []

    def stop_after_five(row: CaseRow) -> None:
        rows.append(row)
        if len(rows) == 5:
            interrupt.stop("Ctrl-C")

    found = await compare_profiles(
        agent,
        make_evaluator(),
        make_set(30),
        *edit(agent, "rare#instruction", "Answer well."),
        on_row=stop_after_five,
        interrupt=interrupt,
    )
    assert (found.answer, found.stop_reason) == ("undecided", "user_stop")
    assert 5 <= len(rows) < 20


async def test_a_callback_that_fails_does_not_change_the_result() -> None:
    def fail(_: CaseRow) -> None:
        raise ValueError("no terminal")

    agent = make_router(lambda: "")
    found = await compare_profiles(
        agent, make_evaluator(), make_set(10), *edit(agent, "rare#instruction", "Answer well."), on_row=fail
    )
    assert (found.answer, found.runs.pairs) == ("improved", 10 * found.repeats)


class Down(Echo):
    """A model whose service fails from the 20th call on."""

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        found = await super().__call__(request, repeat=repeat)
        if len(self.asked) >= 20:
            raise AccessDeniedError("the key has expired")
        return found


async def test_an_outage_is_not_a_result() -> None:
    agent = make_router(lambda: "")
    with pytest.raises(OutageError, match=r"the key has expired; \d+ case runs were lost .*, then try again"):
        await compare_profiles(
            agent, make_evaluator(Down()), make_set(20), *edit(agent, "rare#instruction", "Answer well.")
        )


def test_it_can_be_called_without_an_event_loop() -> None:
    agent = make_router(lambda: "")
    found = compare_profiles_sync(
        agent, make_evaluator(), make_set(10), *edit(agent, "rare#instruction", "Answer well.")
    )
    assert found.answer == "improved"


async def test_what_cannot_be_compared_is_refused_before_anything_is_spent() -> None:
    agent, model = make_router(lambda: ""), Echo()
    evaluator, (before, after) = make_evaluator(model), edit(agent, "rare#instruction", "Answer well.")
    other = LongChain(steps=2, edited=1).make_profiles("better")[1]
    with pytest.raises(SetupError, match="the profiles are the same"):
        await compare_profiles(agent, evaluator, make_set(2), before, before)
    with pytest.raises(StructureMismatchError):
        await compare_profiles(agent, evaluator, make_set(2), before, other)
    with pytest.raises(SetupError, match="has no cases"):
        await compare_profiles(agent, evaluator, make_set(0), before, after)
    with pytest.raises(SetupError, match="is not a profile; give"):
        await compare_profiles(agent, evaluator, make_set(2), before, {"rare#instruction": "x"})  # type: ignore[arg-type]
    assert model.asked == []
