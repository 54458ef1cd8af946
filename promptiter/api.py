"""Runs from configuration files, for Python: what `promptiter run`, `resume` and `rerun` do, without the command line.

result = load_run("promptiter.yaml").begin().run_sync()
result = resume_run("runs/2026-11-15T09-30-00_1a2b3c4d").run_sync()
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from promptiter.config.build import ConfiguredRun, build_run
from promptiter.config.file import ReadConfig, merged, read_config, read_document, read_file
from promptiter.errors import SetupError
from promptiter.llm.redaction import MASK
from promptiter.runs.directory import RunDirectory
from promptiter.runs.header import Configuration, read_header
from traces.model import Json

SHOWN = ("quiet", "json", "review")
"""Settings that say how a command talks to a person; those of an earlier command do not count."""


def load_run(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRun:
    """The run of a configuration file, or of the promptiter.yaml of a folder. Nothing is spent yet.

    `settings`, of the file's shape, win over it: `{"budget": {"max_usd": 2}}`. RequestError lists all that is wrong.
    """
    return build_run(read_config(path, settings=settings, environ=environ), environ=environ)


def resume_run(
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> RunDirectory:
    """A run that goes on where it was, with the configuration file that it was started with.

    `settings` may change how it is done (`{"evaluation": {"concurrency": 4}}`), not what was asked for:
    ChangedInputsError says what is not as it was when it began.
    """
    found = config_to_resume(folder, settings=settings, environ=environ)
    return build_run(found, environ=environ).resume(folder)


def load_rerun(
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRun:
    """A new run of what an earlier one was asked for, as its run.json says."""
    return build_run(config_to_rerun(folder, settings=settings, environ=environ), environ=environ)


def config_to_resume(
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ReadConfig:
    """The configuration of a run, read again from its file, with what the command line once said on top."""
    configuration, file = _asked_for(folder)
    given = read_file(file)
    said = {key: value for key, value in configuration.settings.items() if key not in SHOWN}
    said = _unmasked(said, merged(given, settings or {}), file=file)
    return read_document(given, file=file, settings=merged(said, settings or {}), environ=environ)


def config_to_rerun(
    folder: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ReadConfig:
    """The configuration of a run as it was; only secrets, which no run.json holds, come from its file."""
    configuration, file = _asked_for(folder)
    now = read_file(file) if file.exists() else {}
    said = configuration.document.keys() - (configuration.settings.keys() & set(SHOWN))
    document = _unmasked({key: value for key, value in configuration.document.items() if key in said}, now, file=file)
    return read_document(document, file=file, settings=settings, environ=environ)


def _asked_for(folder: str | os.PathLike[str]) -> tuple[Configuration, Path]:
    """What a run was configured by, and the file of it."""
    configuration = read_header(folder).configuration
    if configuration is None:
        raise SetupError(
            f"the run {os.fspath(folder)!r} was started by Python code, not with a configuration file; go on from "
            "there: RunDirectory.resume(folder, engine, request).run_sync()"
        )
    return configuration, Path(os.path.normpath(Path(folder).resolve() / configuration.file))


def _unmasked(then: Json, now: Json, *, file: Path, place: str = "") -> Json:
    """A document with what is masked in it as the file has it now."""
    if isinstance(then, dict):
        known = now if isinstance(now, dict) else {}
        return {
            name: _unmasked(each, known.get(name), file=file, place=f"{place}.{name}") for name, each in then.items()
        }
    if isinstance(then, list):
        twins = now if isinstance(now, list) and len(now) == len(then) else [None] * len(then)
        pairs = enumerate(zip(then, twins, strict=True))
        return [_unmasked(each, twin, file=file, place=f"{place}.{at}") for at, (each, twin) in pairs]
    if not isinstance(then, str) or MASK not in then:
        return then
    if not isinstance(now, str):
        raise SetupError(
            f"{place[1:]} is a secret, which run.json does not hold, and {str(file)!r} has none any more; "
            "write it there as ${VARIABLE}"
        )
    return now


__all__ = ["ConfiguredRun", "RunDirectory", "load_rerun", "load_run", "resume_run"]
