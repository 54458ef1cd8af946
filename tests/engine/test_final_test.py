from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

import traces
from promptiter.agents import CallAgent
from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.function import agent
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.agents.surface_scope import surface
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.errors import BudgetEndedError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.stats.final_test import plan_blocks
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply
from promptiter.llm.prices import Price, Prices
from promptiter.policies.acceptance import MinGain
from promptiter.policies.evidence import Answer, Evidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stopping import MaxRounds
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import BudgetReserved, CaseFinished
from promptiter.runlog.results import RunResult
from promptiter.structure import StructureSnapshot
from promptiter.testing.store_hooks import Killed
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, Tries
from traces import Failure, Usage

CHOICES = {"cheap": 1.0, "dear": 10.0}
SNAPSHOT = desk.agent().describe()
D, P = "draft#instruction", "polish#instruction"
RESTYLED = {D: "Draft, in other words."}

Chance = Callable[[str, bool, bool], float]
"""How often a case passes, by whether the draft and the polish are instructed to be careful."""


class InstructedAgent:
    """Passes a case with some chance, seeded by the case, the repeat and the profile. Counts its runs."""

    def __init__(self, chance: Chance, *, fails: Callable[[RunContext, bool], bool] = lambda *_: False) -> None:
        self.chance = chance
        self.fails = fails
        self.runs: Counter[tuple[str, str, int]] = Counter()

    def describe(self) -> StructureSnapshot:
        return SNAPSHOT

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        self.runs[profile.digest, context.case_id, context.repeat] += 1
        draft, polish = ("careful" in str(profile.value(surface, SNAPSHOT)) for surface in (D, P))
        if self.fails(context, draft):
            return AgentRun(error=Failure("AgentError", "broke"))
        dice = Random(f"{context.case_id} {context.repeat} {profile.digest}").random()
        return AgentRun(output="careful careful" * (dice < self.chance(context.case_id, draft, polish)))


class AcceptsAll:
    """Accepts everything: the final test does not depend on what the search saw."""

    def decide(self, evidence: Evidence) -> Answer:
        return evidence.accept("kept")


def request(*, cases: int = 10, **changes: object) -> RunRequest:
    values: dict[str, object] = {
        "train": desk.eval_set("train", 1),
        "validation": desk.eval_set("validation", cases),
        "acceptance": AcceptsAll(),
        "max_rounds": 9,
        "stop": MaxRounds(9),
    }
    return desk.request(**(values | changes))


def engine(agent: InstructedAgent, *rounds: dict[str, str]) -> Engine:
    return Engine(agent, Evaluator([FunctionMetric(name="careful", function=_score)]), search=Tries(*rounds))


async def _score(_case: EvalCase, run: AgentRun) -> bool:
    """Async, so that it needs no thread."""
    return bool(run.output)


def list_repeats(journal: MemoryJournal, phase: str) -> set[int]:
    return {
        event.payload.row.repeat
        for event in journal.events
        if isinstance(event.payload, CaseFinished) and event.phase == phase
    }


def outcome(result: RunResult) -> tuple[str, str | None, list[str]]:
    assert result.conclusion is not None
    return result.verdict, result.conclusion.scope, [each.outcome for each in result.conclusion.results]


async def test_a_gain_beyond_noise_is_shown_for_these_cases_on_fresh_repeats() -> None:
    journal = MemoryJournal()
    agent = InstructedAgent(lambda _, draft, __: 0.9 if draft else 0.2)
    result = await engine(agent, DRAFT).run(request(cases=7), journal=journal)
    assert outcome(result) == ("improved_on_validation", "these cases", ["shown", "not_shown"])
    assert [change.surface_id for change in result.changes] == [D]
    assert list_repeats(journal, "final_test").isdisjoint(
        list_repeats(journal, "baseline") | list_repeats(journal, "validation")
    )
    assert result.conclusion is not None
    assert result.conclusion.before is not None
    assert result.conclusion.after is not None
    assert result.conclusion.after - result.conclusion.before == pytest.approx(result.conclusion.results[0].gain)
    assert result.conclusion.reasons[-1] == "the search tried 1 candidate on these cases, in other repeats"


