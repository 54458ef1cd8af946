from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.evaluation.score import Finding
from promptiter.offline.rules.examples import collect_evidence
from promptiter.offline.rules.field_rules import is_carried
from promptiter.offline.rules.predicates import Support, find_qualified
from promptiter.offline.rules.rule_selection import iterate_choices
from promptiter.offline.rules.rule_templates import PHRASINGS
from promptiter.offline.text.dates import DATE_FORMATS, find_dates, write_date
from promptiter.offline.text.fields import read_fields
from promptiter.offline.text.matching import contains_words, normalize
from promptiter.offline.text.numbers import read_numbers
from promptiter.small_words import guess_language
from promptiter.stages.optimizer import StepExample
from traces.model import Json

CITIES = (
    "Berlin",
    "Paris",
    "Rome",
    "Oslo",
    "Madrid",
    "Vienna",
    "Lisbon",
    "Dublin",
    "Athens",
    "Prague",
    "Bern",
    "Turin",
)


def example(
    number: int,
    *,
    given: str,
    output: str,
    expected: str | None = None,
    passed: bool = False,
    is_terminal: bool = True,
    findings: tuple[Finding, ...] = (),
    **more: Json,
) -> StepExample:
    return StepExample(
        case_id=f"case {number}",
        step_id="writer",
        input=given,
        output=output,
        passed=passed,
        expected=expected,
        is_terminal=is_terminal,
        findings=findings,
        **more,
    )


def failing(
    references: Sequence[str], outputs: Sequence[str], *, inputs: Sequence[str] = (), **more: Json
) -> list[StepExample]:
    given = inputs or ["Please help."] * len(references)
    return [
        example(number, given=text, output=output, expected=reference, **more)
        for number, (text, output, reference) in enumerate(zip(given, outputs, references, strict=True))
    ]


def first_choice(
    bad: Sequence[StepExample], good: Sequence[StepExample] = (), *, tool: str = ""
) -> tuple[Support, ...]:
    return next(
        iterate_choices(find_qualified(collect_evidence(bad, good, tool=tool, tools=("look", "pay", "book")))), ()
    )


def found(
    bad: Sequence[StepExample], good: Sequence[StepExample] = (), *, tool: str = ""
) -> list[tuple[str, tuple[str, ...]]]:
    return [(each.predicate.family, each.predicate.parameters) for each in first_choice(bad, good, tool=tool)]


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("order_id: A-17\ncity: Berlin", {"order id": ("A-17",), "city": ("Berlin",)}),
        ('{"orderId": "A-17", "total": 12.5}', {"order id": ("A-17",), "total": ("12.5",)}),
        ('{"order": {"id": "A-17"}, "none": null}', {"order id": ("A-17",)}),
        ('Here:\n```json\n{"city": "Rome"}\n```', {"city": ("Rome",)}),
        ("An angry customer (order id: A-17; city: Berlin).", {"order id": ("A-17",), "city": ("Berlin",)}),
        ("- **Order ID**: A-17.\n- City: Berlin", {"order id": ("A-17",), "city": ("Berlin",)}),
        ("order id: A-17; city: Berlin.", {"order id": ("A-17",), "city": ("Berlin",)}),
        ("reason: it broke; send a new one", {"reason": ("it broke; send a new one",)}),
        ("Hello, my order number is A-17.", {"order number": ("A-17",)}),
        ("The order A-17 is late.", {"order id": ("A-17",)}),
        ("Write to ada@example.org by 2026-03-05, for $12.50.", {
            "email address": ("ada@example.org",), "amount": ("$12.50",), "date": ("2026-03-05",)}),
        ("Just some words without any name.", {}),
        ("", {}),
    ],
)  # fmt: skip
def test_fields_are_read_however_they_are_written(text: str, fields: dict[str, tuple[str, ...]]) -> None:
    assert dict(read_fields(text)) == fields


@given(st.text(max_size=300))
def test_any_text_can_be_read(text: str) -> None:
    for name, values in read_fields(text).items():
        assert name
        assert all(values)
    find_dates(text)
    read_numbers(text)
    guess_language(text)


@pytest.mark.slow
@given(st.dictionaries(st.from_regex(r"[a-z]{2,8}", fullmatch=True), st.from_regex(r"[A-Z]{2}-\d{3}", fullmatch=True)))
def test_the_fields_of_json_are_its_keys(record: dict[str, str]) -> None:
    assert dict(read_fields(json.dumps(record))) == {key: (value,) for key, value in record.items()}


