"""Mutations of real exports: what disks, networks, other tools and ill will do to them."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

EXPORTS = Path(__file__).parent.parent / "traces" / "exports"

Mutation = Callable[[bytes, Random], bytes]


def list_mutations(count: int, *, seed: int = 0) -> Iterator[tuple[str, bytes]]:
    """Yield mutated exports, each with a name: every mutation of every file in turn, with other random choices."""
    files = sorted(path for path in EXPORTS.iterdir() if path.is_file() and ".truth." not in path.name)
    pairs = [(path, mutate) for mutate in (*BYTES, *TREES) for path in files]
    Random(seed).shuffle(pairs)
    usable = [pair for pair in pairs if pair[1] in BYTES or pair[0].suffix != ".pb"]
    for number in range(count):
        path, mutate = usable[number % len(usable)]
        rng = Random(f"{seed}/{number}")
        yield f"{number}: {mutate.__name__} of {path.name}", mutate(path.read_bytes(), rng)


def flip_bytes(raw: bytes, rng: Random) -> bytes:
    changed = bytearray(raw)
    for _ in range(rng.choice((1, 3, 30))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def truncate(raw: bytes, rng: Random) -> bytes:
    return raw[: rng.randrange(len(raw))]


def cut_the_start(raw: bytes, rng: Random) -> bytes:
    return raw[rng.randrange(len(raw)) :]


def insert_bytes(raw: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + rng.randbytes(rng.choice((1, 10, 1000))) + raw[at:]


def insert_invalid_utf8(raw: bytes, rng: Random) -> bytes:
    at = rng.randrange(len(raw))
    return raw[:at] + rng.choice((b"\xff", b"\xc3", b"\xed\xa0\x80", b"\x00")) + raw[at:]


def drop_lines(raw: bytes, rng: Random) -> bytes:
    lines = raw.splitlines(keepends=True)
    return b"".join(line for line in lines if rng.random() > 0.2)


def repeat_lines(raw: bytes, rng: Random) -> bytes:
    return b"".join(line * rng.choice((1, 1, 2, 3)) for line in raw.splitlines(keepends=True))


def shuffle_lines(raw: bytes, rng: Random) -> bytes:
    lines = raw.splitlines(keepends=True)
    rng.shuffle(lines)
    return b"".join(lines)


def join_twice(raw: bytes, rng: Random) -> bytes:
    return raw + raw[rng.randrange(len(raw)) :]


def frame_wrongly(raw: bytes, rng: Random) -> bytes:
    size = len(raw) + rng.choice((-5, 0, 1, 1 << 20))
    return max(size, 0).to_bytes(4, "big") + raw


def damage_gzip(raw: bytes, rng: Random) -> bytes:
    return flip_bytes(gzip.compress(raw, mtime=0), rng)


BYTES: tuple[Mutation, ...] = (
    flip_bytes,
    truncate,
    cut_the_start,
    insert_bytes,
    insert_invalid_utf8,
    drop_lines,
    repeat_lines,
    shuffle_lines,
    join_twice,
    frame_wrongly,
    damage_gzip,
)


def _change_tree(raw: bytes, rng: Random, change: Callable[[Any, Any, Any, Random], Any], share: float) -> bytes:
    """Replace some values of all JSON documents in a file: `change(key, value, parent, rng)` gives the new ones."""
    decoder, text = json.JSONDecoder(), raw.decode()
    documents, position = [], 0
    while position < len(text):
        document, position = decoder.raw_decode(text, position)
        documents.append(document)
        while position < len(text) and text[position].isspace():
            position += 1

    def walk(value: Any) -> Any:
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in list(items):
            value[key] = change(key, inner, value, rng) if rng.random() < share else walk(inner)
        return value

    return "\n".join(json.dumps(walk(document)) for document in documents).encode()


_ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    -(10**400),
    1e308,
    math.nan,
    math.inf,
    "",
    "x",
    "\ud800",
    "0" * 5000,
    [],
    {},
    [[]],
    [None],
    {"a": None},
)


def replace_values(raw: bytes, rng: Random) -> bytes:
    return _change_tree(raw, rng, lambda _key, _value, _parent, rng: rng.choice(_ODD), 0.003)


def replace_many_values(raw: bytes, rng: Random) -> bytes:
    return _change_tree(raw, rng, lambda _key, _value, _parent, rng: rng.choice(_ODD), 0.03)


def rename_keys(raw: bytes, rng: Random) -> bytes:
    def change(key: Any, value: Any, parent: Any, rng: Random) -> Any:
        if isinstance(parent, dict):
            parent[rng.choice((str(key).upper(), "", "key", "value", "spans", "context"))] = value
        return value

    return _change_tree(raw, rng, change, 0.01)


def _is_named(key: Any, *parts: str) -> bool:
    return isinstance(key, str) and any(part in key.lower() for part in parts)


def change_ids(raw: bytes, rng: Random) -> bytes:
    seen: list[Any] = ["0" * 16, "f" * 32, "zz", 7, "AAAAAAAAAAA="]

    def change(key: Any, value: Any, _parent: Any, rng: Random) -> Any:
        if _is_named(key, "spanid", "span_id", "traceid", "trace_id", "parent_id"):
            seen.append(value)
            return rng.choice(seen) if rng.random() < 0.1 else value
        return _walk_on(value, change, rng)

    return _change_tree(raw, rng, change, 1.0)


def make_cycles(raw: bytes, rng: Random) -> bytes:
    """Parents and links that point anywhere, so that spans are their own ancestors."""
    ids: list[Any] = []

    def change(key: Any, value: Any, _parent: Any, rng: Random) -> Any:
        if _is_named(key, "spanid", "span_id") and isinstance(value, str) and not _is_named(key, "parent"):
            ids.append(value)
        if _is_named(key, "parent") and isinstance(value, str | None) and ids:
            return rng.choice(ids)
        return _walk_on(value, change, rng)

    return _change_tree(raw, rng, change, 1.0)


def change_times(raw: bytes, rng: Random) -> bytes:
    times = (0, -1, "0", "", None, 2**63, 2**70, 1e300, math.nan, "9999-12-31T23:59:59Z", "0001-01-01", "PT5S", "noon")

    def change(key: Any, value: Any, _parent: Any, rng: Random) -> Any:
        if _is_named(key, "time", "duration"):
            return rng.choice(times) if rng.random() < 0.3 else value
        return _walk_on(value, change, rng)

    return _change_tree(raw, rng, change, 1.0)


def nest_deeply(raw: bytes, rng: Random) -> bytes:
    def change(_key: Any, value: Any, _parent: Any, rng: Random) -> Any:
        for _ in range(rng.choice((50, 150, 400))):
            value = [value] if rng.random() < 0.5 else {"arrayValue": {"values": [value]}}
        return value

    return _change_tree(raw, rng, change, 0.002)


def nest_text(raw: bytes, rng: Random) -> bytes:
    """Attributes whose text is deep or odd JSON."""
    deep = rng.choice(("[" * 900 + "]" * 900, '{"a":' * 300 + "1" + "}" * 300, "[NaN]", '{"role": 5}', "[" * 100_000))

    def change(_key: Any, value: Any, _parent: Any, _rng: Random) -> Any:
        return deep if isinstance(value, str) else value

    return _change_tree(raw, rng, change, 0.01)


def _walk_on(value: Any, change: Callable[[Any, Any, Any, Random], Any], rng: Random) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        value[key] = change(key, inner, value, rng)
    return value


TREES: tuple[Mutation, ...] = (
    replace_values,
    replace_many_values,
    rename_keys,
    change_ids,
    make_cycles,
    change_times,
    nest_deeply,
    nest_text,
)
