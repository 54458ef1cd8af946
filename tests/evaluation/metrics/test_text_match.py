from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.text_match import (
    NumericCriterion,
    RougeType,
    TextCriterion,
    compare_number,
    compare_text,
    find_numbers,
    find_word_differences,
    rouge_f1,
    split_words,
)
from promptiter.evaluation.score import Finding

EXACT = TextCriterion()
ANY_CASE = TextCriterion(case_insensitive=True)
CONTAINS = TextCriterion(match="contains")
REGEX = TextCriterion(match="regex")


@pytest.mark.parametrize(
    ("actual", "expected", "where"),
    [
        ("the answer is 42", "the answer is 43", "characters 15-16"),
        ("abc", "abcdef", "characters 3-3"),
        ("abXXcd", "abcd", "characters 2-4"),
        ("aa", "a", "characters 1-2"),
        ("", "x", "characters 0-0"),
        ("Paris", "paris", "characters 0-1"),
    ],
)
def test_an_exact_mismatch_has_both_texts_and_where_they_differ(actual: str, expected: str, where: str) -> None:
    assert compare_text(actual, expected, EXACT) == (
        Finding(kind="wrong", expected=expected, actual=actual, where=where, predicate="exact"),
    )


@given(st.text(), st.text())
def test_outside_the_range_of_an_exact_mismatch_the_texts_are_the_same(actual: str, expected: str) -> None:
    findings = compare_text(actual, expected, EXACT)
    if actual == expected:
        assert findings == ()
        return
    start, end = map(int, findings[0].where.removeprefix("characters ").split("-"))
    assert expected.startswith(actual[:start])
    assert expected.endswith(actual[end:])
    assert start + len(actual) - end <= len(expected)


def test_without_case_the_range_still_counts_the_characters_of_the_output() -> None:
    assert compare_text("STRASSE", "straße", ANY_CASE) == ()
    assert compare_text("Straße 7", "STRASSE 8", ANY_CASE)[0].where == "characters 7-8"


def test_contains_does_not_report_a_place_for_a_coincidence() -> None:
    [finding] = compare_text("Patient P-102", "2026-03-12", CONTAINS)
    assert finding.where == ""


def test_contains_reports_the_longest_prefix_that_is_present() -> None:
    assert compare_text("It is Paris.", "paris", TextCriterion(match="contains", case_insensitive=True)) == ()
    [finding] = compare_text("It is Parma.", "Paris", CONTAINS)
    assert (finding.kind, finding.predicate, finding.expected) == ("missing", "contains", "Paris")
    assert finding.where == "characters 6-9"
    assert compare_text("xyz", "Paris", CONTAINS)[0].where == ""


@pytest.mark.parametrize("reference", ["", " \n"])
@pytest.mark.parametrize("criterion", [CONTAINS, REGEX])
def test_an_empty_reference_under_contains_or_regex_is_an_error(reference: str, criterion: TextCriterion) -> None:
    with pytest.raises(MetricError, match="empty reference"):
        compare_text("anything", reference, criterion)


def test_an_empty_reference_is_allowed_under_exact() -> None:
    assert compare_text("", "", EXACT) == ()
    assert compare_text("x", "", EXACT)[0].where == "characters 0-1"


def test_a_case_insensitive_regex_keeps_its_pattern() -> None:
    criterion = TextCriterion(match="regex", case_insensitive=True)
    assert compare_text("X-PARIS-X", r"^\S+paris\S+$", criterion) == ()
    assert compare_text("x paris x", r"^\S+PARIS\S+$", criterion) != ()


def test_a_regex_searches_and_its_violation_names_the_pattern() -> None:
    assert compare_text("total: 42 EUR", r"\d+ EUR", REGEX) == ()
    assert compare_text("none", r"\d+", REGEX) == (
        Finding(kind="violated", expected=r"\d+", actual="none", predicate="regex"),
    )


def test_an_invalid_pattern_is_an_error_and_not_a_mismatch() -> None:
    with pytest.raises(MetricError, match=r"'\(' is not a valid regular expression: missing \)"):
        compare_text("x", "(", REGEX)
    with pytest.raises(MetricError, match="not a valid regular expression"):
        TextCriterion(match="regex", expected="(")


def test_a_pattern_that_never_ends_is_an_error_and_not_a_mismatch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.patterns.TIME_LIMIT_S", 0.05)
    with pytest.raises(MetricError, match=r"the pattern .* takes longer than 0.05 s"):
        compare_text("a" * 60, "(a+)+b", REGEX)


def test_length_is_checked_with_the_text_and_alone() -> None:
    short = TextCriterion(ignore=True, min_length=2, max_length=4)
    assert compare_text("four", None, short) == ()
    assert compare_text("x", None, short)[0] == Finding(kind="violated", expected=2, actual=1, predicate="min_length")
    assert compare_text("fives", None, short)[0] == Finding(
        kind="violated", expected=4, actual=5, where="characters 4-5", predicate="max_length"
    )
    both = compare_text("wrong", "right", TextCriterion(max_length=3))
    assert [finding.predicate for finding in both] == ["max_length", "exact"]
    with pytest.raises(MetricError, match=r"length.min 5 is above length.max 4"):
        TextCriterion(min_length=5, max_length=4)


