"""The section `agent` of promptiter.yaml: an agent in Python or elsewhere, or a function, a command or a service."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationInfo

from promptiter.agents.black_box.command import INHERITED
from promptiter.config.fields import Above0, Count, File, Finite, Flag, Names, Section
from promptiter.errors import SetupError
from promptiter.llm.secret_fields import SecretValues
from promptiter.sources.place import parse_place
from promptiter.structure import Limits
from traces.model import Json

KINDS = ("python", "call", "command", "http", "remote", "yaml", "task")
"""The keys of which an agent has exactly one."""

_PATH = re.compile(r"\S*(?:/\S*|\.(?:md|txt|markdown|prompt|j2|yaml|yml|json))")


def _parse_agent(value: Json) -> Json:
    if isinstance(value, str):
        return {"python": value}
    if isinstance(value, dict | AgentSection):
        return value
    raise ValueError("must be module:attr, or a mapping with python, call, command, http, remote, yaml or task")


def _parse_address(value: Json) -> Json:
    return {"url": value} if isinstance(value, str) else value


def _parse_prompt(value: Json, info: ValidationInfo) -> Json:
    """A text that names an existing file or another place is that place; other texts are prompts."""
    folder: Path = (info.context or {}).get("folder") or Path()
    if isinstance(value, dict) and isinstance(value.get("place"), str):
        return {**value, "place": _resolve(value["place"], folder)}
    if isinstance(value, dict | PromptEntry):
        return value
    if not isinstance(value, str) or "\n" in value:
        return {"value": value}
    try:
        file, _ = parse_place(value)
    except SetupError:
        return {"value": value}
    if file is None or _is_file(folder / file):
        return {"place": _resolve(value, folder)}
    if _PATH.fullmatch(file):
        raise ValueError(f"the file {str(folder / file)!r} does not exist; to use a text, write {{value: ...}}")
    return {"value": value}


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # such as a name that is too long
        return False


def _resolve(place: str, folder: Path) -> str:
    try:
        file, _ = parse_place(place)
    except SetupError as error:
        raise ValueError(str(error)) from error
    return place if file is None else str(folder / place)


class PromptEntry(Section):
    """A prompt of a black-box agent: a text, a place, or a mapping. Exactly one of `value` and `place`."""

    value: Any = None
    """The prompt itself."""
    place: str | None = None
    """Where it is stored: a file, `prompts.md#Heading`, `config.yaml:field`, `agent.py:NAME`, or `module:attr`."""
    encoding: str | None = None
    """The encoding of the file; by default that of its byte order mark, else UTF-8."""
    max_chars: Count | None = None
    """Maximum length of a new text."""
    placeholders: Names = ()
    """Names that a new text must contain in braces, such as `name` for `{name}`."""
    locked: Names = ()
    """Parts that must stay in the text as they are."""
    minimum: Finite | None = None
    """Smallest value of a parameter."""
    maximum: Finite | None = None
    """Largest value of a parameter."""
    scale: Literal["linear", "log"] = "linear"
    """`log`: a search tries equal factors of a parameter instead of equal steps."""
    choices: tuple[Any, ...] = ()
    """The values that a parameter or a model may have."""
    max_examples: Count | None = None
    """Maximum number of messages of examples."""

    @property
    def limits(self) -> Limits:
        """What new values must respect."""
        return Limits(**{each.name: getattr(self, each.name) for each in fields(Limits) if each.name != "kind"})


PromptItem = Annotated[PromptEntry, BeforeValidator(_parse_prompt, json_schema_input_type=Any)]


class HttpEntry(Section):
    """The requests to an HTTP service: a mapping, or only the address. All texts are templates."""

    url: str
    """The address."""
    method: str = "POST"
    """The method."""
    headers: SecretValues = Field(default_factory=dict)
    """Headers by name. `${VAR}` is read from the environment."""
    body: SecretValues | None = None
    """The JSON of the request. By default `input`, and all `prompts` by name."""


HttpItem = Annotated[HttpEntry, BeforeValidator(_parse_address, json_schema_input_type=str | HttpEntry)]


class RemoteEntry(Section):
    """An agent that speaks the protocol of remote agents: a mapping, or only the address."""

    url: str
    """The address, to which `/structure` and `/runs` are added."""
    headers: SecretValues = Field(default_factory=dict)
    """Headers by name. `${VAR}` is read from the environment."""
    retries: Annotated[int, Field(strict=True, ge=0)] = 4
    """How often a run is sent again if the agent is down, with growing pauses."""
    gateway: Flag | str | None = None
    """Whether requests name the gateway as the place to call models: by default, for agents on this machine. For one on
    another machine, the address of this one with a free port, such as `http://10.0.0.5:8787`.
    """


RemoteItem = Annotated[RemoteEntry, BeforeValidator(_parse_address, json_schema_input_type=str | RemoteEntry)]


class AgentSection(Section):
    """The agent: `module:attr`, or a mapping with one of `python`, `call`, `command`, `http`, `remote`,
    `yaml` and `task`.
    """

    python: str = ""
    """An agent in Python as `module:attr`, or one of an installed package by name. A text instead of the mapping is
    short for it.
    """
    call: str = ""
    """A function from message to answer as `module:attr`. Its parameter `prompts` gets the prompts by name."""
    command: Names = ()
    """A program and its arguments, which may contain `{input}`, `{prompt:NAME}` and `{file:NAME}`. It runs without a
    shell.
    """
    http: HttpItem | None = None
    """A service: its address, or `url`, `method` (`POST`), `headers` and `body`, which may contain `{input}`,
    `{prompt:NAME}` and `{key}`.
    """
    remote: RemoteItem | None = None
    """An agent in any language that describes itself: its address, or `url`, `headers`, `retries` and `gateway`."""
    yaml: File | None = None
    """An agent.yaml of HoloDeck: its model, instructions and tools. With `python`, that agent with the axes of the
    file.
    """
    task: File | None = None
    """A task.yaml: files, and the commands that score them. With `scorer: task`."""
    prompts: dict[str, PromptItem] = Field(default_factory=dict)
    """The prompts that may change, by name or surface id: each a file, another place, or a text."""
    name: str = "agent"
    """The name of the agent as a whole, which is the node of steps that belong to no prompt."""
    stdin: str | None = None
    """What a command gets on standard input; by default `{input}`, unless it is in an argument or a variable."""
    environment: SecretValues = Field(default_factory=dict)
    """Variables for a command; templates, too. `${VAR}` is read from the environment."""
    inherit: Names = INHERITED
    """Names of variables that a command gets from this process; `*` is all of them."""
    cwd: Annotated[File, Field(validate_default=True)] = Path()
    """The folder that a command runs in; by default that of the file."""
    timeout_s: Above0 = 300.0
    """Time limit of one run."""
    max_output_bytes: Count = 10_000_000
    """Limit of what a command may write to each stream, or of the answer of a service."""
    normalize: str | None = None
    """Where the answer is in the output: a JSON path such as `$.answer`, or a function as `module:attr`."""
    health: str | Names | None = None
    """A command, as a list, or an address that must answer before anything is spent."""
    in_place: Flag = False
    """The agent reads the files of its prompts itself: candidates are written there, one at a time, and the baseline is
    restored.
    """

    def __bool__(self) -> bool:
        """Whether the file names an agent."""
        return bool(self.model_fields_set) and self != AgentSection()

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that are given; a valid section has one."""
        given = tuple(name for name in KINDS if getattr(self, name))
        return ("yaml",) if given == ("python", "yaml") else given

    @property
    def reference(self) -> str:
        """The `module:attr` of the agent or its function; empty for others."""
        return self.python or self.call


AgentEntry = Annotated[AgentSection, BeforeValidator(_parse_agent, json_schema_input_type=str | AgentSection)]
