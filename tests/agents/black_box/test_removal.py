"""Whatever a command left can be removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from promptiter.agents.black_box.removal import remove_tree


@pytest.mark.slow
def test_deep_trees_with_any_modes_are_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    (top / "0.removed").write_text("a name that removal would use")
    here = os.open(top, os.O_RDONLY)
    for _ in range(1500):
        os.mkdir("d" * 20, dir_fd=here)
        inner = os.open("d" * 20, os.O_RDONLY, dir_fd=here)
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
        os.mkfifo("pipe", dir_fd=inner)
        os.fchmod(here, 0o500)
        os.close(here)
        here = inner
    os.close(here)
    remove_tree(str(top))
    assert list(tmp_path.iterdir()) == []


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "inner").mkdir(parents=True)
    (outside / "inner").chmod(0o500)
    top = tmp_path / "top"
    (top / "folder").mkdir(parents=True)
    (top / "link").symlink_to(outside)
    (top / "folder" / "link").symlink_to(outside / "inner")
    remove_tree(str(top))
    (tmp_path / "link").symlink_to(outside)
    remove_tree(str(tmp_path / "link"))
    assert list(tmp_path.iterdir()) == [outside]
    assert (outside / "inner").stat().st_mode & 0o777 == 0o500


def test_files_and_nothing_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    remove_tree(str(file))
    remove_tree(str(file))
    assert not file.exists()


def test_what_cannot_be_removed_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder" / "inner").mkdir(parents=True)

    def refuse(path: str, *, dir_fd: int | None = None) -> None:
        raise PermissionError(path)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rmdir", refuse)
        remove_tree(str(tmp_path / "folder"))
    assert (tmp_path / "folder").exists()
