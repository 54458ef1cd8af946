"""Reads an agent.yaml: its keys, its instructions, and the folder that its paths are relative to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path

import orjson
from pydantic import ValidationError

from promptiter.config.agent_yaml.agent import name_model
from promptiter.config.agent_yaml.sections import AgentFile, Axes, ModelBlock, NumericAxis, OptimizerBlock
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.user_files import Keys, Location, describe_problems
from traces.model import Json

FILE_NAME = "agent.yaml"
MODEL = "model.name"
AXES = ("evaluations", "optimizer", "axes")
CANDIDATES = "candidates"
"""The folder of a run's candidates in the layout of HoloDeck, beside its run.json."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentDocument:
    """An agent.yaml. `folder` is that of the project, `instructions` the text, `prompt_file` its file, if any.

    A candidate of a run is a copy of the project's file elsewhere: its paths are those of the project, except for
    that of its instructions. `problems` are about keys that are wrong: `given` is the file without them.
    """

    file: Path
    folder: Path
    given: AgentFile
    instructions: str
    prompt_file: Path | None = None
    problems: tuple[str, ...] = ()

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
    """Read an agent.yaml. What is wrong with single keys is in its `problems`; SetupError if it cannot be used."""
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file}: cannot be read: {error}; name an agent.yaml") from error
    document = read_yaml(text, file=os.fspath(file))
    if not isinstance(document, dict) or not is_agent_yaml(document):
        raise SetupError(f"{file}: is not an agent.yaml, which has the keys model and instructions")
    return parse_agent_file(document, file=file)


def parse_agent_file(document: Mapping[str, Json], *, file: Path) -> AgentDocument:
    """The content of an agent.yaml, checked key by key."""
    given, problems = _read_keys(document, Location(os.fspath(file)))
    folder, project, text = file.resolve().parent, find_project(file), given.instructions.inline or ""
    path = None
    if (name := given.instructions.file) is not None:
        path = folder / name if (folder / name).exists() else project / name
        try:
            text = path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            problems.append(f"{file}: instructions.file: {name!r} cannot be read: {error}; check the path")
    return AgentDocument(
        file=file, folder=project, given=given, instructions=text, prompt_file=path, problems=tuple(problems)
    )


def _read_keys(document: Mapping[str, Json], location: Location) -> tuple[AgentFile, list[str]]:
    """The keys of a file without those that are wrong, and what is wrong with them."""
    problems: list[str] = []
    left: dict[str, Json] = deepcopy(dict(document))
    while True:
        try:
            return AgentFile.model_validate(left), problems
        except ValidationError as error:
            problems += describe_problems(error, AgentFile, location)
            wrong = [_find_wrong_keys(each["loc"], kind=each["type"]) for each in error.errors(include_url=False)]
            if not _drop_keys(left, wrong):
                raise RequestError(problems) from error


def _find_wrong_keys(keys: Keys, *, kind: str) -> Keys:
    """What has to be left out so that an error disappears: an unknown key, a value, or a whole axis."""
    if kind == "extra_forbidden":
        return keys
    if tuple(keys[:3]) == AXES:
        return keys[:5]
    keys = keys[:-1] if kind == "missing" else keys
    return keys[: max((at for at, key in enumerate(keys, start=1) if isinstance(key, str)), default=0)]


def _drop_keys(document: dict[str, Json], wrong: Iterable[Keys]) -> bool:
    """Remove values from a document. False if one is not there, or the document needs it."""
    ordered = sorted({tuple(keys) for keys in wrong}, key=lambda keys: [f"{key:>9}" for key in keys], reverse=True)
    for keys in ordered:  # of a list, the last item first
        if not keys or keys in (("model",), ("instructions",)):
            return False
        place: Json = document
        try:
            for key in keys[:-1]:
                place = place[key]
            del place[keys[-1]]
        except (KeyError, IndexError, TypeError):
            return False
    return True


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
