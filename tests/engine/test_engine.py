from __future__ import annotations

import asyncio
import os
import pickle
import signal
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pytest

from promptiter.agents.base import AgentRun
from promptiter.agents.function import agent, chain
from promptiter.agents.nodes import ModelNode
from promptiter.agents.surface_scope import surface
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt
from promptiter.engine.run import RunFailedError
from promptiter.engine.services import make_services
from promptiter.engine.session import Session
from promptiter.errors import NonDeterministicSearchError, RequestError, SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.score import Score
from promptiter.forecast.forecast import forecast_run
from promptiter.llm.budget import Budget
from promptiter.llm.cache.cache import MemoryCache
from promptiter.llm.gateway import Gateway
from promptiter.llm.models import ScriptedModel
from promptiter.llm.redaction import Redactor
from promptiter.policies.acceptance import MinGain, NoRegression
from promptiter.policies.constraints import Constraint
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stop_limits import MaxCalls, MaxEvaluations
from promptiter.policies.stopping import Patience, TargetScore
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.events import Event
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, WORSE, Tries, Watcher
from tests.worlds.results import drop_measured


async def test_a_run_accepts_what_validation_shows_to_be_better() -> None:
    result = await desk.engine(DRAFT, WORSE, POLISH).run(desk.request())
    assert (result.status, result.verdict) == ("succeeded", "improved_on_validation")
    assert (result.baseline_score, result.accepted_score) == (0.0, 1.0)
    assert [each.decision.accepted for each in result.rounds if each.decision] == [True, False, True]
    assert [change.surface_id for change in result.changes] == ["draft#instruction", "polish#instruction"]


@pytest.mark.parametrize("budget", [None, Budget(max_calls=500)])
async def test_a_budget_that_does_not_limit_the_agent_is_reported_once(budget: Budget | None) -> None:
    @agent(instruction="Draft.")
    async def opaque(message: str) -> str:
        return f"{surface('instruction')} {message}"  # as an answer of the agent's own client

    gateway = Gateway(models={"scripted": desk.model()}, budget=budget)
    result = await Engine(opaque, desk.evaluator(gateway), search=Tries()).run(desk.request())
    warnings = [problem for problem in result.measured.problems if "the budget does not limit the agent" in problem]
    assert len(warnings) == (budget is not None)

    counted = await Engine(desk.agent(), desk.evaluator(gateway), search=Tries()).run(desk.request())
    assert not any("does not limit" in problem for problem in counted.measured.problems)


async def test_a_rejected_candidate_leaves_the_accepted_profile_as_it_was() -> None:
    result = await desk.engine(WORSE).run(desk.request())
    assert (result.verdict, result.changes) == ("underpowered", ())  # of two cases
    assert result.accepted_profile == result.initial_profile
    [only] = result.rounds
    assert only.decision is not None
    assert only.decision.reason == "gain +0.000: no better"


async def test_the_result_is_the_fold_of_the_events() -> None:
    journal, watcher = MemoryJournal(), Watcher()
    result = await desk.engine(DRAFT, WORSE).run(desk.request(), journal=journal, observers=[watcher])
    events = list(journal.events)
    assert fold(events) == result
    assert watcher.events == events
    assert [event.seq for event in events] == list(range(len(events)))
    assert fold(Event.model_validate_json(event.model_dump_json()) for event in events) == result


@pytest.mark.slow
async def test_every_beginning_of_the_events_folds_into_a_state() -> None:
    journal = MemoryJournal()
    await desk.engine(DRAFT, WORSE).run(desk.request(), journal=journal)
    events = list(journal.events)
    states = [fold(events[:count]) for count in range(1, len(events) + 1)]
    assert [state.status for state in states] == ["running"] * (len(states) - 1) + ["succeeded"]
    assert [state.current_round for state in states] == sorted(state.current_round for state in states)


async def test_a_result_survives_its_file() -> None:
    result = await desk.engine(DRAFT, WORSE).run(desk.request())
    again = RunResult.from_json(result.to_json())
    assert again == result
    assert again.measured == result.measured


