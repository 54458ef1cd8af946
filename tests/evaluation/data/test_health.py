from __future__ import annotations

import random
import string
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.agents.base import AgentRun
from promptiter.agents.function import agent, ask
from promptiter.errors import SetupError
from promptiter.evaluation.data import near_duplicates
from promptiter.evaluation.data.case import EvalCase, EvalSet, ExpectedToolCall, Scenario, Turn
from promptiter.evaluation.data.health import (
    HealthFinding,
    HealthKind,
    check_cases,
    check_runs,
    find_overlaps,
    normalize_text,
)
from promptiter.evaluation.data.near_duplicates import group_near_duplicates
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.builtin import FunctionMetric, build_metrics
from promptiter.evaluation.metrics.metric import Metric
from promptiter.evaluation.metrics.metric_config import parse_eval_config
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.evaluation.stats.metric_noise import MetricNoise, estimate_variances, measure_metric_noise
from promptiter.llm.gateway import Gateway, current_gateway
from promptiter.llm.messages import CallSite, Message, ModelReply, ModelRequest
from traces import Failure

LONG = "please write a short and friendly note to the customer who asked about the delivery of the red bicycle last"


def case(case_id: str, user: str, expected: str | None = "yes", **fields: Any) -> EvalCase:
    return EvalCase(id=case_id, turns=(Turn(user=user, expected=expected),), **fields)


def eval_set(*cases: EvalCase) -> EvalSet:
    return EvalSet(id="set", cases=cases)


def find_cases(kind: HealthKind, *cases: EvalCase) -> list[tuple[str, ...]]:
    return [finding.case_ids for finding in check_cases(eval_set(*cases)).findings if finding.kind == kind]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("What is it?", "what  is it"),
        ("Well, what?", "Well what"),
        ('Say "3" now', "Say 3 now"),
        ("それは何ですか？", "それは何ですか"),
        ("Ｗｈａｔ is it？", "what is it"),
    ],
)
def test_case_whitespace_and_punctuation_do_not_make_another_question(one: str, other: str) -> None:
    assert normalize_text(one) == normalize_text(other)
    assert find_cases("contradiction", case("a", one, "1"), case("b", other, "2")) == [("a", "b")]


@pytest.mark.parametrize(
    ("one", "other"),
    [("is 3.5 more", "is 35 more"), ("in C", "in C++"), ("3 - 4", "3 4"), (".5 of it", "5 of it"), ("???", "!!!")],
)
def test_meaningful_punctuation_makes_another_question(one: str, other: str) -> None:
    assert find_cases("contradiction", case("a", one, "1"), case("b", other, "2")) == []


@given(st.text())
def test_normalizing_twice_is_normalizing_once(text: str) -> None:
    assert normalize_text(f"  {text}\n") == normalize_text(text)


def test_a_contradiction_says_what_is_expected() -> None:
    checked = check_cases(eval_set(case("a", "q", "Paris"), case("b", "q", "Lyon")))
    assert checked.findings == (
        HealthFinding(kind="contradiction", case_ids=("a", "b"), detail="expected 'Paris' or 'Lyon'"),
    )
    assert checked.is_serious
    assert checked.counts == {"contradiction": 1}


def test_the_same_message_in_another_context_or_state_is_another_question() -> None:
    cases = [
        case("a", "go on", "1"),
        case("b", "go on", "2", context=(Message("user", "count"),)),
        case("c", "go on", "3", state={"at": 3}),
    ]
    assert check_cases(eval_set(*cases)).findings == ()


def test_equivalent_answers_are_duplicates_and_not_a_contradiction() -> None:
    same = [case("a", "q", '{"x": 1, "y": 2}'), case("b", "Q?", '{"y":2,"x":1}')]
    assert find_cases("contradiction", *same) == []
    assert find_cases("duplicate", *same) == [("a", "b")]
    assert find_cases("duplicate", case("a", "q", "Paris."), case("b", "q", "paris")) == [("a", "b")]


def test_a_case_without_a_reference_contradicts_nothing() -> None:
    assert find_cases("contradiction", case("a", "q", "1"), case("b", "q", None), case("c", "q", " ")) == []


