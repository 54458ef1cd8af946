"""Values as they are now, as plain JSON that later changes cannot reach; large and binary ones kept by their digest.

Nothing here fails: what JSON cannot hold becomes readable text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, MutableMapping
from typing import Any

import orjson

from traces.model import EMPTY, Blob, Json, Snapshot, digest

INLINE_LIMIT = 256 * 1024
"""Characters of a snapshot that stay in the trace; what is longer goes whole into the blobs."""

_DEEPEST = 100

Blobs = MutableMapping[str, bytes]


def take_snapshot(value: Any, blobs: Blobs) -> Snapshot:
    """Any value as a Snapshot."""
    if value is None or isinstance(value, Snapshot):
        return value or EMPTY
    kept: list[Blob] = []
    made = to_plain_json(value, blobs, kept)
    if isinstance(value, bytes):
        return Snapshot(blobs=tuple(kept))
    if isinstance(made, str):
        if len(made) <= INLINE_LIMIT:
            return Snapshot(made)
        return Snapshot(made[:INLINE_LIMIT], blobs=(_store_blob(made.encode(), "text/plain", blobs),))
    raw = orjson.dumps(made)
    if len(raw) <= INLINE_LIMIT:
        return Snapshot(data=made, blobs=tuple(kept))
    whole = _store_blob(raw, "application/json", blobs)
    return Snapshot(raw[:INLINE_LIMIT].decode(errors="ignore"), blobs=(whole, *kept))


def to_bounded_json(value: Any, blobs: Blobs) -> Json:
    """Any value as JSON of bounded size: what is larger becomes its beginning and the blob that has all of it."""
    made = to_plain_json(value, blobs, [])
    raw = orjson.dumps(made)
    if len(raw) <= INLINE_LIMIT:
        return made
    blob = _store_blob(raw, "application/json", blobs)
    return {"beginning": raw[:1024].decode(errors="ignore"), "blob": dataclasses.asdict(blob)}


def to_plain_json(
    value: Any, blobs: Blobs | None = None, kept: list[Blob] | None = None, _above: tuple[int, ...] = ()
) -> Json:
    """A JSON copy of any value. Bytes go into the blobs, and their digest, size and type take their place."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return escape_surrogates(str(value))
    if isinstance(value, int):
        return int(value) if -(2**63) <= value < 2**64 else str(value)
    if isinstance(value, float):
        return (
            float(value) if math.isfinite(value) else {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(value)]
        )
    if isinstance(value, bytes | bytearray):
        blob = _store_blob(bytes(value), "application/octet-stream", {} if blobs is None else blobs)
        if kept is not None:
            kept.append(blob)
        return dataclasses.asdict(blob)
    if id(value) in _above or len(_above) >= _DEEPEST:
        return describe_value(value)
    above = (*_above, id(value))
    if isinstance(value, Mapping):
        return {_to_key(key): to_plain_json(inner, blobs, kept, above) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(inner, blobs, kept, above) for inner in value]
    if isinstance(value, set | frozenset):
        return [to_plain_json(inner, blobs, kept, above) for inner in sorted(value, key=repr)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
        return to_plain_json(fields, blobs, kept, above)
    if hasattr(type(value), "model_dump"):  # pydantic
        return to_plain_json(value.model_dump(), blobs, kept, above)
    if hasattr(type(value), "isoformat"):
        return str(value.isoformat())
    return describe_value(value)


def describe_value(value: object) -> str:
    """What a value says of itself, whatever that is; an error says its message."""
    try:
        return escape_surrogates(str(value) if isinstance(value, BaseException) else repr(value))
    except Exception:  # noqa: BLE001 - a broken __repr__ must not break the run that is recorded
        return f"<{type(value).__qualname__}>"


def escape_surrogates(text: str) -> str:
    """Text that UTF-8 can hold: half a surrogate pair is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _to_key(key: object) -> str:
    return escape_surrogates(key) if isinstance(key, str) else describe_value(key)


def _store_blob(raw: bytes, media_type: str, blobs: Blobs) -> Blob:
    blob = Blob(digest(raw), len(raw), media_type)
    blobs.setdefault(blob.digest, raw)
    return blob
