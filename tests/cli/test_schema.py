from __future__ import annotations

from pathlib import Path

from promptiter.config.schema import read_schema
from tests.cli.conftest import Run


def test_the_command_prints_the_schema_or_writes_it(run: Run, tmp_path: Path) -> None:
    assert run("schema") == read_schema().decode()
    run("schema", "-o", tmp_path / "promptiter.schema.json")
    assert (tmp_path / "promptiter.schema.json").read_bytes() == read_schema()
