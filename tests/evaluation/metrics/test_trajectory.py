from __future__ import annotations

from itertools import combinations, product

import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.evaluation.data.case import ExpectedToolCall
from promptiter.evaluation.metrics.json_match import JsonCriterion
from promptiter.evaluation.metrics.text_match import TextCriterion
from promptiter.evaluation.metrics.trajectory import (
    ToolCriterion,
    TrajectoryCriterion,
    compare_tool_calls,
    match_in_any_order,
    match_in_order,
)
from promptiter.evaluation.score import Finding
from traces import ToolCall
from traces.model import Json

ANY_ORDER = TrajectoryCriterion()
ORDERED = TrajectoryCriterion(order_sensitive=True)
SUBSET = TrajectoryCriterion(subset_matching=True)
ORDERED_SUBSET = TrajectoryCriterion(order_sensitive=True, subset_matching=True)
EDGES = st.sets(st.tuples(st.integers(0, 5), st.integers(0, 5)))


def call(name: str, result: Json = None, **arguments: Json) -> ToolCall:
    return ToolCall(name=name, arguments=arguments, result=result)


def want(name: str, result: Json = None, **arguments: Json) -> ExpectedToolCall:
    return ExpectedToolCall(name=name, arguments=arguments, result=result)


def matches(actual: list[ToolCall], expected: list[ExpectedToolCall], criterion: TrajectoryCriterion) -> bool:
    return not compare_tool_calls(actual, expected, criterion)


@pytest.mark.parametrize(
    ("actual", "any_order", "ordered", "subset", "ordered_subset"),
    [
        ("ab", True, True, True, True),
        ("ba", True, False, True, False),
        ("axb", False, False, True, True),
        ("bxa", False, False, True, False),
        ("a", False, False, False, False),
        ("aab", False, False, True, True),
        ("", False, False, False, False),
    ],
)
def test_order_and_extra_calls_count_as_the_criterion_says(
    actual: str, any_order: bool, ordered: bool, subset: bool, ordered_subset: bool
) -> None:
    calls, expected = [call(name) for name in actual], [want("a"), want("b")]
    assert [matches(calls, expected, criterion) for criterion in (ANY_ORDER, ORDERED, SUBSET, ORDERED_SUBSET)] == [
        any_order,
        ordered,
        subset,
        ordered_subset,
    ]


def test_without_expected_calls_none_may_be_made_unless_extra_calls_are_allowed() -> None:
    assert matches([], [], ANY_ORDER)
    assert not matches([call("a")], [], ANY_ORDER)
    assert matches([call("a")], [], SUBSET)


def test_unordered_matching_is_bipartite_and_not_greedy() -> None:
    anything = ExpectedToolCall(name="search")
    berlin = want("search", city="Berlin")
    # Greedily, the first reference takes the first call, which only the second reference could have used.
    assert matches([call("search", city="Berlin"), call("search", city="Paris")], [anything, berlin], ANY_ORDER)
    # A chain that has to move twice.
    patterns = [want("a|b|c"), want("a|b"), want("a")]
    by_pattern = TrajectoryCriterion(default=ToolCriterion(name=TextCriterion(match="regex")))
    assert matches([call("a"), call("b"), call("c")], patterns, by_pattern)


@given(EDGES)
def test_the_matching_is_as_large_as_networkx_finds(edges: set[tuple[int, int]]) -> None:
    paired = match_in_any_order(6, 6, lambda wanted, got: (wanted, got) in edges)
    graph: nx.Graph[tuple[str, int]] = nx.Graph([(("wanted", wanted), ("got", got)) for wanted, got in edges])
    top = {node for node in graph if node[0] == "wanted"}
    assert len(paired) == len(nx.bipartite.maximum_matching(graph, top_nodes=top)) / 2
    assert set(paired.items()) <= edges
    assert len(set(paired.values())) == len(paired)


@given(st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))))
def test_the_ordered_matching_is_as_large_as_trying_all_finds(edges: set[tuple[int, int]]) -> None:
    paired = match_in_order(4, 4, lambda wanted, got: (wanted, got) in edges)
    assert set(paired.items()) <= edges
    assert list(paired.values()) == sorted(set(paired.values()))
    largest = max(
        size
        for size in range(5)
        for firsts, seconds in product(combinations(range(4), size), repeat=2)
        if set(zip(firsts, seconds, strict=True)) <= edges
    )
    assert len(paired) == largest


