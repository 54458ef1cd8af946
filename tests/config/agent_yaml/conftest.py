from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.financial_assistant import copy_assistant, find_block, write_changed

Write = Callable[[Callable[[dict[str, Any]], object]], Path]
block = find_block


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the financial assistant in the current folder."""
    with copy_assistant(tmp_path / "assistant", monkeypatch) as folder:
        yield folder


@pytest.fixture
def write(project: Path) -> Write:
    """Write agent.yaml with a change."""
    return partial(write_changed, project)
