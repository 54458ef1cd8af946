"""Requests to models and their replies: plain frozen data, the same for every provider."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, TypeAlias

import orjson

from traces import Usage, digest
from traces.model import Json, write_canonically

MessageRole: TypeAlias = Literal["system", "user", "assistant", "tool"]
Role: TypeAlias = Literal[
    "agent", "judge", "teacher", "user", "backwarder", "corrector", "aggregator", "optimizer", "critic", "applier"
]
"""Which part of a run makes a call. The ledger counts calls by role."""
CASE_ROLES: frozenset[Role] = frozenset(("agent", "judge", "user"))
"""The roles that take part in a case run."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool call that a model asks for."""

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

    @property
    def is_plain(self) -> bool:
        """Whether it is nothing but text."""
        return not self.tool_requests and self.tool_request_id is None


@dataclass(frozen=True, slots=True)
class RichMessage(Message):
    """A message of another program that is more than text: images, a name, another role. `content` is its text.

    `extra` has the fields of OpenAI's format that a Message lacks, or that differ from it. A class of its own, so that
    the digests of requests without such messages do not depend on it.
    """

    extra: Mapping[str, Json] = field(default_factory=dict, kw_only=True)

    @property
    def is_plain(self) -> bool:
        """Whether it is nothing but text."""
        return False


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """The description of a tool for a model. `parameters` is a JSON schema."""

    name: str
    description: str
    parameters: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RichToolSpec(ToolSpec):
    """A tool of another program with further fields, such as `strict`. With a `type` in `extra`, that is all of it."""

    extra: Mapping[str, Json] = field(default_factory=dict, kw_only=True)


class AnswerSchema(dict[str, Json]):
    """The JSON schema of an answer that many requests ask for. It does not change, so its JSON is written once."""

    @cached_property
    def raw(self) -> bytes:
        return write_canonically(dict(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request to a model. `schema` asks for JSON of this schema; `options` are temperature, max_tokens and so on."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    options: Mapping[str, Json] = field(default_factory=dict)
    schema: Mapping[str, Json] | None = None

    def with_options(self, **options: Json) -> ModelRequest:
        """The same request with other values of these options."""
        return replace(self, options={**self.options, **options})

    @property
    def digest(self) -> str:
        """The content hash: equal requests have equal digests in every process."""
        return self.measure()[0]

    def measure(self) -> tuple[str, int]:
        """The digest of the request, and its bytes as JSON."""
        try:
            if self.messages and self.messages[0].role == "system" and self.messages[0].is_plain:
                length, begun = _hash_beginning(self.model, self.messages[0].content)
                rest, found = self._write_after_rules(), begun.copy()
                found.update(rest)
                return found.hexdigest(), length + len(rest)
            raw = _dump(self)
        except TypeError:  # orjson.JSONEncodeError
            raw = write_canonically(self)  # says what is wrong
        return digest(raw), len(raw)

    def _write_after_rules(self) -> bytes:
        """The canonical JSON of the request from the end of the text of its first message."""
        parts = [_PLAIN_END]
        for message in self.messages[1:]:
            if message.is_plain:
                parts += (b',{"role":"', message.role.encode(), b'","content":', _dump(message.content), _PLAIN_END)
            else:
                parts += (b",", _dump(message))
        schema = self.schema.raw if isinstance(self.schema, AnswerSchema) else _dump(self.schema)
        parts += (b'],"tools":', _dump(self.tools), b',"options":', _dump(self.options), b',"schema":', schema, b"}")
        return b"".join(parts)

    @property
    def answer_schema(self) -> Mapping[str, Json] | None:
        """The JSON schema of the answer: its own, or that of the option `response_format` of another program."""
        if self.schema is not None:
            return self.schema
        wanted = self.options.get("response_format")
        form = wanted.get("json_schema") if isinstance(wanted, Mapping) else None
        schema = form.get("schema") if isinstance(form, Mapping) else None
        return schema if isinstance(schema, Mapping) else None

    @property
    def text(self) -> str:
        """The texts of all messages."""
        return "\n".join(message.content for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingRequest(ModelRequest):
    """A request for the embeddings of its messages. The reply has them in its `extra`, as `embeddings`."""

    purpose: Literal["embedding"] = "embedding"


_PLAIN_END = b',"tool_requests":[],"tool_request_id":null}'
"""How the JSON of a plain message ends after its text."""


def _dump(value: Json) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)


@lru_cache(maxsize=64)
def _hash_beginning(model: str, rules: str) -> tuple[int, hashlib._Hash]:
    """The length and the hash of how the JSON of requests with these rules begins. Many requests share long rules."""
    raw = write_canonically(ModelRequest(model=model, messages=(Message("system", rules),)))
    beginning = raw[: raw.index(_PLAIN_END, len(rules))]
    return len(beginning), hashlib.sha256(beginning)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReply:
    """A model's reply: text, requested tool calls, or both.

    `extra` has what else the server said, in OpenAI's format: fields of the answer, and under `choice`, `message` and
    `usage` fields of these; `choices` are further answers.
    """

    text: str = ""
    tool_requests: tuple[ToolRequest, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str = "stop"
    extra: Mapping[str, Json] = field(default_factory=dict, hash=False)

    @property
    def is_cut_off(self) -> bool:
        """Whether the text ends because it reached the limit of its tokens."""
        return self.finish_reason.lower() in ("length", "max_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSite:
    """Where a call comes from. With the digest of the request it makes the key of the answer in the cache.

    `number` counts the equal calls of one step. `repeat` is the repetition of the case.
    """

    role: Role = "agent"
    case_id: str = ""
    repeat: int = 0
    step_id: str = ""
    number: int = 0