async def test_all_problems_of_a_request_are_reported_at_once() -> None:
    same = EvalSet(id="same", cases=(EvalCase(id="a", turns=(Turn(user="hi", expected="x"),)),))
    wrong = desk.request(
        train=same, validation=same, targets=["draft#instructon"], max_rounds=-1, protected=frozenset(("b",))
    )
    gateway = Gateway(models={"scripted": ScriptedModel([])})
    with pytest.raises(RequestError) as caught:
        await desk.engine(DRAFT, gateway=gateway).run(wrong)
    message = str(caught.value)
    assert len(caught.value.problems) == 4
    assert "did you mean 'draft#instruction'?" in message
    assert "max_rounds is -1" in message
    assert "protected case 'b'" in message
    assert "keep each case in one of the sets" in message
    with pytest.raises(RequestError, match=r"test is 'test\.jsonl'; give an EvalSet, or a list of them"):
        await desk.engine(DRAFT, gateway=gateway).run(desk.request(test="test.jsonl"))


async def test_alpha_and_the_figures_of_policies_are_checked_with_the_request() -> None:
    with pytest.raises(RequestError, match=r"alpha is 1; give a false-positive rate above 0 and below 1"):
        await desk.engine(DRAFT).run(desk.request(alpha=1))
    with pytest.raises(RequestError, match=r"names 'carefull', which is not a figure; .*did you mean 'careful'"):
        await desk.engine(DRAFT).run(desk.request(acceptance=Constraint("carefull", at_least=0.5)))


@pytest.mark.slow
def test_a_request_is_checked_once(tmp_path: Path) -> None:
    class Counted:
        """A metric that counts how often a check asks whether it needs references."""

        name, threshold, asked = "careful", 1.0, 0

        @property
        def needs_reference(self) -> bool:
            self.asked += 1
            return False

        async def __call__(self, case: EvalCase, run: AgentRun) -> Score:
            return Score(metric=self.name, value=desk.score(case, run), threshold=self.threshold)

    metric = Counted()
    engine = Engine(desk.agent(), Evaluator([metric], gateway=desk.evaluator().gateway), search=Tries(DRAFT))
    metric.asked = 0
    checked = engine.check(desk.request())
    once = metric.asked
    assert once > 0
    forecast_run(engine, checked, runs=tmp_path)
    assert RunDirectory.begin(tmp_path, engine, checked).run_sync().verdict == "improved_on_validation"
    assert engine.run_sync(checked).verdict == "improved_on_validation"
    assert metric.asked == once
    engine.run_sync(desk.request())
    assert metric.asked == 2 * once


async def test_a_profile_of_another_structure_is_refused_before_anything_is_spent() -> None:
    other = Profile(structure_id="other", surface_ids=("gone#instruction",))
    gateway = Gateway(models={"scripted": ScriptedModel([])})
    with pytest.raises(RequestError, match="gone#instruction"):
        await desk.engine(gateway=gateway).run(desk.request(initial_profile=other))


async def test_a_dollar_cap_needs_prices() -> None:
    gateway = Gateway(models={"scripted": ScriptedModel([])}, budget=Budget(max_usd=1.0))
    with pytest.raises(RequestError, match="price of model 'scripted' is unknown"):
        await desk.engine(gateway=gateway).run(desk.request())


async def test_the_run_starts_from_the_initial_profile() -> None:
    initial = Profile.of(desk.agent().describe(), DRAFT)
    result = await desk.engine(POLISH).run(desk.request(initial_profile=initial))
    assert result.baseline_score == 0.5
    assert [change.surface_id for change in result.changes] == ["polish#instruction"]


async def test_a_target_that_the_baseline_reaches_ends_the_run_before_the_first_round() -> None:
    initial = Profile.of(desk.agent().describe(), DRAFT | POLISH)
    result = await desk.engine(WORSE).run(desk.request(initial_profile=initial, stop=TargetScore(1.0)))
    assert (result.rounds, result.stop_reason) == ((), "target_score")


async def test_stop_reasons_are_ordered() -> None:
    result = await desk.engine(WORSE, WORSE, WORSE).run(desk.request(stop=Patience(2), max_rounds=2))
    assert result.stop is not None
    assert [reason.kind for reason in result.stop.reasons] == ["patience", "max_rounds"]


