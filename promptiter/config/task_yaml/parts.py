"""Builds what a file task adds to a run: its scorer, and the observers that log results and write branches."""

from __future__ import annotations

from pathlib import Path

from promptiter.config.task_yaml.document import TaskDocument, read_task_file
from promptiter.errors import SetupError
from promptiter.evaluation.scorer import Scorer
from promptiter.tasks.files.branches import BranchWriter
from promptiter.tasks.files.file_scorer import FileScorer
from promptiter.tasks.files.guards import list_constraints
from promptiter.tasks.files.results_log import ResultsLog, find_foreign
from promptiter.tasks.files.workspace import open_workspace


def build_task_scorer(file: Path) -> Scorer:
    """The scorer of a task.yaml, with its hold-out. Each objective is a score, which passes at 1."""
    found = build_file_scorer(read_task_file(file))
    holdout = found.task.holdout
    return Scorer(
        found.score,
        thresholds={each.metric: 1.0 for each in found.task.objectives},
        holdout=None if holdout is None else found.score_holdout,
        holdout_cases=() if holdout is None else holdout.cases,
    )


def build_file_scorer(found: TaskDocument) -> FileScorer:
    """What measures the files of a task."""
    return FileScorer(task=found.task, workspace=open_workspace(found.task))


def build_results_log(task: str) -> ResultsLog:
    """The log of results of a task.yaml."""
    found = read_task_file(Path(task))
    given = found.given.logging
    file, candidates = found.resolve(given.results_file), found.resolve(given.candidate_dir)
    if file is not None and (problem := find_foreign(file)):
        raise SetupError(f"logging.results_file: {given.results_file!r} {problem}; name another file")
    if candidates is not None and candidates.exists() and not candidates.is_dir():
        raise SetupError(f"logging.candidate_dir: {given.candidate_dir!r} is not a folder; name another one")
    return ResultsLog(
        file,
        candidates,
        primary=found.task.primary.metric,
        constraints=list_constraints(found.task),
    )


def build_branch_writer(task: str, prefix: str) -> BranchWriter:
    """What writes a git branch for each kept candidate of a task.yaml."""
    found = read_task_file(Path(task))
    return BranchWriter(open_workspace(found.task), prefix=prefix, title=found.task.id)


def list_read_files(found: TaskDocument) -> dict[str, str]:
    """The files that decide what a run computes, by name: if one changes, the run cannot be resumed."""
    task = found.task
    hidden = () if task.holdout is None else task.holdout.files
    paths = [each for each in (*task.protected, *hidden) if (task.root / each).is_file()]
    files = {path: str(task.root / path) for path in paths}
    files |= {each.rubric_file.name: str(each.rubric_file) for each in task.judges}
    return files | {found.file.name: str(found.file)}
