"""Eval sets in files: the EvalSet JSON of ADK and trpc-agent, and plain cases as JSON, JSON lines, CSV or YAML.

The suffix of the file says which: `.json`, `.jsonl` (or `.ndjson`), `.csv`, `.yaml` (or `.yml`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from promptiter.errors import EvalSetError, nearest
from promptiter.evaluation.data.case import EvalSet
from promptiter.wording import join_names
from traces.model import Json


def load_eval_set(source: str | os.PathLike[str]) -> EvalSet:
    """Read an eval set from a file, or one case of it from `file.json:case_id`.

    Raises EvalSetError, which says what is wrong and where.
    """
    from promptiter.evaluation.data.evalset_formats import read_file

    file, case_id = _split_case_id(os.fspath(source))
    eval_set = read_file(file)
    return eval_set if case_id is None else _select_case(eval_set, case_id, file)


def build_eval_set(name: str, rows: Sequence[Mapping[str, Json]]) -> EvalSet:
    """An eval set of rows as in files: `build_eval_set("train", [{"input": "2 + 2?", "expected": "4"}])`.

    Raises EvalSetError, which says what is wrong and where.
    """
    from promptiter.evaluation.data.evalset_formats import read_given_rows

    return read_given_rows(rows, name=name)


def dump_eval_set(eval_set: EvalSet) -> bytes:
    """The eval set as EvalSet JSON in snake_case. Loading it gives an equal one, or EvalSetError says why not."""
    from promptiter.evaluation.data.evalset_formats import write_json

    return write_json(eval_set)


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