@given(st.dates(date(1900, 1, 1), date(2099, 12, 31)), st.sampled_from(sorted(DATE_FORMATS)))
def test_a_date_is_read_as_it_was_written(day: date, format_name: str) -> None:
    (read,) = find_dates(f"It was on {write_date(day, format_name)}, I think.")
    assert day in read.days
    assert read.is_written_as(format_name)


@pytest.mark.parametrize("text", ["2026-13-05", "A-2026-03-05", "31.02.2026", "1.2.3", "12345678"])
def test_other_numbers_are_not_read_as_dates(text: str) -> None:
    assert find_dates(text) == ()


@given(st.text("ab .-é", max_size=12), st.text("ab .-é", max_size=4))
def test_words_are_found_only_as_whole_words(text: str, value: str) -> None:
    wanted = normalize(value)
    # Two marks side by side separate words, so only letters and digits can run into each other.
    pattern = re.compile(rf"(?<!\w){re.escape(wanted)}(?!\w)")
    if wanted and wanted[0].isalnum() and wanted[-1].isalnum():
        assert contains_words(text, value) == bool(pattern.search(normalize(text)))


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("$1,234.50 and 12 EUR", [("1,234.50", 2), ("12", 0)]),
        ("5km or 3 hours, 7%", [("5", 0), ("3", 0), ("7", 0)]),
        ("A-17, v1.2, 2026-03-05", []),
    ],
)
def test_numbers_are_read_as_they_are_written(text: str, numbers: list[tuple[str, int]]) -> None:
    assert [(each.text, each.decimals) for each in read_numbers(text)] == numbers


@pytest.mark.parametrize(
    ("value", "text", "carried"),
    [
        ("A-17", "order id: a-17", True),
        ("A-17", "order A-175", False),
        ("1234.5", "1,234.50 EUR", True),
        ("2026-03-05", "on March 5, 2026", True),
        ("2026-03-05", "on March 6, 2026", False),
        ("12", "there are 13", False),
    ],
)
def test_a_value_is_carried_in_any_form(value: str, text: str, carried: bool) -> None:
    assert is_carried(value, text) is carried


def test_languages_are_recognized() -> None:
    texts = ("Die Antwort ist Paris.", "The answer is here.", "La réponse est Paris.", "17")
    assert [guess_language(text) for text in texts] == ["German", "English", "French", None]


NAMED = [
    f"order_id: {letter}-{n}\ncity: {city}" for n, (letter, city) in enumerate(zip("ABCDEFGH", CITIES, strict=False))
]
IDS = [read_fields(text)["order id"][0] for text in NAMED]
DATES = [f"2026-0{number}-1{number}" for number in range(1, 9)]
LAZY = ["It is done."] * 8


def by_city(reference: str, output: str, *, given: str = "Please help.") -> list[StepExample]:
    """Eight failing cases; `{}` is a city, `{n}` a number from 11 on."""
    texts = [[text.format(city, n=n) for n, city in enumerate(CITIES[:8], 11)] for text in (reference, output, given)]
    return failing(texts[0], texts[1], inputs=texts[2])


CASES: list[tuple[str, tuple[str, ...], list[StepExample]]] = [
    ("field_carried", ("order id",), failing([f"Order {each} is ok." for each in IDS], LAZY, inputs=NAMED)),
    ("json_keys", ("id", "ok"), failing([json.dumps({"id": each, "ok": True}) for each in IDS], LAZY)),
    ("json_only", (), by_city('{{"a": "{}"}}', 'Sure: {{"a": "{}"}}')),
    ("prefix", ("Result:",), by_city("Result: {}", "{}")),
    ("suffix", ("Yours, Ada",), by_city("{}. Yours, Ada", "{}.")),
    ("max_length", ("1", "sentences"), by_city("{} lies by the sea, of course.", "One. Two. Three.")),
    ("min_length", ("6", "words"), by_city("{0} {0}a {0}b {0}c {0}d {0}e", "Just {n}")),
    ("date_format", ("DD.MM.YYYY",), by_city("On {n}.10.2026 in {}", "On 2026-10-{n} in {}")),
    ("decimals", ("2",), by_city("{} costs {n}.50", "{} costs {n}.5")),
    ("whole_numbers", (), by_city("{} costs {n}", "{} costs {n}.0", given="price: {n}.0")),
    ("upper_case", (), failing([f"GO TO {each.upper()}" for each in CITIES], [f"Go to {each}" for each in CITIES])),
    ("language", ("German",), by_city("Es ist {}.", "It is {}.")),
    ("enumeration", ("keep", "send"), failing(["keep", "send"] * 4, [f"I think so {n}" for n in range(8)])),
    ("label_cue", ("keep", "fragile"), [
        *by_city("keep", "send", given="a fragile thing"), *(replace(each, case_id=f"{each.case_id} too")
        for each in by_city("send", "keep", given="a plain thing"))]),
    ("cite", (), by_city("It is {} [d{n}]", "It is {}", given="[d{n}] about {}")),
    ("verbatim", (), [
        *by_city("{} is {n}.50", "{} is {n}.5", given="price: {n}.50"), *(replace(each, case_id=f"{each.case_id} too")
        for each in by_city("{} is {n}.1250", "{} is {n}.125", given="price: {n}.1250"))]),
    ("value_only", (), by_city("{}", "It must be {} I guess")),
    ("field_only", ("price",), by_city("{n}", "It is fine in {}", given="price: {n}")),
    ("keyword", ("warranty",), by_city("{} has a warranty now", "{} has one now")),
]  # fmt: skip


