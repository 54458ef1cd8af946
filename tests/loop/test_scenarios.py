"""The scenarios have ten model nodes, the faults they name, and no others."""

from __future__ import annotations

import json
from collections.abc import Iterable

import pytest

from promptiter.agents.edges import Choice, Join
from promptiter.agents.nodes import ModelNode
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.result import CaseRow
from promptiter.profile import Profile
from tests.worlds.bars import find_unexpected_scores, take_few_cases
from tests.worlds.domains import ANSWER_KINDS
from tests.worlds.scenarios import NAMES, SEEDS, TRAIN, VALIDATION, Fix, Scenario, make_scenario, measure_ceiling
from traces import Step

PAIRS = ("two_visible", "two_masked")
SOME_SEEDS = SEEDS[::5]

every_name = pytest.mark.parametrize("name", NAMES)


async def find_failing_rows(
    subject: Scenario, evaluator: Evaluator, profile: Profile | None = None
) -> list[tuple[EvalCase, CaseRow]]:
    """The train cases that fail under a profile, by default the baseline."""
    found = await evaluator.evaluate(subject.agent, subject.train, profile)
    cases = {case.id: case for case in subject.train.cases}
    return [(cases[row.case_id], row) for row in found.rows if not row.scores[0].passed]


def find_expected(case: EvalCase, fix: Fix) -> str:
    """The expected value of the field that a fault is about."""
    expected = case.turns[0].expected or ""
    return str(json.loads(expected)[make_key(fix)]) if expected.startswith("{") else expected


def make_key(fix: Fix) -> str:
    return fix.field.replace(" ", "_")


def loses(steps: Iterable[Step], surface_id: str, value: str) -> bool:
    """Whether the node of a surface reads a text and does not pass it on."""
    of_node = (step for step in steps if f"{step.node_id}#instruction" == surface_id)
    return any(value in (step.input.text or "") and value not in (step.output.text or "") for step in of_node)


@pytest.mark.slow
@every_name
@pytest.mark.parametrize("seed", SOME_SEEDS)
async def test_few_cases_fail_until_all_faults_are_fixed(name: str, seed: int) -> None:
    assert await find_unexpected_scores(take_few_cases(make_scenario(name, seed))) == []


@pytest.mark.long
@pytest.mark.parametrize(("name", "seed"), list(zip(NAMES, (1, 2, 3, 4, 6), strict=True)))
async def test_all_cases_fail_until_all_faults_are_fixed(name: str, seed: int) -> None:
    assert await find_unexpected_scores(make_scenario(name, seed)) == []


@every_name
def test_ten_model_nodes_and_two_disjoint_sets(name: str) -> None:
    for subject in (make_scenario(name, seed) for seed in SEEDS):
        assert sum(isinstance(node, ModelNode) for node in subject.agent.nodes) == 10
        assert (len(subject.train.cases), len(subject.validation.cases)) == (TRAIN, VALIDATION)
        cases = (*subject.train.cases, *subject.validation.cases)
        assert len({case.id for case in cases}) == len({case.turns[0].user for case in cases}) == TRAIN + VALIDATION


@every_name
def test_a_correct_profile_changes_the_faulty_instructions_only(name: str) -> None:
    for subject in (make_scenario(name, seed) for seed in SEEDS):
        assert set(subject.correct.overrides) == subject.faulty
        assert len(subject.faulty) == (2 if name in PAIRS else 1)
        snapshot = subject.agent.describe()
        assert all(snapshot.surface(each).value != fix.value for each, fix in subject.fixes.items())


@every_name
def test_the_same_seed_gives_the_same_scenario(name: str) -> None:
    one, same, other = make_scenario(name, 3), make_scenario(name, 3), make_scenario(name, 23)
    assert one.agent.describe().baseline_id == same.agent.describe().baseline_id
    assert (one.train, one.validation, one.fixes) == (same.train, same.validation, same.fixes)
    assert one.train != other.train


