from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.tasks.refine.deliverables import (
    IterationFolders,
    copy_tree,
    find_deliverable,
    list_files,
    require_deliverable,
)


def write(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        file = folder / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return folder


def test_a_copy_shares_no_file_with_its_source(tmp_path: Path) -> None:
    source = write(tmp_path / "a", one="1", deep__two="2")
    (source / "one").chmod(0o755)
    copy_tree(source, tmp_path / "b")
    assert list_files(tmp_path / "b") == ["deep/two", "one"]
    assert (tmp_path / "b" / "one").stat().st_ino != (source / "one").stat().st_ino
    assert (source / "one").stat().st_nlink == 1
    assert (tmp_path / "b" / "one").stat().st_mode & 0o777 == 0o755
    (tmp_path / "b" / "one").write_text("changed")
    assert (source / "one").read_text() == "1"


def test_symbolic_links_are_not_followed(tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", key="s")
    source = write(tmp_path / "a", one="1")
    (source / "link").symlink_to(secret / "key")
    (source / "folder").symlink_to(secret)
    copy_tree(source, tmp_path / "b")
    assert [path.name for path in (tmp_path / "b").rglob("*")] == ["one"]


def test_final_is_the_deliverable(tmp_path: Path) -> None:
    write(tmp_path, FINAL__a="final", output__r__a="output")
    found = find_deliverable(tmp_path, "r")
    assert found is not None
    assert (found / "a").read_text() == "final"


@pytest.mark.parametrize("place", ["output/r", "../../output/r", "output"])
def test_the_output_is_promoted_if_final_is_missing(tmp_path: Path, place: str) -> None:
    run_dir = tmp_path / "workspace" / "runs" / "r"
    (run_dir / "FINAL").mkdir(parents=True)  # it is empty
    write((run_dir / place).resolve(), a="output")
    found = require_deliverable(run_dir, "r")
    assert found == run_dir / "FINAL"
    assert (found / "a").read_text() == "output"


def test_without_final_and_output_there_is_no_deliverable(tmp_path: Path) -> None:
    write(tmp_path / "run", other="x")
    write(tmp_path / "secret", a="s")
    assert find_deliverable(tmp_path / "run", "../secret") is None
    with pytest.raises(SetupError, match="neither FINAL/ nor output/r/ has files"):
        require_deliverable(tmp_path / "run", "r")


def test_an_iteration_begins_with_a_copy_of_the_deliverable(tmp_path: Path) -> None:
    folders = IterationFolders.of(tmp_path / "work", number=2, run_id="r2")
    folders.prepare(write(tmp_path / "FINAL", a="1"))
    assert folders.root == tmp_path / "work" / "iter_2"
    assert (folders.input / "a").read_text() == "1"
    assert folders.run_dir.is_dir()
    assert list_files(folders.output) == []
    with pytest.raises(FileExistsError):
        folders.prepare(tmp_path / "FINAL")