async def test_candidates_rejected_after_train_cases_alone_were_not_tried_on_these_cases() -> None:
    class RejectsOnTrain(Tries):
        async def search(self, session: Session) -> None:
            await session.begin_round()
            worse = session.candidate(PatchSet((SurfacePatch(surface_id=P, value="Polish badly.", reason="tried"),)))
            await session.evaluate(session.train, worse, phase="screening")
            await session.reject(worse, "no gain on train")
            await session.complete_round()
            await super().search(session)

    agent = InstructedAgent(lambda _, draft, __: 0.9 if draft else 0.2)
    tried = Engine(agent, Evaluator([FunctionMetric(name="careful", function=_score)]), search=RejectsOnTrain(DRAFT))
    result = await tried.run(request(cases=7))
    assert result.conclusion is not None
    expected = "the search tried 2 candidates, 1 of them on these cases, in other repeats"
    assert result.conclusion.reasons[-1] == expected
    assert result.conclusion.tried == 2


async def test_a_final_test_without_a_gain_stops_after_its_first_block_and_adopts_nothing() -> None:
    journal = MemoryJournal()
    agent = InstructedAgent(lambda _, draft, __: 0.1 if draft else 0.9)
    result = await engine(agent, DRAFT).run(request(cases=30), journal=journal)
    assert outcome(result) == ("no_evidence", None, ["futile"])
    assert len(list_repeats(journal, "final_test")) == 2
    assert result.changes == ()
    assert result.working_profile.value(D, SNAPSHOT) == DRAFT[D]
    assert result.accepted_profile == result.initial_profile


def weak_gain(gain: float, **options: Any) -> tuple[InstructedAgent, RunRequest]:
    """A gain on 20 cases that three blocks do not show. One of 0.1 is promising then, one of 0.05 is not."""
    agent = InstructedAgent(lambda _, draft, __: 0.5 + gain if draft else 0.5, **options)
    return agent, request(cases=20, final_test=FinalTest(min_detectable_gain=0.5))


@pytest.mark.slow
async def test_a_promising_final_test_has_an_extra_block_which_says_nothing_about_new_cases() -> None:
    (agent, asked), journal = weak_gain(0.1), MemoryJournal()
    result = await engine(agent, DRAFT).run(asked, journal=journal)
    assert outcome(result) == ("improved_on_validation", "these cases", ["shown", "not_shown"])
    assert len(list_repeats(journal, "final_test")) == 16
    assert result.conclusion is not None
    on_these, on_new = result.conclusion.results
    assert [look.repeats for look in on_these.looks] == [2, 4, 6, 16]
    assert [look.repeats for look in on_new.looks] == [6], "whether the extra block is run depends on the gain so far"


async def test_a_final_test_that_is_not_promising_ends_after_three_blocks() -> None:
    (agent, asked), journal = weak_gain(0.05), MemoryJournal()
    result = await engine(agent, DRAFT).run(asked, journal=journal)
    assert outcome(result) == ("no_evidence", None, ["not_shown"])
    assert len(list_repeats(journal, "final_test")) == 6
    assert result.conclusion is not None
    assert result.conclusion.results[0].p_value == pytest.approx(0.35, abs=0.01)