async def test_a_search_with_nothing_left_to_try_says_so() -> None:
    result = await desk.engine(DRAFT).run(desk.request())
    assert result.stop_reason == "exhausted"


async def test_a_synchronous_observer_sees_all_events() -> None:
    class Counter:
        seen = 0

        def observe(self, event: object) -> None:  # noqa: ARG002
            self.seen += 1

    watcher, counter = Watcher(), Counter()
    result = await desk.engine(desk.DRAFT).run(desk.request(), observers=[watcher, counter])  # type: ignore[list-item]
    assert counter.seen == len(watcher.events)
    assert result.measured.problems == ()


async def test_an_observer_that_fails_is_reported_once_and_does_not_end_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Broken:
        async def observe(self, event: Event) -> None:
            raise ValueError(f"no {event.type}")

    watcher = Watcher()
    result = await desk.engine(DRAFT).run(desk.request(), observers=[Broken(), watcher])
    assert result.verdict == "improved_on_validation"
    assert watcher.types()[-1] == "run_completed"
    [problem] = result.measured.problems
    assert "Broken failed at event 0" in problem
    assert caplog.text.count("Broken failed") == 1


async def test_a_failing_run_keeps_its_finished_rounds() -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise ValueError("no luck")

    with pytest.raises(RunFailedError, match="round 2: ValueError: no luck") as caught:
        await desk.engine(search=Tries(DRAFT, POLISH, at_round=fail)).run(desk.request())
    result = caught.value.result
    assert (result.status, result.error) == ("failed", "ValueError: no luck")
    assert [change.surface_id for change in result.changes] == ["draft#instruction"]
    assert isinstance(caught.value.__cause__, ValueError)
    copy = pickle.loads(pickle.dumps(caught.value))
    assert (str(copy), copy.result) == (str(caught.value), caught.value.result)


async def test_a_spent_budget_ends_a_round_and_is_not_a_failure() -> None:
    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=8))
    result = await desk.engine(DRAFT, gateway=gateway).run(desk.request(final_test=None))
    assert (result.status, result.verdict, result.stop_reason) == ("succeeded", "budget_ended", "max_calls")
    assert result.rounds[-1].decision is None
    assert result.measured.spent.total.calls == 8


@pytest.mark.slow
async def test_a_budget_that_ends_after_a_gain_leaves_enough_for_the_final_test() -> None:
    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=110))
    journal, tries = MemoryJournal(), [DRAFT, *[WORSE | {"polish#instruction": f"be {n}"} for n in range(40)]]
    stop = Patience(40)
    result = await desk.engine(*tries, gateway=gateway).run(desk.request(stop=stop, max_rounds=40), journal=journal)
    assert (result.verdict, result.stop_reason, result.is_final) == ("improved_on_validation", "max_calls", True)
    assert result.rounds[-1].decision is None
    cut = [event.seq for event in journal.events if event.type == "budget_ended"]
    assert len(cut) == 1
    # A run that is killed during the final test resumes it, also with a larger budget.
    for end in (cut[0] + 1, cut[0] + 5):
        part = MemoryJournal()
        for event in list(journal.events)[:end]:
            await part.append(event)
        gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=500))
        again = await desk.engine(*tries, gateway=gateway).run(desk.request(stop=stop, max_rounds=40), journal=part)
        assert again == result


@pytest.mark.slow
async def test_a_resumed_run_reserves_as_much_for_the_final_test_as_one_that_never_failed() -> None:
    def stumble(number: int) -> None:
        if number == 8:
            raise ValueError("no luck")

    tries = [DRAFT, *[WORSE | {"polish#instruction": f"be {n}"} for n in range(40)]]
    asked = desk.request(stop=Patience(40), max_rounds=40)
    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=150))
    whole = await desk.engine(*tries, gateway=gateway).run(asked)
    assert (whole.verdict, whole.stop_reason) == ("improved_on_validation", "max_calls")
    assert len(whole.rounds) > 8

    cache, journal = MemoryCache(), MemoryJournal()
    gateway = Gateway(models={"scripted": desk.model()}, cache=cache, budget=Budget(max_calls=150))
    engine = desk.engine(search=Tries(*tries, at_round=stumble), gateway=gateway)
    checked = engine.check(asked)
    first = await engine.execute(checked, make_services(checked.evaluator, journal=journal))
    assert first.result.status == "failed"
    engine = desk.engine(*tries, gateway=gateway)
    checked = engine.check(asked)
    services = make_services(checked.evaluator, journal=journal, spent_before=first.result.measured.spent)
    ended = await engine.execute(checked, services)
    assert ended.result == whole
    assert ended.result.measured.spent.total.calls == whole.measured.spent.total.calls <= 150


