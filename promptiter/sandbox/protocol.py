"""Messages between promptiter and the supervisor of a copy: a JSON object, and bytes that are not worth encoding.

Each begins with the sizes of both parts. The supervisor imports this module too: standard library only.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

HEADER = struct.Struct(">QQ")

Message = dict[str, Any]
"""The JSON part of a message."""


def encode_message(message: Mapping[str, Any], data: bytes = b"") -> bytes:
    """A message as it is sent. Paths are texts with surrogates, as Python has them, so ASCII keeps them whole."""
    text = json.dumps(message, ensure_ascii=True).encode("ascii")
    return HEADER.pack(len(text), len(data)) + text + data


def decode_text(text: bytes) -> Message:
    """The JSON part of a message."""
    message: Message = json.loads(text)
    return message


def read_message(descriptor: int) -> tuple[Message, bytes]:
    """Wait for a message. EOFError if the other side has ended."""
    text_size, data_size = HEADER.unpack(_read_exactly(descriptor, HEADER.size))
    return decode_text(_read_exactly(descriptor, text_size)), _read_exactly(descriptor, data_size)


def write_message(descriptor: int, message: Mapping[str, Any], data: bytes = b"") -> None:
    """Send a message. Raises BrokenPipeError if the other side has ended."""
    left = memoryview(encode_message(message, data))
    while left:
        left = left[os.write(descriptor, left) :]


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