@pytest.mark.long
async def test_a_run_killed_in_the_extra_block_resumes_it() -> None:
    (agent, asked), whole = weak_gain(0.1), MemoryJournal()
    result = await engine(agent, DRAFT).run(asked, journal=whole)
    tested = [event.seq for event in whole.events if event.type == "case" and event.phase == "final_test"]
    third = 2 * 20 * 6
    for cut in (tested[third - 1], tested[third], tested[third] + 1, tested[third + 100], tested[-1], tested[-1] + 1):
        (again, _), journal = weak_gain(0.1), MemoryJournal()
        for event in whole.events[:cut]:
            await journal.append(event)
        assert (await engine(again, DRAFT).run(asked, journal=journal)).conclusion == result.conclusion
        assert again.runs.total() == sum(seq >= cut for seq in tested), "no case run is repeated"


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 150])
async def test_if_the_budget_ends_in_the_extra_block_the_third_look_counts(left: int) -> None:
    """Also on resume with a larger budget: a test that has ended is not continued."""
    spent, left = 0, 2 * 20 * 6 + left

    def spend(context: RunContext, _: bool) -> bool:
        nonlocal spent
        spent += context.repeat > 1
        if spent > left:
            raise BudgetEndedError(f"no call fits into max_calls {left}", cap="max_calls")
        return False

    (agent, asked), journal = weak_gain(0.1, fails=spend), MemoryJournal()
    result = await engine(agent, DRAFT).run(asked, journal=journal)
    assert outcome(result) == ("no_evidence", None, ["not_shown"])
    assert result.conclusion is not None
    assert [look.repeats for look in result.conclusion.results[0].looks] == [2, 4, 6]
    assert f"block 4 of 4 has not been run: no call fits into max_calls {left}" in result.conclusion.reasons[0]
    ended = next(event.seq for event in journal.events if event.type == "budget_ended")
    for cut in (ended + 1, ended + 2):
        cut_journal = MemoryJournal()
        for event in list(journal.events)[:cut]:
            await cut_journal.append(event)
        agent, _ = weak_gain(0.1)
        assert (await engine(agent, DRAFT).run(asked, journal=cut_journal)).conclusion == result.conclusion
        assert not agent.runs