async def test_the_budget_ends_the_ablation_rather_than_the_final_test() -> None:
    cache, journal = MemoryCache(), MemoryJournal()
    gateway = Gateway(models={"scripted": desk.model()}, cache=cache, budget=Budget(max_calls=72))
    engine, asked = desk.engine(DRAFT, POLISH, gateway=gateway), desk.request(validation=desk.eval_set("validation", 4))
    result = await engine.run(asked, journal=journal)
    assert (result.verdict, result.ablation, result.is_final) == ("improved_on_validation", None, True)
    assert result.accepted is not None
    assert len(result.accepted.rows) == len(result.baseline.rows if result.baseline else ())
    types = [event.type for event in journal.events]
    for end in (types.index("budget_ended") + 1, len(types) - 1):
        part = MemoryJournal()
        for event in list(journal.events)[:end]:
            await part.append(event)
        gateway = Gateway(models={"scripted": desk.model()}, cache=cache, budget=Budget(max_calls=72))
        assert await desk.engine(DRAFT, POLISH, gateway=gateway).run(asked, journal=part) == result


async def test_a_final_test_that_the_budget_ends_has_no_verdict() -> None:
    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=24))
    journal = MemoryJournal()
    result = await desk.engine(DRAFT, POLISH, gateway=gateway).run(desk.request(), journal=journal)
    assert (result.verdict, result.stop_reason, result.is_final) == ("budget_ended", "max_calls", False)
    assert result.conclusion is None
    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=200))
    result = await desk.engine(DRAFT, POLISH, gateway=gateway).run(desk.request(), journal=journal)
    assert (result.verdict, result.is_final) == ("improved_on_validation", True)


async def test_a_baseline_that_mostly_fails_is_an_invalid_eval() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("down")

    gateway = Gateway(models={"scripted": desk.model(fail)})
    result = await desk.engine(DRAFT, gateway=gateway).run(desk.request())
    assert (result.status, result.verdict, result.rounds) == ("succeeded", "invalid_eval", ())


async def test_a_policy_that_asks_for_more_evidence_gets_both_profiles_again() -> None:
    class Careful:
        looks: list[int]

        def __init__(self) -> None:
            self.looks = []

        def decide(self, evidence: Evidence) -> AcceptanceDecision | MoreEvidence:
            repeats = [len(each.rows) for each in (evidence.accepted, evidence.candidate)]
            assert repeats[0] == repeats[1]
            self.looks.append(repeats[0])
            return MoreEvidence(repeats=2) if repeats[0] < 6 else evidence.accept("seen enough")

    policy = Careful()
    result = await desk.engine(DRAFT).run(desk.request(acceptance=policy, final_test=None))
    assert policy.looks == [2, 6]
    assert result.accepted is not None
    assert [row.repeat for row in result.accepted.rows] == [0, 1, 2, 0, 1, 2]
    assert result.verdict == "no_evidence"


async def test_a_policy_that_never_decides_rejects() -> None:
    class Never:
        def decide(self, evidence: Evidence) -> MoreEvidence:
            return MoreEvidence(reason=f"round {evidence.round} is not clear")

    result = await desk.engine(DRAFT).run(desk.request(acceptance=Never()))
    decision = result.rounds[0].decision
    assert decision is not None
    assert decision.reason == "still undecided after 8 looks: round 1 is not clear"


async def test_policies_compose_in_a_run() -> None:
    result = await desk.engine(DRAFT).run(desk.request(acceptance=MinGain(0.4) & NoRegression()))
    assert result.verdict == "improved_on_validation"


