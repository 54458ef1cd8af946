"""The files that a run leaves behind: its result, its profiles, and the texts of its surfaces.

runs/<run-id>/
  result.json                  RunResult
  profiles/                    baseline.json, best.json, candidates.jsonl (parents and patches)
  report.html, report.md, trajectory.csv    for people and for other tools; see runs.report
  surfaces/                    one .md per surface that could change; where baseline and best differ, both
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Literal, TypeAlias, get_args
from urllib.parse import quote

import orjson

from promptiter.errors import SetupError
from promptiter.evaluation.trace_file import FILE_NAME as TRACES
from promptiter.evaluation.trace_file import keep_only
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.runlog.results import RunResult
from promptiter.wording import shorten
from traces import digest
from traces.files import write_atomically, write_file
from traces.model import Json

REPORT = "report.html"
LONGEST_NAME = 120

KeepTraces: TypeAlias = Literal["all", "failed", "none"]


def check_keep_traces(value: object) -> None:
    """Raise SetupError if this is not what `keep_traces` can be."""
    if value not in get_args(KeepTraces):
        known = ", ".join(map(repr, get_args(KeepTraces)))
        raise SetupError(f"keep_traces is {shorten(value)}; give one of {known}")


def write_artifacts(folder: str | os.PathLike[str], result: RunResult, *, keep_traces: KeepTraces = "all") -> None:
    """Write the result of a run into its folder, each file atomically, result.json last.

    Everything follows from the journal, so the files can be written again at any time. Once the run is final, traces
    that `keep_traces` excludes are removed.
    """
    path = Path(folder)
    for name in ("profiles", "surfaces"):
        (path / name).mkdir(exist_ok=True)
    write_file(path / "profiles" / "baseline.json", result.initial_profile.to_json())
    write_file(path / "profiles" / "best.json", result.accepted_profile.to_json())
    with write_atomically(path / "profiles" / "candidates.jsonl") as file:
        file.writelines(_candidates(result))
    texts = _texts(result)
    for name, text in texts.items():
        write_file(path / "surfaces" / name, text.encode("utf-8", "replace"))
    for surface_id in result.structure.surface_ids:
        for ending in (".md", ".baseline.md", ".best.md"):
            if (name := f"{file_name(surface_id)}{ending}") not in texts:  # from before the run was resumed
                (path / "surfaces" / name).unlink(missing_ok=True)
    if keep_traces != "all" and result.is_final:  # a run that resumes needs them
        keep_only(path / TRACES, list_failed_traces(result) if keep_traces == "failed" else ())
    with write_atomically(path / "result.json") as file:
        result.write_json(file)


def drop_all_but_best(folder: str | os.PathLike[str], result: RunResult) -> None:
    """Remove what only looking into a finished run needs: answers, traces, rejected candidates, unchanged surfaces.

    Its result, its report, its journal and the adopted profile stay, so it can be shown, judged and applied.
    """
    path, changed = Path(folder), {file_name(change.surface_id) for change in result.changes}
    others = [file for file in (path / "surfaces").glob("*.md") if not file.name.startswith(tuple(changed) or ".")]
    for file in (path / CALLS, path / TRACES, path / "profiles" / "candidates.jsonl", *others):
        file.unlink(missing_ok=True)


def file_name(surface_id: str) -> str:
    """The file name of a surface, without extension: its id, with problematic characters escaped as in `%2F`."""
    name = quote(surface_id, safe="#~")
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}~{digest(surface_id)[:8]}"


def _candidates(result: RunResult) -> Iterator[bytes]:
    """Each candidate: its parents, its patches, and the decision."""
    for each in result.rounds:
        for candidate in each.candidates:
            document = {
                "round": each.round,
                "digest": candidate.profile.digest,
                "parents": candidate.parents,
                "patches": candidate.patches.values,
                "accepted": None if candidate.decision is None else candidate.decision.accepted,
            }
            yield orjson.dumps(document, option=orjson.OPT_APPEND_NEWLINE)


def _texts(result: RunResult) -> dict[str, str]:
    texts: dict[str, str] = {}
    changes = {change.surface_id: change for change in result.changes}
    for surface_id in sorted({*result.targets, *changes}):
        name = file_name(surface_id)
        if surface_id in changes:
            texts[f"{name}.baseline.md"] = _text(changes[surface_id].before)
            texts[f"{name}.best.md"] = _text(changes[surface_id].after)
        else:
            texts[f"{name}.md"] = _text(result.accepted_profile.value(surface_id, result.structure))
    return texts


def _text(value: Json) -> str:
    """A string as it is, so that it can be copied from the file; anything else as JSON."""
    return value if isinstance(value, str) else orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n"


def list_failed_traces(result: RunResult) -> set[str]:
    """The trace digests of all case runs that did not pass, in every evaluation of the run."""
    in_rounds = (each for one in result.rounds for each in one.all_evaluations)
    rows = (row for each in chain(result.evaluations, in_rounds) for row in each.rows)
    return {name for row in rows if not row.passed for name in row.trace_digests}
