"""FileSource: a surface whose value is the text of a file.

The file keeps its format: encoding, byte order mark and line ends, so that writing what was read gives the same bytes.
It is replaced atomically, so that a reader sees the old text or the new one, never a part.
"""

from __future__ import annotations

import codecs
import ctypes
import errno
import glob
import io
import os
import stat
import sys
import threading
import tokenize
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from promptiter.errors import AgentError, SetupError
from promptiter.wording import shorten
from traces.model import Json

LINE_ENDS = "the line ends of the file do not allow this value, which has other line ends"
_PART = ".promptiter-part"
_FRESH = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class FileSource:
    """A text file. Links are followed.

    The default `encoding` is that of its byte order mark, or what a Python file declares, else UTF-8.
    """

    path: str | os.PathLike[str]
    encoding: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path).absolute())

    @property
    def file(self) -> Path:
        """The file that the path links to, or the path itself."""
        return Path(os.path.realpath(self.path))

    def read(self) -> str:
        return self.decode(self.read_bytes())

    def write(self, value: str) -> None:
        """Replace the text in the format of the file; a new file is UTF-8."""
        like = self.read_bytes() if self.file.exists() else b""
        self.write_bytes(self.encode(value, like=like))

    @property
    def place(self) -> str:
        """The file, as in `sources` of promptiter.yaml."""
        return os.fspath(self.path)

    def read_value(self, raw: bytes) -> Json:
        """The value that a file with this content holds: its text."""
        return self.decode(raw)

    def replace_value(self, raw: bytes, value: Json) -> bytes:
        """The content of the file with another value. Raises SetupError if the file cannot hold it."""
        if not isinstance(value, str):
            raise SetupError(f"{self.place}: a file holds text, and the value is {shorten(value)}")
        written = self.encode(value, like=raw)
        if self.decode(written) != value:
            raise SetupError(f"{self.place}: {LINE_ENDS}")
        return written

    def decode(self, raw: bytes) -> str:
        """Decode the content of the file. Raises SetupError if encoding the text would give other bytes."""
        form = _TextFormat.of(raw, self._find_encoding(raw))
        try:
            text = form.decode(raw)
            is_exact = form.encode(text) == raw
        except (UnicodeError, LookupError) as error:
            raise self._encoding_error(form, str(error)) from error
        if not is_exact:
            raise self._encoding_error(form, "its bytes would change when written back")
        return text

    def encode(self, text: str, *, like: bytes) -> bytes:
        """Encode a text in the format of these bytes. Raises AgentError if their encoding cannot represent it."""
        form = _TextFormat.of(like, self._find_encoding(like))
        try:
            return form.encode(text)
        except UnicodeEncodeError as error:
            part = text[error.start : error.end]
            advice = "" if form.encoding.startswith("utf") else "save the file as UTF-8, or "
            raise AgentError(
                f"{str(self.path)!r} is encoded as {form.encoding}, which cannot represent {part!r:.40}; "
                f"{advice}change the value"
            ) from error

    def read_bytes(self) -> bytes:
        try:
            return self.file.read_bytes()
        except OSError as error:
            raise SetupError(f"the file {str(self.path)!r} cannot be read: {error.strerror or error}") from error

    def write_bytes(self, raw: bytes, *, mode: int | None = None) -> None:
        """Replace the file, on disk when this returns. An existing file keeps its mode and owner."""
        try:
            _replace(self.file, raw, mode)
        except OSError as error:
            raise SetupError(f"the file {str(self.path)!r} cannot be written: {error.strerror or error}") from error

    def exchange_bytes(self, raw: bytes, *, is_known: Callable[[bytes], bool], mode: int | None = None) -> bool:
        """Replace the file, unless it holds bytes that are not known: then it stays as it is. Returns whether it did.

        On Linux, an edit that is made at this very moment is not lost either, unless its program opened the file before
        and writes into it afterwards: it writes into the file that was replaced.
        """
        try:
            return _replace(self.file, raw, mode, is_known)
        except OSError as error:
            raise SetupError(f"the file {str(self.path)!r} cannot be written: {error.strerror or error}") from error

    def sweep(self) -> None:
        """Remove what a killed writer left next to the file. There must be no writer at that time."""
        file = self.file
        for part in file.parent.glob(f".{glob.escape(file.name)}{_PART}.*"):
            part.unlink(missing_ok=True)

    def _find_encoding(self, raw: bytes) -> str | None:
        """The encoding that is given, or that a Python file declares in a comment."""
        if self.encoding is not None or Path(self.path).suffix != ".py" or raw.startswith(codecs.BOM_UTF8):
            return self.encoding
        try:
            return tokenize.detect_encoding(io.BytesIO(raw).readline)[0]
        except SyntaxError:
            return None

    def _encoding_error(self, form: _TextFormat, reason: str) -> SetupError:
        return SetupError(
            f"the file {str(self.path)!r} is not {form.encoding} text ({reason}); give its encoding, as "
            f"FileSource({Path(self.path).name!r}, encoding=...), or as {{place: ..., encoding: ...}} under `sources`"
        )


