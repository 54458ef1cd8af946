from __future__ import annotations

import asyncio
import codecs
import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import AgentError, SetupError
from promptiter.sources import CallbackSource, FileSource, Source
from promptiter.sources.place import open_place

TEXTS = st.text(st.sampled_from("aé€😀 {}\r\n\ufeff\0"), max_size=12)
FORMS = st.sampled_from(
    [
        (b"", "utf-8"),
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
    ]
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "prompt.md"


@given(text=TEXTS, form=FORMS)
def test_writing_what_was_read_gives_the_same_bytes(
    text: str, form: tuple[bytes, str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("exact") / "prompt.md"
    raw = form[0] + text.encode(form[1])
    file.write_bytes(raw)
    target = FileSource(file)
    target.write(target.read())
    assert file.read_bytes() == raw


@given(text=TEXTS, form=FORMS, value=st.text(st.sampled_from("xé\n"), max_size=8))
def test_what_was_written_is_read_again(
    text: str, form: tuple[bytes, str], value: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("again") / "prompt.md"
    file.write_bytes(form[0] + text.encode(form[1]))
    target = FileSource(file)
    target.write(value)
    assert target.read() == value
    assert file.read_bytes().startswith(form[0])


def test_a_windows_file_keeps_its_line_ends_and_mark(file: Path) -> None:
    file.write_bytes(codecs.BOM_UTF8 + b"Be brief.\r\nBe kind.\r\n")
    target = FileSource(file)
    assert target.read() == "Be brief.\nBe kind.\n"
    target.write("Be exact.\nBe kind.\n")
    assert file.read_bytes() == codecs.BOM_UTF8 + b"Be exact.\r\nBe kind.\r\n"


def test_mixed_line_ends_are_kept(file: Path) -> None:
    file.write_bytes(b"one\r\ntwo\nthree\r")
    target = FileSource(file)
    assert target.read() == "one\r\ntwo\nthree\r"
    target.write("one\ntwo\r\n")
    assert file.read_bytes() == b"one\ntwo\r\n"


def test_a_given_encoding_is_kept(file: Path) -> None:
    file.write_bytes("größer".encode("latin-1"))
    with pytest.raises(SetupError, match=r"is not utf-8 text .* FileSource\('prompt.md', encoding=...\)"):
        FileSource(file).read()
    target = FileSource(file, encoding="latin-1")
    assert target.read() == "größer"
    target.write("größte")
    assert file.read_bytes() == "größte".encode("latin-1")
    with pytest.raises(AgentError, match="latin-1, which cannot represent '€'"):
        target.write("5 €")
    with pytest.raises(SetupError, match="is not nonsense text"):
        FileSource(file, encoding="nonsense").read()


def test_a_python_file_has_the_encoding_that_it_declares(tmp_path: Path) -> None:
    source = open_place("bot.py:A", folder=tmp_path)
    assert isinstance(source, FileSource)
    raw = "# coding: latin-1\nA = 'caf\xe9'\n".encode("latin-1")
    assert source.read_value(raw) == "caf\xe9"
    assert source.replace_value(raw, "th\xe9") == "# coding: latin-1\nA = 'th\xe9'\n".encode("latin-1")
    ascii_only = b"#!/usr/bin/python\n# -*- coding: latin-1 -*-\nA = 'tea'\n"
    assert source.replace_value(ascii_only, "th\xe9").endswith(b"A = 'th\xe9'\n")
    with pytest.raises(AgentError, match="encoded as iso-8859-1, which cannot represent '\u4e2d'; save the file"):
        source.replace_value(ascii_only, "\u4e2d")


def test_a_text_that_no_encoding_has_must_be_changed(file: Path) -> None:
    with pytest.raises(AgentError, match=r"cannot represent '\\ud800'; change the value$"):
        FileSource(file).encode("\ud800", like=b"")


def test_an_encoding_that_would_change_the_bytes_is_refused(file: Path) -> None:
    file.write_bytes(b"no mark")
    with pytest.raises(SetupError, match="its bytes would change when written back"):
        FileSource(file, encoding="utf-8-sig").read()


def test_a_replaced_file_keeps_its_mode_bits(file: Path) -> None:
    file.write_text("old")
    file.chmod(0o640)
    FileSource(file).write("new")
    assert file.read_text() == "new"
    assert stat.S_IMODE(file.stat().st_mode) == 0o640


def test_a_new_file_has_the_usual_mode(file: Path) -> None:
    FileSource(file).write("new")
    usual = file.with_name("usual")
    usual.touch()
    assert file.stat().st_mode == usual.stat().st_mode


def test_a_link_is_followed_and_stays_a_link(tmp_path: Path, file: Path) -> None:
    file.write_text("old")
    (tmp_path / "inner").mkdir()
    link = tmp_path / "inner" / "link.md"
    link.symlink_to(file)
    FileSource(link).write("new")
    assert link.is_symlink()
    assert file.read_text() == "new"


def test_a_path_means_the_same_file_after_chdir(tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    target = FileSource("prompt.md")
    monkeypatch.chdir("/")
    target.write("here")
    assert file.read_text() == "here"


def test_a_write_that_fails_leaves_the_old_text_and_nothing_else(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(SetupError, match=r"prompt.md' cannot be written: No space left on device"):
        FileSource(file).write("new")
    assert [(each.name, each.read_text()) for each in file.parent.iterdir()] == [("prompt.md", "old")]


def test_a_missing_file_is_reported_with_its_path(file: Path) -> None:
    with pytest.raises(SetupError, match=r"prompt.md' cannot be read: No such file"):
        FileSource(file).read()
    with pytest.raises(SetupError, match="cannot be written"):
        FileSource(file / "below").write("x")


def test_sweeping_removes_the_parts_of_this_file_only(file: Path) -> None:
    file.write_text("old")
    parts = [file.with_name(f".{name}.promptiter-part.7-7") for name in ("prompt.md", "prompt.md.bak", "other.md")]
    for part in parts:
        part.touch()
    FileSource(file).sweep()
    assert [part.exists() for part in parts] == [False, True, True]
    assert file.exists()


def test_callbacks_may_be_synchronous_or_asynchronous() -> None:
    store = {"sync": "a", "async": "b"}

    async def read() -> str:
        await asyncio.sleep(0)
        return store["async"]

    async def write(value: str) -> None:
        await asyncio.sleep(0)
        store["async"] = value

    targets: list[Source] = [
        CallbackSource(lambda: store["sync"], lambda value: store.__setitem__("sync", value)),
        CallbackSource(read, write),
    ]
    assert [target.read() for target in targets] == ["a", "b"]
    for target in targets:
        target.write("new")
    assert store == {"sync": "new", "async": "new"}


async def test_an_asynchronous_callback_works_inside_a_running_loop() -> None:
    async def read() -> str:
        await asyncio.sleep(0)
        return "far away"

    assert CallbackSource(read, lambda _: None).read() == "far away"


def test_a_callback_must_return_a_string() -> None:
    with pytest.raises(SetupError, match="must return a string, not None"):
        CallbackSource(lambda: None, lambda _: None).read()  # type: ignore[arg-type, return-value]
