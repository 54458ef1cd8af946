"""Four ordinary agents, each optimized without a model, from Python and from YAML, and served with the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter import CaseInput, Engine, Evaluator, Gateway, GraphAgent, Profile, RunRequest, build_metrics
from promptiter.api import load_run
from promptiter.evaluation.data.case import EvalSet
from promptiter.offline import SimulatedModel
from promptiter.policies import TargetScore
from promptiter.runs import RunDirectory
from tests.worlds import small_programs

pytestmark = pytest.mark.slow

QUESTION = "I want a refund for my tent? (order id: Z-77; bought: 2026-05-06)"
PROGRAMS = [
    ("two_prompts", {"two_prompts#instruction.plan", "two_prompts#instruction.write"}),
    ("router", {"refund#instruction"}),
    ("loop", {"draft#instruction"}),
    ("ticket", {"ticket#field.bought"}),
]


def find_order(answer: Any) -> str:
    return answer["order"] if isinstance(answer, dict) else "Z-77" if "Z-77" in answer else answer


def write_cases(path: Path, cases: EvalSet) -> None:
    rows = [
        {"id": case.id, "input": turn.user, "expected": turn.expected} for case in cases.cases for turn in case.turns
    ]
    path.write_bytes(b"\n".join(map(orjson.dumps, rows)))


@pytest.mark.parametrize(("name", "patched"), PROGRAMS)
async def test_a_small_program_is_optimized_and_served_from_python(name: str, patched: set[str]) -> None:
    agent: GraphAgent = getattr(small_programs, name)
    is_ticket = name == "ticket"
    gateway = Gateway(models={"simulated": SimulatedModel(compliance=1.0)})
    metric = "json_match" if is_ticket else "contains"
    request = RunRequest(
        train=small_programs.build_cases("train", 0, is_ticket=is_ticket),
        validation=small_programs.build_cases("validation", 8, is_ticket=is_ticket),
        stop=TargetScore(1.0),
    )
    evaluator = Evaluator(build_metrics([{"metric_name": metric}]), gateway=gateway)
    result = await Engine(agent, evaluator).run(request)
    assert result.accepted_score == 1.0
    assert set(result.accepted_profile.overrides) == patched
    with gateway.active():
        assert find_order(await agent.with_profile(result.accepted_profile)(QUESTION)) == "Z-77"
        with result.accepted_profile.active():
            assert find_order(await agent(QUESTION)) == "Z-77"


@pytest.mark.parametrize("starts_from", ["the values of the agent", "a profile without them"])
async def test_the_result_for_an_agent_with_a_profile_serves_the_agent_without_it(
    starts_from: str, tmp_path: Path
) -> None:
    agent = small_programs.two_prompts
    plan = "Keep the order id and the wish exactly as given."
    bound = agent.with_profile(Profile.of(agent.describe(), {"two_prompts#instruction.plan": plan}))
    initial = Profile.baseline(agent.describe()) if starts_from == "a profile without them" else None
    gateway = Gateway(models={"simulated": SimulatedModel(compliance=1.0)})
    request = RunRequest(
        train=small_programs.build_cases("train", 0),
        validation=small_programs.build_cases("validation", 8),
        initial_profile=initial,
        stop=TargetScore(1.0),
    )
    evaluator = Evaluator(build_metrics([{"metric_name": "contains"}]), gateway=gateway)
    run = RunDirectory.begin(tmp_path, Engine(bound, evaluator), request)
    result = await run.run()
    assert [change.surface_id for change in result.changes] == ["two_prompts#instruction.write"]
    assert result.working_profile.overrides["two_prompts#instruction.plan"] == plan
    with gateway.active():
        measured = await bound.run(CaseInput(text=QUESTION), result.accepted_profile)
        assert "Z-77" in measured.output
        for profile in (result.accepted_profile, run.path / "profiles" / "best.json"):
            served = agent.with_profile(profile)
            assert served.describe().surface("two_prompts#instruction.plan").value == plan
            assert await served(QUESTION) == measured.output
        with Profile.load(run.path / "profiles" / "best.json").active():
            assert await agent(QUESTION) == measured.output


@pytest.mark.parametrize(("name", "patched"), PROGRAMS)
async def test_a_small_program_is_optimized_and_served_from_yaml(name: str, patched: set[str], tmp_path: Path) -> None:
    is_ticket = name == "ticket"
    for kind, first in (("train", 0), ("validation", 8)):
        write_cases(tmp_path / f"{kind}.jsonl", small_programs.build_cases(kind, first, is_ticket=is_ticket))
    (tmp_path / "promptiter.yaml").write_text(
        f"agent: tests.worlds.small_programs:{name}\n"
        "train: train.jsonl\nvalidation: validation.jsonl\n"
        f"metrics:\n  - metric_name: {'json_match' if is_ticket else 'contains'}\n"
        "models:\n  simulated:\n    compliance: 1.0\n"
        "stop:\n  target_score: 1.0\n"
    )
    run = load_run(tmp_path).begin()
    result = await run.run()
    assert result.accepted_score == 1.0
    agent: GraphAgent = getattr(small_programs, name)
    served = agent.with_profile(run.path / "profiles" / "best.json")
    changed = {each.id for each in served.describe().surfaces if each.value != agent.describe().surface(each.id).value}
    assert changed == patched
    with Gateway(models={"simulated": SimulatedModel(compliance=1.0)}).active():
        assert find_order(await served(QUESTION)) == "Z-77"
