"""What is asked of a model, and what it answers: plain frozen data, the same for every provider."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from traces import Usage, digest
from traces.model import Json

MessageRole: TypeAlias = Literal["system", "user", "assistant", "tool"]
Role: TypeAlias = Literal["agent", "judge", "teacher", "user", "backwarder", "aggregator", "optimizer"]
"""Who asks: the ledger counts by it."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A model's wish to have a tool called."""

    id: str
    name: str
    arguments: Json


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. A `tool` message answers the request whose id it carries."""

    role: MessageRole
    content: str
    tool_requests: tuple[ToolRequest, ...] = ()
    tool_request_id: str | None = None


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is told of it. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """All that decides an answer. `schema` asks for JSON that fits it; `options` are temperature, max_tokens, …"""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    options: Mapping[str, Json] = field(default_factory=dict)
    schema: Mapping[str, Json] | None = None

    @property
    def digest(self) -> str:
        """The content hash: equal requests have equal digests in every process."""
        return digest(self)

    @property
    def text(self) -> str:
        """All message texts, for counting and searching."""
        return "\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's answer: text, or wishes to have tools called, or both."""

    text: str = ""
    tool_requests: tuple[ToolRequest, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where a call comes from: together with the request's digest it is the key under which the answer is kept.

    `number` counts the calls of one step. `repeat` is the repetition of the case.
    """

    role: Role = "agent"
    case_id: str = ""
    repeat: int = 0
    step_id: str = ""
    number: int = 0
