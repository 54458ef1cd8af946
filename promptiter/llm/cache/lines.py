"""The lines of a cache file: JSON objects whose first field is a checksum of the rest.

    {"sum":"5d1c0f3a","v":1,"key":"…","call":{…},"model":{…}}

A line with a `key` is an answer. The call log of a run also has short lines of other kinds, which a cache skips.
"""

from __future__ import annotations

import hashlib
import os

import orjson

from promptiter.errors import SetupError
from promptiter.llm.cache.keys import SCHEMA_VERSION
from traces.model import Json

START = b'{"sum":"'
_REST = len(START) + 8 + len(b'",')
_VERSION = b'"v":%d,' % SCHEMA_VERSION
_ANSWER = _VERSION + b'"key":"'


def format_line(body: bytes) -> bytes:
    """A JSON object as a line with its checksum."""
    rest = body[1:]
    return b'%s%s",%s\n' % (START, _sum(rest), rest)


def is_intact(line: bytes) -> bool:
    """Whether a line is complete and matches its checksum."""
    return line.startswith(b'%s%s",' % (START, _sum(line[_REST:].rstrip(b"\n"))))


def read_key(line: bytes, *, path: str | os.PathLike[str]) -> bytes | None:
    """The raw key of an intact line, or None if it is not an answer. SetupError if another release wrote it."""
    if line.startswith(_ANSWER, _REST):
        start = _REST + len(_ANSWER)
        return bytes.fromhex(line[start : start + 64].decode())
    if not line.startswith(_VERSION, _REST):
        raise version_error(path, orjson.loads(line).get("v"))
    return None


def version_error(path: str | os.PathLike[str], version: Json) -> SetupError:
    return SetupError(
        f"the cache {os.fspath(path)!r} has version {version}, this release reads {SCHEMA_VERSION}; upgrade promptiter "
        "or use another path"
    )


def _sum(rest: bytes) -> bytes:
    return hashlib.sha256(rest).hexdigest()[:8].encode()
