"""Source: where the value of a surface lives outside, in a file or behind a pair of callbacks.

A file is read as text and written back in its own form: its encoding, its byte order mark and its line ends stay what
they were, so that writing what was read gives the same bytes. It is replaced whole, so that a reader sees the old text
or the new one, never a part.
"""

from __future__ import annotations

import asyncio
import codecs
import glob
import inspect
import os
import stat
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from promptiter.errors import AgentError, SetupError

_PART = ".promptiter-part"
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class Source(Protocol):
    """One value outside. Both methods may block, and are called by one thread at a time; what they raise is told."""

    def read(self) -> str:
        """The value that is there now."""

    def write(self, value: str) -> None:
        """Put a value there; `read` gives exactly it from then on."""


@dataclass(frozen=True, slots=True)
class FileSource:
    """A text file. Without an `encoding` it is UTF-8, or what its byte order mark says; a link is followed."""

    path: str | os.PathLike[str]
    encoding: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @property
    def file(self) -> Path:
        """The file itself, where the path is a link."""
        return Path(os.path.realpath(self.path))

    def read(self) -> str:
        return self.text_of(self.read_bytes())

    def write(self, value: str) -> None:
        """Replace the text, in the form that the file has; a new file is UTF-8."""
        like = self.read_bytes() if self.file.exists() else b""
        self.write_bytes(self.bytes_of(value, like=like))

    def text_of(self, raw: bytes) -> str:
        """The text of such bytes; SetupError where they would not come out the same when it is written."""
        form = _Form.of(raw, self.encoding)
        try:
            text = form.decode(raw)
            is_exact = form.encode(text) == raw
        except (UnicodeError, LookupError) as error:
            raise self._unreadable(form, str(error)) from error
        if not is_exact:
            raise self._unreadable(form, "its bytes would change when written back")
        return text

    def bytes_of(self, text: str, *, like: bytes) -> bytes:
        """The bytes of a text in the form of others; AgentError where their encoding cannot hold it."""
        form = _Form.of(like, self.encoding)
        try:
            return form.encode(text)
        except UnicodeEncodeError as error:
            held = text[error.start : error.end]
            raise AgentError(
                f"{str(self.path)!r} is written in {form.encoding}, which cannot hold {held!r:.40}; "
                "save the file as UTF-8, or change the value"
            ) from error

    def read_bytes(self) -> bytes:
        try:
            return self.file.read_bytes()
        except OSError as error:
            raise SetupError(f"the target {str(self.path)!r} cannot be read: {error.strerror or error}") from error

    def write_bytes(self, raw: bytes, *, mode: int | None = None) -> None:
        """Replace the file by these bytes, on disk when this returns. A file that was there keeps mode and owner."""
        try:
            _replace(self.file, raw, mode)
        except OSError as error:
            raise SetupError(f"the target {str(self.path)!r} cannot be written: {error.strerror or error}") from error

    def sweep(self) -> None:
        """Remove what a writer that was killed left beside the file. Nobody may be writing it."""
        file = self.file
        for part in file.parent.glob(f".{glob.escape(file.name)}{_PART}.*"):
            part.unlink(missing_ok=True)

    def _unreadable(self, form: _Form, why: str) -> SetupError:
        return SetupError(
            f"the target {str(self.path)!r} is no {form.encoding} text ({why}); "
            f"say how it is written, FileSource({Path(self.path).name!r}, encoding=...)"
        )


class CallbackSource:
    """A value behind two functions, such as a key of a remote store.

    They may be asynchronous; each call of such a one has an event loop of its own.
    """

    def __init__(self, read: Callable[[], str | Awaitable[str]], write: Callable[[str], object]) -> None:
        self._read = read
        self._write = write

    def read(self) -> str:
        value = _finished(self._read())
        if not isinstance(value, str):
            raise SetupError(f"the read callback of a target must give text, gave {value!r:.60}")
        return value

    def write(self, value: str) -> None:
        _finished(self._write(value))


@dataclass(frozen=True, slots=True)
class _Form:
    """How a text is written: its encoding, its byte order mark, and whether its lines end in CR LF."""

    encoding: str
    mark: bytes
    has_crlf: bool

    @staticmethod
    def of(raw: bytes, encoding: str | None) -> _Form:
        mark, told = next(((mark, name) for mark, name in _MARKS if raw.startswith(mark)), (b"", "utf-8"))
        form = _Form(encoding, b"", False) if encoding else _Form(told, mark, False)
        try:
            text = form.decode(raw)
        except (UnicodeError, LookupError):
            return form
        # Mixed line ends are left alone: there is no telling which one a new line should have.
        is_crlf = 0 < text.count("\r\n") == text.count("\n") == text.count("\r")
        return _Form(form.encoding, form.mark, is_crlf)

    def decode(self, raw: bytes) -> str:
        text = raw.removeprefix(self.mark).decode(self.encoding)
        return text.replace("\r\n", "\n") if self.has_crlf else text

    def encode(self, text: str) -> bytes:
        if self.has_crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        return self.mark + text.encode(self.encoding)


def _replace(file: Path, raw: bytes, mode: int | None) -> None:
    part = file.with_name(f".{file.name}{_PART}.{os.getpid()}-{threading.get_ident()}")
    before = file.stat() if file.exists() else None
    if before is not None:
        mode = stat.S_IMODE(before.st_mode)
    try:
        # Closed to others until it has its mode: a private file is private at every moment.
        with os.fdopen(os.open(part, _FRESH, 0o666 if mode is None else 0o600), "wb") as out:
            out.write(raw)
            out.flush()
            if before is not None:
                _own(out.fileno(), before)
            if mode is not None:
                os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)


def _own(descriptor: int, before: os.stat_result) -> None:
    """Give a new file the owner of the old one, where we may."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except PermissionError:
            return


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a loss of power."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _finished(value: Any) -> Any:
    """What a callback gave; of an asynchronous one, what it gives in the end."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as worker:  # this thread's loop is busy: it waits for us
        return worker.submit(asyncio.run, wait()).result()