@pytest.mark.slow
@pytest.mark.parametrize("concurrency", [1, 64])
async def test_the_result_does_not_depend_on_the_concurrency(concurrency: int) -> None:
    def one_run(concurrency: int) -> Engine:
        evaluator = desk.evaluator(concurrency=concurrency)
        return Engine(desk.agent(), evaluator, search=Tries(DRAFT, WORSE, POLISH))

    first = await one_run(8).run(desk.request())
    second = await one_run(concurrency).run(desk.request())
    assert _unmeasured(first) == _unmeasured(second)


def _unmeasured(result: RunResult) -> object:
    return drop_measured(orjson.loads(result.to_json()))


def test_run_sync_works_in_plain_code() -> None:
    assert desk.engine(DRAFT).run_sync(desk.request()).verdict == "improved_on_validation"


async def test_run_sync_works_inside_a_running_loop() -> None:
    assert desk.engine(DRAFT).run_sync(desk.request()).verdict == "improved_on_validation"


def test_the_first_ctrl_c_finishes_the_work_in_progress() -> None:
    def press(number: int) -> None:
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)

    messages: list[str] = []
    before = signal.getsignal(signal.SIGINT)
    result = desk.engine(search=Tries(DRAFT, POLISH, at_round=press)).run_sync(desk.request(), notify=messages.append)
    assert (result.status, result.stop_reason, result.verdict) == ("succeeded", "user_stop", "no_evidence")
    assert (result.conclusion, result.baseline_score) == (None, 0.0)
    assert [each.decision for each in result.rounds] == [None]  # the candidate was not validated any more
    assert messages == ["Ctrl-C: finishing the work in progress; a second one stops at once"]
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_a_signal_that_was_ignored_from_the_start_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        press = Tries(DRAFT, POLISH, at_round=lambda _: os.kill(os.getpid(), signal.SIGINT))
        result = desk.engine(search=press).run_sync(desk.request())
        assert (len(result.rounds), result.verdict) == (2, "improved_on_validation")
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
async def test_a_stopped_run_resumes_or_makes_its_final_test() -> None:
    ends = {}
    for test_now in (False, True):
        journal, pressed = MemoryJournal(), Interrupt()

        def press(_: int, pressed: Interrupt = pressed) -> None:
            pressed.stop("a button")

        tries = Tries(DRAFT, POLISH, at_round=press)
        stopped = await desk.engine(search=tries).run(desk.request(), journal=journal, interrupt=pressed)
        assert (stopped.stop_reason, stopped.is_final) == ("user_stop", False)
        engine = desk.engine(search=Tries(DRAFT, POLISH))
        ends[test_now] = await engine.run(desk.request(), journal=journal, interrupt=Interrupt(test_now=test_now))
    assert [(each.verdict, len(each.rounds), each.is_final) for each in ends.values()] == [
        ("improved_on_validation", 2, True),
        ("improved_on_validation", 1, True),
    ]
    assert ends[True].stop_reason == "test_now"


def test_the_second_ctrl_c_stops_at_once_and_leaves_a_result() -> None:
    class Endless:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                await asyncio.sleep(0.05)
            await asyncio.sleep(60)

    result = desk.engine(search=Endless()).run_sync(desk.request())
    assert (result.status, result.verdict) == ("cancelled", "no_evidence")
    assert result.baseline_score == 0.0


async def test_an_interrupt_stops_a_run_from_elsewhere() -> None:
    interrupt = Interrupt()
    engine = desk.engine(search=Tries(DRAFT, POLISH, at_round=lambda _: interrupt.stop("a button")))
    result = await engine.run(desk.request(), interrupt=interrupt)
    assert (result.stop_reason, len(result.rounds)) == ("user_stop", 1)


async def test_a_cancelled_run_raises_after_its_last_event() -> None:
    searching = asyncio.Event()

    class Endless:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            searching.set()
            await asyncio.sleep(60)

    journal = MemoryJournal()
    task = asyncio.ensure_future(desk.engine(search=Endless()).run(desk.request(), journal=journal))
    await searching.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fold(journal.events).status == "cancelled"


