"""Snapshots: a plain JSON copy of any value, which later changes to the value do not affect.

Large and binary values are stored as blobs, under their digest. Nothing here fails: a value that JSON cannot represent
becomes readable text.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, MutableMapping
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import orjson

from traces.model import EMPTY, Blob, Json, Snapshot, digest, escape_surrogates

INLINE_LIMIT = 256 * 1024
"""Longest snapshot that is stored in the trace, in characters; a longer one is stored as a blob."""

_MAX_DEPTH = 100

Blobs = MutableMapping[str, bytes]


def take_snapshot(value: Any, blobs: Blobs) -> Snapshot:
    """Copy any value into a Snapshot."""
    if type(value) is str and len(value) <= INLINE_LIMIT:
        return Snapshot(escape_surrogates(value))
    if value is None or isinstance(value, Snapshot):
        return value or EMPTY
    stored: list[Blob] = []
    copied = to_plain_json(value, blobs, stored)
    if isinstance(value, bytes):
        return Snapshot(blobs=tuple(stored))
    if isinstance(copied, str):
        if len(copied) <= INLINE_LIMIT:
            return Snapshot(copied)
        return Snapshot(copied[:INLINE_LIMIT], blobs=(_store_blob(copied.encode(), "text/plain", blobs),))
    raw = orjson.dumps(copied)
    if len(raw) <= INLINE_LIMIT:
        return Snapshot(data=copied, blobs=tuple(stored))
    whole = _store_blob(raw, "application/json", blobs)
    return Snapshot(raw[:INLINE_LIMIT].decode(errors="ignore"), blobs=(whole, *stored))


def to_bounded_json(value: Any, blobs: Blobs) -> Json:
    """Copy any value into JSON of bounded size: a larger one becomes its beginning and a blob with all of it."""
    copied = to_plain_json(value, blobs, [])
    raw = orjson.dumps(copied)
    if len(raw) <= INLINE_LIMIT:
        return copied
    blob = _store_blob(raw, "application/json", blobs)
    return {"beginning": raw[:1024].decode(errors="ignore"), "blob": dataclasses.asdict(blob)}


def to_plain_json(
    value: Any, blobs: Blobs | None = None, stored: list[Blob] | None = None, _above: tuple[int, ...] = ()
) -> Json:
    """Copy any value into plain JSON. Bytes are stored as blobs and replaced by their digest, size and type."""
    if type(value) is str:
        return escape_surrogates(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, Enum):  # first, because it may be a str or an int too
        return to_plain_json(value.value, blobs, stored, _above)
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
        if stored is not None:
            stored.append(blob)
        return dataclasses.asdict(blob)
    if id(value) in _above or len(_above) >= _MAX_DEPTH:
        return describe_value(value)
    above = (*_above, id(value))
    if isinstance(value, Mapping):
        return {_to_key(key): to_plain_json(inner, blobs, stored, above) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain_json(inner, blobs, stored, above) for inner in value]
    if isinstance(value, set | frozenset):
        return [to_plain_json(inner, blobs, stored, above) for inner in sorted(value, key=repr)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
        return to_plain_json(fields, blobs, stored, above)
    if hasattr(type(value), "model_dump"):  # pydantic
        return to_plain_json(value.model_dump(), blobs, stored, above)
    if isinstance(value, UUID | Decimal):
        return str(value)
    if hasattr(type(value), "isoformat"):
        return str(value.isoformat())
    return describe_value(value)


def describe_value(value: object) -> str:
    """Describe a value by its repr; an exception by its message."""
    try:
        return escape_surrogates(str(value) if isinstance(value, BaseException) else repr(value))
    except Exception:  # noqa: BLE001 - a broken __repr__ must not break the recorded run
        return f"<{type(value).__qualname__}>"


def _to_key(key: object) -> str:
    if isinstance(key, Enum):
        return _to_key(key.value)
    return escape_surrogates(key) if isinstance(key, str) else describe_value(key)


def _store_blob(raw: bytes, media_type: str, blobs: Blobs) -> Blob:
    blob = Blob(digest(raw), len(raw), media_type)
    blobs.setdefault(blob.digest, raw)
    return blob
