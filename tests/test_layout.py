"""What tests and benchmarks may import. import-linter checks the packages."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
IMPORTS = re.compile(r"^\s*(?:from|import) ((?:tests|benchmarks)\b[\w.]*)", re.MULTILINE)


def imported_in(folder: str) -> set[str]:
    files = (ROOT / folder).rglob("*.py")
    return {name for file in files for name in IMPORTS.findall(file.read_text(encoding="utf-8"))}


def test_tests_do_not_import_benchmarks() -> None:
    assert {name for name in imported_in("tests") if name.startswith("benchmarks")} == set()


def test_benchmarks_import_only_the_worlds_of_the_tests() -> None:
    of_tests = {name for name in imported_in("benchmarks") if name.startswith("tests")}
    assert of_tests
    assert {name for name in of_tests if name.split(".")[:2] != ["tests", "worlds"]} == set()