@pytest.mark.parametrize("seq", [0, 3])
async def test_a_run_that_is_cancelled_while_it_writes_an_event_knows_this_event(seq: int) -> None:
    class Cancels(MemoryJournal):
        async def append(self, event: Event) -> None:
            if event.seq == seq:
                task.cancel()
                await asyncio.sleep(0)
            await super().append(event)

    journal = Cancels()
    task = asyncio.ensure_future(desk.engine(DRAFT).run(desk.request(), journal=journal))
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [event.seq for event in journal.events] == list(range(seq + 2))
    assert fold(journal.events).status == "cancelled"


@pytest.mark.slow
async def test_a_run_that_is_cancelled_at_any_event_resumes_with_the_same_result() -> None:
    class Cancels:
        def __init__(self, seq: int) -> None:
            self.seq = seq

        async def observe(self, event: Event) -> None:
            if event.seq == self.seq:
                task.cancel()

    whole, asked = MemoryJournal(), desk.request(max_rounds=1, final_test=FinalTest(repeats=2))
    expected = await desk.engine(DRAFT).run(asked, journal=whole)
    assert expected.stop_reason == "max_rounds"
    for seq in range(0, len(whole.events) - 1, 3):
        journal, run = MemoryJournal(), desk.engine(DRAFT)
        task = asyncio.ensure_future(run.run(asked, journal=journal, observers=[Cancels(seq)]))
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await desk.engine(DRAFT).run(asked, journal=journal) == expected
        assert [event.seq for event in journal.events] == list(range(len(journal.events)))


@pytest.mark.slow
async def test_a_resumed_run_asks_nothing_again() -> None:
    whole = MemoryJournal()
    rounds = (DRAFT, WORSE, POLISH)
    expected = await desk.engine(*rounds).run(desk.request(), journal=whole)
    events = list(whole.events)
    for count in range(1, len(events) - 1, 4):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        done = sum(event.type == "case" for event in events[:count])
        calls = desk.model()
        result = await desk.engine(*rounds, gateway=Gateway(models={"scripted": calls})).run(
            desk.request(), journal=journal
        )
        assert _unmeasured(result) == _unmeasured(expected)
        assert len(list(journal.events)) == len(events)
        assert len(calls.requests) <= 2 * (sum(event.type == "case" for event in events) - done)


async def test_a_search_that_asks_for_something_else_when_resumed_is_an_error() -> None:
    whole = MemoryJournal()
    await desk.engine(DRAFT).run(desk.request(), journal=whole)
    journal = MemoryJournal()
    for event in list(whole.events)[:-4]:
        await journal.append(event)
    with pytest.raises(RunFailedError) as caught:
        await desk.engine(WORSE).run(desk.request(), journal=journal)
    assert isinstance(caught.value.__cause__, NonDeterministicSearchError)


def test_an_engine_takes_stages_or_a_search() -> None:
    class Optimizes:
        async def optimize(self, request: object) -> object:
            return request

    with pytest.raises(TypeError, match="not both"):
        Engine(desk.agent(), desk.evaluator(), optimizer=Optimizes(), search=Tries())  # type: ignore[arg-type]


async def test_a_teacher_writes_missing_references_once_before_the_baseline() -> None:
    bare = EvalSet(id="bare", cases=(EvalCase(id="b", turns=(Turn(user="what?"),)),))
    asked: list[str] = []

    def teach(messages: list[dict[str, str]]) -> str:
        asked.append(messages[-1]["content"])
        return "careful careful"

    gateway = Gateway(models={"scripted": desk.model(), "teacher": teach})
    watcher = Watcher()
    result = await desk.engine(DRAFT, gateway=gateway).run(
        desk.request(train=bare, teacher="teacher"), observers=[watcher]
    )
    assert asked == ["what?"]
    assert watcher.types()[:3] == ["run_started", "references", "evaluation_started"]
    assert result.verdict == "improved_on_validation"


async def test_patches_of_unknown_surfaces_cannot_become_a_candidate() -> None:
    with pytest.raises(RunFailedError, match="'missing#instruction', which is not a target"):
        await desk.engine({"missing#instruction": "x"}).run(desk.request())


