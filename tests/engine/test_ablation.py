from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Choice, Edge
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.engine.ablation import choose_part_to_drop
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stopping import MaxRounds
from promptiter.profile import Profile
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import CaseFinished
from promptiter.runlog.results import RunResult
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, Tries

SNAPSHOT = desk.agent().describe()
D, P = "draft#instruction", "polish#instruction"
BOTH = DRAFT | POLISH
NICER = {P: "Polish nicely."}


class InstructedAgent:
    """Right with a chance that depends on its two instructions, seeded by the case, the repeat and the profile.

    So running it again gives the same outcome, as the cache would.
    """

    def __init__(self, chance: Callable[[bool, bool], float]) -> None:
        self.chance = chance

    def describe(self) -> StructureSnapshot:
        return SNAPSHOT

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        draft, polish = ("careful" in str(profile.value(surface, SNAPSHOT)) for surface in (D, P))
        dice = Random(f"{context.case_id} {context.repeat} {profile.digest}")
        return AgentRun(output="careful careful" * (dice.random() < self.chance(draft, polish)))


def request(**changes: object) -> RunRequest:
    cases = {"train": desk.eval_set("train", 1), "validation": desk.eval_set("validation", 8)}
    return desk.request(**({"max_rounds": 9, "stop": MaxRounds(9)} | cases | changes))


async def run_of(agent: InstructedAgent, *rounds: dict[str, str], journal: MemoryJournal | None = None) -> RunResult:
    return await Engine(agent, desk.evaluator(), search=Tries(*rounds)).run(request(), journal=journal)


def list_repeats(journal: MemoryJournal, phase: str) -> set[int]:
    """The repeats of a phase."""
    return {
        event.payload.row.repeat
        for event in journal.events
        if isinstance(event.payload, CaseFinished) and event.phase == phase
    }


async def test_a_useless_part_is_dropped_and_a_useful_one_stays() -> None:
    result = await desk.engine(DRAFT | NICER).run(request())
    assert result.ablation is not None
    assert result.ablation.dropped == (P,)
    assert result.ablation.losses == {D: 0.5, P: 0.0}
    assert result.verdict == "improved_on_validation"
    assert [change.surface_id for change in result.changes] == [D]
    assert result.rounds[0].candidate is not None
    assert result.rounds[0].candidate.profile.value(P, SNAPSHOT) == "Polish nicely.", "the round has what was tried"


async def test_of_two_parts_with_the_same_effect_one_stays() -> None:
    either = InstructedAgent(lambda draft, polish: float(draft or polish))
    result = await run_of(either, BOTH)
    assert result.ablation is not None
    assert result.ablation.dropped == (D,), "the first of two equally useless parts"
    assert result.ablation.losses == {D: 0.0, P: 0.0}
    assert (result.verdict, [change.surface_id for change in result.changes]) == ("improved", [P])


async def test_parts_that_help_stay() -> None:
    result = await desk.engine(DRAFT, POLISH).run(request())
    assert result.ablation is not None
    assert result.ablation.dropped == ()
    assert result.conclusion is not None
    assert (result.conclusion.before, result.conclusion.after) == (0.0, 1.0)


async def test_of_parts_that_work_only_together_neither_is_dropped() -> None:
    result = await run_of(InstructedAgent(lambda draft, polish: float(draft and polish)), BOTH)
    assert result.ablation is not None
    assert result.ablation.losses == {D: 1.0, P: 1.0}
    assert result.ablation.dropped == ()


@pytest.mark.parametrize(
    ("chance", "sizes"),
    [
        (lambda draft, polish: float(draft and polish), [6, 6, 6]),
        (lambda draft, _: float(draft), [6, 6, 6, 6, 6, 12, 12]),
    ],
    ids=["both are clear", "one is useless"],
)
async def test_half_of_the_cases_are_enough_for_a_clear_loss(
    chance: Callable[[bool, bool], float], sizes: list[int]
) -> None:
    """The whole profile and the profiles without a part; then the other half, and a second repeat."""
    journal = MemoryJournal()
    cases = {"train": desk.eval_set("train", 24), "validation": desk.eval_set("validation", 12)}
    engine = Engine(InstructedAgent(chance), desk.evaluator(), search=Tries(BOTH))
    await engine.run(request(**cases), journal=journal)
    finished = (event.payload for event in journal.events if event.phase == "ablation")
    runs = Counter(payload.evaluation for payload in finished if isinstance(payload, CaseFinished))
    assert [*runs.values()] == sizes


def test_the_most_harmful_part_is_dropped_first() -> None:
    assert choose_part_to_drop({"a": 0.0, "b": -0.1, "c": 0.3}) == "b"
    assert choose_part_to_drop({"a": 0.1}) is None
    assert choose_part_to_drop({}) is None


