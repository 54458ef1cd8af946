from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.surface_reads import (
    Reads,
    collect_reads,
    find_shared_prompts,
    find_unread,
    may_touch,
    merge_reads,
)
from promptiter.structure import Node, StructureSnapshot, Surface
from traces import ExecutionTrace, Step

SURFACES = ("draft#instruction", "draft#model", "polish#instruction")
reads = st.none() | st.sets(st.sampled_from(SURFACES)).map(lambda ids: dict.fromkeys(sorted(ids), "digest"))
steps = st.lists(st.tuples(st.sampled_from(("draft", "polish")), reads), min_size=1, max_size=4)


def trace(found: list[tuple[str, dict[str, str] | None]]) -> ExecutionTrace:
    made = (Step(id=f"{node}~{number}", node_id=node, surface_reads=read) for number, (node, read) in enumerate(found))
    return ExecutionTrace(id="run", steps=tuple(made))


def test_rows_with_equal_reads_share_them() -> None:
    one, other = (CaseRow(case_id=case, reads={"draft": ("draft#instruction",)}) for case in "ab")
    assert one.reads is other.reads
    assert merge_reads(one.reads, other.reads) is one.reads
    more = {"draft": ("draft#model",)}
    assert merge_reads(one.reads, more) is merge_reads(other.reads, dict(more))


@given(one=st.none() | steps.map(trace), other=st.none() | steps.map(trace))
def test_merged_reads_are_those_of_one_run_of_both(one: ExecutionTrace | None, other: ExecutionTrace | None) -> None:
    assert merge_reads(collect_reads([one]), collect_reads([other])) == collect_reads([one, other])


@given(found=steps.map(trace), surface=st.sampled_from(SURFACES))
def test_a_change_affects_runs_that_read_the_surface_or_may_have(found: ExecutionTrace, surface: str) -> None:
    expected = any(step.surface_reads is None or surface in step.surface_reads for step in found.steps)
    assert may_touch(collect_reads([found]), [surface]) == expected


def test_the_reads_of_an_unsure_node_are_unknown() -> None:
    known = collect_reads([trace([("draft", {"draft#instruction": "digest"})])])
    assert not may_touch(known, ["polish#instruction"])
    assert may_touch(known, ["polish#instruction"], unsure={"draft"})
    assert not may_touch(known, ["polish#instruction"], unsure={"polish"})


@pytest.mark.parametrize(
    ("runs", "left"),
    [
        ([], {"a#x", "b#x"}),
        ([{"a": ("a#x",)}], {"b#x"}),
        ([{"a": ("a#x",)}, {"b": ("b#x", "a#x")}], set()),
        ([{"a": ()}], {"a#x", "b#x"}),
        ([{"a": ("a#x",), "b": None}], set()),
        ([{"a": ("a#x",)}, None], set()),
    ],
)
def test_a_surface_is_unread_only_if_no_run_may_have_read_it(runs: list[Reads | None], left: set[str]) -> None:
    assert find_unread(["a#x", "b#x"], runs) == left


@pytest.mark.parametrize(
    ("runs", "shared"),
    [
        ([None, {"write": None}, {"write": ("write#instruction.plan",)}], ()),
        ([{"write": ("write#instruction.plan", "write#model")}], ()),
        ([{"write": (), "plan": ("write#instruction.plan",), "draft": ("write#instruction.draft",)}], ()),
        ([{"part": ("write#instruction.draft", "write#instruction.plan")}], ()),  # two steps of that name
        ([{"write": ("write#instruction.fixed", "write#instruction.plan")}], ()),
        (
            [{"write": ()}, {"write": ("write#instruction.draft", "write#instruction.plan")}],
            ("write#instruction.draft", "write#instruction.plan"),
        ),
    ],
)
def test_prompts_are_shared_if_one_node_reads_several_targets(
    runs: list[Reads | None], shared: tuple[str, ...]
) -> None:
    prompts = [Surface(node_id="write", type="instruction", part=part) for part in ("plan", "draft", "fixed")]
    model = Surface(node_id="write", type="model", value="m")
    structure = StructureSnapshot(nodes=(Node(id="write"),), surfaces=(*prompts, model))
    targets = {"write#instruction.plan", "write#instruction.draft", "write#model"}
    assert find_shared_prompts(structure, targets, runs) == shared
