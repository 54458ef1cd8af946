"""TargetPrompt: the prompts that `promptiter.optimize` may change, in files or behind callbacks.

    target = TargetPrompt().add_path("system_prompt", "prompts/system.md").add_callback("rule", read=load, write=save)

Each prompt has a name. In the run it is the instruction of a node of its own, `system_prompt#instruction`.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeAlias, TypeVar

from promptiter.concurrency import is_async, is_in_loop, run_in_thread
from promptiter.errors import RollbackError
from promptiter.sources import CallbackSource, FileSource, Source
from promptiter.wording import shorten

AsyncRead: TypeAlias = Callable[[], Awaitable[str]]
AsyncWrite: TypeAlias = Callable[[str], Awaitable[None]]
T = TypeVar("T")

CALLBACK = "<callback>"
_NAME = re.compile(r"\w[\w.-]*")


class TargetPrompt:
    """Prompts by name, in the order in which they were added."""

    def __init__(self) -> None:
        self._fields: dict[str, FileSource | _Callbacks] = {}
        self._paths: dict[str, str] = {}

    def add_path(self, name: str, path: str | os.PathLike[str]) -> Self:
        """Add a prompt that is the text of a file. ValueError if the name is taken."""
        self._check_name(name)
        if not os.fspath(path):
            raise ValueError(f"the path of the prompt {name!r} is empty; name the file that the agent reads")
        self._fields[name] = FileSource(path)
        self._paths[name] = os.fspath(path)
        return self

    def add_callback(self, name: str, *, read: AsyncRead, write: AsyncWrite) -> Self:
        """Add a prompt behind two async functions. TypeError if one is not async, ValueError if the name is taken."""
        self._check_name(name)
        for role, function in (("read", read), ("write", write)):
            if not is_async(function):
                raise TypeError(
                    f"the {role} callback of the prompt {name!r} is {shorten(function)}, which is not async; "
                    "define it with `async def`"
                )
        self._fields[name] = _Callbacks(read, write)
        return self

    def names(self) -> list[str]:
        """The names of the prompts, in the order in which they were added."""
        return list(self._fields)

    def describe_source(self, name: str) -> str:
        """The path of a file, or `<callback>`. KeyError if there is no such prompt."""
        self._find(name)
        return self._paths.get(name, CALLBACK)

    async def read(self, name: str) -> str:
        """The current text of one prompt."""
        source = self._find(name)
        if isinstance(source, FileSource):
            return await run_in_thread(source.read)
        return _check_text(name, await source.read())

    async def read_all(self) -> dict[str, str]:
        """The current texts of all prompts, by name."""
        return {name: await self.read(name) for name in self._fields}

    async def write_all(self, prompts: Mapping[str, str]) -> None:
        """Write all prompts: first the files, each atomically, then the callbacks in their order.

        If one fails, the files are as before, and its error is raised. Callbacks are not rolled back. If a file cannot
        be restored, a RollbackError names it; the first error is its `__context__`. ValueError unless the names are
        exactly those of the prompts.
        """
        self._check_prompts(prompts)
        files = {name: each for name, each in self._fields.items() if isinstance(each, FileSource)}
        before = await run_in_thread(lambda: {name: _read_if_any(source) for name, source in files.items()})
        try:
            await run_in_thread(lambda: _write_files(files, prompts))
            for name, each in self._fields.items():
                if isinstance(each, _Callbacks):
                    await each.write(prompts[name])
        except BaseException:
            _roll_back(files, before)
            raise

    def sources(self, *, loop: asyncio.AbstractEventLoop | None = None) -> dict[str, Source]:
        """The sources by name. Callbacks run in `loop` while it is running, so that they may use its clients."""
        return {
            name: each if isinstance(each, FileSource) else each.as_source(loop) for name, each in self._fields.items()
        }

    def _find(self, name: str) -> FileSource | _Callbacks:
        if name not in self._fields:
            raise KeyError(f"there is no prompt {name!r}; known are {', '.join(self._fields) or 'none'}")
        return self._fields[name]

    def _check_name(self, name: object) -> None:
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(
                f"the name of a prompt is {shorten(name)}; use letters, digits, '_', '-' and '.': it names files"
            )
        if name in self._fields:
            raise ValueError(f"the prompt {name!r} was added twice; give each its own name")

    def _check_prompts(self, prompts: Mapping[str, str]) -> None:
        missing, unknown = sorted(self._fields.keys() - prompts), sorted(prompts.keys() - self._fields)
        if missing or unknown:
            raise ValueError(
                f"write_all needs exactly the prompts {', '.join(self._fields) or 'none'}; "
                f"missing: {', '.join(missing) or 'none'}; unknown: {', '.join(unknown) or 'none'}"
            )
        for name, text in prompts.items():
            _check_text(name, text)


@dataclass(frozen=True, slots=True)
class _Callbacks:
    read: AsyncRead
    write: AsyncWrite

    def as_source(self, loop: asyncio.AbstractEventLoop | None) -> CallbackSource:
        return CallbackSource(
            lambda: _call_in(loop, self.read),
            lambda value: _call_in(loop, lambda: self.write(value)),
        )


def _call_in(loop: asyncio.AbstractEventLoop | None, call: Callable[[], Awaitable[T]]) -> T | Awaitable[T]:
    """The result of an async call in the loop of another thread; else the awaitable, for the source to wait for."""
    if loop is None or not loop.is_running() or is_in_loop():
        return call()

    async def wait() -> T:
        return await call()

    return asyncio.run_coroutine_threadsafe(wait(), loop).result()


def _check_text(name: str, text: object) -> str:
    if not isinstance(text, str):
        raise ValueError(f"the prompt {name!r} must be a string, not {shorten(text)}")  # noqa: TRY004 - as documented
    return text


def _read_if_any(source: FileSource) -> bytes | None:
    return source.read_bytes() if source.file.exists() else None


def _write_files(files: Mapping[str, FileSource], prompts: Mapping[str, str]) -> None:
    for name, source in files.items():
        source.write(prompts[name])


def _roll_back(files: Mapping[str, FileSource], before: Mapping[str, bytes | None]) -> None:
    """Restore every file that has changed. RollbackError lists those that could not be restored."""
    problems = []
    for name, source in files.items():
        try:
            _restore(source, before[name])
        except Exception as error:  # noqa: BLE001 - the other files come next
            problems.append(f"{name} ({Path(source.path)}): {type(error).__name__}: {error}")
    if problems:
        raise RollbackError(problems)


def _restore(source: FileSource, raw: bytes | None) -> None:
    if _read_if_any(source) == raw:
        return
    if raw is None:
        source.file.unlink(missing_ok=True)
    else:
        source.write_bytes(raw)
