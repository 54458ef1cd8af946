"""Folders with prompts: removed at the end, and by the next process if their own was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from promptiter.agents.black_box.private_files import PREFIX, make_private_folder, write_private_files

HOLD = """
import sys
from promptiter.agents.black_box.private_files import write_private_files
with write_private_files({"note#instruction": "Be kind."}) as files:
    print(*files.values(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


@pytest.mark.slow
def test_a_folder_of_a_killed_process_is_removed_by_the_next_and_one_in_use_is_not(folder: Path) -> None:
    holders = [
        subprocess.Popen([sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    files = [Path(holder.stdout.readline().strip()) for holder in holders if holder.stdout is not None]
    foreign, fresh = folder / "promptiter-other", folder / "promptiter-new-fresh"
    for each in (foreign, fresh):
        each.mkdir()
    os.utime(foreign, (0, 0))
    holders[0].kill()
    holders[0].wait()
    with write_private_files({"note#instruction": "Be kind."}):
        assert [file.exists() for file in files] == [False, True]
        assert foreign.exists()
        assert fresh.exists()
    holders[1].communicate("")
    assert not files[1].exists()
    for holder in holders:
        for pipe in (holder.stdin, holder.stdout):
            assert pipe is not None
            pipe.close()


def test_a_link_in_place_of_a_folder_is_left_alone(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    (other / "file").touch()
    os.utime(other, (0, 0))
    link = folder / f"{PREFIX}link"
    link.symlink_to(other)
    os.utime(link, (0, 0), follow_symlinks=False)
    with make_private_folder() as made:
        assert made.stat().st_mode & 0o777 == 0o700
    assert (other / "file").exists()


def test_a_folder_that_a_command_has_protected_is_removed(folder: Path) -> None:
    with make_private_folder() as made:
        (made / "inner").mkdir()
        (made / "inner" / "file").touch()
        (made / "inner").chmod(0o500)
    assert list(folder.iterdir()) == []
