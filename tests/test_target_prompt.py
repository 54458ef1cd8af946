"""TargetPrompt: reading and writing several prompts, and what happens when one cannot be written."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from promptiter import TargetPrompt
from promptiter.errors import RollbackError, SetupError


class Store:
    """A remote store with one key. Writing fails if it is told to."""

    def __init__(self, value: str = "rule", *, fails: bool = False) -> None:
        self.value = value
        self.fails = fails

    async def read(self) -> str:
        return self.value

    async def write(self, value: str) -> None:
        if self.fails:
            raise PermissionError("no write access")
        self.value = value


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    first, second = tmp_path / "a" / "system.md", tmp_path / "b" / "skill.md"
    for file in (first, second):
        file.parent.mkdir()
        file.write_text(f"old {file.stem}")
    return first, second


@pytest.fixture
def read_only(files: tuple[Path, Path]) -> Iterator[Path]:
    """The second file cannot be replaced: its path is a folder as soon as the first one is written."""
    _, second = files
    yield second
    if second.is_dir():
        second.rmdir()


def make_target(files: tuple[Path, Path], store: Store | None = None) -> TargetPrompt:
    target = TargetPrompt().add_path("system_prompt", str(files[0])).add_path("skill", files[1])
    return target if store is None else target.add_callback("rule", read=store.read, write=store.write)


async def test_prompts_are_read_and_written_in_the_order_of_their_names(files: tuple[Path, Path]) -> None:
    store = Store()
    target = make_target(files, store)
    assert target.names() == ["system_prompt", "skill", "rule"]
    assert await target.read("skill") == "old skill"
    assert list((await target.read_all()).items()) == [
        ("system_prompt", "old system"),
        ("skill", "old skill"),
        ("rule", "rule"),
    ]
    await target.write_all({"rule": "new rule", "skill": "new skill", "system_prompt": "new system"})
    assert [files[0].read_text(), files[1].read_text(), store.value] == ["new system", "new skill", "new rule"]
    assert sorted(each.name for each in files[0].parent.iterdir()) == ["system.md"]


def test_sources_are_described(files: tuple[Path, Path]) -> None:
    target = make_target(files, Store())
    assert target.describe_source("system_prompt") == str(files[0])
    assert target.describe_source("rule") == "<callback>"
    with pytest.raises(KeyError, match="there is no prompt 'rules'; known are system_prompt, skill, rule"):
        target.describe_source("rules")


async def test_an_unknown_prompt_cannot_be_read() -> None:
    with pytest.raises(KeyError, match="known are none"):
        await TargetPrompt().read("skill")


def test_names_are_unique_and_can_be_file_names(tmp_path: Path) -> None:
    target = TargetPrompt().add_path("skill", tmp_path / "skill.md")
    with pytest.raises(ValueError, match="'skill' was added twice"):
        target.add_path("skill", tmp_path / "other.md")
    with pytest.raises(ValueError, match="'skill' was added twice"):
        target.add_callback("skill", read=Store().read, write=Store().write)
    for name in ("", "../skill", "a/b", ".hidden"):
        with pytest.raises(ValueError, match="the name of a prompt is"):
            target.add_path(name, tmp_path / "other.md")
    with pytest.raises(ValueError, match="is empty"):
        target.add_path("other", "")


@pytest.mark.parametrize("name", [None, 5])
def test_names_are_texts(name: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the name of a prompt is"):
        TargetPrompt().add_path(name, tmp_path / "a.md")


def test_callbacks_must_be_async() -> None:
    store = Store()

    def read() -> str:
        return ""

    def write(value: str) -> None: ...

    with pytest.raises(TypeError, match=r"the read callback of the prompt 'rule' is .* not async"):
        TargetPrompt().add_callback("rule", read=read, write=store.write)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"the write callback of the prompt 'rule' is .* not async"):
        TargetPrompt().add_callback("rule", read=store.read, write=write)  # type: ignore[arg-type]


async def test_write_all_takes_exactly_the_registered_names(files: tuple[Path, Path]) -> None:
    target = make_target(files)
    with pytest.raises(ValueError, match="missing: skill; unknown: skil"):
        await target.write_all({"system_prompt": "a", "skil": "b"})
    with pytest.raises(ValueError, match="'skill' must be a string, not 3"):
        await target.write_all({"system_prompt": "a", "skill": 3})  # type: ignore[dict-item]
    assert files[0].read_text() == "old system"


async def test_files_are_restored_if_one_cannot_be_written(files: tuple[Path, Path]) -> None:
    first, second = files
    first.chmod(0o640)
    second.unlink()
    second.parent.rmdir()
    target = make_target(files)
    with pytest.raises(SetupError, match=r"skill\.md"):
        await target.write_all({"system_prompt": "new system", "skill": "new skill"})
    assert first.read_text() == "old system"
    assert stat.S_IMODE(first.stat().st_mode) == 0o640
    assert [each.name for each in first.parent.iterdir()] == ["system.md"]


async def test_files_are_restored_if_a_callback_fails_and_its_error_is_raised(files: tuple[Path, Path]) -> None:
    works, fails = Store("one"), Store("two", fails=True)
    target = make_target(files, works).add_callback("remote", read=fails.read, write=fails.write)
    with pytest.raises(PermissionError, match="no write access"):
        await target.write_all({"system_prompt": "a", "skill": "b", "rule": "c", "remote": "d"})
    assert [each.read_text() for each in files] == ["old system", "old skill"]
    assert works.value == "c", "callbacks are not rolled back"


async def test_a_new_file_is_removed_again(tmp_path: Path) -> None:
    store, new = Store(fails=True), tmp_path / "new.md"
    target = TargetPrompt().add_path("new", new).add_callback("rule", read=store.read, write=store.write)
    with pytest.raises(PermissionError):
        await target.write_all({"new": "text", "rule": "text"})
    assert not new.exists()


async def test_a_file_that_cannot_be_restored_is_named_with_the_first_error_as_context(
    files: tuple[Path, Path], read_only: Path
) -> None:
    def replace_by_folder() -> None:
        read_only.unlink()
        read_only.mkdir()

    class Vandal(Store):
        async def write(self, value: str) -> None:  # noqa: ARG002
            replace_by_folder()
            raise TimeoutError("store is down")

    store = Vandal()
    with pytest.raises(RollbackError, match=r"could not be restored.*skill \(.*skill.md\)") as caught:
        await make_target(files, store).write_all({"system_prompt": "a", "skill": "b", "rule": "c"})
    assert isinstance(caught.value.__context__, TimeoutError)
    assert len(caught.value.problems) == 1
    assert files[0].read_text() == "old system", "one failure does not keep the others from being restored"
