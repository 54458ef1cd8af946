"""Runs with two case sets, with one, and with a scorer; what each may claim."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.engine.aa_test import measure_noise
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.run import RunFailedError
from promptiter.errors import RequestError
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.evaluation.process_executor import ProcessExecutor
from promptiter.evaluation.score import Score
from promptiter.evaluation.scorer import ScoredProfile, Scorer
from promptiter.evaluation.trace_store import FileTraceStore
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, Message, ModelRequest
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.policies.stopping import TargetScore
from promptiter.profile import Profile
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import CaseFinished
from promptiter.runlog.results import RunResult
from promptiter.runs.outcome import classify_result, write_headline
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, WORSE, Tries, Watcher
from tests.worlds.desk_stages import Blames, Merges, Writes
from traces import ExecutionTrace, Snapshot, Step

STRUCTURE = desk.agent().describe()
CASES = desk.eval_set("cases", 6)
BOTH = {**DRAFT, **POLISH}


def one_set(**changes: Any) -> RunRequest:
    values: dict[str, Any] = {"cases": CASES, "run_id": "r"}
    return RunRequest(**(values | changes))


def headline(result: RunResult) -> str:
    return write_headline(result, classify_result(result))


@pytest.mark.slow
async def test_a_run_with_one_set_improves_and_claims_only_these_cases() -> None:
    engine = Engine(desk.agent(), desk.evaluator(), Blames(), Merges(), Writes())
    result = await engine.run(one_set(stop=TargetScore(1.0)))
    assert (result.verdict, result.shape, result.accepted_score) == ("improved_on_validation", "one_set", 1.0)
    assert result.conclusion is not None
    assert result.conclusion.scope == "these cases"
    obstacle = "the search learned from these cases; give a test set (`test`) of 8 cases or more"
    assert result.conclusion.obstacle == obstacle
    assert f"not shown for new cases: {obstacle}" in result.conclusion.reasons
    assert headline(result) == "Improved on these 6 cases, which the search learned from"
    assert "improved_on_validation: mean_score 0.000 → 1.000" in repr(result)
    assert "shown for these cases, which it learned from: gain +1.000" in repr(result)
    assert "shown for these cases, which it learned from: gain +1.000" in result._repr_html_()
    assert RunResult.from_json(result.to_json()) == result


async def test_a_run_with_two_sets_says_nothing_of_learning() -> None:
    result = await desk.engine(BOTH).run(desk.request())
    assert result.conclusion is not None
    assert (result.shape, result.conclusion.scope) == ("two_sets", "these cases")
    assert not any("learned" in reason for reason in result.conclusion.reasons)
    assert headline(result) == "Improved on these 2 cases"


@pytest.mark.slow
async def test_a_test_set_lets_a_run_with_one_set_claim_new_cases() -> None:
    result = await desk.engine(BOTH).run(one_set(test=desk.eval_set("test", 8)))
    assert result.conclusion is not None
    assert (result.verdict, result.conclusion.scope) == ("improved", "new cases")
    assert not any("learned" in reason for reason in result.conclusion.reasons)
    few = await desk.engine(BOTH).run(one_set(test=desk.eval_set("test", 2)))
    assert few.conclusion is not None
    assert (few.verdict, few.scope) == ("improved_on_validation", "these cases")
    advice = "give a test set (`test`) of 8 cases or more (this one has 2)"
    assert few.conclusion.obstacle == f"the search learned from these cases; {advice}"


class Unlucky:
    """Fails every case in repeat 0 and passes all later ones, whatever the profile. Counts its runs."""

    def __init__(self) -> None:
        self.runs: Counter[tuple[str, int]] = Counter()

    def describe(self) -> StructureSnapshot:
        return STRUCTURE

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        self.runs[profile.digest, context.repeat] += 1
        return AgentRun(output="careful careful" if context.repeat else "")


async def test_bad_luck_that_chose_the_patch_is_not_a_gain() -> None:
    """The cases failed by chance, which led to the patch. Both profiles run again, so the patch gets no credit."""
    unlucky = Unlucky()
    evaluator = Evaluator([FunctionMetric(name="careful", function=desk.score)])
    result = await Engine(unlucky, evaluator, search=Tries(BOTH)).run(one_set())
    [decision] = [each.decision for each in result.rounds]
    assert decision is not None
    assert (decision.accepted, decision.delta) == (False, 0.0)
    assert result.verdict == "no_evidence"


@pytest.mark.slow
async def test_the_final_test_runs_repeats_that_the_search_never_saw() -> None:
    watcher = Watcher()
    await desk.engine(DRAFT, BOTH).run(one_set(), observers=[watcher])
    seen: dict[bool, set[tuple[str, int]]] = {True: set(), False: set()}
    for event in watcher.events:
        if isinstance(event.payload, CaseFinished):
            seen[event.phase == "final_test"].add((event.payload.row.case_id, event.payload.row.repeat))
    assert len(seen[True]) == 2 * len(CASES.cases)
    assert not seen[True] & seen[False]


async def test_the_train_cases_of_the_baseline_are_not_run_twice() -> None:
    unlucky = Unlucky()
    evaluator = Evaluator([FunctionMetric(name="careful", function=desk.score)])
    result = await Engine(unlucky, evaluator, search=Tries(BOTH)).run(one_set())
    assert unlucky.runs[Profile.baseline(STRUCTURE).digest, 0] == len(CASES.cases)
    train = result.rounds[0].train
    assert train is not None
    assert result.baseline is not None
    assert train.rows == result.baseline.rows


@pytest.mark.slow
async def test_a_policy_that_compares_on_train_records_it_as_train() -> None:
    watcher = Watcher()
    request = one_set(acceptance=SigmaGain(), final_test=None)
    await desk.engine(BOTH).run(request, observers=[watcher])
    phases = [event.phase for event in watcher.events if event.type == "evaluation_started"]
    assert "train_again" in phases


async def test_a_teacher_answers_one_set_once() -> None:
    bare = EvalSet(id="bare", cases=tuple(_without_expected(case) for case in CASES.cases))
    asked: list[str] = []
    teacher = desk.model(lambda request: asked.append(request.messages[-1].content))
    gateway = Gateway(models={"scripted": desk.model(), "teacher": teacher})
    result = await desk.engine(BOTH, gateway=gateway).run(one_set(cases=bare, teacher="teacher"))
    assert result.verdict == "improved_on_validation"
    assert len(asked) == len(CASES.cases)


def _without_expected(case: EvalCase) -> EvalCase:
    return replace(case, turns=tuple(replace(turn, expected=None) for turn in case.turns))


async def test_noise_is_measured_on_the_one_set() -> None:
    report = await measure_noise(desk.engine(), one_set(), repeats=2)
    assert report.noise.cases == len(CASES.cases)


def carefulness(profile: Profile) -> Score:
    """What a build might report: half a point for each instruction that asks for care."""
    texts = [str(profile.value(surface_id, STRUCTURE)) for surface_id in ("draft#instruction", "polish#instruction")]
    careful = ["careful" in text for text in texts]
    return Score(metric="build", value=sum(careful) / 2, reason=f"{sum(careful)} of 2 parts are careful")


def scored(**changes: Any) -> RunRequest:
    values: dict[str, Any] = {"scorer": carefulness, "run_id": "r"}
    return RunRequest(**(values | changes))


async def test_a_run_with_a_scorer_improves_and_claims_only_its_measure() -> None:
    result = await Engine(STRUCTURE, Evaluator(), search=Tries(DRAFT, BOTH)).run(scored())
    assert (result.verdict, result.shape) == ("improved_on_validation", "scorer")
    assert (result.baseline_score, result.accepted_score) == (0.0, 1.0)
    assert [each.decision.accepted for each in result.rounds if each.decision] == [True, True]
    assert result.conclusion is not None
    assert result.conclusion.scope == "this scorer"
    assert result.conclusion.obstacle == "a scorer measures no cases; give cases, or a hold-out"
    assert headline(result) == "Improved by this scorer"
    assert "\n  shown for this scorer: gain +1.000" in repr(result)
    assert RunResult.from_json(result.to_json()) == result


async def test_a_scorer_that_sees_no_gain_is_no_evidence_however_few_its_cases() -> None:
    result = await Engine(STRUCTURE, Evaluator(), search=Tries(WORSE)).run(scored())
    assert (result.verdict, result.conclusion and result.conclusion.reasons[0]) == (
        "no_evidence",
        "no candidate was accepted",
    )


async def test_a_scorer_is_repeated_with_the_repeat_as_context() -> None:
    seen: list[int] = []

    def score(profile: Profile, context: RunContext) -> Score:
        seen.append(context.repeat)
        return carefulness(profile)

    options = EvaluationOptions(repeats=3)
    result = await Engine(STRUCTURE, Evaluator(options=options), search=Tries(BOTH)).run(scored(scorer=score))
    assert result.verdict == "improved_on_validation"
    assert result.baseline is not None
    assert sorted(seen[:3]) == [0, 1, 2]  # threads may finish in any order
    assert len(set(seen)) > 6  # candidates and the final test have repeats of their own


async def test_a_noisy_scorer_is_no_evidence() -> None:
    def score(_profile: Profile, context: RunContext) -> float:
        return (context.repeat % 2) / 2

    result = await Engine(STRUCTURE, Evaluator(options=EvaluationOptions(repeats=2)), search=Tries(BOTH)).run(
        scored(scorer=score)
    )
    assert result.verdict == "no_evidence"


@pytest.mark.slow
async def test_a_scorer_runs_in_other_processes_with_the_same_result() -> None:
    expected = await Engine(STRUCTURE, Evaluator(), search=Tries(DRAFT, BOTH)).run(scored())
    with ProcessExecutor(workers=2) as executor:
        engine = Engine(STRUCTURE, Evaluator(executor=executor), search=Tries(DRAFT, BOTH))
        assert await engine.run(scored()) == expected


def build_traces(profile: Profile) -> ScoredProfile:
    def step(node_id: str, *before: str) -> Step:
        surface_id = f"{node_id}#instruction"
        text = str(profile.value(surface_id, STRUCTURE))
        return Step(
            id=node_id,
            node_id=node_id,
            kind="llm",
            predecessors=before,
            output=Snapshot("careful" if "careful" in text else "careless"),
            surface_reads={surface_id: ""},
        )

    trace = ExecutionTrace(id="build", steps=(step("draft"), step("polish", "draft")))
    return ScoredProfile(scores=(carefulness(profile),), traces=(trace,))


async def test_a_scorer_with_traces_can_be_optimized_by_backprop() -> None:
    result = await Engine(STRUCTURE, Evaluator(), Blames(), Merges(), Writes()).run(scored(scorer=build_traces))
    assert (result.verdict, result.accepted_score) == ("improved_on_validation", 1.0)
    assert result.rounds[0].patches.surface_ids == {"draft#instruction", "polish#instruction"}


async def test_backprop_says_what_a_scorer_without_traces_lacks() -> None:
    with pytest.raises(RunFailedError, match=r"the scorer returned no traces, .* return ScoredProfile\("):
        await Engine(STRUCTURE, Evaluator(), Blames(), Merges(), Writes()).run(scored())


async def test_a_scorer_that_fails_is_an_invalid_evaluation() -> None:
    def broken(_profile: Profile) -> float:
        raise OSError("no compiler")

    result = await Engine(STRUCTURE, Evaluator(), search=Tries(BOTH)).run(scored(scorer=broken))
    assert result.verdict == "invalid_eval"
    assert result.stop is not None
    assert "no compiler" in result.stop.text


async def test_the_calls_of_a_scorer_count_for_the_budget() -> None:
    async def ask(profile: Profile, context: RunContext) -> Score:
        request = ModelRequest(model="scripted", messages=(Message("system", "careful"), Message("user", "build")))
        site = CallSite(role="agent", case_id=context.case_id, repeat=context.repeat)
        await current_gateway().ask(request, site)
        return carefulness(profile)

    gateway = Gateway(models={"scripted": desk.model()}, budget=Budget(max_calls=3))
    result = await Engine(STRUCTURE, Evaluator(gateway=gateway), search=Tries(DRAFT, BOTH)).run(scored(scorer=ask))
    assert result.measured.spent.total.calls == 3
    assert result.stop is not None
    assert result.stop.reason == "max_calls"


@pytest.mark.long
@pytest.mark.parametrize("shape", ["one_set", "scorer"])
async def test_a_run_that_is_killed_at_any_event_resumes_with_the_same_result(shape: str) -> None:
    trace_store, calls = FileTraceStore(), Counter[str]()

    def score(profile: Profile) -> ScoredProfile:
        calls[profile.digest] += 1
        return build_traces(profile)

    request = one_set() if shape == "one_set" else scored(scorer=score)

    def make() -> Engine:
        if shape == "one_set":
            return Engine(desk.agent(), desk.evaluator(trace_store=trace_store), Blames(), Merges(), Writes())
        return Engine(STRUCTURE, Evaluator(trace_store=trace_store), Blames(), Merges(), Writes())

    whole = MemoryJournal()
    expected = await make().run(request, journal=whole)
    assert (expected.verdict, expected.shape) == ("improved_on_validation", shape)
    events, asked = list(whole.events), calls.total()
    for count in range(1, len(events)):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        calls.clear()
        assert await make().run(request, journal=journal) == expected
        scored_before = sum(event.type == "case" for event in events[:count])
        assert calls.total() <= max(0, asked - scored_before) + 1


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({}, "there are no cases; give train and validation, or one set as cases, or a scorer"),
        ({"train": CASES}, "validation is missing; give it, or give the train set as cases, if the search may"),
        ({"validation": CASES}, "train is missing; give it, or give the validation set as cases"),
        ({"test": CASES}, "there are no cases; give train and validation"),
        ({"cases": CASES, "train": CASES}, "cases are for learning and validation, but train is given, too"),
        ({"cases": CASES, "scorer": carefulness}, "a scorer scores without cases, but cases are given, too"),
        ({"cases": CASES, "train": CASES, "validation": CASES}, "but train and validation are given, too; give one"),
        ({"scorer": carefulness, "test": CASES}, "a scorer scores without cases, but test is given, too"),
        ({"scorer": carefulness, "teacher": "m"}, "a scorer has no cases that a teacher could answer"),
        ({"scorer": 0.5}, "scorer is 0.5; give a function of a profile"),
        ({"cases": ()}, r"cases is \(\); give an EvalSet, or a list of them"),
        ({"cases": EvalSet(id="empty", cases=())}, "the eval set has no cases"),
        ({"train": CASES, "validation": CASES}, "keep each case in one of the sets, or give one set as cases"),
        ({"cases": CASES, "test": CASES}, "cases and test share 6 cases: .*; keep each case in one of the sets$"),
        ({"cases": CASES, "protected": frozenset({"case-0"})}, "protected case 'case-0' is not one of the cases"),
        ({"scorer": Scorer(carefulness, {"a": 1.0}), "stop": TargetScore(1.0)}, None),
    ],
)
async def test_sets_that_do_not_go_together_are_named(changes: dict[str, Any], problem: str | None) -> None:
    engine = desk.engine(BOTH)
    if problem is None:
        assert (await engine.run(RunRequest(**changes))).verdict == "improved_on_validation"
        return
    with pytest.raises(RequestError, match=problem):
        await engine.run(RunRequest(**changes))


async def test_cases_need_metrics() -> None:
    with pytest.raises(RequestError, match="the evaluator has no metrics; give it at least one"):
        await Engine(desk.agent(), Evaluator(), search=Tries(BOTH)).run(one_set())


async def test_a_structure_alone_needs_a_scorer() -> None:
    with pytest.raises(RequestError, match="give the engine an agent, or the request a scorer"):
        await Engine(desk.agent().describe(), desk.evaluator(), search=Tries(BOTH)).run(one_set())
