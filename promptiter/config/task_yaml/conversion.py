"""Converts task.yaml to the keys of promptiter.yaml, so that every command works on it as on any run."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from promptiter.config.task_yaml.document import TaskDocument, parse_task_file
from promptiter.tasks.files.guards import list_constraints
from promptiter.tasks.files.task import FileTask, TaskConstraint
from promptiter.tasks.files.workspace import open_workspace
from traces.model import Json

SCORER = "task"
"""The scorer of promptiter.yaml that is the one of the agent's task.yaml."""

OFFLINE_EDITOR = "promptiter.tasks.files.offline_editor:edit_offline"
RESULTS_LOG = "promptiter.config.task_yaml.parts:build_results_log"
BRANCHES = "promptiter.config.task_yaml.parts:build_branch_writer"

BRANCH_PREFIX = "promptiter/{id}"


def convert_task_yaml(document: Mapping[str, Json], *, file: Path, environ: Mapping[str, str]) -> dict[str, Json]:
    """The run of a task.yaml as a document of promptiter.yaml. A SetupError lists its problems."""
    found = parse_task_file(document, file=file, environ=environ)
    given, task = found.given, found.task
    budget = given.budget
    converted: dict[str, Json] = {
        "agent": {"task": file.name},
        "scorer": SCORER,
        "python_path": list(dict.fromkeys((".", os.path.relpath(task.root, task.folder)))),
        "acceptance": convert_policy(task, repeats=given.repeats),
        "edit_limits": {
            "max_files": given.artifacts.max_files_per_iteration,
            "max_changed_lines": given.mutation.max_changed_lines,
        },
        "stop": {
            "max_failures": 1 if given.policy.on_failure == "stop" else budget.max_failures,
            "minutes": budget.max_minutes,
        },
        "max_rounds": budget.max_iterations,
        "budget": {"max_usd": budget.max_usd, "max_calls": budget.max_calls, "max_tokens": budget.max_tokens},
        "evaluation": {"repeats": given.repeats, "concurrency": max(given.parallel, given.repeats)},
        "search": _convert_search(found),
        "observers": _convert_observers(found),
        "review": given.review,
        "runs": given.runs,
        "seed": given.seed,
        **_convert_models(found),
    }
    cleaned = {key: _drop_nulls(value) for key, value in converted.items()}
    # An empty `stop` is kept: without it, a run would end at a perfect score, and a tie-breaker may still improve.
    return {key: value for key, value in cleaned.items() if value not in (None, {}, []) or key == "stop"}


def convert_policy(task: FileTask, *, repeats: int = 1) -> dict[str, Json]:
    """What a candidate of a task must show, as the section `acceptance`: bounds first, then the primary figure.

    With repeats, a difference must exceed the noise between them.
    """
    primary = task.primary
    return {
        "bounds": [_convert_bound(each) for each in list_constraints(task)],
        "figure_gain": {
            "figure": primary.metric,
            "direction": primary.direction,
            "min_gain": primary.min_gain,
            "tie_breakers": [{each.better: each.metric} for each in task.tie_breakers],
            "sigma": 1.0 if repeats > 1 else None,
        },
    }


def find_editor(found: TaskDocument) -> str | None:
    """The model that edits: that of `mutation`, or the only one of `models`; None if there is none."""
    given = found.given
    if given.mutation.model is not None:
        return given.mutation.model
    if isinstance(given.models, str):
        return given.models
    names = list(given.models or {})
    return names[0] if len(names) == 1 and given.mutation.mode == "direct_edit" else None


def _convert_bound(bound: TaskConstraint) -> dict[str, Json]:
    return {"figure": bound.metric, "op": bound.op, "value": bound.value}


def _convert_search(found: TaskDocument) -> Json:
    given, mutation, task = found.given, found.given.mutation, found.task
    if given.search is not None:
        if isinstance(given.search, str):
            return {"name": given.search}
        return {"name": given.search.name, "options": given.search.options}
    options: dict[str, Json] = {
        "parallel": given.parallel,
        "instructions": "\n\n".join(filter(None, (task.description, task.prompt))),
        "history": [str(found.folder / each) for each in given.histories],
        "function": mutation.function,
    }
    if len(task.objectives) > 1:
        options["objectives"] = {each.metric: each.direction for each in task.objectives}
    if mutation.mode == "command":
        options |= _convert_command(found)
    elif mutation.mode == "direct_edit" and find_editor(found) is None:
        options["function"] = OFFLINE_EDITOR
    return {"name": "edits", "options": options}


def _convert_command(found: TaskDocument) -> dict[str, Json]:
    """The command that edits, and the private copy of the workspace that it works in."""
    given, task, mutation = found.given, found.task, found.given.mutation
    command = mutation.command
    return {
        "command": shlex.split(command) if isinstance(command, str) else command,
        "timeout_s": mutation.timeout_seconds,
        "environment": given.environment,
        "inherit": given.inherit,
        "workspace": {
            "root": str(task.root),
            "artifacts": list(open_workspace(task).paths),
            "hidden": list(task.hidden),
            "protected": list(task.protected),
            "repositories": list(task.repositories),
            "disk_bytes": task.sandbox.disk_bytes,
            "processes": task.sandbox.processes,
            "memory_bytes": task.sandbox.memory_bytes,
            "network": task.sandbox.network,
            "sandbox": task.sandbox.kind,
        },
    }


def _convert_observers(found: TaskDocument) -> list[Json]:
    """The log of results, and the branches of kept candidates."""
    given, task = found.given, found.task
    file, candidates = (found.resolve(each) for each in (given.logging.results_file, given.logging.candidate_dir))
    observers: list[Json] = []
    if file is not None or candidates is not None:
        observers.append({"name": RESULTS_LOG, "options": {"task": str(found.file.absolute())}})
    if given.branch:
        prefix = BRANCH_PREFIX.format(id=task.id) if given.branch is True else given.branch
        observers.append({"name": BRANCHES, "options": {"task": str(found.file.absolute()), "prefix": prefix}})
    return observers


def _convert_models(found: TaskDocument) -> dict[str, Json]:
    models, editor = found.given.models, find_editor(found)
    return {"models": models if isinstance(models, dict) else None, "stages": editor}


def _drop_nulls(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _drop_nulls(each) for key, each in value.items() if each is not None}
    return [_drop_nulls(each) for each in value] if isinstance(value, list) else value
