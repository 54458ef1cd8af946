"""Learning from traces of production: worlds with planted faults, of which only foreign spans and feedback are left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from promptiter.backprop.llm.attributor import LLMAttributor
from promptiter.engine.interrupts import Interrupt
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.llm.budget import Budget
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.tasks.failed_runs import USER_STOP, find_failures, select_runs
from promptiter.tasks.feedback import Feedback
from promptiter.tasks.learning import CHUNK, learn
from promptiter.tasks.recorded_agent import JudgedRun
from promptiter.tasks.recorded_run import read_run
from tests.worlds import rules_world, triage_world
from tests.worlds.lessons import learn_with_expert, record, validate
from tests.worlds.planted_world import EXPERT, PlantedWorld
from tests.worlds.production import change_node
from tests.worlds.sighted_expert import SightedExpert
from traces import ExecutionTrace, Failure, Snapshot, Step
from traces.model import digest
from traces.structure import SURFACES

pytestmark = pytest.mark.slow

MakeWorld = Callable[[int], tuple[PlantedWorld, EvalSet]]


def make_rules_world(count: int) -> tuple[PlantedWorld, EvalSet]:
    return rules_world.make_rules_world("coupled", 1), rules_world.make_cases("prod", count)


def make_triage_world(count: int) -> tuple[PlantedWorld, EvalSet]:
    return triage_world.make_triage_world(1), triage_world.make_cases("prod", count, Random(5))


def judge(trace: ExecutionTrace) -> JudgedRun:
    return JudgedRun(trace=trace, run=read_run(trace))


@pytest.mark.long
@pytest.mark.parametrize("make_world", [make_rules_world, make_triage_world])
async def test_both_faulty_texts_are_named_first(make_world: MakeWorld, tmp_path: Path) -> None:
    world, cases = make_world(200)
    lessons = await learn_with_expert(world, await record(world, cases, tmp_path))
    assert {each.surface_id for each in lessons.surfaces[:2]} == world.faulty
    least = min(each.evidence for each in lessons.surfaces[:2])
    assert all(each.evidence <= least / 2 for each in lessons.surfaces[2:])
    assert lessons.patches.surface_ids == world.faulty
    assert lessons.runs == 200
    assert lessons.left_out["no feedback"] > 100


@pytest.mark.parametrize(
    ("make_world", "node", "fresh"),
    [
        (make_rules_world, "edit", rules_world.make_cases("later", 24)),
        (make_triage_world, "note", triage_world.make_cases("later", 24, Random(77))),
    ],
)
async def test_patches_are_validated_with_an_agent_that_has_changed_since(
    make_world: MakeWorld, node: str, fresh: EvalSet, tmp_path: Path
) -> None:
    world, cases = make_world(24)
    live = change_node(world.agent, node, new_name=f"{node}_desk", added="Write plain English.")
    runs = await record(world, cases, tmp_path, share=1.0)
    lessons = await learn_with_expert(world, runs, live=live.describe())
    assert lessons.matching is not None
    renamed = {each.live: each for each in lessons.matching.matches}[f"{node}_desk#instruction"]
    assert (renamed.recorded, renamed.is_edited) == (f"{node}#instruction", True)
    result = await validate(world, live, lessons, tmp_path)
    assert result.verdict in ("improved", "improved_on_validation")
    evaluator = world.build_evaluator()
    assert (await evaluator.evaluate(live, fresh, result.accepted_profile)).mean_score == 1.0
    adopted = result.accepted_profile.value(f"{node}_desk#instruction", live.describe())
    assert "Write plain English." in str(adopted)


async def test_blame_over_guessed_edges_counts_for_less_and_says_so(tmp_path: Path) -> None:
    world, cases = make_rules_world(24)
    runs = await record(world, cases, tmp_path, share=1.0)
    guessed = await learn_with_expert(world, runs)
    certain = await learn_with_expert(world, [replace(each, trace=make_certain(each.trace)) for each in runs])
    for less, more in zip(guessed.surfaces, certain.surfaces, strict=True):
        assert (less.guessed, more.guessed) == (24, 0)
        assert less.evidence == pytest.approx(0.8 * more.evidence)


def make_certain(trace: ExecutionTrace) -> ExecutionTrace:
    return replace(trace, steps=tuple(replace(step, edges=()) for step in trace.steps))


async def test_when_the_budget_ends_the_lessons_are_those_so_far(tmp_path: Path) -> None:
    world, cases = make_rules_world(48)
    lessons = await learn_with_expert(
        world, await record(world, cases, tmp_path, share=1.0), budget=Budget(max_calls=3)
    )
    assert 0 < lessons.blamed < 48
    assert any("of 48 failed runs were blamed" in note for note in lessons.notes)


async def test_when_a_person_interrupts_the_lessons_are_those_so_far(tmp_path: Path) -> None:
    world, cases = make_rules_world(48)
    interrupt = Interrupt()
    expert = SightedExpert(world.knowledge, seed=world.seed)
    evaluator = Evaluator(gateway=Gateway(models={EXPERT: expert}))
    runs = await record(world, cases, tmp_path, share=1.0)
    found = await find_failures(select_runs(runs), evaluator=evaluator)
    lessons = await learn(
        found,
        evaluator=evaluator,
        backwarder=LLMAttributor(EXPERT),
        notify=lambda: interrupt.stop("Ctrl-C"),
        interrupt=interrupt,
    )
    assert {each.surface_id for each in lessons.surfaces} == world.faulty
    assert not lessons.patches
    assert lessons.notes == ("Ctrl-C: 16 of 48 failed runs were blamed; no patches",)


async def test_when_a_person_interrupts_twice_work_in_progress_is_given_up(tmp_path: Path) -> None:
    world, cases = make_rules_world(48)
    interrupt = Interrupt()
    expert = SightedExpert(world.knowledge, seed=world.seed)

    async def ask(request: ModelRequest, *, repeat: int) -> ModelReply:
        if len(blamed) == CHUNK:
            interrupt.stop("Ctrl-C")
            work.cancel()
            await asyncio.sleep(60)
        return await expert(request, repeat=repeat)

    blamed: list[None] = []
    evaluator = Evaluator(gateway=Gateway(models={EXPERT: ask}))
    found = await find_failures(select_runs(await record(world, cases, tmp_path, share=1.0)), evaluator=evaluator)
    work = asyncio.create_task(
        learn(
            found,
            evaluator=evaluator,
            backwarder=LLMAttributor(EXPERT),
            notify=lambda: blamed.append(None),
            interrupt=interrupt,
        )
    )
    lessons = await work
    assert lessons.notes == ("Ctrl-C: 16 of 48 failed runs were blamed; no patches",)
    assert lessons.stop_reason == USER_STOP


async def test_a_text_that_is_filled_in_for_each_run_teaches_its_template() -> None:
    wrong = Failure("ValueError", "the answer is not JSON")
    text = "Today is 2026-11-{:02}. You answer questions of customers, always as a JSON object."
    runs = [make_run(number, instruction=text.format(number), error=wrong) for number in range(6)]
    evaluator = Evaluator()
    found = await find_failures(select_runs(runs), evaluator=evaluator)
    assert len(found.sample) == 6
    value = found.structure.surface("agent#instruction").value
    assert value == text.replace("{:02}", "{…}")
    lessons = await learn(found, evaluator=evaluator)
    assert [each.surface_id for each in lessons.surfaces] == ["agent#instruction"]
    assert all("{…}" in str(patch.value) for patch in lessons.patches)


async def test_of_many_failures_a_sample_is_looked_into(tmp_path: Path) -> None:
    world, cases = make_rules_world(48)
    lessons = await learn_with_expert(world, await record(world, cases, tmp_path, share=1.0), most=12)
    assert (lessons.failed, lessons.sampled) == (48, 12)
    assert {each.surface_id for each in lessons.surfaces} == world.faulty


def make_run(number: int, *, instruction: str = "You answer.", error: Failure | None = None) -> JudgedRun:
    """A run of one step, an hour after the one before."""
    surfaces = {"agent#instruction": {"type": "instruction", "value": instruction}}
    step = Step(
        id="s",
        node_id="agent",
        kind="llm",
        surface_reads={"agent#instruction": digest(instruction)},
        input=Snapshot(f"question {number}"),
        output=Snapshot("" if error else "answer"),
        error=error,
        start_ns=3_600_000_000_000 * (number + 1),
        end_ns=3_600_000_000_000 * (number + 1) + 1,
    )
    return judge(
        ExecutionTrace(
            id=f"t{number}",
            steps=(step,),
            status="failed" if error else "completed",
            attributes={SURFACES: surfaces},
        )
    )


async def test_without_feedback_errors_say_which_runs_failed() -> None:
    wrong, lost = Failure("ValueError", "the answer is not JSON"), Failure("ConnectionError", "refused", is_outage=True)
    runs = [make_run(0), make_run(1, error=wrong), make_run(2, error=wrong), make_run(3, error=lost)]
    evaluator = Evaluator()
    found = await find_failures(select_runs(runs), evaluator=evaluator)
    [group] = found.groups
    assert (group.kind, group.text, group.case_ids) == ("ValueError in agent", "the answer is not JSON", ("t1", "t2"))
    assert found.left_out == {"outages and timeouts": 1}
    lessons = await learn(found, evaluator=evaluator)
    assert (lessons.sampled, lessons.blamed) == (2, 2)
    [lesson] = lessons.surfaces
    assert (lesson.surface_id, lesson.case_ids) == ("agent#instruction", ("t1", "t2"))


async def test_an_error_that_users_were_satisfied_with_is_no_failure() -> None:
    handled = make_run(0, error=Failure("ValueError", "the answer is not JSON"))
    liked = replace(handled, feedback=Feedback(trace_id="t0", is_good=True))
    found = await find_failures(select_runs([liked]), evaluator=Evaluator())
    assert (found.judged, found.failed) == (1, 0)


async def test_failures_of_older_texts_are_left_out_and_versions_are_counted() -> None:
    wrong = Failure("ValueError", "the answer is not JSON")
    old = [make_run(number, error=wrong if number < 3 else None) for number in range(4)]
    new = [
        make_run(number, instruction="You answer in JSON.", error=wrong if number == 4 else None) for number in (4, 5)
    ]
    found = await find_failures(select_runs([*old, *new]), evaluator=Evaluator())
    assert found.sample == {"t4"}
    assert found.left_out == {"an older version of a text": 3}
    assert [(each.runs, each.failed) for each in found.versions["agent#instruction"]] == [(4, 3), (2, 1)]
    assert found.structure.surface("agent#instruction").value == "You answer in JSON."


def test_traces_without_texts_teach_nothing() -> None:
    bare = judge(ExecutionTrace(id="t", steps=(Step(id="s", node_id="agent"),)))
    with pytest.raises(SetupError, match="CAPTURE_MESSAGE_CONTENT"):
        select_runs([bare])
