from __future__ import annotations

import random
import string
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

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
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.llm.messages import Message
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
