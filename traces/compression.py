"""Files compressed with gzip or zstd: unpacked as they are read, and refused if they unpack to far too much."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import IO, Any, Protocol

from traces.errors import Place, UnreadableTraceError

MAX_GZIP_RATIO, MAX_ZSTD_RATIO = 250, 2_000
"""How many times larger unpacked than packed: several times what exports reach whose traces are all alike (12 and 340),
and a fraction of what bombs do (1,000 and 30,000)."""
FREE_MB = 64
"""A file that unpacks to less than this may have any ratio."""
MAX_UNPACKED_GB = 32
"""No file may unpack to more."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_GZIP_PIECE, _ZSTD_PIECE = 1 << 15, 1 << 10  # pieces this small unpack to at most 32 MB
_LARGEST_WINDOW = 1 << 27  # what `zstd -d` accepts by default


def is_packed(start: bytes) -> bool:
    """Whether bytes that start like this are compressed with gzip or zstd."""
    return start.startswith((_GZIP, _ZSTD))


def unpack(packed: IO[bytes], start: bytes, place: Place) -> io.BufferedReader[Any]:
    """Open compressed bytes, which start with `start`, for reading."""
    return io.BufferedReader(_Unpacked(packed, is_zstd=start.startswith(_ZSTD), place=place), 1 << 20)


class _Unpacker(Protocol):
    """What unpacks one gzip member or one zstd frame."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, /) -> bytes: ...


class _Unpacked(io.RawIOBase):
    def __init__(self, packed: IO[bytes], *, is_zstd: bool, place: Place) -> None:
        self._place = place
        self._packed = packed
        self._is_zstd = is_zstd
        self._taken = 0
        self._given = 0
        self._waiting = memoryview(b"")
        self._pieces = self._unpack()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._waiting:
            piece = next(self._pieces, None)
            if piece is None:
                return 0
            self._waiting = memoryview(piece)
        count = min(len(buffer), len(self._waiting))
        buffer[:count] = self._waiting[:count]
        self._waiting = self._waiting[count:]
        self._given += count
        self._check_size()
        return count

    def _unpack(self) -> Iterator[bytes]:
        kind = "zstd" if self._is_zstd else "gzip"
        size = _ZSTD_PIECE if self._is_zstd else _GZIP_PIECE
        errors: tuple[type[Exception], ...] = (zlib.error, *self._list_errors())
        unpacker = self._new_unpacker()
        is_begun = False
        try:
            while data := self._packed.read(size):
                self._taken += len(data)
                while data and (is_begun or data.strip(b"\0")):  # gzip files may be padded with zeros
                    is_begun = True
                    yield unpacker.decompress(data)
                    data = b""
                    if unpacker.eof:
                        data = unpacker.unused_data
                        unpacker, is_begun = self._new_unpacker(), False
        except errors as error:
            raise UnreadableTraceError(
                f"is a damaged {kind} file ({error}); copy it again", place=self._place
            ) from error
        if is_begun:
            raise UnreadableTraceError(
                f"is a damaged {kind} file: it ends in the middle; copy it again, or wait until it is written",
                place=self._place,
            )

    def _new_unpacker(self) -> _Unpacker:
        if not self._is_zstd:
            return zlib.decompressobj(31)
        decompressor = _import_zstandard(self._place).ZstdDecompressor(max_window_size=_LARGEST_WINDOW)
        return decompressor.decompressobj()  # type: ignore[no-any-return]

    def _list_errors(self) -> tuple[type[Exception], ...]:
        return (_import_zstandard(self._place).ZstdError,) if self._is_zstd else ()

    def _check_size(self) -> None:
        ratio = MAX_ZSTD_RATIO if self._is_zstd else MAX_GZIP_RATIO
        if self._given > MAX_UNPACKED_GB << 30:
            limit = f"{MAX_UNPACKED_GB} GB"
        elif self._given > FREE_MB << 20 and self._given > ratio * self._taken:
            limit = f"{ratio:,} times its size"
        else:
            return
        command = "zstd -d" if self._is_zstd else "gunzip -k"
        raise UnreadableTraceError(
            f"unpacks to more than {limit}, which is more than any export does; if you trust it, unpack it yourself "
            f"(`{command} FILE`) and read the result",
            place=self._place,
        )


def _import_zstandard(place: Place) -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise UnreadableTraceError(
            "is compressed with zstd; to read it, run: pip install 'promptiter[zstd]'", place=place
        ) from error
    return zstandard