@pytest.mark.parametrize(("family", "parameters", "examples"), CASES, ids=[case[0] for case in CASES])
def test_each_family_is_found_where_references_want_it(
    family: str, parameters: tuple[str, ...], examples: list[StepExample]
) -> None:
    bad = [each for each in examples if not each.passed]
    good = [each for each in examples if each.passed]
    assert (family, parameters) in found(bad, good)
    assert family in PHRASINGS


def test_every_detector_writes_families_that_can_be_phrased() -> None:
    seen = {each.predicate.family for _, _, bad in CASES for each in find_qualified(collect_evidence(bad, ()))}
    assert seen <= set(PHRASINGS)


def test_an_inner_step_is_compared_with_what_the_case_needs() -> None:
    lost = Finding(kind="missing", expected="A-0", predicate="contains")
    bad = [
        example(n, given=text, output="A plan.", expected=read_fields(text)["order id"][0], is_terminal=False)
        for n, text in enumerate(NAMED)
    ]
    assert found(bad) == [("field_carried", ("order id",))]
    lacking = [example(n, given=NAMED[0], output="A plan.", is_terminal=False, findings=(lost,)) for n in range(3)]
    assert found(lacking) == [("field_carried", ("order id",))]


def test_what_an_inner_step_carries_already_is_not_asked_for() -> None:
    bad = [
        example(n, given=text, output=f"A plan for {city}.", expected=f"{order} {city}", is_terminal=False)
        for n, (text, city, order) in enumerate(zip(NAMED, CITIES, IDS, strict=False))
    ]
    assert found(bad) == [("field_carried", ("order id",))]


def test_an_evidence_field_is_wanted_if_it_contains_the_answer() -> None:
    bad = [
        example(n, given=f"question: where?\nevidence: It lies near {city}, they say", output="A plan.", expected=city,
                is_terminal=False)
        for n, city in enumerate(CITIES)
    ]  # fmt: skip
    assert found(bad) == [("field_carried", ("evidence",))]


def test_many_lost_fields_become_all_fields() -> None:
    records = [{name: f"{name}-{n}" for name in ("red", "green", "blue", "black", "white", "grey")} for n in range(8)]
    bad = [
        example(n, given=json.dumps(record), output="A plan.", expected=" ".join(record.values()), is_terminal=False)
        for n, record in enumerate(records)
    ]
    assert found(bad) == [("all_fields_carried", ())]


def test_a_lost_date_brings_its_format_along() -> None:
    inputs = [f"date: {each}" for each in DATES]
    references = [f"It is due {write_date(date.fromisoformat(each), 'DD.MM.YYYY')}" for each in DATES]
    assert found(failing(references, LAZY, inputs=inputs)) == [
        ("field_carried", ("date",)),
        ("date_format", ("DD.MM.YYYY",)),
    ]


def test_only_what_a_contained_reference_shows_is_wanted() -> None:
    missing = tuple(Finding(kind="missing", expected=each, predicate="contains") for each in IDS)
    bad = [
        example(n, given=text, output="It is done, and it is done well.", expected=order, findings=(missing[n],))
        for n, (text, order) in enumerate(zip(NAMED, IDS, strict=True))
    ]
    assert found(bad) == [("field_carried", ("order id",))]


