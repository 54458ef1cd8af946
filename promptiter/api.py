"""Runs from configuration files, for Python: what `promptiter run` does, without the command line.

run = load_run("promptiter.yaml")
result = run.engine.run_sync(run.request)
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from promptiter.config.build import ConfiguredRun, build_run
from promptiter.config.file import read_config
from traces.model import Json


def load_run(
    path: str | os.PathLike[str],
    *,
    settings: Mapping[str, Json] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRun:
    """The run of a configuration file, or of the promptiter.yaml of a folder. Nothing is spent yet.

    `settings`, of the file's shape, win over it: `{"budget": {"max_usd": 2}}`. RequestError lists all that is wrong.
    """
    found = read_config(path, settings=settings, environ=environ)
    return build_run(found.config, problems=found.problems, broken=found.broken, environ=environ)


__all__ = ["ConfiguredRun", "load_run"]
