"""Writes result.json piece by piece: a run has more rows than should be in memory as JSON at once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import IO, TYPE_CHECKING

import orjson

from promptiter.evaluation.result import Evaluation
from promptiter.runlog.codec import to_plain
from promptiter.runlog.events import SCHEMA_VERSION
from traces.model import Json

if TYPE_CHECKING:
    from promptiter.runlog.results import CandidateResult, RoundResult, RunResult

_LAYOUT = orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS


def write_result(result: RunResult, file: IO[bytes]) -> None:
    """Write a result, in a fixed order, with one row in memory at a time."""
    _write(file, _open_run(result), indent=b"")
    file.write(b"\n")


class _Pieces(dict[str, Json]):
    """A JSON object that is written piece by piece. Lists that are, are iterators."""


def _open_run(result: RunResult) -> _Pieces:
    rest = to_plain(replace(result, baseline=None, accepted=None, evaluations=(), rounds=()))
    return _Pieces(
        rest,
        schema_version=SCHEMA_VERSION,
        baseline=None if result.baseline is None else _open_evaluation(result.baseline),
        accepted=None if result.accepted is None else _open_evaluation(result.accepted),
        evaluations=map(_open_evaluation, result.evaluations),
        rounds=map(_open_round, result.rounds),
    )


def _open_round(each: RoundResult) -> _Pieces:
    return _Pieces(
        to_plain(replace(each, candidates=(), evaluations=())),
        candidates=map(_open_candidate, each.candidates),
        evaluations=map(_open_evaluation, each.evaluations),
    )


def _open_candidate(candidate: CandidateResult) -> _Pieces:
    return _Pieces(
        to_plain(replace(candidate, evaluations=())), evaluations=map(_open_evaluation, candidate.evaluations)
    )


def _open_evaluation(evaluation: Evaluation) -> _Pieces:
    return _Pieces(to_plain(replace(evaluation, rows=())), rows=map(to_plain, evaluation.rows))


def _write(file: IO[bytes], value: Json, *, indent: bytes) -> None:
    match value:
        case _Pieces():
            members = ((orjson.dumps(name) + b": ", each) for name, each in sorted(value.items()))
            _write_pieces(file, b"{", members, b"}", indent=indent)
        case Iterator():
            _write_pieces(file, b"[", ((b"", each) for each in value), b"]", indent=indent)
        case _:
            file.write(orjson.dumps(value, option=_LAYOUT).replace(b"\n", b"\n" + indent))


def _write_pieces(
    file: IO[bytes], opening: bytes, pieces: Iterable[tuple[bytes, Json]], closing: bytes, *, indent: bytes
) -> None:
    """Write the pieces, each after its name, on lines of their own."""
    separator = b"\n" + indent + b"  "
    file.write(opening)
    is_empty = True
    for name, piece in pieces:
        file.write((separator if is_empty else b"," + separator) + name)
        _write(file, piece, indent=indent + b"  ")
        is_empty = False
    file.write(closing if is_empty else b"\n" + indent + closing)
