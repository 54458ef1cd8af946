from __future__ import annotations

import subprocess
import sys

import pytest

from promptiter import offline
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.metrics.builtin import build_metrics
from promptiter.llm.gateway import Gateway
from promptiter.registry import MODELS, OFFLINE_STAGES
from tests.worlds import cyclic_desk


def test_the_registry_finds_every_name_of_the_package() -> None:
    assert MODELS.get("simulated") is offline.SimulatedModel
    found = {OFFLINE_STAGES.get(name).__name__ for name in OFFLINE_STAGES.names()}
    assert found == {name for name in dir(offline) if name != "SimulatedModel"}


@pytest.mark.slow
def test_importing_the_search_and_the_configuration_does_not_load_offline() -> None:
    code = (
        "import sys, promptiter.search.rounds, promptiter.config.build\n"
        "print([name for name in sys.modules if name.startswith('promptiter.offline')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faulty", "lost"), [("planner", "amount"), ("compose", "amount"), ("reviewer", "amount"), ("finalize", "quantity")]
)
async def test_the_guides_desk_is_fixed_although_numbers_are_parts_of_other_numbers(faulty: str, lost: str) -> None:
    train, validation = cyclic_desk.make_sets()
    evaluator = Evaluator(
        build_metrics([{"metric_name": "json_match"}]),
        gateway=Gateway(models={"simulated": offline.SimulatedModel(compliance=1.0)}),
    )
    engine = Engine(cyclic_desk.make_agent(faulty=faulty, lost=lost), evaluator)
    result = await engine.run(RunRequest(train=train, validation=validation, final_test=None))
    assert result.baseline is not None
    assert result.accepted is not None
    assert (result.baseline.mean_score, result.accepted.mean_score) == (0.0, 1.0)
    assert list(result.accepted_profile.overrides) == [f"{faulty}#instruction"]
