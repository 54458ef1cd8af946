"""The formats of eval sets: which reader a file needs, and what all cases must respect.

`evalset` imports this module when the first cases are read: the readers, and pydantic, take a while.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson

from promptiter.errors import EvalSetError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.evalset_json import is_eval_set, read_eval_set, write_eval_set
from promptiter.evaluation.data.evalset_rows import read_csv, read_lines, read_rows
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.user_files import Location
from traces.model import Json, holds_non_finite

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".yaml", ".yml")


def read_file(file: str) -> EvalSet:
    """The eval set of a file, checked."""
    eval_set, locations = _read(_read_text(file), file)
    _check_cases(eval_set, locations, Location(file))
    return eval_set


def read_given_rows(rows: Sequence[Mapping[str, Json]], *, name: str) -> EvalSet:
    """The eval set of rows that were not read from a file, checked."""
    location = Location(f"eval set {name!r}")
    eval_set, locations = read_rows([*rows], location, name=name)
    _check_cases(eval_set, locations, location)
    return eval_set


def write_json(eval_set: EvalSet) -> bytes:
    """EvalSet JSON that is read as an equal eval set."""
    document = write_eval_set(eval_set)
    if holds_non_finite(document):
        raise EvalSetError(f"eval set {eval_set.id!r} holds a NaN or infinite number; write it as text")
    try:
        raw = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        raise EvalSetError(f"eval set {eval_set.id!r} holds a value that JSON cannot: {error}") from error
    location = Location(f"eval set {eval_set.id!r}")
    again, locations = read_eval_set(orjson.loads(raw), location)
    _check_cases(again, locations, location)
    for case, read in zip(eval_set.cases, again.cases, strict=True):
        if case != read:
            raise EvalSetError(
                f"case {case.id!r} of eval set {eval_set.id!r} cannot be written in this format; "
                f"it would be read as {read}"
            )
    return raw


def _read_text(file: str) -> str:
    try:
        raw = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise EvalSetError(f"{file}: cannot be read: {reason or error}; check the path") from error
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise EvalSetError(f"{file}: is UTF-16 text; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = Location(file, line=raw.count(b"\n", 0, error.start) + 1)
        raise EvalSetError(f"{line}: invalid UTF-8 at byte {error.start} of the file; save it as UTF-8") from error
    if not text or text.isspace():
        raise EvalSetError(f"{file}: is empty; write at least one case")
    return text


def _read(text: str, file: str) -> tuple[EvalSet, list[Location]]:
    path = Path(file)
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return read_lines(text, file=file, name=path.stem)
        case ".csv":
            return read_csv(text, file=file, name=path.stem)
        case ".yaml" | ".yml":
            return _read_document(read_yaml(text, file=file), Location(file), name=path.stem)
        case ".json":
            return _read_document(_parse_json(text, file), Location(file), name=path.stem)
    raise EvalSetError(f"{file}: the suffix {path.suffix!r} is not a known format; known are {', '.join(_SUFFIXES)}")


def _parse_json(text: str, file: str) -> Json:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise EvalSetError(
            f"{Location(file, line=error.lineno)}: is not valid JSON: {error.msg} at column {error.colno}; "
            "fix it there (files of JSON lines end in .jsonl)"
        ) from error


def _read_document(document: Json, location: Location, *, name: str) -> tuple[EvalSet, list[Location]]:
    if is_eval_set(document):
        return read_eval_set(document, location)
    if isinstance(document, list) or (isinstance(document, dict) and "cases" in document):
        return read_rows(document, location, name=name)
    raise EvalSetError(
        f'{location}: is not an eval set: expected {{"eval_set_id": …, "eval_cases": […]}}, {{"cases": […]}} '
        'or a list of {"input": …, "expected": …}'
    )


def _check_cases(eval_set: EvalSet, locations: Sequence[Location], whole: Location) -> None:
    """There must be cases, with unique ids, and with values that JSON can hold: content hashes are taken of JSON."""
    if not eval_set.cases:
        raise EvalSetError(f"{whole}: has no cases; write at least one")
    first: dict[str, Location] = {}
    for case, location in zip(eval_set.cases, locations, strict=True):
        if not case.id:
            raise EvalSetError(f"{location}: the id of the case is empty; give it one")
        if case.id in first:
            taken = first[case.id].in_file
            raise EvalSetError(f"{location}: the id {case.id!r} is already that of {taken}; give each case its own id")
        first[case.id] = location
        try:
            orjson.dumps(case)
        except TypeError as error:
            raise EvalSetError(
                f"{location}: case {case.id!r} holds a value that cannot be written as JSON: {error}"
            ) from error