def test_a_patch_set_knows_its_surfaces() -> None:
    patch = SurfacePatch(surface_id="a#instruction", value="x", reason="y")
    assert PatchSet((patch,)).surface_ids == {"a#instruction"}


async def test_protected_cases_must_pass_whatever_the_acceptance_policy() -> None:
    initial = Profile.of(desk.agent().describe(), DRAFT | POLISH)
    worse = {"draft#instruction": "Draft."}
    request = desk.request(initial_profile=initial, acceptance=_AcceptsAll(), protected=frozenset(("validation-0",)))
    result = await desk.engine(worse).run(replace(request, stop=Patience(1)))
    decision = result.rounds[0].decision
    assert decision is not None
    assert decision.reason == (
        "protected, and no longer passing: 'validation-0' passes 0 of 3 re-runs, and 3 before the change"
    )


class _AcceptsAll:
    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        return evidence.accept("why not")


async def test_by_default_a_perfect_score_stops_the_run() -> None:
    initial = Profile.of(desk.agent().describe(), DRAFT | POLISH)
    result = await desk.engine(WORSE, WORSE).run(desk.request(initial_profile=initial))
    assert (result.rounds, result.stop_reason) == ((), "target_score")


@pytest.mark.slow
async def test_what_one_run_spent_does_not_stop_the_next() -> None:
    engine = desk.engine(WORSE, DRAFT, POLISH)
    for _ in range(2):
        result = await engine.run(desk.request(stop=MaxCalls(200)))
        assert result.stop_reason != "max_calls"


async def test_a_case_with_its_repeats_counts_as_one_evaluation() -> None:
    engine = Engine(desk.agent(), desk.evaluator(repeats=4), search=Tries(WORSE, WORSE, WORSE))
    result = await engine.run(desk.request(stop=MaxEvaluations(8)))
    # The baseline and the first candidate are 2 cases each, and so are both profiles in the second look.
    assert [each.round for each in result.rounds] == [1, 2]


async def test_an_agent_that_exits_is_a_failed_case() -> None:
    def leave(text: str) -> str:
        sys.exit(len(text) > 10_000)

    leaving = chain("leaving", ModelNode(name="draft", instruction="Draft.", model="scripted"), leave)
    result = await Engine(leaving, desk.evaluator(), search=Tries(DRAFT)).run(desk.request())
    assert (result.verdict, result.stop_reason) == ("invalid_eval", "invalid_eval")
    assert result.stop is not None
    assert "called sys.exit(False)" in result.stop.text


async def test_a_cancellation_raised_by_user_code_is_a_failure() -> None:
    class Confused:
        async def search(self, session: Session) -> None:
            await session.begin_round()
            raise asyncio.CancelledError

        async def observe(self, event: Event) -> None:
            raise asyncio.CancelledError(event.type)

    with pytest.raises(RunFailedError) as caught:
        await desk.engine(search=Confused()).run(desk.request(), observers=[Confused()])
    assert caught.value.result.status == "failed"
    assert "Confused failed at event 0" in caught.value.result.measured.problems[0]


async def test_a_journal_that_cannot_be_written_ends_the_run_with_its_result() -> None:
    class Full(MemoryJournal):
        async def append(self, event: Event) -> None:
            if event.round == 2:
                raise OSError("no space left on device")
            await super().append(event)

    with pytest.raises(RunFailedError, match="no space left on device") as caught:
        await desk.engine(DRAFT, POLISH).run(desk.request(), journal=Full())
    assert [change.surface_id for change in caught.value.result.changes] == ["draft#instruction"]


async def test_a_cancellation_waits_until_an_event_is_written() -> None:
    class Slow(MemoryJournal):
        async def append(self, event: Event) -> None:
            if event.seq == 6:
                reached.set()
            await asyncio.sleep(0.005)
            await super().append(event)

    journal, reached = Slow(), asyncio.Event()
    task = asyncio.ensure_future(desk.engine(DRAFT, POLISH).run(desk.request(), journal=journal))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    events = list(journal.events)
    assert [event.seq for event in events] == list(range(len(events)))
    assert events[-1].type == "run_completed"