def test_expected_tool_calls_can_contradict_each_other() -> None:
    def calling(case_id: str, city: str, call_id: str) -> EvalCase:
        call = ExpectedToolCall(name="weather", arguments={"city": city}, id=call_id)
        return EvalCase(id=case_id, turns=(Turn(user="q", expected_tool_calls=(call,)),))

    assert find_cases("contradiction", calling("a", "Rome", "1"), calling("b", "Bonn", "2")) == [("a", "b")]
    assert find_cases("duplicate", calling("a", "Rome", "1"), calling("b", "Rome", "2")) == [("a", "b")]


def test_two_recordings_of_one_question_are_not_duplicates() -> None:
    def recording(case_id: str, answer: str) -> EvalCase:
        return replace(case(case_id, "q"), mode="trace", actual=(Turn(user="q", expected=answer),))

    assert check_cases(eval_set(recording("a", "one"), recording("b", "two"))).findings == ()
    assert find_cases("duplicate", recording("a", "one"), recording("b", "one")) == [("a", "b")]


def test_near_duplicates_are_grouped_with_their_similarity() -> None:
    cases = [case("a", f"{LONG} week"), case("b", f"{LONG} month"), case("c", "something else"), case("d", LONG)]
    (finding,) = check_cases(eval_set(*cases)).findings
    assert (finding.kind, finding.case_ids) == ("near_duplicate", ("a", "b", "d"))
    assert finding.value is not None
    assert 0.8 <= finding.value < 1


def test_similar_questions_in_another_state_are_not_near_duplicates() -> None:
    assert find_cases("near_duplicate", case("a", f"{LONG} week"), case("b", f"{LONG} month", state={"x": 1})) == []


def brute_force(sets: list[frozenset[int]]) -> list[list[int]]:
    groups = [{number} for number in range(len(sets))]
    for one, other in combinations(range(len(sets)), 2):
        if len(sets[one] & sets[other]) / len(sets[one] | sets[other]) >= near_duplicates.NEAR:
            first = next(group for group in groups if one in group)
            second = next(group for group in groups if other in group)
            if first is not second:
                first |= second
                groups.remove(second)
    return sorted(sorted(group) for group in groups if len(group) > 1)


members = st.frozensets(st.integers(0, 12), min_size=1)


@given(st.lists(members, max_size=40))
def test_near_duplicates_are_those_of_comparing_all_pairs(sets: list[frozenset[int]]) -> None:
    assert [numbers for numbers, _ in group_near_duplicates(sets)] == brute_force(sets)


@given(st.integers(0, 1_000))
def test_near_duplicates_of_changed_copies_are_those_of_comparing_all_pairs(seed: int) -> None:
    rng = random.Random(seed)
    sets = [frozenset(rng.sample(range(500), 30)) for _ in range(8)]
    for _ in range(30):
        changed = set(rng.choice(sets))
        for member in rng.sample(sorted(changed), rng.randint(0, 5)):
            changed.remove(member)
            changed.add(rng.randrange(500))
        sets.append(frozenset(changed))
    assert [numbers for numbers, _ in group_near_duplicates(sets)] == brute_force(sets)


@pytest.mark.slow
@pytest.mark.parametrize("own", [1, 6], ids=["all near", "near to none"])
def test_ten_thousand_cases_of_one_template_are_not_compared_all_with_all(own: int) -> None:
    compared = 0

    class Counted(frozenset[int]):
        def __and__(self, other: Any) -> frozenset[int]:
            nonlocal compared
            compared += 1
            return frozenset.__and__(self, other)

    size = 10_000
    sets = [Counted([*range(40), *range(100 + number * own, 100 + (number + 1) * own)]) for number in range(size)]
    groups = [numbers for numbers, _ in group_near_duplicates(sets)]
    assert groups == ([list(range(size))] if own == 1 else [])
    assert compared <= size * near_duplicates.MAX_COMPARED


def test_missing_and_empty_references_are_distinguished() -> None:
    cases = [case("a", "one", None), case("b", "two", " "), case("c", "three", "yes")]
    checked = check_cases(eval_set(*cases))
    assert [(finding.kind, finding.case_ids) for finding in checked.findings] == [
        ("missing_reference", ("a",)),
        ("empty_reference", ("b",)),
    ]
    assert (checked.cases, checked.scorable, checked.is_serious) == (3, 1, False)
    assert check_cases(eval_set(*cases[:2])).is_serious  # no case can be scored