@dataclass(frozen=True, slots=True)
class _TextFormat:
    """The encoding of a text file, its byte order mark, and whether its lines end in CR LF."""

    encoding: str
    mark: bytes
    has_crlf: bool

    @staticmethod
    def of(raw: bytes, encoding: str | None) -> _TextFormat:
        mark, marked = next(((mark, name) for mark, name in _MARKS if raw.startswith(mark)), (b"", "utf-8"))
        form = _TextFormat(encoding, b"", False) if encoding else _TextFormat(marked, mark, False)
        try:
            text = form.decode(raw)
        except (UnicodeError, LookupError):
            return form
        # Mixed line ends are kept: it is unknown which one a new line should have.
        is_crlf = 0 < text.count("\r\n") == text.count("\n") == text.count("\r")
        return _TextFormat(form.encoding, form.mark, is_crlf)

    def decode(self, raw: bytes) -> str:
        text = raw.removeprefix(self.mark).decode(self.encoding)
        return text.replace("\r\n", "\n") if self.has_crlf else text

    def encode(self, text: str) -> bytes:
        if self.has_crlf:
            text = text.replace("\r\n", "\n").replace("\n", "\r\n")
        return self.mark + text.encode(self.encoding)


def _replace(file: Path, raw: bytes, mode: int | None, is_known: Callable[[bytes], bool] | None = None) -> bool:
    """Replace a file; with `is_known`, only if it is missing or its bytes are known. Returns whether it was."""
    part = file.with_name(f".{file.name}{_PART}.{os.getpid()}-{threading.get_ident()}")
    before = file.stat() if file.exists() else None
    if before is not None:
        mode = stat.S_IMODE(before.st_mode)
    try:
        # Private until it has its final mode: a private file is never readable by others.
        with os.fdopen(os.open(part, _FRESH, 0o666 if mode is None else 0o600), "wb") as out:
            out.write(raw)
            out.flush()
            if before is not None:
                _copy_owner(out.fileno(), before)
            if mode is not None:
                os.fchmod(out.fileno(), mode)
            os.fsync(out.fileno())
        if is_known is None or before is None:
            part.replace(file)
            is_replaced = True
        else:
            is_replaced = _exchange_if_known(part, file, is_known)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    sync_folder(file.parent)
    return is_replaced


def _exchange_if_known(part: Path, file: Path, is_known: Callable[[bytes], bool]) -> bool:
    """Replace a file by another one if its bytes are known. A file that takes its place at that moment is not lost."""
    if not exchange_files(part, file):  # not on this system: an edit between these two lines is lost
        if not is_known(file.read_bytes()):
            part.unlink()
            return False
        part.replace(file)
        return True
    is_replaced = is_known(part.read_bytes())
    if not is_replaced:
        exchange_files(part, file)
    part.unlink()
    return is_replaced


def exchange_files(one: Path, other: Path) -> bool:
    """Exchange two files or folders at once; False if the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if sys.platform == "linux" else None
    if rename is None:
        return False
    if rename(_HERE, os.fsencode(one), _HERE, os.fsencode(other), _EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))


_HERE, _EXCHANGE = -100, 2
"""AT_FDCWD and RENAME_EXCHANGE of Linux."""


def _copy_owner(descriptor: int, before: os.stat_result) -> None:
    """Give a new file the owner of the old one, if permitted."""
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        try:
            os.fchown(descriptor, before.st_uid, before.st_gid)
        except PermissionError:
            return


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power loss."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