def test_a_fixed_text_needs_no_reference() -> None:
    criterion = TextCriterion(match="regex", expected=r"^\d+$")
    assert not criterion.needs_reference
    assert compare_text("42", None, criterion) == ()
    with pytest.raises(MetricError, match="no reference"):
        compare_text("42", None, REGEX)


def test_words_are_unicode_aware_and_cjk_characters_are_words() -> None:
    assert split_words("Héllo, WORLD_1!") == ["héllo", "world", "1"]
    assert split_words("答案是42个。") == ["答", "案", "是", "42", "个"]
    assert split_words("हिन्दी में") == ["हिन्दी", "में"]
    assert split_words("안녕 세상") == ["안녕", "세상"]


@pytest.mark.parametrize(
    ("actual", "reference", "kind", "value"),
    [
        ("the cat sat", "the cat sat", "rouge1", 1.0),
        ("the cat", "the cat sat", "rouge1", 2 * 2 / 5),
        ("the the the", "the cat", "rouge1", 2 * 1 / 5),
        ("", "the cat", "rouge1", 0.0),
        ("the cat sat down", "the cat lay down", "rouge2", 2 * 1 / 6),
        ("police killed the gunman", "police kill the gunman", "rougeL", 0.75),
        ("the gunman kill police", "police kill the gunman", "rougeL", 0.5),
        ("今天天气好", "今天天气坏", "rouge1", 0.8),
    ],
)
def test_rouge_is_the_f1_of_shared_words(actual: str, reference: str, kind: RougeType, value: float) -> None:
    assert rouge_f1(actual, reference, kind) == pytest.approx(value)


def test_rouge_needs_words_in_the_reference() -> None:
    with pytest.raises(MetricError, match="empty reference"):
        rouge_f1("x", "?!")


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.lists(st.sampled_from("abcd"), min_size=1, max_size=12))
def test_rouge_l_agrees_with_the_textbook_table(first: list[str], second: list[str]) -> None:
    table = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            table[i + 1][j + 1] = table[i][j] + 1 if one == other else max(table[i][j + 1], table[i + 1][j])
    expected = 2 * table[-1][-1] / (len(first) + len(second))
    assert rouge_f1(" ".join(first), " ".join(second), "rougeL") == pytest.approx(expected)


def test_word_differences_are_missing_and_extra_words() -> None:
    missing, needless = find_word_differences("a b b", "a c", "rouge1")
    assert (missing.kind, missing.expected, missing.predicate) == ("missing", ["c"], "rouge1")
    assert (needless.kind, needless.actual) == ("unexpected", ["b", "b"])
    assert find_word_differences("b a", "a b", "rougeL")[0].kind == "wrong"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1,234.5 and -3 and 2e-3", ["1234.5", "-3", "0.002"]),
        ("3-5", ["3", "5"]),
        ("a,b 1,2 1,2345", ["1", "2", "1", "2345"]),
        ("答案是42个，或-7", ["42", "-7"]),
        ("gpt4 v1.2 .5 −6", ["0.5", "-6"]),
        ("It is 42.", ["42"]),
        ("$1,000,000!", ["1000000"]),
        ("1e99999999999999999999 2", ["2"]),
        ("none", []),
    ],
)
def test_numbers_are_found_in_any_text(text: str, numbers: list[str]) -> None:
    found = find_numbers(text)
    assert [number.value for number in found] == [Decimal(number) for number in numbers]


def test_the_last_first_or_only_number_counts() -> None:
    text = "3 apples cost 42"
    assert compare_number(text, "42", NumericCriterion()) == ()
    assert compare_number(text, "#### 3", NumericCriterion(which="first")) == ()
    [finding] = compare_number(text, "42", NumericCriterion(which="only"))
    assert (finding.predicate, finding.actual) == ("only_number", [3, 42])
    [wrong] = compare_number(text, "41.5", NumericCriterion())
    assert wrong == Finding(kind="wrong", expected=41.5, actual=42, where="characters 14-16", predicate="number")
    assert compare_number("none", "42", NumericCriterion())[0].kind == "missing"


def test_tolerances_are_absolute_and_relative_and_mean_what_is_written() -> None:
    assert compare_number("1.3", "1", NumericCriterion(tolerance=0.3)) == ()
    assert compare_number("1.31", "1", NumericCriterion(tolerance=0.3)) != ()
    assert compare_number("101", "100", NumericCriterion(relative_tolerance=0.01)) == ()
    assert compare_number("102", "100", NumericCriterion(relative_tolerance=0.01)) != ()
    assert compare_number("7.0", None, NumericCriterion(expected=7)) == ()


def test_long_numbers_keep_all_their_digits() -> None:
    [finding] = compare_number("121932631112635268", "121932631112635269", NumericCriterion())
    assert (finding.expected, finding.actual) == (121932631112635269, 121932631112635268)


def test_a_reference_without_a_clear_number_is_an_error() -> None:
    with pytest.raises(MetricError, match="'none' has no number"):
        compare_number("1", "none", NumericCriterion())
    with pytest.raises(MetricError, match="has 2 numbers"):
        compare_number("1", "1 2", NumericCriterion(which="only"))
