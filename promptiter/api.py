"""Runs from configuration files: what `promptiter run`, `resume`, `rerun`, `evaluate` and `apply` do, for Python.

result = load_run("promptiter.yaml").begin().run_sync()
result = resume_run("runs/2026-11-15T09-30-00_1a2b3c4d").run_sync()
apply_run("runs/2026-11-15T09-30-00_1a2b3c4d")
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from promptiter.config.build import build_evaluation, build_run
from promptiter.config.comparison_plan import SEEDS, plan_comparison
from promptiter.config.comparison_runs import run_comparison
from promptiter.config.configured_run import ConfiguredEvaluation, ConfiguredRun
from promptiter.config.file import FILE_NAME, ParsedConfig, merge_settings, read_config, read_document, read_file
from promptiter.config.loading import make_importable
from promptiter.config.overlay import read_overlay, rebuild_overlaid_run
from promptiter.config.refinement import (
    ConfiguredRefinement,
    build_case_refinement,
    build_refinement,
)
from promptiter.config.refinement_settings import RefinementSettings
from promptiter.config.run_project import find_run_project
from promptiter.engine.engine import Engine
from promptiter.errors import SetupError, UnknownSurfaceError
from promptiter.llm.redaction import MASK
from promptiter.runs.apply import ApplyReport, apply_result, revert_result
from promptiter.runs.commit_message import write_commit_message, write_revert_message
from promptiter.runs.directory import RunDirectory
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import Configuration, PythonParts, RunHeader, read_header
from promptiter.runs.python_parts import rebuild_run
from promptiter.runs.search_comparison import SearchComparison
from promptiter.runs.summary import read_result, summarize
from promptiter.sources import Source
from promptiter.tasks.refine.seeds import is_run_folder
from traces.model import Json

DISPLAY_KEYS = ("quiet", "json", "review", "require")
"""Settings of how one command interacts with the user. Those of an earlier command do not count, see `_is_kept`."""


def load_run(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRun:
    """Load the run of a configuration file, or of the promptiter.yaml in a folder. Nothing is spent yet.

    `settings` override the file and have its shape: `{"budget": {"max_usd": 2}}`. A RequestError lists every problem.
    """
    return build_run(read_config(path, settings=settings, environ=environ), environ=environ)


def load_evaluation(
    path: str | os.PathLike[str],
    eval_set: str = "validation",
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredEvaluation:
    """Load the agent, the metrics and an eval set of a configuration, as `promptiter evaluate` does.

    `eval_set` is train, validation, cases or test, or a file. `await load_evaluation(...).evaluate()` runs the cases.
    """
    return build_evaluation(read_config(path, settings=settings, environ=environ), eval_set, environ=environ)


def resume_run(
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> RunDirectory:
    """Open a run to resume it, with the configuration file or the Python parts that it was started with.

    `settings` may change how it runs (`{"evaluation": {"concurrency": 4}}`), but not what was asked for: then a
    ChangedInputsError says what has changed. The parts of a run that Python began must have names; see docs/runs.md.
    """
    return load_resume(folder, settings=settings, environ=environ).resume(folder)


def load_resume(
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRun:
    """Load a run to resume it, from its configuration file, or from the Python parts that it was started with."""
    return _load_again(folder, _read_to_resume, settings or {}, environ)


def load_rerun(
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRun:
    """Load a new run of the request of an earlier one, from its run.json."""
    return _load_again(folder, _read_to_rerun, settings or {}, environ)


def compare_searches(
    configs: Sequence[str | os.PathLike[str]],
    *,
    seeds: int = SEEDS,
    budget: Mapping[str, Json] | None = None,
    folder: str | os.PathLike[str] | None = None,
    parallel: int = 1,
    environ: Mapping[str, str] | None = None,
) -> SearchComparison:
    """Run the searches of several configurations of one task with the same seeds, as `promptiter compare` does.

    `budget` caps each run: `{"max_usd": 2}`. Runs that have ended are not run again. RequestError if the tasks differ.
    """
    plan = plan_comparison(configs, seeds=seeds, budget=budget, folder=folder, environ=environ)
    return run_comparison(plan, parallel=parallel)


def load_refinement(
    folder: str | os.PathLike[str] | None,
    settings: RefinementSettings | None = None,
    *,
    target: str | None = None,
    case_id: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRefinement:
    """Load the refinement of a finished result, as `promptiter refine` does. Nothing is spent yet.

    The result is a case of a run, the files of a run with a scorer, a folder with a rubric, a run of another program,
    or the best run of a `target`.
    """
    path = None if folder is None else Path(folder)
    if path is None or is_run_folder(path) or not (path / HEADER).is_file():
        if case_id is not None:
            raise SetupError(f"--case {case_id!r} is for runs of promptiter; this result has no cases. Leave it out")
        return build_refinement(path, settings, target=target, environ=environ)
    settings = settings or RefinementSettings()
    given: dict[str, Json] = {} if settings.max_usd is None else {"budget": {"max_usd": settings.max_usd}}
    configured = load_resume(path, settings=given, environ=environ)
    return build_case_refinement(
        path,
        engine=configured.engine,
        checked=configured.checked,
        section=configured.config.refine,
        settings=settings,
        case_id=case_id,
        environ=environ,
    )


def apply_run(
    folder: str | os.PathLike[str],
    *,
    sources: Mapping[str, Source | str] | None = None,
    force: bool = False,
    require: Literal["unseen"] | None = None,
    dry_run: bool = False,
    commit: bool = False,
) -> ApplyReport:
    """Write the adopted values of a run to where they are stored: all of them, or none.

    `sources` are sources or places (`prompts.md#Planner`) by surface id, besides those of the configuration. With
    `dry_run`, the report has the diffs, and nothing is changed. NotAdoptedError if the run shows no improvement.
    """
    path = Path(folder)
    found, result = find_run_project(read_header(path), sources=sources), read_result(path)
    for name in sources or ():
        if name not in result.structure.surface_ids:
            raise UnknownSurfaceError(name, known=result.structure.surface_ids)
    return apply_result(
        result,
        path,
        project=found.project,
        sources=found.sources,
        force=force,
        require_unseen=(require or found.require) == "unseen",
        dry_run=dry_run,
        commit_message=(lambda: write_commit_message(summarize(result, path))) if commit else None,
    )


def revert_run(
    folder: str | os.PathLike[str],
    *,
    sources: Mapping[str, Source | str] | None = None,
    dry_run: bool = False,
    commit: bool = False,
) -> ApplyReport:
    """Restore what applying a run replaced, byte for byte: all of it, or nothing."""
    path = Path(folder)
    header = read_header(path)
    found = find_run_project(header, sources=sources)
    return revert_result(
        path,
        run_id=header.run_id,
        project=found.project,
        sources=found.sources,
        dry_run=dry_run,
        commit_message=(lambda: write_revert_message(summarize(read_result(path), path))) if commit else None,
    )


def _load_again(
    folder: str | os.PathLike[str],
    read: Callable[[Configuration, Mapping[str, Json], Mapping[str, str] | None], ParsedConfig],
    settings: Mapping[str, Json],
    environ: Mapping[str, str] | None,
) -> ConfiguredRun:
    header = read_header(folder)
    if header.configuration is None:
        return _load_python_run(folder, header, settings, environ)
    parsed = read(header.configuration, settings, environ)
    if header.overlay is not None:
        return rebuild_overlaid_run(parsed, read_overlay(header.overlay), environ=environ)
    return build_run(parsed, environ=environ)


def _load_python_run(
    folder: str | os.PathLike[str], header: RunHeader, settings: Mapping[str, Json], environ: Mapping[str, str] | None
) -> ConfiguredRun:
    """Load a run that Python began from the names of its parts. Raises SetupError if a part has no name.

    Of the `settings`, only those of how it runs count: `runs`, `evaluation.concurrency`, and what commands print.
    """
    document = merge_settings({"runs": str(Path(folder).absolute().parent)}, settings)
    parsed = read_document(document, file=Path(folder) / FILE_NAME, environ=environ)
    parts = header.parts or PythonParts(problems=header.nameless_parts)
    make_importable(map(Path, parts.folders))
    try:
        rebuilt = rebuild_run(parts, environ=environ)
    except SetupError as error:
        raise SetupError(
            f"the run {os.fspath(folder)!r} was started from Python, and cannot be built again: {error}; or resume it "
            "from Python: RunDirectory.resume(folder, engine, request).run_sync()"
        ) from error
    engine = rebuilt.engine
    if "evaluation" in document:
        options = replace(engine.evaluator.options, concurrency=parsed.config.evaluation.concurrency)
        engine = Engine(engine.agent, engine.evaluator.with_options(options), search=engine.search)
    return ConfiguredRun(
        config=parsed.config.model_copy(update={"keep_traces": rebuilt.keep_traces}),
        engine=engine,
        checked=engine.check(rebuilt.request),
        gateway=engine.evaluator.gateway,
        observers=rebuilt.observers,
        notes=rebuilt.notes,
    )


def _read_to_resume(
    configuration: Configuration, settings: Mapping[str, Json], environ: Mapping[str, str] | None
) -> ParsedConfig:
    """Read the configuration of a run from its file again, with the command line options of its start."""
    file = Path(configuration.file)
    if not file.exists():
        raise SetupError(f"the run was started with {str(file)!r}, which does not exist; move the file or the run back")
    given = read_file(file)
    options = {key: value for key, value in configuration.settings.items() if _is_kept(key, value)}
    options = _restore_secrets(options, merge_settings(given, settings), file=file)
    return read_document(given, file=file, settings=merge_settings(options, settings), environ=environ)


def _read_to_rerun(
    configuration: Configuration, settings: Mapping[str, Json], environ: Mapping[str, str] | None
) -> ParsedConfig:
    """Read the configuration of a run from its run.json. Secrets, which are not in it, come from the file."""
    file = Path(configuration.file)
    now = read_file(file) if file.exists() else {}
    display = {key for key, value in configuration.settings.items() if not _is_kept(key, value)}
    stored = {key: value for key, value in configuration.document.items() if key not in display}
    document = _restore_secrets(stored, now, file=file)
    return read_document(document, file=file, settings=settings, environ=environ)


def _is_kept(key: str, value: Json) -> bool:
    """Whether a setting of an earlier command counts: a run that a team reviews in files stays one."""
    return key not in DISPLAY_KEYS or (key, value) == ("review", "file")


def _restore_secrets(then: Json, now: Json, *, file: Path, place: str = "") -> Json:
    """Replace masked values of a document by those that the file has now."""
    if isinstance(then, dict):
        known = now if isinstance(now, dict) else {}
        return {
            name: _restore_secrets(each, known.get(name), file=file, place=f"{place}.{name}")
            for name, each in then.items()
        }
    if isinstance(then, list):
        twins = now if isinstance(now, list) and len(now) == len(then) else [None] * len(then)
        pairs = enumerate(zip(then, twins, strict=True))
        return [_restore_secrets(each, twin, file=file, place=f"{place}.{at}") for at, (each, twin) in pairs]
    if not isinstance(then, str) or MASK not in then:
        return then
    if not isinstance(now, str):
        raise SetupError(
            f"{place[1:]} is a secret, which is not stored in run.json, and {str(file)!r} no longer has it; "
            "add it there as ${VARIABLE}"
        )
    return now


__all__ = [
    "ApplyReport",
    "ConfiguredEvaluation",
    "ConfiguredRefinement",
    "ConfiguredRun",
    "RunDirectory",
    "SearchComparison",
    "apply_run",
    "compare_searches",
    "load_evaluation",
    "load_refinement",
    "load_rerun",
    "load_resume",
    "load_run",
    "resume_run",
    "revert_run",
]
