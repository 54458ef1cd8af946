"""Parts of the supervisor by themselves: messages, lists of readable paths, changes in an upper layer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.agents.black_box.private_files import NEW, PREFIX
from promptiter.sandbox.protocol import read_message, write_message
from promptiter.sandbox.supervisor.aliases import Mount, find_aliases, read_mounts
from promptiter.sandbox.supervisor.changes import compare_copy, find_differences, take_snapshot
from promptiter.sandbox.supervisor.copying import copy_tree
from promptiter.sandbox.supervisor.folder_copy import PRIVATE
from promptiter.sandbox.supervisor.landlock import list_readable


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none()), st.binary(max_size=1000))
def test_messages_arrive_as_they_were_sent(message: dict[str, object], data: bytes) -> None:
    reading, writing = os.pipe()
    try:
        write_message(writing, message, data)
        assert read_message(reading) == (message, data)
    finally:
        os.close(reading)
        os.close(writing)


def test_half_a_message_is_the_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, b"\0" * 12)
    os.close(writing)
    with pytest.raises(EOFError):
        read_message(reading)
    os.close(reading)


def test_the_supervisor_knows_the_names_of_private_folders() -> None:
    """It cannot import them: that would take as long as the rest of its start."""
    assert PRIVATE == (PREFIX, NEW)


def test_everything_but_the_hidden_paths_is_readable(tmp_path: Path) -> None:
    for path in ("a/b/secret", "a/b/open", "a/c/open", "d/open"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).touch()
    top = str(tmp_path)
    found = list_readable([f"{top}/a/b/secret"], start=top)
    assert sorted(found) == [f"{top}/a/b/open", f"{top}/a/c", f"{top}/d"]
    assert sorted(list_readable([f"{top}/a/b", f"{top}/a/b/secret", f"{top}/d"], start=top)) == [f"{top}/a/c"]
    assert list_readable([], start=top) == [top]
    assert list_readable([top], start=top) == []
    assert "/" not in list_readable([f"{top}/a"])


def test_a_copy_has_modes_times_and_links_of_the_original(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "folder" / "hidden").mkdir(parents=True)
    (source / "folder" / "hidden" / "file").touch()
    script = source / "folder" / "script"
    script.write_text("#!/bin/sh")
    script.chmod(0o754)
    os.utime(script, ns=(1, 123_456_789))
    (source / "link").symlink_to("/nowhere")
    os.utime(source / "folder", ns=(5, 5_000))
    target.mkdir()
    copy_tree(str(source), str(target), skipped={"folder/hidden"})
    assert sorted(path.name for path in target.rglob("*")) == ["folder", "link", "script"]
    copied = (target / "folder" / "script").stat()
    assert (copied.st_mode & 0o777, copied.st_mtime_ns) == (0o754, 123_456_789)
    assert (target / "folder").stat().st_mtime_ns == 5_000
    assert (target / "link").readlink() == Path("/nowhere")


def test_a_change_that_was_undone_is_none(tmp_path: Path) -> None:
    original, copy = tmp_path / "original", tmp_path / "copy"
    original.mkdir()
    (original / "file").write_text("content")
    copy.mkdir()
    copy_tree(str(original), str(copy))
    before = take_snapshot(str(copy))
    (copy / "file").write_text("other")
    changed = compare_copy(str(copy), before, original=str(original), planned=frozenset())
    assert changed.to_json()["written"] == ["file"]
    (copy / "file").write_text("content")
    undone = compare_copy(str(copy), before, original=str(original), planned=frozenset())
    assert undone.to_json()["written"] == []
    assert find_differences(before, take_snapshot(str(copy))) == ["file"]


def test_what_is_mounted_twice_has_two_paths(tmp_path: Path) -> None:
    mounts = [
        Mount("8:1", "/", "/"),
        Mount("8:2", "/", "/home"),
        Mount("8:2", "/user/work", "/mnt/work"),
        Mount("8:2", "/user/work/data/secret", "/srv/secret"),
        Mount("8:2", "/other", "/mnt/other"),
        Mount("8:1", "/user/work", "/mnt/elsewhere"),
    ]
    expected = ["/home/user/work/data/secret", "/mnt/work/data/secret", "/srv/secret"]
    assert find_aliases("/home/user/work/data/secret", mounts) == expected
    assert find_aliases("/mnt/work/data/secret", mounts) == expected
    assert find_aliases("/etc/passwd", mounts) == ["/etc/passwd"]
    assert str(tmp_path) in find_aliases(str(tmp_path), read_mounts())
