from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from promptiter.runlog.case_uses import CaseUse
from promptiter.runs.case_use_file import FILE_NAME, CaseUseFile


def use(name: str) -> CaseUse:
    return CaseUse(id=name, run_id="r", kind="search", place="r", validation=("a", "b"))


async def test_what_was_added_is_read_back_by_another_object(tmp_path: Path) -> None:
    await CaseUseFile(tmp_path).add(use("one"))
    assert await CaseUseFile(tmp_path).add(use("two")) == (use("one"), use("two"))


async def test_a_use_with_a_known_id_is_not_written_again(tmp_path: Path) -> None:
    file = CaseUseFile(tmp_path)
    await file.add(use("one"))
    before = file.path.read_bytes()
    assert await file.add(use("one")) == (use("one"),)
    assert file.path.read_bytes() == before


async def test_a_torn_line_is_skipped_and_the_next_one_is_whole(tmp_path: Path) -> None:
    file = CaseUseFile(tmp_path)
    await file.add(use("one"))
    with file.path.open("ab") as torn:
        torn.write(b'\n{"id":"torn","run_')
    assert await file.add(use("two")) == (use("one"), use("two"))


ADD = """
import asyncio, sys
from promptiter.runlog.case_uses import CaseUse
from promptiter.runs.case_use_file import CaseUseFile
async def main():
    for number in range(40):
        name = f"{sys.argv[2]}-{number}"
        found = await CaseUseFile(sys.argv[1]).add(
            CaseUse(id=name, run_id="r", kind="search", validation=("0123456789abcdef",) * 200)
        )
        assert name in {use.id for use in found}
asyncio.run(main())
"""


@pytest.mark.slow
def test_two_processes_lose_nothing(tmp_path: Path) -> None:
    processes = [subprocess.Popen([sys.executable, "-c", ADD, str(tmp_path), name]) for name in ("a", "b")]
    assert [process.wait() for process in processes] == [0, 0]
    kept = [each.id for each in CaseUseFile(tmp_path).read()]
    assert sorted(kept) == sorted(f"{name}-{number}" for name in ("a", "b") for number in range(40))
    assert (tmp_path / FILE_NAME).exists()
