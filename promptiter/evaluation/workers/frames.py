"""Frames: messages between a host and a worker process, over one socket.

A frame is a header (length of the payload, kind, number) and the payload. The number is that of the call it belongs to.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from enum import IntEnum
from typing import TypeAlias

_HEADER = struct.Struct(">QBI")


class FrameKind(IntEnum):
    """What a frame is. A worker runs one job at a time; the result is the last frame of a job."""

    READY = 0  # worker: it has started
    JOB = 1  # host: run this
    RESULT = 2  # worker: the result of the job
    OVERDUE = 3  # worker: the agent blocks beyond its deadline; the process ends
    CALL = 4  # worker: answer this call
    ANSWER = 5  # host: the answer to a call
    EXECUTE = 6  # host: execute the tool of a call
    EXECUTED = 7  # worker: what the tool returned
    CANCEL = 8  # worker: the call is not needed; host: nor is the execution of its tool


Frame: TypeAlias = tuple[FrameKind, int, bytes]


def encode_frame(kind: FrameKind, number: int = 0, payload: bytes = b"") -> bytes:
    return _HEADER.pack(len(payload), kind, number) + payload


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """Read a frame on the event loop. Raises IncompleteReadError or ConnectionError if the other side has ended."""
    length, kind, number = _HEADER.unpack(await reader.readexactly(_HEADER.size))
    return FrameKind(kind), number, await reader.readexactly(length)


def receive_frame(connection: socket.socket) -> Frame | None:
    """Receive a frame in a thread. None if the other side has ended."""
    header = _receive(connection, _HEADER.size)
    if header is None:
        return None
    length, kind, number = _HEADER.unpack(header)
    payload = _receive(connection, length)
    return None if payload is None else (FrameKind(kind), number, payload)


def _receive(connection: socket.socket, length: int) -> bytes | None:
    received = bytearray()
    while len(received) < length:
        try:
            part = connection.recv(min(length - len(received), 1 << 20))
        except ConnectionError:
            return None
        if not part:
            return None
        received += part
    return bytes(received)
