"""Four ordinary agents, each optimized without a model, from Python and from YAML, and served with the result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from promptiter import Engine, Evaluator, Gateway, GraphAgent, RunRequest, build_metrics
from promptiter.api import load_run
from promptiter.evaluation.data.case import EvalSet
from promptiter.offline import SimulatedModel
from promptiter.policies import TargetScore
from tests.worlds import small_programs

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