def test_without_metrics_that_need_references_none_are_missing() -> None:
    checked = check_cases(eval_set(case("a", "one", None)), needs_reference=False)
    assert (checked.findings, checked.scorable, checked.is_serious) == ((), 1, False)


def test_cases_without_tool_calls_are_serious_if_a_metric_compares_them() -> None:
    expected = EvalCase(id="b", turns=(Turn(user="two", expected="yes", expected_tool_calls=()),))
    checked = check_cases(eval_set(case("a", "one", "yes"), expected), needs_tool_calls=True)
    assert [(each.kind, each.case_ids) for each in checked.findings] == [("missing_tool_calls", ("a",))]
    assert checked.is_serious


def test_scenarios_need_no_reference() -> None:
    scenario = EvalCase(id="a", scenario=Scenario(starting_prompt="hello", plan="book a table"))
    other = EvalCase(id="b", scenario=Scenario(starting_prompt="hello", plan="cancel the order"))
    checked = check_cases(eval_set(scenario, other))
    assert (checked.findings, checked.scorable) == ((), 2)


def test_an_empty_set_is_serious() -> None:
    assert check_cases(eval_set()).is_serious


def test_an_answer_that_is_part_of_the_question_is_a_leak() -> None:
    assert find_cases("leaked_reference", case("a", "Repeat: twelve chars", "twelve chars")) == [("a",)]
    assert find_cases("leaked_reference", case("a", "Repeat: eleven char", "eleven char")) == []
    assert find_cases("leaked_reference", case("a", "Repeat: Twelve chars", "twelve chars")) == []
    later = EvalCase(
        id="a", turns=(Turn(user="my name is Ann Bartholomew"), Turn(user="?", expected="Ann Bartholomew"))
    )
    assert find_cases("leaked_reference", later) == [("a",)]
    earlier = replace(later, turns=later.turns[::-1])
    assert find_cases("leaked_reference", earlier) == []


def test_an_input_is_long_compared_with_the_others() -> None:
    short = [case(letter, letter * 100) for letter in string.ascii_lowercase]
    assert find_cases("long_input", *short, case("long", "word " * 500)) == [("long",)]
    assert find_cases("long_input", *short, case("long", "word " * 400)) == []
    assert find_cases("long_input", *(case(letter, letter * 5_000) for letter in "ab")) == []


def test_cases_with_the_same_input_in_several_sets_overlap() -> None:
    train = eval_set(case("a", "One"), case("b", "two"), case("b2", "two "))
    validation = eval_set(case("x", "one", "no"), case("y", "three"))
    (finding,) = find_overlaps([("train", train), ("validation", validation)])
    assert (finding.case_ids, finding.sources) == (("a", "x"), ("train", "validation"))
    assert len(find_overlaps([("train", train), ("train", train)])) == 2
    assert find_overlaps([("train", train)]) == ()


def row(case_id: str, repeat: int, value: float | None) -> CaseRow:
    error = None if value is not None else Failure("Oops", "down")
    return CaseRow(case_id=case_id, repeat=repeat, scores=(Score(metric="m", value=value),), error=error)


def evaluation(**values: list[float | None]) -> Evaluation:
    rows = [row(case_id, repeat, value) for case_id, scores in values.items() for repeat, value in enumerate(scores)]
    return Evaluation(eval_set_id="set", profile_digest="", rows=tuple(rows), thresholds={"m": 1.0})


def test_runs_show_cases_that_always_or_never_pass_or_flip() -> None:
    findings = check_runs([evaluation(a=[1, 1], b=[0, 0.9], c=[1, 0], d=[None, None], e=[1, None], f=[None, 0])])
    assert [(finding.case_ids[0], finding.kind, finding.value) for finding in findings] == [
        ("a", "always_passes", 1.0),
        ("b", "never_passes", 0.0),
        ("c", "flips", 0.5),
        ("d", "always_errors", None),
        ("e", "flips", 1.0),
        ("f", "never_passes", 0.0),
    ]
    assert findings[2].detail == "1 of 2 runs pass"
    assert findings[3].detail == "Oops: down"
    assert findings[4].detail == "1 of 2 runs pass, 1 could not be scored"


