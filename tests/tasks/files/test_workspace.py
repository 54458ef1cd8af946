from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.profile import Profile
from promptiter.tasks.files.globs import find_escape, matches
from promptiter.tasks.files.task import Artifacts, FileTask, TaskObjective
from promptiter.tasks.files.workspace import find_path, hash_files, name_surface, open_workspace

OBJECTIVES = (TaskObjective(metric="score"),)


def make_task(root: Path, *include: str, exclude: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> FileTask:
    artifacts = Artifacts(include=include, exclude=exclude, types=types)
    return FileTask(id="t", folder=root, root=root, artifacts=artifacts, objectives=OBJECTIVES)


def write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_md", ".md").replace("_py", ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a.md", "*.md", True),
        ("a/b.md", "*.md", False),
        ("a/b.md", "**/*.md", True),
        ("b.md", "**/*.md", True),
        ("work/x/y.txt", "work/**", True),
        ("work/x/y.txt", "work", True),
        ("works/y.txt", "work", False),
        ("a1.md", "a[0-9].md", True),
        ("ab.md", "a[!0-9].md", True),
        ("a+b.md", "a+b.md", True),
        ("a/b.md", "./a/b.md", True),
        ("a/x/c.md", "a/?/c.md", True),
    ],
)
def test_a_star_stays_in_its_folder_and_two_do_not(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, [pattern]) is expected


@given(st.lists(st.sampled_from(["a", "b", "..", ".", "", "c.md"]), min_size=1, max_size=4))
def test_no_path_that_is_accepted_leaves_the_workspace(parts: list[str]) -> None:
    path = "/".join(parts)
    if find_escape(path) is None:
        assert Path("/root", path).resolve().is_relative_to("/root")
        assert ".." not in parts


def test_artifacts_are_file_surfaces_of_one_node(tmp_path: Path) -> None:
    write(tmp_path, skills__a_md="# A\n", skills__b_md="# B\n", notes_txt="x")
    found = open_workspace(make_task(tmp_path, "skills/*.md"))
    assert found.structure.surface_ids == ("workspace#file.skills/a.md", "workspace#file.skills/b.md")
    assert [find_path(each) for each in found.structure.surface_ids] == ["skills/a.md", "skills/b.md"]


def test_a_path_that_does_not_exist_yet_is_an_empty_artifact(tmp_path: Path) -> None:
    found = open_workspace(make_task(tmp_path, "skills/new.md"))
    assert found.texts == {"skills/new.md": ""}


def test_excluded_files_other_types_and_links_are_not_artifacts(tmp_path: Path) -> None:
    write(tmp_path, a_md="a", work__b_md="b", c_py="c")
    (tmp_path / "link.md").symlink_to(tmp_path / "a.md")
    (tmp_path / "folder").symlink_to(tmp_path / "work")
    found = open_workspace(make_task(tmp_path, "**", exclude=("work/**",), types=(".md",)))
    assert found.paths == ("a.md",)


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ("../outside.md", "leaves the workspace"),
        ("/etc/passwd", "is not relative"),
        ("link.md", "symbolic link 'link.md'"),
        ("folder/a.md", "symbolic link 'folder'"),
        ("a.py", "not of an allowed type"),
        ("../*.md", "leaves the workspace"),
        ("nothing/*.md", "no file in"),
        ("[z-a].md", r"the pattern '\[z-a\]\.md' is invalid: bad character range z-a"),
    ],
)
def test_an_include_that_cannot_be_edited_is_refused(tmp_path: Path, include: str, message: str) -> None:
    write(tmp_path, real__a_md="a", a_py="x")
    (tmp_path / "link.md").symlink_to(tmp_path / "real" / "a.md")
    (tmp_path / "folder").symlink_to(tmp_path / "real")
    with pytest.raises(SetupError, match=message):
        open_workspace(make_task(tmp_path, include, types=(".md",)))


def test_a_binary_artifact_is_refused_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xff\xfe\x00\xd8")
    with pytest.raises(SetupError, match=r"^the artifact 'a\.md' is not text; save it as UTF-8, or exclude it$"):
        open_workspace(make_task(tmp_path, "a.md"))


def test_a_large_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"x" * 1_000_001)
    with pytest.raises(SetupError, match="1,000,001 bytes"):
        open_workspace(make_task(tmp_path, "a.md"))


def test_only_files_that_differ_are_written_and_they_keep_their_line_ends(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (tmp_path / "b.md").write_bytes(b"same\n")
    found = open_workspace(make_task(tmp_path, "*.md"))
    profile = Profile.of(found.structure, {name_surface("a.md"): "one\nthree\n"})
    assert found.encode(found.read_profile(profile)) == {"a.md": b"\xef\xbb\xbfone\r\nthree\r\n"}


def test_hashes_name_files_that_are_gone(tmp_path: Path) -> None:
    write(tmp_path, a_md="a")
    before = hash_files(tmp_path, ["a.md", "b.md"])
    (tmp_path / "a.md").unlink()
    assert before["b.md"] == "missing"
    assert hash_files(tmp_path, ["a.md"]) == {"a.md": "missing"}
