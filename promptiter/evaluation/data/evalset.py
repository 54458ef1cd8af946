"""Eval sets in files: the neighbours' EvalSet JSON, and plain cases as JSON, JSON lines, CSV or YAML.

The ending of the name says which: `.json`, `.jsonl` (or `.ndjson`), `.csv`, `.yaml` (or `.yml`).
"""

from __future__ import annotations

import codecs
import os
from dataclasses import replace
from pathlib import Path

import orjson

from promptiter.errors import EvalSetError, nearest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.document import Item, ReadSet
from promptiter.evaluation.data.evalset_json import eval_set_document, is_eval_set, read_eval_set
from promptiter.evaluation.data.evalset_rows import read_csv, read_lines, read_rows
from promptiter.evaluation.data.evalset_yaml import read_yaml
from traces.errors import Place
from traces.model import holds_non_finite

_ENDINGS = (".json", ".jsonl", ".ndjson", ".csv", ".yaml", ".yml")


def load_eval_set(source: str | os.PathLike[str]) -> EvalSet:
    """The eval set of a file, or of `file.json:case_id` that case alone; EvalSetError says what is wrong, and where."""
    file, case_id = _file_and_case(os.fspath(source))
    eval_set = _read(_text(file), file).checked()
    return eval_set if case_id is None else _only(eval_set, case_id, file)


def dump_eval_set(eval_set: EvalSet) -> bytes:
    """The eval set as the neighbours' JSON, in snake_case. Loading it gives an equal one, or EvalSetError says why."""
    document = eval_set_document(eval_set)
    if holds_non_finite(document):
        raise EvalSetError(f"eval set {eval_set.id!r} holds a NaN or infinite number; write it as text")
    try:
        raw = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    except TypeError as error:
        raise EvalSetError(f"eval set {eval_set.id!r} holds a value that JSON cannot: {error}") from error
    again = read_eval_set(Item(orjson.loads(raw), Place(f"eval set {eval_set.id!r}"))).checked()
    for case, read in zip(eval_set.cases, again.cases, strict=True):
        if case != read:
            raise EvalSetError(
                f"case {case.id!r} of eval set {eval_set.id!r} holds what the format cannot; it would be read as {read}"
            )
    return raw


def _file_and_case(source: str) -> tuple[str, str | None]:
    """A file's own name may hold colons, so the longest name that exists is the file and the rest is a case id."""
    file, case_id = source, None
    while not Path(file).is_file() and ":" in file:
        file = file.rpartition(":")[0]
        case_id = source[len(file) + 1 :]
    return (file, case_id) if Path(file).is_file() else (source, None)


def _only(eval_set: EvalSet, case_id: str, file: str) -> EvalSet:
    cases = tuple(case for case in eval_set.cases if case.id == case_id)
    if not cases:
        ids = [case.id for case in eval_set.cases]
        listed = ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
        raise EvalSetError(f"{file}: has no case {case_id!r}{nearest(case_id, ids)}; its cases are {listed}")
    return replace(eval_set, cases=cases)


def _text(file: str) -> str:
    whole = Item(None, Place(file))
    try:
        raw = Path(file).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        raise whole.wrong(f"cannot be read: {reason or error}; check the path") from error
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise whole.wrong("is UTF-16 text; save it as UTF-8")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = Item(None, Place(file, line=raw.count(b"\n", 0, error.start) + 1))
        raise line.wrong(f"invalid UTF-8 at byte {error.start} of the file; save it as UTF-8") from error
    if not text or text.isspace():
        raise whole.wrong("is empty; write at least one case")
    return text


def _read(text: str, file: str) -> ReadSet:
    path = Path(file)
    match path.suffix.lower():
        case ".jsonl" | ".ndjson":
            return read_lines(text, file=file, name=path.stem)
        case ".csv":
            return read_csv(text, file=file, name=path.stem)
        case ".yaml" | ".yml":
            return _read_document(read_yaml(text, file=file), name=path.stem)
        case ".json":
            return _read_document(_read_json(text, file), name=path.stem)
    raise EvalSetError(f"{file}: the ending {path.suffix!r} is no known format; known are {', '.join(_ENDINGS)}")


def _read_json(text: str, file: str) -> Item:
    try:
        return Item(orjson.loads(text), Place(file))
    except orjson.JSONDecodeError as error:
        place = Item(None, Place(file, line=error.lineno))
        raise place.wrong(
            f"is not valid JSON: {error.msg} at column {error.colno}; mend it there (JSON lines end in .jsonl)"
        ) from error


def _read_document(document: Item, *, name: str) -> ReadSet:
    if is_eval_set(document):
        return read_eval_set(document)
    if isinstance(document.value, list) or (isinstance(document.value, dict) and "cases" in document.value):
        return read_rows(document, name=name)
    raise document.wrong(
        'is no eval set: expected {"eval_set_id": …, "eval_cases": […]}, {"cases": […]} '
        'or a list of {"input": …, "expected": …}'
    )
