"""Reads an agent.yaml: its keys, its instructions, and the folder that its paths are relative to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from promptiter.config.agent_yaml.agent import name_model
from promptiter.config.agent_yaml.sections import AgentFile, Axes, ModelBlock, NumericAxis, OptimizerBlock
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.user_files import Location, read_object
from traces.model import Json

FILE_NAME = "agent.yaml"
MODEL = "model.name"
CANDIDATES = "candidates"
"""The folder of a run's candidates in the layout of HoloDeck, beside its run.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDocument:
    """An agent.yaml. `folder` is that of the project, `instructions` the text, `prompt_file` its file, if any.

    A candidate of a run is a copy of the project's file elsewhere: its paths are those of the project, except for
    that of its instructions.
    """

    file: Path
    folder: Path
    given: AgentFile
    instructions: str
    prompt_file: Path | None = None

    @property
    def optimizer(self) -> OptimizerBlock | None:
        return self.given.evaluations.optimizer

    @property
    def axes(self) -> Axes:
        """The axes of the optimizer block. The choices of `model.name` are named as the models here."""
        if self.optimizer is None:
            return Axes()
        axes = self.optimizer.axes
        numeric = [_name_choices(each, self.given.model) if each.path == MODEL else each for each in axes.numeric]
        return axes.model_copy(update={"numeric": numeric})


def _name_choices(axis: NumericAxis, model: ModelBlock) -> NumericAxis:
    names = [name_model(model.model_copy(update={"name": str(each)})) for each in axis.choices]
    return axis.model_copy(update={"choices": names})


def is_agent_yaml(document: Mapping[str, Json]) -> bool:
    """Whether a configuration file is an agent.yaml: promptiter.yaml has neither of these two keys."""
    return "instructions" in document and "model" in document


def is_agent_file(file: Path) -> bool:
    """Whether a file can be read, and is an agent.yaml."""
    try:
        document = read_yaml(file.read_text(encoding="utf-8-sig"), file=os.fspath(file))
    except (OSError, UnicodeDecodeError, SetupError):
        return False
    return isinstance(document, dict) and is_agent_yaml(document)


def read_agent_file(file: Path) -> AgentDocument:
    """Read an agent.yaml. SetupError lists its problems."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file}: cannot be read: {error}; name an agent.yaml") from error
    document = read_yaml(text, file=os.fspath(file))
    if not isinstance(document, dict) or not is_agent_yaml(document):
        raise SetupError(f"{file}: is not an agent.yaml, which has the keys model and instructions")
    return parse_agent_file(document, file=file)


def parse_agent_file(document: Mapping[str, Json], *, file: Path) -> AgentDocument:
    """The content of an agent.yaml, checked."""
    given = read_object(AgentFile, dict(document), Location(os.fspath(file)), error=SetupError)
    folder = file.resolve().parent
    name = given.instructions.file
    if name is None:
        return AgentDocument(
            file=file, folder=find_project(file), given=given, instructions=given.instructions.inline or ""
        )
    path = folder / name if (folder / name).exists() else find_project(file) / name
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file}: instructions.file: {name!r} cannot be read: {error}; check the path") from error
    return AgentDocument(file=file, folder=find_project(file), given=given, instructions=text, prompt_file=path)


def find_project(file: Path) -> Path:
    """The folder that the paths of a file are relative to: its own, or for a candidate that of the run's agent.yaml."""
    folder = file.resolve().parent
    if folder.name != CANDIDATES:
        return folder
    try:
        header = orjson.loads((folder.parent / "run.json").read_bytes())
        baseline = Path(folder.parent, str(header["baseline_agent_path"]))
    except (OSError, ValueError, KeyError, TypeError):
        return folder
    return baseline.resolve().parent