@pytest.mark.slow
def test_a_long_chain_of_moves_needs_no_recursion() -> None:
    size = 1_500
    # Each reference can use its own call or the next; the last can only use the first.
    paired = match_in_any_order(
        size, size, lambda wanted, got: got in (wanted, wanted + 1) if wanted < size - 1 else got == 0
    )
    assert len(paired) == size
    assert paired[size - 1] == 0


def test_wrong_arguments_are_named_by_call_and_path() -> None:
    findings = compare_tool_calls(
        [call("now"), call("weather", city="Rome", days=[1, 2])],
        [want("weather", city="Paris", days=[1, 3]), want("now")],
        ANY_ORDER,
    )
    assert findings == (
        Finding(
            kind="wrong",
            expected="Paris",
            actual="Rome",
            where="tool call 1, arguments $.city",
            predicate="tool_arguments",
        ),
        Finding(
            kind="wrong", expected=3, actual=2, where="tool call 1, arguments $.days[1]", predicate="tool_arguments"
        ),
    )


def test_missing_and_unexpected_calls_are_named() -> None:
    missing, unexpected = compare_tool_calls([call("wether", city="x")], [want("weather", city="x")], ANY_ORDER)
    assert (missing.kind, missing.expected, missing.where) == (
        "missing",
        {"name": "weather", "arguments": {"city": "x"}},
        "expected tool call 0",
    )
    assert (unexpected.kind, unexpected.actual, unexpected.where) == (
        "unexpected",
        {"name": "wether", "arguments": {"city": "x"}},
        "tool call 0",
    )


def test_a_call_in_the_wrong_place_is_an_order_finding() -> None:
    [finding] = compare_tool_calls([call("b"), call("a")], [want("a"), want("b")], ORDERED)
    assert (finding.kind, finding.predicate) == ("wrong", "tool_order")
    assert finding.expected != finding.actual


def test_the_nearest_of_several_calls_of_a_tool_is_the_one_reported() -> None:
    [wrong, unexpected] = compare_tool_calls(
        [call("get", a=9, b=9), call("get", a=1, b=9)], [want("get", a=1, b=2)], ANY_ORDER
    )
    assert wrong.where == "tool call 1, arguments $.b"
    assert unexpected.where == "tool call 0"


def test_none_in_a_reference_allows_any_value() -> None:
    assert matches([call("a", x=1)], [ExpectedToolCall(name="a")], ANY_ORDER)
    assert matches([ToolCall(name="a")], [want("a")], ANY_ORDER)
    assert not matches([call("a", x=1)], [want("a")], ANY_ORDER)


def test_results_are_compared_only_if_the_criterion_says_how() -> None:
    actual, expected = [call("a", result={"t": 20.4})], [want("a", result={"t": 20})]
    assert matches(actual, expected, ANY_ORDER)
    strict = TrajectoryCriterion(default=ToolCriterion(result=JsonCriterion()))
    [finding] = compare_tool_calls(actual, expected, strict)
    assert (finding.where, finding.predicate) == ("tool call 0, result $.t", "tool_result")
    near = TrajectoryCriterion(default=ToolCriterion(result=JsonCriterion(number_tolerance=0.5)))
    assert matches(actual, expected, near)


def test_an_override_goes_by_the_expected_tool() -> None:
    criterion = TrajectoryCriterion(overrides={"log": ToolCriterion(arguments=JsonCriterion(ignore=True))})
    expected = [want("log", text="x"), want("get", id=1)]
    assert matches([call("log", text="y"), call("get", id=1)], expected, criterion)
    assert not matches([call("log", text="y"), call("get", id=2)], expected, criterion)


def test_arguments_recorded_as_json_text_are_parsed() -> None:
    recorded = ToolCall(name="a", arguments='{"x": 1}')
    assert matches([recorded], [want("a", x=1.0)], ANY_ORDER)
    assert not matches([ToolCall(name="a", arguments="oops")], [want("a", x=1)], ANY_ORDER)


def test_a_schema_of_arguments_is_checked_without_a_reference_for_them() -> None:
    criterion = TrajectoryCriterion(default=ToolCriterion(arguments=JsonCriterion(schema={"required": ["city"]})))
    [finding] = compare_tool_calls([call("a")], [ExpectedToolCall(name="a")], criterion)
    assert (finding.predicate, finding.where) == ("json_schema", "tool call 0, arguments $")
