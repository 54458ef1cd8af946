"""A workspace, what is around it, and the sandboxes of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from promptiter.errors import SetupError
from promptiter.sandbox import Sandbox, find_sandbox
from tests.sandbox.observation import Surroundings


def get_sandbox(kind: Literal["namespaces", "landlock", "none"]) -> Sandbox:
    try:
        return find_sandbox(kind)
    except SetupError as error:
        pytest.skip(str(error))


@pytest.fixture(params=["namespaces", "landlock", "none"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    """Every kind that this machine has."""
    return get_sandbox(request.param)


@pytest.fixture(params=["namespaces", "landlock"])
def protection(request: pytest.FixtureRequest) -> Sandbox:
    """Every kind that protects."""
    return get_sandbox(request.param)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with a prompt, a scorer, a hold-out and data."""
    root = tmp_path / "workspace"
    (root / "data" / "inner").mkdir(parents=True)
    (root / "prompt.md").write_text("Be kind.\n")
    (root / "score.py").write_text("print(1)\n")
    (root / "holdout.py").write_text("SECRET = 42\n")
    (root / "data" / "inner" / "case.txt").write_text("case\n")
    return root


@pytest.fixture
def surroundings(tmp_path: Path, workspace: Path) -> Surroundings:
    """What is outside of the copy, which no command may change."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "victim.txt").write_text("precious\n")
    (outside / "folder").mkdir()
    (outside / "folder" / "inner.txt").write_text("precious too\n")
    return Surroundings(outside=outside, workspace=workspace)
