"""Builds the agent of promptiter.yaml, and finds where its prompts are stored."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from promptiter.agents.base import Agent
from promptiter.agents.black_box.call import CallAgent
from promptiter.agents.black_box.command import CommandAgent
from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.black_box.http import HttpAgent
from promptiter.agents.black_box.output import Normalize
from promptiter.agents.black_box.prompts import Prompt, find_surface_id
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.remote.agent import RemoteAgent
from promptiter.config.agent_section import KINDS, AgentSection, PromptEntry
from promptiter.config.agent_yaml.agent import build_yaml_agent, limit_agent
from promptiter.config.agent_yaml.conversion import find_fields
from promptiter.config.agent_yaml.document import read_agent_file
from promptiter.config.loading import load_agent, make_importable
from promptiter.config.namesakes import claim_modules
from promptiter.config.task_yaml.document import read_task_file
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.scorer import DescribedAgent
from promptiter.llm.secret import reveal
from promptiter.references import is_reference, load_reference
from promptiter.sources import FileSource, Source
from promptiter.sources.field import FieldSource, join_path
from promptiter.sources.place import open_place
from promptiter.sources.yaml_field import YamlField
from promptiter.structure import NO_LIMITS
from promptiter.tasks.files.workspace import name_surface, open_workspace

_ONLY_FOR: Mapping[str, tuple[str, ...]] = {
    "prompts": ("call", "command", "http"),
    "name": ("call", "command", "http"),
    "stdin": ("command",),
    "environment": ("command",),
    "inherit": ("command",),
    "cwd": ("command",),
    "timeout_s": ("command", "http", "remote"),
    "max_output_bytes": ("command", "http", "remote"),
    "normalize": ("call", "command", "http"),
    "health": ("command", "http"),
    "in_place": ("call", "command", "http"),
}
"""The kinds of agents that a key is for."""


def build_agent(section: AgentSection, *, folders: Iterable[Path] = (), hosts: AgentHosts | None = None) -> Agent:
    """Build the agent of a section. SetupError says what is wrong with it. `folders` are those to import from.

    An agent that is a service must be at one of the `hosts`, if they are given.
    """
    if len(section.kinds) != 1:
        given = f"got {' and '.join(section.kinds)}" if section.kinds else "got none"
        raise SetupError(f"agent: needs exactly one of {', '.join(KINDS)}, {given}")
    [kind], folders = section.kinds, tuple(folders)
    if unused := [key for key in _ONLY_FOR if key in section.model_fields_set and kind not in _ONLY_FOR[key]]:
        raise RequestError(
            f"agent.{each}: an agent with the key {kind!r} does not use it; remove it" for each in unused
        )
    if kind == "python":
        return load_agent(section.python, folders=folders)
    if section.yaml is not None:
        return _build_from_yaml(section.yaml, section.python, folders)
    if section.task is not None:
        return DescribedAgent(open_workspace(read_task_file(section.task).task).structure)
    if section.remote is not None:
        return RemoteAgent(
            section.remote.url,
            headers=reveal(section.remote.headers),
            timeout_s=section.timeout_s,
            max_output_bytes=section.max_output_bytes,
            retries=section.remote.retries,
            gateway=section.remote.gateway,
            hosts=hosts,
        )
    make_importable([*folders, Path.cwd()])
    for reference in (section.call, section.normalize):
        if isinstance(reference, str) and is_reference(reference):
            claim_modules(reference.partition(":")[0], folders)
    prompts = {name: _read_prompt(name, each) for name, each in section.prompts.items()}
    shared: dict[str, Any] = {
        "prompts": prompts,
        "name": section.name,
        "normalize": _load_normalize(section.normalize),
        "is_in_place": section.in_place,
        "limits": {name: each.limits for name, each in section.prompts.items() if each.limits != NO_LIMITS},
    }
    agent: CallAgent | CommandAgent | HttpAgent
    if kind == "call":
        agent = CallAgent(load_reference(section.call, what="function"), **shared)
    elif kind == "command":
        agent = CommandAgent(
            command=section.command,
            stdin=section.stdin,
            environment=reveal(section.environment),
            inherit=section.inherit,
            cwd=section.cwd,
            timeout_s=section.timeout_s,
            max_output_bytes=section.max_output_bytes,
            health=section.health,
            **shared,
        )
    else:
        assert section.http is not None
        agent = HttpAgent(
            url=section.http.url,
            method=section.http.method,
            headers=reveal(section.http.headers),
            body=reveal(section.http.body),
            timeout_s=section.timeout_s,
            max_output_bytes=section.max_output_bytes,
            health=section.health,
            hosts=hosts,
            **shared,
        )
    return _run_in_place(agent) if section.in_place else agent


def _build_from_yaml(file: Path, reference: str, folders: tuple[Path, ...]) -> Agent:
    """The agent of an agent.yaml, or another with the axes of that file."""
    make_importable([*folders, Path.cwd()])
    found = read_agent_file(file)
    if reference:
        return limit_agent(load_agent(reference, folders=folders), found.axes)
    agent = build_yaml_agent(found.given, found.axes, instructions=found.instructions, folder=found.folder)
    return limit_agent(agent, found.axes)


def find_prompt_sources(section: AgentSection, *, file: Path, exclude: Iterable[str] = ()) -> dict[str, Source]:
    """Where `apply` writes the prompts of an agent, by surface: their places, or the texts in the file itself."""
    found: dict[str, Source] = {}
    if section.yaml is not None and not section.python:
        found = {name: each for name, each in _find_yaml_sources(section.yaml).items() if name not in {*exclude}}
    if section.task is not None:
        workspace = open_workspace(read_task_file(section.task).task)
        sources = {name_surface(path): workspace.find_source(path) for path in workspace.paths}
        found = {name: each for name, each in sources.items() if name not in {*exclude}}
    for name, entry in section.prompts.items():
        surface_id = find_surface_id(name)
        if surface_id in exclude:
            continue
        source = _open(entry)
        if source is None:
            path = join_path(("agent", "prompts", name))
            source = _find_text(file, (path, f"{path}.value"))
        if source is not None:
            found[surface_id] = source
    return found


def _find_yaml_sources(file: Path) -> dict[str, Source]:
    """Where the values of an agent.yaml are: its fields, and the file of its instructions."""
    document = read_agent_file(file)
    sources: dict[str, Source] = {
        name: FieldSource(file, inside=YamlField(join_path(names))) for name, names in find_fields(document).items()
    }
    if document.prompt_file is not None:
        sources[f"{document.given.name}#instruction"] = FileSource(document.prompt_file)
    return sources


def _find_text(file: Path, paths: Iterable[str]) -> Source | None:
    """The first of these fields of a file that holds a text."""
    for path in paths:
        source = FieldSource(file, inside=YamlField(path))
        try:
            if isinstance(source.read_value(source.read_bytes()), str):
                return source
        except SetupError:
            continue
    return None


def _run_in_place(agent: CallAgent | CommandAgent | HttpAgent) -> InPlaceAgent:
    if missing := [each for each in agent.describe().surface_ids if each not in agent.sources]:
        problem = f"agent.in_place: the prompt {missing[0]!r} is a text; name the file that the agent reads"
        raise RequestError([problem])
    return InPlaceAgent(agent, agent.sources)


def _read_prompt(name: str, entry: PromptEntry) -> Prompt:
    if (entry.value is None) == (entry.place is None):
        raise RequestError([f"agent.prompts.{name}: needs exactly one of value and place"])
    source = _open(entry)
    return entry.value if source is None else source


def _open(entry: PromptEntry) -> Source | None:
    return None if entry.place is None else open_place(entry.place, folder=Path(), encoding=entry.encoding)


def _load_normalize(normalize: str | None) -> Normalize | None:
    if normalize is None or not is_reference(normalize):
        return normalize
    function: Normalize = load_reference(normalize, what="normalize")
    return function
