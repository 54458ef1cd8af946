"""What tells the content of hidden files: compiled modules, and repositories, also those of work trees."""

from __future__ import annotations

import subprocess
from pathlib import Path

from promptiter.tasks.files.disclosure import find_compiled, find_repositories


def run_git(folder: Path, *arguments: str) -> None:
    subprocess.run(["git", "-C", str(folder), "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True)


def find(root: Path, *, below: Path) -> list[str]:
    """The repositories that the test made: the machine may have one above."""
    return [each for each in find_repositories(root) if Path(each).is_relative_to(below)]


def test_modules_that_were_compiled(tmp_path: Path) -> None:
    for path in ("__pycache__/hold.cpython-311.pyc", "checks/__pycache__/deep.cpython-312.opt-1.pyc", "hold.txt"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    (tmp_path / "__pycache__" / "holder.cpython-311.pyc").touch()
    found = find_compiled(tmp_path, ["hold.py", "checks/deep.py", "data.json"])
    assert found == ("__pycache__/hold.cpython-311.pyc", "checks/__pycache__/deep.cpython-312.opt-1.pyc")


def test_repositories_of_the_folder_and_above_it(tmp_path: Path) -> None:
    root = tmp_path / "outer" / "inner"
    for path in (root / ".git", tmp_path / "outer" / ".hg"):
        path.mkdir(parents=True)
    assert find(root, below=tmp_path) == [str(tmp_path / "outer" / ".hg"), str(root / ".git")]


def test_a_work_tree_has_its_repository_elsewhere(tmp_path: Path) -> None:
    main, root = tmp_path / "main", tmp_path / "tree"
    main.mkdir()
    run_git(main, "init", "-q")
    run_git(main, "commit", "-q", "--allow-empty", "-m", "first")
    run_git(main, "worktree", "add", "-q", str(root))
    shared = main / ".git"
    assert find(root, below=tmp_path) == [str(shared), str(shared / "worktrees" / "tree"), str(root / ".git")]


def test_a_file_that_leads_nowhere(tmp_path: Path) -> None:
    for text in ("gitdir: /no/such/place", "something else", ""):
        (tmp_path / ".git").write_text(text)
        assert find(tmp_path, below=tmp_path) == [str(tmp_path / ".git")]
