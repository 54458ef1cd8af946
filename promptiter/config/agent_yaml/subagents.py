"""The critic and the applier: critic.yaml and applier.yaml in the folder of agent.yaml, which a user may edit.

They are written on the first run, and never overwritten. Files of HoloDeck at `.holodeck/optimizer/agents/` are used
instead, if they are there. Without a `model`, they ask the agent's model; if that is a simulated one, which cannot
diagnose, the backward pass and the optimizer stage take their place.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Literal, TypeAlias

from promptiter.config.agent_yaml.agent import name_model
from promptiter.config.agent_yaml.sections import Instructions, ModelBlock, OpenObject
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.registry import MODELS
from promptiter.user_files import Location, read_object
from traces.files import write_file
from traces.model import Json

Role: TypeAlias = Literal["critic", "applier"]
ROLES: tuple[Role, ...] = ("critic", "applier")

FOLDER = Path(".promptiter") / "optimizer" / "agents"
OTHER_FOLDER = Path(".holodeck") / "optimizer" / "agents"


class SubagentFile(OpenObject):
    """critic.yaml or applier.yaml. Other keys, such as `response_format`, are ignored: the answer has a fixed form."""

    model: ModelBlock | None = None
    instructions: Instructions


@dataclass(frozen=True, slots=True, kw_only=True)
class Subagent:
    """A critic or applier. `given` is its model, or that of the agent; `model` its name, None if it cannot be one."""

    role: Role
    file: Path
    given: ModelBlock
    model: str | None
    options: dict[str, Json]


def find_file(role: Role, folder: Path) -> Path:
    """The file of a subagent: HoloDeck's own if it is there, else ours, whether or not it exists yet."""
    other = folder / OTHER_FOLDER / f"{role}.yaml"
    return other if other.is_file() else folder / FOLDER / f"{role}.yaml"


def install(folder: Path) -> list[Path]:
    """Write the files that are missing, and return their paths."""
    written = []
    for role in ROLES:
        file = find_file(role, folder)
        if not file.exists():
            write_file(file, read_packaged(role).encode())
            written.append(file)
    return written


def read_packaged(role: Role) -> str:
    """The file that is written if there is none."""
    return (files("promptiter.config.agent_yaml") / "packaged" / f"{role}.yaml").read_text(encoding="utf-8")


def read_subagent(role: Role, folder: Path, agent_model: ModelBlock) -> Subagent:
    """Read a critic or applier; the packaged one if none is installed. SetupError says what is wrong with its file."""
    file = find_file(role, folder)
    try:
        text = file.read_text(encoding="utf-8-sig") if file.exists() else read_packaged(role)
    except (OSError, UnicodeDecodeError) as error:
        raise SetupError(f"{file}: cannot be read: {error}; remove it to get a new one") from error
    given = read_object(SubagentFile, read_yaml(text, file=str(file)), Location(str(file)), error=SetupError)
    model = given.model or agent_model
    options: dict[str, Json] = {
        name: value for name in ("temperature", "top_p", "max_tokens") if (value := getattr(model, name)) is not None
    }
    if given.model is None:
        options = {}
    name = None if model.name in MODELS else name_model(model)
    return Subagent(role=role, file=file, given=model, model=name, options=options if name else {})