async def test_a_profile_of_one_part_is_not_ablated() -> None:
    result = await desk.engine(DRAFT).run(request())
    assert (result.ablation, result.verdict) == (None, "improved_on_validation")


async def test_ablation_can_be_turned_off() -> None:
    result = await desk.engine(DRAFT | NICER).run(request(final_test=FinalTest(ablate=False)))
    assert result.ablation is None
    assert sorted(change.surface_id for change in result.changes) == [D, P]


@pytest.mark.slow
async def test_parts_are_left_out_on_train_cases_and_new_repeats_only() -> None:
    journal = MemoryJournal()
    cases = {"train": desk.eval_set("train", 12), "validation": desk.eval_set("validation", 8)}
    await desk.engine(DRAFT | NICER).run(request(**cases), journal=journal)
    rows = [
        (event.payload.evaluation, event.payload.row)
        for event in journal.events
        if isinstance(event.payload, CaseFinished) and event.phase == "ablation"
    ]
    assert {row.case_id.partition("-")[0] for _, row in rows} == {"train"}, "validation teaches the search nothing"
    assert all(row.repeat > 0 for _, row in rows), "no run decided before"
    by_evaluation = {number: {row.case_id for at, row in rows if at == number} for number, _ in rows}
    assert [len(found) for found in by_evaluation.values()] == [8] * 5, "as many as validation has, the same for each"
    assert len({frozenset(found) for found in by_evaluation.values()}) == 1


@pytest.mark.slow
async def test_with_one_set_the_ablation_uses_its_cases() -> None:
    asked = desk.request(train=None, validation=None, cases=desk.eval_set("cases", 6), max_rounds=2, stop=MaxRounds(1))
    journal = MemoryJournal()
    result = await desk.engine(DRAFT | NICER).run(asked, journal=journal)
    assert result.ablation is not None
    assert result.ablation.dropped == (P,)


async def test_a_part_that_helps_one_case_in_many_stays() -> None:
    """Of twelve train cases one failed; the ablation runs two."""

    class FailsOnce(InstructedAgent):
        async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
            is_rare = case.text.endswith("question 0")
            helps = "careful" in str(profile.value(D, SNAPSHOT)) or not is_rare
            return AgentRun(output="careful careful" if helps else "")

    sets = {"train": desk.eval_set("train", 12), "validation": desk.eval_set("validation", 2)}
    result = await Engine(FailsOnce(lambda *_: 1.0), desk.evaluator(), search=Tries(BOTH)).run(request(**sets))
    assert result.ablation is not None
    assert result.ablation.dropped == (P,)


class SlipsOnce(InstructedAgent):
    """Right with a careful draft, but for one slip: the first train case without the other part fails once."""

    def __init__(self) -> None:
        super().__init__(lambda draft, _: float(draft))
        self.slipped: tuple[str, int] | None = None

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        if context.case_id.startswith("train") and [*profile.overrides] == [D]:
            self.slipped = self.slipped or (context.case_id, context.repeat)
            if self.slipped == (context.case_id, context.repeat):
                return AgentRun(output="")
        return await super().run(case, profile, context)


async def test_a_slip_without_a_useless_part_does_not_make_it_useful() -> None:
    agent = SlipsOnce()
    result = await run_of(agent, DRAFT | NICER)
    assert agent.slipped is not None
    assert result.ablation is not None
    assert result.ablation.losses == {D: 1.0, P: 0.0}
    assert result.ablation.dropped == (P,)


@pytest.mark.slow
async def test_a_part_that_no_train_case_can_show_stays() -> None:
    """Only validation cases are polished: leaving it out on train says nothing."""
    graph = GraphAgent(
        name="desk",
        nodes=(
            ModelNode(name="draft", instruction="Draft.", model="scripted"),
            ModelNode(name="polish", instruction="Polish.", model="scripted"),
            FunctionNode(name="end", function=_end),
        ),
        edges=(Choice("draft", _route, {"polish": "polish", "end": "end"}), Edge("polish", "end")),
    )
    result = await Engine(graph, desk.evaluator(), search=Tries(BOTH)).run(request(train=desk.eval_set("train", 4)))
    assert result.ablation is not None
    assert result.ablation.losses == {D: 0.5}
    assert [change.surface_id for change in result.changes] == [D, P]


def _route(context: NodeContext) -> str:
    return "end" if "train" in context.input else "polish"


def _end(node_context: NodeContext) -> str:
    return str(node_context.incoming)


async def test_the_final_test_uses_no_repeats_of_the_ablation() -> None:
    journal = MemoryJournal()
    await run_of(InstructedAgent(lambda draft, polish: 1.0 if draft or polish else 0.2), BOTH, journal=journal)
    assert len(list_repeats(journal, "ablation")) == 2, "a part that seems useless gets more repeats"
    assert list_repeats(journal, "final_test")
    assert list_repeats(journal, "ablation").isdisjoint(list_repeats(journal, "final_test"))