def test_rules_of_a_metric_need_no_reference() -> None:
    long = Finding(kind="violated", expected=80, actual=200, predicate="max_length")
    no_json = Finding(kind="violated", expected="no JSON", where="$", predicate="valid_json")
    keys = Finding(kind="violated", expected={"required": ["city", "day"]}, where="$", predicate="json_schema")
    rubric = Finding(kind="violated", expected="The answer names the policy", predicate="rubric:policy")
    wordy = [example(n, given="Go.", output="word " * 40, findings=(long,)) for n in range(4)]
    assert ("max_length", ("80", "characters")) in found(wordy)
    prose = [example(n, given="Go.", output=f"Prose {n}.", findings=(no_json,)) for n in range(4)]
    assert ("json_object", ()) in found(prose)
    loose = [example(n, given="Go.", output='{"city": 1}', findings=(keys,)) for n in range(4)]
    assert ("json_keys", ("city", "day")) in found(loose)
    silent = [example(n, given="Go.", output="Well.", findings=(rubric,)) for n in range(4)]
    assert ("rubric", ("The answer names the policy.",)) in found(silent)


@pytest.mark.parametrize(
    ("text", "is_asked"),
    [("Names the policy", True), ("答案是否带有单位", True), ("juice", False), ("Two bottles of juice", False)],
)
def test_a_rubric_that_is_a_value_of_a_case_is_not_asked_for(text: str, is_asked: bool) -> None:
    rubric = Finding(kind="violated", expected=text, predicate="rubric:content")
    bad = [
        example(n, given="Go.", output="Well.", expected=f"{n}: Two bottles of juice", findings=(rubric,))
        for n in range(4)
    ]
    assert any(family == "rubric" for family, _ in found(bad)) == is_asked


def calls(*named: tuple[str, dict[str, Json]]) -> tuple[Json, ...]:
    return tuple({"name": name, "arguments": arguments} for name, arguments in named)


def test_missing_tools_their_order_and_their_arguments_are_found() -> None:
    both = calls(("look", {}), ("pay", {}))
    none = [example(n, given="Go.", output="Well.", expected_tool_calls=both) for n in range(6)]
    assert found(none) == [("tool_order", ("look", "pay"))]
    one = [example(n, given="Go.", output="Well.", expected_tool_calls=both[:1]) for n in range(6)]
    assert found(one) == [("call_tool", ("look",))]
    wrong = [
        example(n, given=text, output="Well.", tool_calls=calls(("look", {"key": "all"})),
                expected_tool_calls=calls(("look", {"key": order})))
        for n, (text, order) in enumerate(zip(NAMED, IDS, strict=True))
    ]  # fmt: skip
    assert found(wrong) == [("argument_source", ("look", "key", "order id"))]
    needless = [example(n, given="Go.", output="Well.", tool_calls=both, expected_tool_calls=()) for n in range(6)]
    assert found(needless) == [("no_tool", ("look",)), ("no_tool", ("pay",))]


def test_a_tool_of_another_node_is_not_asked_for() -> None:
    other = [example(n, given="Go.", output="Well.", expected_tool_calls=calls(("search", {}))) for n in range(6)]
    assert found(other) == []
    alone = collect_evidence(other, ())
    assert find_qualified(alone) == []
    blame = Finding(kind="missing", expected={"name": "search", "arguments": {}}, predicate="tool_call")
    blamed = [replace(each, findings=(blame,)) for each in other]
    assert [each.predicate.family for each in find_qualified(collect_evidence(blamed, ()))] == ["call_tool"]


def test_a_tool_that_only_some_cases_need_comes_with_its_condition() -> None:
    with_field = [
        example(n, given=text, output="Well.", expected_tool_calls=calls(("look", {}))) for n, text in enumerate(NAMED)
    ]
    without = [
        example(20 + n, given="How are you?", output="Well.", passed=True, expected_tool_calls=()) for n in range(4)
    ]
    assert found(with_field, without) == [("call_tool_when", ("look", "the input gives the order id"))]
    assert found(with_field, without, tool="look") == [("use_tool_when", ("the input gives the order id",))]
    assert found(with_field, without, tool="other") == []


def test_the_description_of_a_tool_names_the_fields_that_its_arguments_come_from() -> None:
    always = [
        example(n, given=text, output="Well.", expected_tool_calls=calls(("look", {"key": order})))
        for n, (text, order) in enumerate(zip(NAMED, IDS, strict=True))
    ]
    assert found(always, tool="look") == [("use_tool_when", ("the input gives the order id",))]
    assert found(always) == [("call_tool", ("look",))]
    unnamed = [replace(each, expected_tool_calls=calls(("look", {"key": "all"}))) for each in always]
    assert found(unnamed, tool="look") == [("use_tool", ())]