def test_runs_of_several_evaluations_count_together() -> None:
    findings = check_runs([evaluation(a=[1, 1]), evaluation(a=[0, 0])])
    assert [(finding.kind, finding.value) for finding in findings] == [("flips", 0.5)]


def test_one_run_of_each_case_is_an_error() -> None:
    with pytest.raises(SetupError, match="was run once a case; run it with at least 2 repeats"):
        check_runs([evaluation(a=[1], b=[0])])
    assert check_runs([evaluation(a=[1], b=[0, 0])])[0].case_ids == ("b",)


@pytest.mark.parametrize(
    ("cases", "agent_variance", "judge_variance"),
    [
        ([[[1, 3], [5, 7]]], 7.0, 2.0),  # squares 16 between (1 df), 4 within (2 df): (16 - 2) / 2
        ([[[0, 2], [1, 1]]], 0.0, 1.0),  # (0 - 1) / 2 is below 0
        ([[[1, 3], [6]]], pytest.approx(6.5), 2.0),  # squares 32/3 and 2, 1 df each, 4/3 judgements: (32/3 - 2) / (4/3)
        ([[[1, 3], [5, 7]], [[11, 13], [15, 17]]], 7.0, 2.0),  # differences between cases are not noise
        ([[[0.1] * 3, [0.1] * 3, [0.1] * 3]], 0.0, 0.0),
        ([[[0.1] * 3, [0.7] * 3]], pytest.approx(0.18), 0.0),
        ([[[1, 2]], [[], [3]]], None, 0.5),
        ([[[1], [2]]], None, None),
        ([], None, None),
    ],
)
def test_variances_are_those_worked_out_by_hand(cases: Any, agent_variance: Any, judge_variance: Any) -> None:
    assert estimate_variances(cases) == (agent_variance, judge_variance)


@pytest.mark.parametrize(("agent_sd", "judge_sd"), [(0.3, 0.1), (0.1, 0.3), (0.2, 0.0), (0.0, 0.2)])
def test_variances_of_a_simulation_are_recovered(agent_sd: float, judge_sd: float) -> None:
    rng = random.Random(5)
    cases = []
    for _ in range(1_500):
        level = rng.uniform(-10, 10)
        runs = [level + rng.gauss(0, agent_sd) for _ in range(3)]
        cases.append([[run + rng.gauss(0, judge_sd) for _ in range(rng.randint(1, 4))] for run in runs])
    agent_variance, judge_variance = estimate_variances(cases)
    assert agent_variance == pytest.approx(agent_sd**2, rel=0.1, abs=0.003)
    assert judge_variance == pytest.approx(judge_sd**2, rel=0.1)


