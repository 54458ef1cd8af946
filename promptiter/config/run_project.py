"""The project of a run: its current configuration says where the values of surfaces are stored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from promptiter.config.agents import find_prompt_sources
from promptiter.config.file import RunConfig, read_config
from promptiter.config.loading import make_importable
from promptiter.errors import SetupError
from promptiter.references import is_reference
from promptiter.runs.header import PythonParts, RunHeader
from promptiter.runs.place_search import Project
from promptiter.sources import Source
from promptiter.sources.place import open_place
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class RunProject:
    """A project, the sources that are named, and whether an improvement must be shown for new cases (`require`)."""

    project: Project
    sources: Mapping[str, Source]
    require: Literal["unseen"] | None = None


def find_run_project(header: RunHeader, *, sources: Mapping[str, Source | str] | None = None) -> RunProject:
    """The project of a run. `sources` come before those of the configuration; places are relative to this folder."""
    given = {name: _open(each) for name, each in (sources or {}).items()}
    if header.configuration is None:
        parts = header.parts or PythonParts()
        return RunProject(project=_describe_python_project(parts), sources=given)
    file = Path(header.configuration.file)
    if not file.exists():
        raise SetupError(f"the run was started with {str(file)!r}, which does not exist; move the file or the run back")
    settings = header.configuration.settings
    parsed = read_config(file, settings={key: settings[key] for key in ("agent", "sources") if key in settings})
    if problems := [each for each in parsed.problems if "sources" in parsed.broken]:
        raise SetupError("; ".join(problems))
    then: Json = header.configuration.document.get("agent", "")
    return open_project(parsed.config, file=file, agent=then if isinstance(then, str) else "", sources=given)


def open_project(
    config: RunConfig, *, file: Path, agent: str = "", sources: Mapping[str, Source] | None = None
) -> RunProject:
    """The project of a configuration."""
    given = sources or {}
    make_importable(config.python_path)
    named = {
        name: open_place(entry.place, folder=file.parent, encoding=entry.encoding)
        for name, entry in config.sources.items()
        if name not in given
    }
    named |= find_prompt_sources(config.agent, file=file, exclude={*named, *given})
    data = (*config.train, *config.validation, *config.test, *config.cases, *config.data)
    project = Project(
        folder=file.absolute().parent,
        roots=tuple(find_roots(agent or config.agent.reference, config.python_path)),
        excluded=(config.runs, *data, file.absolute()),
    )
    return RunProject(project=project, sources={**named, **given}, require=config.require)


def find_roots(agent: str, folders: Iterable[Path]) -> Iterable[Path]:
    """The folder of the module or the package of an agent, without importing it."""
    if not is_reference(agent):
        return
    names = agent.partition(":")[0].split(".")
    for folder in folders:
        module = folder.joinpath(*names)
        if module.with_suffix(".py").is_file() or (module / "__init__.py").is_file():
            yield (folder if len(names) == 1 and not module.is_dir() else folder / names[0]).absolute()
            return


def _describe_python_project(parts: PythonParts) -> Project:
    """The project of a run that Python began: the folder of the agent's module; if it has no name, this folder."""
    found: Json = parts.packed.get("agent")
    names = [each for each in found.values() if isinstance(each, str)] if isinstance(found, dict) else []
    folders = [Path(each) for each in parts.folders]
    roots = tuple(root for name in names for root in find_roots(name, folders))
    return Project(folder=Path.cwd(), roots=roots or (Path.cwd(),))


def _open(source: Source | str) -> Source:
    return open_place(os.fspath(source), folder=Path.cwd()) if isinstance(source, str) else source
