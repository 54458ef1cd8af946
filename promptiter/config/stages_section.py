"""The section `stages` of promptiter.yaml: a model, a class of your own or a command for each stage of the search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from promptiter.agents.black_box.command import INHERITED
from promptiter.config.fields import Above0, Count, File, Names, Section
from promptiter.llm.secret_fields import SecretValues
from promptiter.references import is_reference
from traces.model import Json

MODEL_STAGES = ("backwarder", "attributor", "aggregator", "optimizer")
"""The stages that `stages: MODEL` sets."""


def _parse_stages(value: Json) -> Json:
    if value == "":
        raise ValueError("must not be empty; name a model, or leave stages out")
    return dict.fromkeys(MODEL_STAGES, value) if isinstance(value, str) else value


def _parse_checks(value: Json) -> Json:
    if value is False:
        return "off"  # as YAML reads it
    if value in ("auto", "off") or (type(value) is int and value >= 1):
        return value
    raise ValueError("must be auto, off or a whole number of at least 1")


class StageEntry(Section):
    """A stage: a mapping, or only its name. Exactly one of `name` and `command`."""

    name: str = ""
    """A model that the stage asks, or your own stage as `module:attr`."""
    options: SecretValues = Field(default_factory=dict)
    """Keyword arguments for the stage with this name. `${VAR}` is read from the environment."""
    command: Names = ()
    """A program and its arguments. `{folder}` is a folder with the evidence, where it writes its answer."""
    environment: SecretValues = Field(default_factory=dict)
    """Variables for the command. `${VAR}` is read from the environment."""
    inherit: Names = INHERITED
    """Names of variables that the command gets from this process; `*` is all of them."""
    cwd: Annotated[File, Field(validate_default=True)] = Path()
    """The folder that the command runs in; by default that of the file."""
    timeout_s: Above0 = 900.0
    """Time limit of one answer of the command."""
    concurrency: Count = 4
    """Commands at the same time."""


def _parse_stage(value: Json) -> Json:
    if value == "":
        raise ValueError("must not be empty")
    if isinstance(value, str):
        return {"name": value}
    if isinstance(value, dict | StageEntry):
        return value
    raise ValueError("must be a name, module:attr, or a mapping with name and options, or with command")


StageItem = Annotated[StageEntry, BeforeValidator(_parse_stage, json_schema_input_type=str | StageEntry)]


class Stages(Section):
    """The stages of the search: a model name for all of them, or a mapping. Stages that are left out need no model.

    A stage is the name of a model that it asks, your own as `module:attr`, or a command.
    """

    backwarder: StageItem | None = None
    """Blames step by step."""
    attributor: StageItem | None = None
    """Blames a whole trace in one call. With models for this and for `backwarder`, the cheaper one is asked."""
    aggregator: StageItem | None = None
    """Merges the gradients of a surface."""
    optimizer: StageItem | None = None
    """Writes patches."""
    corrector: StageItem | None = None
    """Corrects steps where references do not help, to check blame."""
    check_gradients: Annotated[
        Literal["auto", "off"] | int,
        PlainValidator(_parse_checks, json_schema_input_type=Literal["auto", "off", False] | Count),
    ] = "auto"
    """How many blamed surfaces are checked by replays in a round: a number, `off`, or `auto`, a dozen if a model
    blames.
    """

    @property
    def given(self) -> dict[str, StageEntry]:
        """The stages that the file names, by role."""
        roles = (*MODEL_STAGES, "corrector")
        return {role: entry for role in roles if (entry := getattr(self, role)) is not None}

    @property
    def is_one_model(self) -> bool:
        """Whether one model is given for all stages."""
        return (
            tuple(self.given) == MODEL_STAGES
            and len({(entry.name, entry.command) for entry in self.given.values()}) == 1
        )

    @property
    def models(self) -> dict[str, str]:
        """The names of the models that these stages ask, by key."""
        asked = {role: entry.name for role, entry in self.given.items() if entry.name and not is_reference(entry.name)}
        if asked and self.is_one_model:
            return {"stages": asked["optimizer"]}
        return {f"stages.{role}": name for role, name in asked.items()}


StagesEntry = Annotated[Stages, BeforeValidator(_parse_stages, json_schema_input_type=str | Stages)]