def test_a_router_learns_the_answers_that_lead_to_the_right_branch() -> None:
    wrong = Finding(kind="wrong", expected="pharmacy", actual="booking", predicate="route")
    misled = [
        example(n, given=f"Still there? (medicine: m{n})", output="booking", is_terminal=False, findings=(wrong,))
        for n in range(3)
    ]
    routed = [
        example(10 + n, given=f"Any time? (pet: p{n})", output="booking", is_terminal=False, passed=True)
        for n in range(3)
    ]
    assert found(misled, routed) == [("label_cue", ("pharmacy", "medicine"))]
    assert found(misled) == [], "without the other label there is nothing to tell apart, and no other rule is of use"
    said = collect_evidence(misled, routed, prompt='Answer "booking" if it is still open.')
    assert [each.predicate.parameters for each in find_qualified(said)] == [("pharmacy", "still")]
    slip = replace(routed[0], output="That depends.")
    assert found(misled, [slip, *routed[1:]]) == [("label_cue", ("pharmacy", "medicine"))]
    ended_here = example(20, given="Any time? (pet: p9)", output="Well.", expected="Monday")
    assert ("label_cue", ("pharmacy", "medicine")) in found([*misled, ended_here], routed)


def test_nothing_is_found_where_references_disagree() -> None:
    references = [f"Order {each} is ok." if n % 2 else f"Nothing about {n}." for n, each in enumerate(IDS)]
    assert ("field_carried", ("order id",)) not in found(failing(references, LAZY, inputs=NAMED))


def test_nothing_is_found_where_passing_outputs_lack_it_too() -> None:
    bad = failing([f"Order {each} is ok." for each in IDS], LAZY, inputs=NAMED)
    good = [example(20 + n, given=text, output="It is done.", expected=f"Order {order} is ok.", passed=True)
            for n, (text, order) in enumerate(zip(NAMED, IDS, strict=True))]  # fmt: skip
    assert found(bad, good) == []


def test_nothing_is_found_where_failing_outputs_have_it() -> None:
    references = [f"Result: {each}" for each in CITIES[:8]]
    assert ("prefix", ("Result:",)) not in found(failing(references, [f"Result: not {each}" for each in CITIES[:8]]))


def test_slips_of_a_model_that_knows_the_rule_are_not_evidence() -> None:
    bad = failing([f"Order {each} is ok." for each in IDS[:2]], LAZY[:2], inputs=NAMED[:2])
    good = [example(20 + n, given=f"order id: A-{n}7", output=f"Order A-{n}7 is ok.", expected=f"Order A-{n}7 is ok.",
                    passed=True) for n in range(20)]  # fmt: skip
    assert found(bad, good[:8]) == [("field_carried", ("order id",))]
    assert found(bad, good) == []
    assert found(bad[:1], good[:3]) == []


def test_a_general_rule_is_added_only_for_enough_cases_that_nothing_else_explains() -> None:
    dated = by_city("2026-10-{n}", "October {n}, 2026")
    slip = replace(dated[0], output="I do not want to tell it now.")
    assert found([slip, *dated[1:]]) == [("date_format", ("YYYY-MM-DD",))]


def test_the_results_of_tools_are_given_too() -> None:
    bad = [
        example(n, given="Go.", output="A plan.", expected=city, is_terminal=False,
                tool_calls=({"name": "look", "arguments": {}, "result": {"city": city}},))
        for n, city in enumerate(CITIES)
    ]  # fmt: skip
    assert found(bad) == [("field_carried", ("city",))]


def test_repetitions_of_one_case_are_one_case() -> None:
    bad = [example(1, given="Go.", output=f"Well {n}.", expected="Result: fine by me") for n in range(9)]
    assert [family for family, _ in found(bad) if family in ("prefix", "keyword", "suffix", "enumeration")] == []


def test_support_counts_cases_in_words() -> None:
    bad = failing([f"Order {each} is ok." for each in IDS], LAZY, inputs=NAMED)
    good = [example(20 + n, given=text, output=f"Order {order} is ok.", expected=f"Order {order} is ok.", passed=True)
            for n, (text, order) in enumerate(zip(NAMED[:3], IDS, strict=False))]  # fmt: skip
    support = first_choice(bad, good)[0]
    assert support.reason == "8 of 8 failing outputs lack the order id of their input; 3 passing outputs have it"
    assert support.explained == tuple(f"case {n}" for n in range(8))


def test_after_the_needed_predicates_come_the_others() -> None:
    bad = failing([json.dumps({"id": each, "ok": True}) for each in IDS], LAZY)
    sets = [
        [each.predicate.family for each in chosen]
        for chosen in iterate_choices(find_qualified(collect_evidence(bad, ())))
    ]
    assert sets[0] == ["json_keys", "json_only"]
    assert ["json_object"] in sets
    assert len({family for each in sets for family in each}) == sum(map(len, sets))