class RandomModel:
    """A model with a random answer for each request and repeat; it counts its calls."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.asked = 0

    async def __call__(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        self.asked += 1
        return ModelReply(text=random.Random(f"{request.digest} {repeat}").choice(self.answers))


@agent(instruction="Answer.")
async def steady(text: str) -> str:
    return text


@agent(instruction="Answer.")
async def random_agent(text: str) -> str:
    return await ask(text, model="agent")


QUESTIONS = eval_set(*(case(f"c{number}", f"q{number}") for number in range(20)))


def judge(gateway: Gateway, **options: Any) -> Metric:
    criterion = {"llm_judge": {"judge_model": {"model_name": "judge", **options}}}
    config = parse_eval_config([{"metric_name": "llm_final_response", "criterion": criterion}])
    return build_metrics(config, gateway=gateway)[0]


def is_yes(_: EvalCase, run: AgentRun) -> float:
    return float(run.output == "yes") / 3


VERDICTS = ('{"reason": "r", "valid": true}', '{"reason": "r", "valid": false}')


@pytest.mark.slow
async def test_a_steady_agent_leaves_all_noise_to_the_judge_which_is_asked_again() -> None:
    model = RandomModel(*VERDICTS)
    gateway = Gateway(models={"judge": model})
    subject = Evaluator([judge(gateway), FunctionMetric(name="exact", function=is_yes)], gateway=gateway)
    report = await measure_metric_noise(subject, steady, QUESTIONS, repeats=3, judge_repeats=4)
    assert model.asked == 20 * 3 * 4
    judged, exact = report.metrics
    assert judged.judge_variance == pytest.approx(0.25, rel=0.15)
    assert judged.agent_variance == pytest.approx(0.0, abs=0.03)
    assert exact == MetricNoise(metric="exact", agent_variance=0.0, judge_variance=0.0)

    again = await measure_metric_noise(subject, steady, QUESTIONS, repeats=3, judge_repeats=4)
    assert (again, model.asked) == (report, 20 * 3 * 4)  # the cache knows all samples


@pytest.mark.slow
async def test_a_steady_judge_leaves_all_noise_to_the_agent() -> None:
    gateway = Gateway(models={"agent": RandomModel("yes", "no"), "judge": RandomModel(VERDICTS[0])})
    subject = Evaluator([judge(gateway), FunctionMetric(name="exact", function=is_yes)], gateway=gateway)
    report = await measure_metric_noise(subject, random_agent, QUESTIONS, repeats=4, judge_repeats=2)
    judged, exact = report.metrics
    assert judged == MetricNoise(metric="llm_final_response", agent_variance=0.0, judge_variance=0.0)
    assert exact.agent_variance == pytest.approx(0.25 / 9, rel=0.15)
    assert exact.judge_variance == 0.0


async def test_a_judge_of_several_samples_gets_new_ones_each_time() -> None:
    model = RandomModel(*VERDICTS)
    gateway = Gateway(models={"judge": model})
    await measure_metric_noise(
        Evaluator([judge(gateway, num_samples=3)], gateway=gateway), steady, QUESTIONS, repeats=2, judge_repeats=2
    )
    assert model.asked == 20 * 2 * 2 * 3


async def test_a_user_metric_that_uses_the_gateway_is_asked_again() -> None:
    async def by_model(_: EvalCase, run: AgentRun) -> float:
        request = ModelRequest(model="judge", messages=(Message("user", run.output),))
        return float((await current_gateway().ask(request, CallSite(role="judge"))).text)

    model = RandomModel("0", "1")
    subject = Evaluator([FunctionMetric(name="own", function=by_model)], gateway=Gateway(models={"judge": model}))
    report = await measure_metric_noise(subject, steady, QUESTIONS, repeats=2, judge_repeats=3)
    assert model.asked == 20 * 2 * 3
    assert report.metrics[0].judge_variance == pytest.approx(0.25, rel=0.2)


async def test_the_evaluation_of_a_metric_noise_report_has_as_many_repeats() -> None:
    def subject(repeats: int) -> Evaluator:
        gateway = Gateway(models={"agent": RandomModel("yes", "no")})
        options = EvaluationOptions(repeats=repeats, concurrency=3)
        return Evaluator([FunctionMetric(name="exact", function=is_yes)], gateway=gateway, options=options)

    report = await measure_metric_noise(subject(1), random_agent, QUESTIONS, repeats=3, judge_repeats=2)
    assert report.evaluation == await subject(3).evaluate(random_agent, QUESTIONS)
    assert (report.judge_repeats, len(report.evaluation.rows)) == (2, 60)


async def test_cases_that_cannot_be_scored_have_no_noise() -> None:
    def broken(_: EvalCase, run: AgentRun) -> float:
        raise ValueError(run.output)

    subject = Evaluator([FunctionMetric(name="broken", function=broken)])
    report = await measure_metric_noise(subject, steady, QUESTIONS, repeats=2, judge_repeats=2)
    assert report.metrics == (MetricNoise(metric="broken", agent_variance=None, judge_variance=None),)
    assert {finding.kind for finding in check_runs([report.evaluation])} == {"always_errors"}


@pytest.mark.parametrize(("repeats", "judge_repeats"), [(1, 2), (2, 1)])
async def test_metric_noise_needs_two_repeats_and_two_judgements(repeats: int, judge_repeats: int) -> None:
    with pytest.raises(SetupError, match=f"at least 2 repeats and 2 judge_repeats, got {repeats} and {judge_repeats}"):
        await measure_metric_noise(
            Evaluator([FunctionMetric(name="exact", function=is_yes)]),
            steady,
            QUESTIONS,
            repeats=repeats,
            judge_repeats=judge_repeats,
        )
