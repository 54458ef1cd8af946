from __future__ import annotations

import subprocess
import sys

import pytest

from promptiter import offline
from promptiter.registry import MODELS, OFFLINE_STAGES


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
