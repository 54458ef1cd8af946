"""Eval sets in files: the EvalSet JSON of ADK and trpc-agent, and plain cases as JSON, JSON lines, CSV or YAML.

The suffix of the file says which: `.json`, `.jsonl` (or `.ndjson`), `.csv`, `.yaml` (or `.yml`).
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import orjson

from promptiter.errors import EvalSetError, nearest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.evalset_json import is_eval_set, read_eval_set, write_eval_set
from promptiter.evaluation.data.evalset_rows import read_csv, read_lines, read_rows
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.user_files import Location
from promptiter.wording import join_names
from traces.model import Json, holds_non_finite

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".csv", ".yaml", ".yml")


def load_eval_set(source: str | os.PathLike[str]) -> EvalSet:
    """Read an eval set from a file, or one case of it from `file.json:case_id`.

    Raises EvalSetError, which says what is wrong and where.
    """
    file, case_id = _split_case_id(os.fspath(source))
    eval_set, locations = _read(_read_text(file), file)
    _check_cases(eval_set, locations, Location(file))
    return eval_set if case_id is None else _select_case(eval_set, case_id, file)


def build_eval_set(name: str, rows: Sequence[Mapping[str, Json]]) -> EvalSet:
    """An eval set of rows as in files: `build_eval_set("train", [{"input": "2 + 2?", "expected": "4"}])`.

    Raises EvalSetError, which says what is wrong and where.
    """
    location = Location(f"eval set {name!r}")
    eval_set, locations = read_rows([*rows], location, name=name)
    _check_cases(eval_set, locations, location)
    return eval_set


def dump_eval_set(eval_set: EvalSet) -> bytes:
    """The eval set as EvalSet JSON in snake_case. Loading it gives an equal one, or EvalSetError says why not."""
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


def _split_case_id(source: str) -> tuple[str, str | None]:
    """A file's own name may hold colons, so the longest name that exists is the file and the rest is a case id."""
    file, case_id = source, None
    while not Path(file).is_file() and ":" in file:
        file = file.rpartition(":")[0]
        case_id = source[len(file) + 1 :]
    return (file, case_id) if Path(file).is_file() else (source, None)


def _select_case(eval_set: EvalSet, case_id: str, file: str) -> EvalSet:
    cases = tuple(case for case in eval_set.cases if case.id == case_id)
    if not cases:
        ids = [case.id for case in eval_set.cases]
        known = join_names([repr(each) for each in ids], limit=5)
        raise EvalSetError(f"{file}: has no case {case_id!r}{nearest(case_id, ids)}; its cases are {known}")
    return replace(eval_set, cases=cases)


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
