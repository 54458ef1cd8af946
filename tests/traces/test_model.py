from __future__ import annotations

import dataclasses
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.strategies import shuffle_steps, traces
from traces import (
    CycleError,
    DuplicateStepError,
    Edge,
    EmptyTraceError,
    ExecutionTrace,
    Failure,
    Step,
    UnknownPredecessorError,
    Usage,
    digest,
)


def step(step_id: str, *predecessors: str) -> Step:
    return Step(id=step_id, node_id=step_id.partition("~")[0], predecessors=predecessors)


def trace(*steps: Step) -> ExecutionTrace:
    return ExecutionTrace(id="t", steps=steps)


@pytest.mark.slow
@given(traces(), st.integers())
def test_shuffled_steps_make_the_same_trace(original: ExecutionTrace, seed: int) -> None:
    assert dataclasses.replace(original, steps=shuffle_steps(original, seed)) == original


@given(traces(rich=False))
def test_predecessors_come_first(original: ExecutionTrace) -> None:
    seen: set[str] = set()
    for current in original.steps:
        assert seen.issuperset(current.predecessors)
        seen.add(current.id)


def test_the_second_visit_comes_before_the_tenth() -> None:
    ids = [f"worker~{number}" for number in (10, 2, 3)]
    assert [current.id for current in trace(*map(step, ids)).steps] == ["worker~2", "worker~3", "worker~10"]


def test_an_empty_trace_is_rejected() -> None:
    with pytest.raises(EmptyTraceError, match="'t' has no steps"):
        trace()


def test_a_duplicate_step_id_is_named() -> None:
    with pytest.raises(DuplicateStepError, match="'a' occurs twice") as caught:
        trace(step("a"), step("b", "a"), step("a"))
    assert caught.value.step_id == "a"


def test_a_duplicate_step_id_is_named_in_unsorted_input() -> None:
    with pytest.raises(DuplicateStepError):
        trace(step("b", "a"), step("a"), step("a"))


def test_an_unknown_predecessor_error_suggests_the_nearest_id() -> None:
    with pytest.raises(UnknownPredecessorError, match="did you mean 'planner'") as caught:
        trace(step("planner"), step("answer", "planer"))
    assert (caught.value.step_id, caught.value.predecessor) == ("answer", "planer")


def test_a_cycle_is_shown_in_order() -> None:
    with pytest.raises(CycleError, match="a → b → c → a") as caught:
        trace(step("start"), step("a", "c", "start"), step("b", "a"), step("c", "b"), step("end", "c"))
    assert caught.value.step_ids == ("a", "b", "c")


def test_a_step_that_follows_itself_is_a_cycle() -> None:
    with pytest.raises(CycleError) as caught:
        trace(step("a", "a"))
    assert caught.value.step_ids == ("a",)


def test_an_edge_needs_its_predecessor() -> None:
    with pytest.raises(UnknownPredecessorError):
        Step(id="b", node_id="b", predecessors=("a",), edges=(Edge(source="x"),))


@pytest.mark.long
def test_a_chain_of_100_000_steps_in_any_order() -> None:
    steps = [step("n0"), *(step(f"n{number}", f"n{number - 1}") for number in range(1, 100_000))]
    made = trace(*reversed(steps))
    assert [current.id for current in made.steps[:3]] == ["n0", "n1", "n2"]


@pytest.mark.slow
def test_a_cycle_of_100_000_steps_is_found() -> None:
    with pytest.raises(CycleError) as caught:
        trace(*(step(f"n{number}", f"n{(number - 1) % 100_000}") for number in range(100_000)))
    assert len(caught.value.step_ids) == 100_000
    assert len(str(caught.value)) < 300


def test_traces_are_frozen_and_survive_pickle() -> None:
    made = trace(step("a"), step("b", "a"))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.status = "failed"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(made)) == made


def test_half_a_surrogate_pair_in_an_error_is_escaped() -> None:
    failure = Failure("Error\ud800", "caf\u00e9 \udfff", where="\ud83d.py:1")
    assert str(failure) == "Error\\ud800: caf\u00e9 \\udfff (\\ud83d.py:1)"


def test_unknown_usage_is_not_zero() -> None:
    steps = (
        Step(id="a", node_id="a", usage=Usage(input_tokens=3)),
        Step(id="b", node_id="b", usage=Usage(input_tokens=4, output_tokens=1)),
        Step(id="c", node_id="c", usage=Usage()),
    )
    made = trace(*steps)
    assert made.usage == Usage(input_tokens=7, output_tokens=1)
    assert made.usage.cost_usd is None
    assert made.steps[2].usage is None


def test_digests_distinguish_text_from_numbers_and_ignore_key_order() -> None:
    assert digest("1") != digest(1)
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest("") != digest(None)