@pytest.mark.slow
async def test_a_final_test_that_an_earlier_version_finished_is_not_continued(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier versions ended after three blocks, with other shares of alpha."""
    (agent, asked), journal, cut = weak_gain(0.1), MemoryJournal(), MemoryJournal()
    with monkeypatch.context() as earlier:
        earlier.setattr("promptiter.engine.conclusion.plan_final_test", plan_blocks)
        result = await engine(agent, DRAFT).run(asked, journal=journal)
    assert outcome(result) == ("no_evidence", None, ["not_shown"])
    for event in list(journal.events)[:-1]:
        await cut.append(event)
    agent, _ = weak_gain(0.1)
    again = await engine(agent, DRAFT).run(asked, journal=cut)
    assert again.conclusion is not None
    assert result.conclusion is not None
    assert again.conclusion.results == result.conclusion.results
    assert not agent.runs


async def test_a_gain_that_these_cases_cannot_show_is_underpowered_whatever_was_measured() -> None:
    agent = InstructedAgent(lambda _, draft, __: 0.6 if draft else 0.5)
    result = await engine(agent, DRAFT).run(request(cases=10))
    assert result.verdict == "underpowered"
    assert result.conclusion is not None
    assert result.conclusion.smallest_gain is None or result.conclusion.smallest_gain > 0.1
    assert "but not 0.1; see `promptiter noise`" in " ".join(result.conclusion.reasons)


async def test_the_same_cases_are_enough_to_show_a_large_gain() -> None:
    agent = InstructedAgent(lambda _, draft, __: 0.45 if draft else 0.5)
    result = await engine(agent, DRAFT).run(request(cases=30, final_test=FinalTest(min_detectable_gain=0.5)))
    assert result.verdict == "no_evidence"


async def test_four_cases_without_noise_are_too_few_for_no_evidence() -> None:
    result = await engine(InstructedAgent(lambda *_: 1.0), RESTYLED).run(request(cases=4))
    assert result.verdict == "underpowered"
    assert result.conclusion is not None
    assert "there are only 4 validation cases" in result.conclusion.reasons


async def test_without_run_noise_one_fixed_case_is_shown_after_six_repeats() -> None:
    journal = MemoryJournal()
    agent = InstructedAgent(lambda case, draft, _: float(draft or case != "validation-3"))
    result = await engine(agent, DRAFT).run(request(), journal=journal)
    assert outcome(result) == ("improved_on_validation", "these cases", ["shown", "not_shown"])
    assert len(list_repeats(journal, "final_test")) == 6, "five failures of the candidate may be unseen"
    assert result.conclusion is not None
    assert "every case scored the same in 6 repeats" in result.conclusion.reasons[0]
    assert result.conclusion.smallest_gain == pytest.approx(5 * 0.97 / 160, abs=0.002)


async def test_without_run_noise_a_patch_that_changes_nothing_is_never_shown() -> None:
    result = await engine(InstructedAgent(lambda case, *_: float(case > "validation-4")), RESTYLED).run(request())
    assert outcome(result) == ("no_evidence", None, ["futile"])


async def test_a_gain_on_the_test_set_is_shown_for_new_cases() -> None:
    journal = MemoryJournal()
    agent = InstructedAgent(lambda _, draft, __: 0.9 if draft else 0.2)
    result = await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 10)), journal=journal)
    assert outcome(result) == ("improved", "new cases", ["shown", "shown"])
    assert result.conclusion is not None
    assert (result.conclusion.test_before, result.conclusion.test_after) == (0.25, 0.85)
    events = list(journal.events)
    on_test_set = [event.seq for event in events if event.type == "case" and "test-" in event.data["row"]["case_id"]]
    assert len(on_test_set) == 2 * 2 * 10
    [looked] = [
        event.seq for event in events if event.type == "final_test" and event.data["result"]["scope"] == "these cases"
    ]
    assert min(on_test_set) > looked, "they run only once the test on the others is decided"


async def test_the_test_set_does_not_run_for_a_gain_that_was_not_shown() -> None:
    agent = InstructedAgent(lambda _, draft, __: 0.1 if draft else 0.9)
    await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 10)))
    assert not [case for _, case, _ in agent.runs if case.startswith("test-")]


async def test_a_small_gain_on_the_test_set_leaves_the_verdict_for_these_cases() -> None:
    agent = InstructedAgent(
        lambda case, draft, _: 0.9 if draft and (case.startswith("validation") or case == "test-1") else 0.2
    )
    result = await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 8)))
    assert outcome(result) == ("improved_on_validation", "these cases", ["shown", "not_shown"])
    assert not result.is_shown_for_new_cases
    assert result.conclusion is not None
    assert result.conclusion.obstacle == "8 test cases are too few for a gain of this size; give more test cases"


async def test_a_test_set_that_is_too_small_to_decide_anything_is_not_spent() -> None:
    agent = InstructedAgent(lambda _, draft, __: 0.9 if draft else 0.2)
    result = await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 7)))
    assert not [case for _, case, _ in agent.runs if case.startswith("test-")]
    assert result.conclusion is not None
    few = "the test set was not run: 7 cases cannot decide about new cases; give at least 8"
    assert few in result.conclusion.reasons


async def test_a_loss_on_the_test_set_is_an_overfit_risk_and_nothing_is_adopted() -> None:
    agent = InstructedAgent(lambda case, draft, _: float(draft == case.startswith("validation")))
    result = await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 10)))
    assert outcome(result) == ("overfit_risk", None, ["shown", "loss"])
    assert result.changes == ()


async def test_a_profile_that_fails_in_the_final_test_makes_it_invalid() -> None:
    agent = InstructedAgent(lambda *_: 0.5, fails=lambda context, draft: draft and context.repeat > 0)
    result = await engine(agent, DRAFT).run(request())
    assert result.verdict == "invalid_eval"
    assert result.changes == ()
    assert result.conclusion is not None
    assert "the candidate is unreliable: 100.0% of its runs or scores failed" in result.conclusion.reasons[1]


async def test_an_unreliable_test_set_leaves_the_verdict_for_these_cases() -> None:
    agent = InstructedAgent(
        lambda _, draft, __: float(draft), fails=lambda context, draft: draft and context.case_id.startswith("test")
    )
    result = await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 10)))
    assert outcome(result)[:2] == ("improved_on_validation", "these cases")
    assert result.conclusion is not None
    assert "on the test set, the candidate is unreliable" in " ".join(result.conclusion.reasons)


async def test_a_candidate_that_crashes_on_the_test_set_is_an_overfit_risk() -> None:
    """Crashes of the agent count with the worst score, so they are a loss."""
    agent = InstructedAgent(
        lambda case, draft, _: float(draft or case.startswith("test")),
        fails=lambda context, draft: draft and context.case_id.startswith("test"),
    )
    result = await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 10)))
    assert outcome(result) == ("overfit_risk", None, ["shown", "loss"])
    assert result.changes == ()
    assert result.conclusion is not None
    assert "on the test set, the candidate is unreliable" in " ".join(result.conclusion.reasons)


@pytest.mark.slow
@pytest.mark.parametrize(("calls", "verdict"), [(400, "improved_on_validation"), (120, "budget_ended")])
async def test_if_the_budget_ends_the_search_the_final_test_follows(calls: int, verdict: str) -> None:
    """A case run takes 2 calls, so one block of the final test takes 80. Half of what is left is reserved at most."""
    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=calls))
    rounds = (DRAFT, *({P: f"Polish. Version {number}."} for number in range(9)))
    result = await desk.engine(*rounds, gateway=gateway).run(request(acceptance=MinGain(0.1)))
    assert (result.verdict, result.stop_reason) == (verdict, "max_calls")
    assert (result.conclusion is not None) == (verdict == "improved_on_validation")
    assert result.working_profile.value(D, SNAPSHOT) == DRAFT[D]
    assert result.measured.spent.total.calls <= calls


async def test_the_dearest_model_that_the_search_may_choose_is_reserved_for_the_final_test() -> None:
    """The final test runs 10 cases 6 times under both profiles. The accepted one may cost ten times as much."""
    prices = {name: Price(input_usd_per_million=usd, output_usd_per_million=usd) for name, usd in CHOICES.items()}

    async def reserve(target: str) -> float:
        gateway = Gateway(models=dict.fromkeys(CHOICES, reply), prices=Prices(prices), budget=Budget(max_usd=9))
        node = ModelNode(
            name="w", instruction="Answer.", model="cheap", models=tuple(CHOICES), options={"max_tokens": 9}
        )
        journal = MemoryJournal()
        subject = GraphAgent(name="a", nodes=(node,))
        await Engine(subject, desk.evaluator(gateway), search=Tries()).run(request(targets=[target]), journal=journal)
        [found] = [event.payload for event in journal.events if isinstance(event.payload, BudgetReserved)]
        return found.measured.expected.cost_usd or 0.0

    async def reply(_: Any, *, repeat: int = 0) -> ModelReply:
        return ModelReply(text="no", usage=Usage(input_tokens=900, output_tokens=100))

    plain, chosen = await reserve("w#instruction"), await reserve("w#model")
    assert chosen - plain == pytest.approx(6 * 10 * 0.001 * (10 - 1))


async def test_test_cases_that_fail_under_the_initial_profile_are_not_a_gain() -> None:
    agent = InstructedAgent(
        lambda *_: 1.0 * _[1], fails=lambda context, draft: context.case_id.startswith("test") and not draft
    )
    result = await engine(agent, DRAFT).run(request(test=desk.eval_set("test", 10)))
    assert outcome(result) == ("improved_on_validation", "these cases", ["shown"])
    assert result.conclusion is not None
    assert any("on the test set, the accepted profile is unreliable" in each for each in result.conclusion.reasons)


def unreachable_desk() -> GraphAgent:
    """The desk with a node that no edge leads to."""
    desk_agent = desk.agent()
    unused = ModelNode(name="unused", instruction="Unused.", model="scripted")
    return replace(desk_agent, nodes=(*desk_agent.nodes, unused), output="polish")


@pytest.mark.parametrize(
    ("subject", "target", "runs"),
    [(unreachable_desk(), "unused#instruction", 0), (desk.agent(), D, 2 * 2 * 10)],
    ids=["out of reach", "reachable"],
)
async def test_a_change_is_run_unless_the_structure_proves_that_no_route_leads_to_it(
    subject: GraphAgent, target: str, runs: int
) -> None:
    journal, tries = MemoryJournal(), Tries({target: "In other words."})
    result = await Engine(subject, desk.evaluator(), search=tries).run(request(), journal=journal)
    assert result.verdict == "no_evidence"
    assert result.conclusion is not None
    assert (result.conclusion.reasons[0] == "no route of the agent leads to what was changed") == (runs == 0)
    tested = [event for event in journal.events if event.type == "case" and event.phase == "final_test"]
    assert len(tested) == runs


@agent(instruction={"plan": "Plan.", "draft": "Draft."})
def write(question: str) -> str:
    return f"{surface('instruction.plan')} {surface('instruction.draft')} {question}"


@agent(instruction={"plan": "Plan.", "draft": "Draft."})
def write_in_steps(question: str) -> str:
    with traces.step("plan"):
        plan = surface("instruction.plan")
    with traces.step("draft"):
        return f"{plan} {surface('instruction.draft')} {question}"


@pytest.mark.parametrize(
    ("writer", "plan", "is_advised"),
    [(write, "Plan!", True), (write, "careful", True), (write, "careful careful", False), (write_in_steps, "P", False)],
    ids=["nothing accepted", "better", "perfect", "with steps"],
)
async def test_prompts_that_one_step_reads_are_advised_to_have_their_own(
    writer: Any, plan: str, is_advised: bool
) -> None:
    tries = Tries({f"{writer.__name__}#instruction.plan": plan})
    result = await Engine(writer, desk.evaluator(), search=tries).run(desk.request(acceptance=MinGain(0.1)))
    assert result.conclusion is not None
    advice = (
        "one step reads several prompts (write#instruction.draft, write#instruction.plan), so blame cannot tell them "
        "apart; open a step around each prompt: `with traces.step(...):`"
    )
    assert [each for each in result.conclusion.reasons if "traces.step" in each] == [advice] * is_advised


async def test_prompts_of_an_agent_whose_model_calls_are_unseen_are_advised_to_go_through_the_gateway() -> None:
    hidden = CallAgent(lambda query, prompts: query + prompts["plan"], prompts={"plan": "Plan.", "draft": "Draft."})
    result = await Engine(hidden, desk.evaluator(), search=Tries({})).run(desk.request())
    assert result.conclusion is not None
    advice = (
        "one step reads several prompts (draft#instruction, plan#instruction), so blame cannot tell them apart; "
        "let the agent call its models through promptiter's gateway, so that each call is a step"
    )
    assert [each for each in result.conclusion.reasons if "several prompts" in each] == [advice]


async def test_a_listed_run_has_the_scores_of_its_final_test() -> None:
    journal = MemoryJournal()
    agent = InstructedAgent(lambda _, draft, __: 0.5 + 0.1 * draft)
    result = await engine(agent, DRAFT).run(request(), journal=journal)
    *_, last = journal.events
    assert (last.data["baseline"], last.data["best"]) == (result.baseline_score, result.accepted_score)


async def test_without_a_final_test_a_profile_is_adopted_and_there_is_no_evidence() -> None:
    agent = InstructedAgent(lambda _, draft, __: 0.95 if draft else 0.1)
    result = await engine(agent, DRAFT).run(request(cases=30, final_test=None))
    assert outcome(result) == ("no_evidence", None, [])
    assert [change.surface_id for change in result.changes] == [D]
    assert result.conclusion is not None
    assert result.conclusion.reasons[0] == "no final test was run"


async def test_the_alpha_of_the_request_is_the_alpha_of_the_final_test() -> None:
    agent = InstructedAgent(lambda _, draft, __: 0.9 if draft else 0.2)
    result = await engine(agent, DRAFT).run(request(alpha=0.1))
    assert result.conclusion is not None
    assert result.conclusion.results[0].looks[0].alpha == pytest.approx(0.02)


def whole_run(agent: InstructedAgent | None = None) -> tuple[Engine, RunRequest]:
    """Two parts, one of them useless, an ablation, a final test of three blocks, and a test set."""
    subject = agent or InstructedAgent(lambda _, draft, __: 0.85 if draft else 0.3)
    return engine(subject, DRAFT, POLISH), request(cases=8, alpha=0.5, test=desk.eval_set("test", 8))


@pytest.mark.long
async def test_a_run_killed_anywhere_resumes_to_the_same_conclusion_and_repeats_no_case_run() -> None:
    whole = MemoryJournal()
    made, asked = whole_run()
    result = await made.run(asked, journal=whole)
    events = list(whole.events)
    kinds = {event.phase for event in events if event.type == "case"}
    assert kinds >= {"baseline", "validation", "ablation", "final_test", "test"}
    assert result.ablation is not None
    first = next(event.seq for event in events if event.phase == "ablation")
    for cut in sorted({*range(1, first, 20), *range(first, len(events), 15), *_edges(events, first)}):
        agent, journal = InstructedAgent(lambda _, draft, __: 0.85 if draft else 0.3), MemoryJournal()
        for event in events[:cut]:
            await journal.append(event)
        made, _ = whole_run(agent)
        again = await made.run(asked, journal=journal)
        assert fold(journal.events) == fold(whole.events), f"cut before event {cut}"
        assert (again.conclusion, again.ablation) == (result.conclusion, result.ablation)
        known = sum(event.type == "case" for event in events[:cut])
        assert agent.runs.total() == sum(event.type == "case" for event in events) - known


def _edges(events: list[Event], start: int) -> list[int]:
    """Before each event from this one on that is not a case, and so after the case before it."""
    return [event.seq for event in events[start:] if event.type not in ("case", "evaluation_started")]


@pytest.mark.slow
async def test_a_run_killed_during_its_final_test_resumes_it() -> None:
    whole = MemoryJournal()
    made, asked = whole_run()
    result = await made.run(asked, journal=whole)

    journal = _KilledJournal(after="final_test")
    made, _ = whole_run()
    with pytest.raises(Killed):
        await made.run(asked, journal=journal)
    cut = MemoryJournal()
    for event in journal.events:
        await cut.append(event)
    made, _ = whole_run()
    assert (await made.run(asked, journal=cut)).conclusion == result.conclusion


@pytest.mark.slow
async def test_a_run_cancelled_during_its_final_test_has_no_verdict_and_can_be_resumed() -> None:
    journal, seen = MemoryJournal(), asyncio.Event()

    class Watches:
        async def observe(self, event: Event) -> None:
            if event.phase == "final_test" and event.type == "case":
                seen.set()

    made, asked = whole_run()
    task = asyncio.create_task(made.run(asked, journal=journal, observers=[Watches()]))
    await seen.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    half = fold(journal.events)
    assert (half.status, half.verdict, half.conclusion) == ("cancelled", "no_evidence", None)
    made, _ = whole_run()
    rest = await made.run(asked, journal=journal)
    made, _ = whole_run()
    assert rest.conclusion == (await made.run(asked)).conclusion


class _KilledJournal(MemoryJournal):
    """Simulates a kill at the third case of a phase: nothing is written afterwards."""

    def __init__(self, *, after: str) -> None:
        super().__init__()
        self.after = after
        self.left = 3

    async def append(self, event: Event) -> None:
        self.left -= event.phase == self.after and event.type == "case"
        if self.left <= 0:
            raise Killed
        await super().append(event)
