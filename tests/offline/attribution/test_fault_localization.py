from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.offline.attribution.fault_localization import (
    compute_spectrum,
    find_matching_nodes,
    find_most_suspicious,
    generalize_value,
    json_pattern,
    length_pattern,
    ochiai,
    prefix_pattern,
    regex_pattern,
    suffix_pattern,
)
from promptiter.offline.attribution.value_search import Value, read_value
from tests.offline.attribution.cases import chain, peer, step, trace
from traces import Step

ID = regex_pattern("an id", r"[A-Z]-\d+")


def run_of(*outputs: str) -> list[Step]:
    return chain("a request", *outputs)


def test_ochiai_is_the_cosine_of_mark_and_failure() -> None:
    assert ochiai(failing=4, passing=0, all_failing=4) == 1.0
    assert ochiai(failing=2, passing=2, all_failing=8) == pytest.approx(2 / math.sqrt(8 * 4))
    assert ochiai(failing=0, passing=3, all_failing=4) == 0.0
    assert ochiai(failing=0, passing=0, all_failing=0) == 0.0


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1))
def test_ochiai_equals_the_cosine_of_two_vectors(runs: list[tuple[bool, bool]]) -> None:
    """Each run bears the mark or not, and failed or not."""
    dot = sum(mark and failed for mark, failed in runs)
    norms = math.sqrt(sum(mark for mark, _ in runs)) * math.sqrt(sum(failed for _, failed in runs))
    passing = sum(mark and not failed for mark, failed in runs)
    found = ochiai(failing=dot, passing=passing, all_failing=sum(failed for _, failed in runs))
    assert found == pytest.approx(dot / norms if norms else 0.0)


def test_the_node_that_introduces_the_pattern_in_passing_runs_is_suspected() -> None:
    peers = [peer(run_of("kettle", "A-17", "It is A-17")), peer(run_of("lamp", "none", "sorry"), passed=False)]
    suspicion = find_most_suspicious(ID, trace(run_of("desk", "none", "sorry")), peers=peers)
    assert suspicion is not None
    assert (suspicion.node_id, suspicion.score) == ("n2", 1.0)


def test_a_node_that_often_passes_without_the_pattern_is_less_suspicious() -> None:
    peers = [peer(run_of("A-1", "x", "y")), *(peer(run_of("x", "A-1", "A-1")) for _ in range(3))]
    suspicion = find_most_suspicious(ID, trace(run_of("x", "y", "z")), peers=peers)
    assert suspicion is not None
    assert suspicion.node_id == "n2"
    assert suspicion.score == pytest.approx(1 / math.sqrt(2))


def test_no_node_is_suspected_without_passing_runs_or_if_all_of_them_received_the_pattern() -> None:
    here = trace(run_of("x", "y"))
    assert find_most_suspicious(ID, here, peers=[peer(run_of("A-1", "A-1"), passed=False)]) is None
    assert find_most_suspicious(ID, here, peers=[peer(chain("about A-1", "A-1", "A-1"))]) is None
    assert find_most_suspicious(ID, trace(run_of("A-1", "y")), peers=[peer(run_of("A-1", "A-1"))]) is None


def test_a_spectrum_has_the_nodes_that_ran_matched_and_introduced_a_pattern() -> None:
    steps = [step("a", "x", "x"), step("b", "x", "A-1", after="a"), step("b~2", "A-1", "y", after="b")]
    found = compute_spectrum(ID, trace([*steps, step("c", "A-1", "A-1", after="b")]))
    assert found.nodes == ("a", "b", "c")
    assert found.matching == {"b", "c"}
    assert found.introducing == {"b"}
    assert found.ran_without_match("a")
    assert not found.ran_without_match("b")
    assert not found.ran_without_match("elsewhere")


def test_matching_nodes_are_found_in_passing_runs_only() -> None:
    peers = [peer(run_of("x", "A-1")), peer(run_of("A-1", "x"), passed=False)]
    assert find_matching_nodes(ID, peers) == {"n2"}


@pytest.mark.parametrize(
    ("value", "shows", "does_not"),
    [
        (read_value("2026-03-02"), "on 2025-12-24", "on December 24, 2025"),
        (read_value("March 2, 2026"), "on December 24, 2025", "on 2025-12-24"),
        (read_value("12.50"), "1,399.75 euros.", "12.5 or 12.505 euros"),
        (read_value(12), "12 euros", "A-12"),
        (read_value("A-17"), "order b-04", "order B04"),
        (read_value("ORD17"), "x99", "x-99"),
        (read_value("ada@x.org"), "bob@y.com", "bob at y"),
        (read_value("https://x.org"), "http://y.com/a", "y.com"),
    ],
)
def test_a_pattern_describes_how_a_value_is_written(value: Value, shows: str, does_not: str) -> None:
    pattern = generalize_value(value)
    assert pattern is not None
    assert pattern.matches(value.text)
    assert pattern.matches(shows)
    assert not pattern.matches(does_not)


def test_labels_have_a_pattern_and_words_have_none() -> None:
    pattern = generalize_value(read_value("refund"), labels={"refund", "delivery"})
    assert pattern is not None
    assert pattern.matches("Label: Delivery.")
    assert not pattern.matches("refunds")
    assert generalize_value(read_value("refund")) is None


def test_formats_are_patterns() -> None:
    assert json_pattern().matches('{"a": 1}')
    assert json_pattern().matches('```json\n{"a": 1}\n```')
    assert not json_pattern().matches("12")
    assert prefix_pattern("Answer:").matches(" answer: 12")
    assert not prefix_pattern("Answer:").matches("12")
    assert suffix_pattern("Bye.").matches("So. bye.\n")
    assert length_pattern(at_most=3).matches("abc")
    assert not length_pattern(at_most=3).matches("abcd")
    assert not length_pattern(at_least=3).matches("ab")
    assert not length_pattern(at_most=3).matches("")
