"""Writes large records as JSON piece by piece: a run has more rows than should be in memory as JSON at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import IO, Any

import orjson

from promptiter.evaluation.result import Evaluation
from promptiter.runlog.codec import to_plain
from traces.model import Json

_LAYOUT = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS


class Pieces(dict[str, Json]):
    """A JSON object that is written piece by piece. Lists that are, are iterators."""


def open_record(record: Any, **pieces: Iterator[Json] | Pieces | None) -> Pieces:
    """A record as JSON, with these fields as the pieces to write."""
    empty = {name: () if isinstance(piece, Iterator) else None for name, piece in pieces.items()}
    return Pieces(to_plain(replace(record, **empty)), **pieces)


def open_evaluation(evaluation: Evaluation | None) -> Pieces | None:
    """An evaluation with one row in memory at a time."""
    return None if evaluation is None else open_record(evaluation, rows=map(to_plain, evaluation.rows))


def write_pieces(file: IO[bytes], value: Json, *, indent: bytes = b"") -> None:
    """Write JSON with sorted keys, indented by two spaces, as orjson writes a whole document."""
    match value:
        case Pieces():
            members = ((orjson.dumps(name) + b": ", each) for name, each in sorted(value.items()))
            _write_members(file, b"{", members, b"}", indent=indent)
        case Iterator():
            _write_members(file, b"[", ((b"", each) for each in value), b"]", indent=indent)
        case _:
            file.write(orjson.dumps(value, option=_LAYOUT).replace(b"\n", b"\n" + indent))


def _write_members(
    file: IO[bytes], opening: bytes, members: Iterable[tuple[bytes, Json]], closing: bytes, *, indent: bytes
) -> None:
    """Write the members, each after its name, on lines of their own."""
    separator = b"\n" + indent + b"  "
    file.write(opening)
    is_empty = True
    for name, member in members:
        file.write((separator if is_empty else b"," + separator) + name)
        write_pieces(file, member, indent=indent + b"  ")
        is_empty = False
    file.write(closing if is_empty else b"\n" + indent + closing)