def test_an_unknown_name_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'two_hidden'; choose one of one_fault"):
        make_scenario("two_hidden", 0)


def test_single_faults_are_of_many_kinds_and_some_are_partial() -> None:
    subjects = [make_scenario("one_fault", seed) for seed in SEEDS]
    fixes = [fix for subject in subjects for fix in subject.fixes.values()]
    assert len({fix.kind for fix in fixes}) >= 12
    assert 8 <= sum(fix.kind in ANSWER_KINDS for fix in fixes) <= 12
    assert 3 <= sum(subject.is_partial for subject in subjects) <= 10
    assert len({subject.metrics[0].name for subject in subjects}) == 4


def test_faults_of_a_join_and_of_a_loop_are_in_many_places() -> None:
    assert len({node for seed in SEEDS for node in make_scenario("join", seed).faulty}) >= 6
    assert len({node for seed in SEEDS for node in make_scenario("loop", seed).faulty}) >= 8


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one_fault", "join", "loop"])
async def test_a_faulty_node_loses_the_field_that_it_should_pass_on(name: str) -> None:
    checked = 0
    for seed in SEEDS:
        subject = take_few_cases(make_scenario(name, seed))
        ((surface_id, fix),) = subject.fixes.items()
        if fix.kind in ANSWER_KINDS or checked == len(SOME_SEEDS):
            continue
        checked += 1
        evaluator = subject.evaluator()
        for case, row in await find_failing_rows(subject, evaluator):
            value = find_expected(case, fix)
            assert loses((await evaluator.trace_store.get(row.trace_digests[0])).steps, surface_id, value)
            assert value not in row.output
    assert checked == len(SOME_SEEDS)


@pytest.mark.parametrize("seed", SOME_SEEDS)
async def test_both_of_two_visible_faults_show_in_every_answer(seed: int) -> None:
    subject = take_few_cases(make_scenario("two_visible", seed))
    for _, row in await find_failing_rows(subject, subject.evaluator()):
        places = {finding.where for finding in row.scores[0].findings}
        assert places == {f"$.{make_key(fix)}" for fix in subject.fixes.values()}


@pytest.mark.parametrize("seed", SOME_SEEDS)
async def test_a_masked_fault_shows_only_after_the_one_before_it_is_fixed(seed: int) -> None:
    subject = take_few_cases(make_scenario("two_masked", seed))
    (first, fix), (second, same) = subject.fixes.items()
    assert fix.field == same.field
    evaluator = subject.evaluator()
    for profile, loser in ((None, first), (subject.fix([first]), second)):
        rows = await find_failing_rows(subject, evaluator, profile)
        for case, row in rows:
            steps = (await evaluator.trace_store.get(row.trace_digests[0])).steps
            assert [each for each in (first, second) if loses(steps, each, find_expected(case, fix))] == [loser]
        assert len(rows) == len(subject.train.cases)


def test_the_branches_of_a_join_meet_at_the_writer() -> None:
    for subject in (make_scenario("join", seed) for seed in SEEDS):
        (joint,) = [edge for edge in subject.agent.edges if isinstance(edge, Join)]
        assert (len(joint.sources), joint.target, subject.agent.final_nodes) == (2, "writer", ("writer",))


async def test_the_loop_runs_twice_for_some_cases() -> None:
    subject = take_few_cases(make_scenario("loop", 0))
    assert any(isinstance(edge, Choice) for edge in subject.agent.edges)
    evaluator = subject.evaluator()
    found = await evaluator.evaluate(subject.agent, subject.train, subject.correct)
    visits = [
        sum(step.node_id == "reviewer" for step in (await evaluator.trace_store.get(row.trace_digests[0])).steps)
        for row in found.rows
    ]
    assert sorted(visits) == [1, 1, 2, 2]


async def test_a_model_that_does_not_always_obey_has_a_lower_ceiling() -> None:
    best = await measure_ceiling(take_few_cases(make_scenario("one_fault", 2, compliance=0.5)))
    assert best.train is not None
    assert best.train < 1.0
