"""JSON as it is stored: as it is if it is short, otherwise compressed. The first byte tells which."""

from __future__ import annotations

import zlib

SHORT = 1 << 10
"""Bytes up to which compressing costs more than it saves."""
LEVEL = 1
_COMPRESSED = b"\x78"  # how zlib begins; no JSON does


def pack(raw: bytes) -> bytes:
    """Compress JSON if it is long."""
    return raw if len(raw) <= SHORT else zlib.compress(raw, LEVEL)


def unpack(stored: bytes) -> bytes:
    """The JSON that was packed."""
    return zlib.decompress(stored) if stored[:1] == _COMPRESSED else stored