async def test_a_finished_run_is_not_run_again() -> None:
    journal = MemoryJournal()
    first = await desk.engine(DRAFT).run(desk.request(), journal=journal)
    count = len(list(journal.events))
    idle = Gateway(models={"scripted": ScriptedModel([])})
    assert await desk.engine(DRAFT, gateway=idle).run(desk.request(), journal=journal) == first
    assert len(list(journal.events)) == count


async def test_a_failed_run_can_be_resumed() -> None:
    def fail(number: int) -> None:
        if number == 2:
            raise ValueError("no luck")

    journal = MemoryJournal()
    with pytest.raises(RunFailedError):
        await desk.engine(search=Tries(DRAFT, POLISH, at_round=fail)).run(desk.request(), journal=journal)
    result = await desk.engine(DRAFT, POLISH).run(desk.request(), journal=journal)
    assert (result.status, result.accepted_score) == ("succeeded", 1.0)


async def test_another_request_on_an_old_journal_is_noticed() -> None:
    journal = MemoryJournal()
    with pytest.raises(RunFailedError):
        await desk.engine(search=_Breaks()).run(desk.request(), journal=journal)
    with pytest.raises(RunFailedError, match="with another request"):
        await desk.engine(DRAFT).run(desk.request(objective="pass_rate"), journal=journal)


class _Breaks:
    async def search(self, session: Session) -> None:
        raise ValueError(f"in round {session.round}")


class _Blocks:
    def search(self, session: Session) -> None: ...


async def test_wrong_stages_are_refused_before_anything_is_spent() -> None:
    gateway = Gateway(models={"scripted": ScriptedModel([])})
    with pytest.raises(SetupError, match="'gpt-5' is not a backwarder"):
        Engine(desk.agent(), desk.evaluator(), "gpt-5")  # type: ignore[arg-type]
    with pytest.raises(SetupError, match=r"_Blocks.search is not async; define it as `async def search"):
        Engine(desk.agent(), desk.evaluator(), search=_Blocks())  # type: ignore[arg-type]
    wrong = desk.request(
        acceptance=MinGain, stop=3, objective="accuracy", targets="draft#instruction", max_rounds="3", hints=("x",)
    )
    with pytest.raises(RequestError) as caught:
        await desk.engine(gateway=gateway).run(wrong)
    assert len(caught.value.problems) == 6


async def test_secrets_are_kept_out_of_errors() -> None:
    def fail(_: int) -> None:
        raise ValueError("key sk-canary-1234567890 was refused")

    gateway = Gateway(models={"scripted": desk.model()}, redactor=Redactor(("sk-canary-1234567890",)))
    engine = desk.engine(search=Tries(DRAFT, at_round=fail), gateway=gateway)
    with pytest.raises(RunFailedError) as caught:
        await engine.run(desk.request())
    assert "canary" not in str(caught.value)
    assert b"canary" not in caught.value.result.to_json()


async def test_an_error_during_replay_leaves_the_journal_unchanged() -> None:
    whole = MemoryJournal()
    await desk.engine(DRAFT, POLISH).run(desk.request(), journal=whole)
    journal = MemoryJournal()
    for event in list(whole.events)[:-4]:
        await journal.append(event)
    before = list(journal.events)
    search = Tries(DRAFT, POLISH, at_round=_fail)
    with pytest.raises(RunFailedError, match="no luck"):
        await desk.engine(search=search).run(desk.request(), journal=journal)
    assert list(journal.events) == before


def _fail(_: int) -> None:
    raise ValueError("no luck")


async def test_a_run_cancelled_at_its_last_event_is_not_a_failure() -> None:
    watched = asyncio.Event()

    class Slow:
        async def observe(self, event: Event) -> None:
            if event.type == "run_completed":
                watched.set()
                await asyncio.sleep(0.05)

    journal = MemoryJournal()
    task = asyncio.ensure_future(desk.engine(DRAFT).run(desk.request(), journal=journal, observers=[Slow()]))
    await watched.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert fold(journal.events).status == "succeeded"
