"""Keys and answers of the cache, and how answers are written as versioned JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import orjson

from promptiter.errors import SetupError
from promptiter.llm.messages import CallSite, ModelReply, Role, ToolRequest
from promptiter.llm.redaction import Redactor, map_texts
from traces import Usage, digest
from traces.model import Json, holds_non_finite

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheKey:
    """Identifies a call: its request, where it was made, and the seed. Two seeds are two samples of every answer.

    Only calls of the agent belong to a case and a step. For other roles these fields are empty, so equal requests of a
    judge in the same repeat are one call, whichever case they are about. See `judgement` for the repeats of judges.
    """

    role: Role
    request_digest: str
    case_id: str = ""
    repeat: int = 0
    step_id: str = ""
    number: int = 0
    seed: int = 0
    _digest: str = field(default="", init=False, repr=False, compare=False)
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.role != "agent" and (self.case_id or self.step_id or self.number):
            for name, empty in (("case_id", ""), ("step_id", ""), ("number", 0)):
                object.__setattr__(self, name, empty)
        object.__setattr__(self, "_hash", hash((self.request_digest, self.repeat)))  # a call needs it several times

    def __hash__(self) -> int:
        return self._hash

    @classmethod
    def of(cls, site: CallSite, request_digest: str, *, seed: int = 0) -> CacheKey:
        return cls(
            role=site.role,
            request_digest=request_digest,
            case_id=site.case_id,
            repeat=site.repeat,
            step_id=site.step_id,
            number=site.number,
            seed=seed,
        )

    @property
    def digest(self) -> str:
        """A hash that is the same for equal keys in every process and release."""
        if not self._digest:  # a call needs it several times: to look for its answer, to send it and to store it
            object.__setattr__(self, "_digest", digest(list(self.as_json().values())))
        return self._digest

    def as_json(self) -> dict[str, Json]:
        """The fields by name. Seed 0 is left out, so that caches written before keys had seeds remain valid."""
        given: dict[str, Json] = {
            "role": self.role,
            "request_digest": self.request_digest,
            "case_id": self.case_id,
            "repeat": self.repeat,
            "step_id": self.step_id,
            "number": self.number,
        }
        return given | {"seed": self.seed} if self.seed else given


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a declared tool: a JSON value, or the error that it raised."""

    value: Json = None
    error: str | None = None


StoredAnswer: TypeAlias = ModelReply | ToolAnswer

FREE = Usage(input_tokens=0, output_tokens=0, cost_usd=0.0)
"""The usage of a tool call."""


def usage_of(answer: StoredAnswer) -> Usage:
    return answer.usage if isinstance(answer, ModelReply) else FREE


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheStats:
    """Figures of a cache. `hits` counts the answers that this process got from it."""

    entries: int
    hits: int
    bytes: int


def redact_answer(answer: StoredAnswer, redactor: Redactor) -> StoredAnswer:
    """An answer without known secrets. It is stored and also used like this, so a run and its replay are equal."""
    if isinstance(answer, ToolAnswer):
        return replace(answer, value=redactor.redact_known_json(answer.value))
    text = redactor.redact_known(answer.text)
    extra = redactor.redact_known_json(answer.extra) if answer.extra else answer.extra
    if not answer.tool_requests:
        is_same = text is answer.text and extra is answer.extra
        return answer if is_same else replace(answer, text=text, extra=extra)
    requests = (
        replace(request, arguments=redactor.redact_known_json(request.arguments)) for request in answer.tool_requests
    )
    return replace(answer, text=text, tool_requests=tuple(requests), extra=extra)


def encode_answer(key: CacheKey, answer: StoredAnswer, *, paid: Mapping[str, Json] | None = None) -> bytes:
    """An answer and its key as JSON, with what the call cost if that is recorded."""
    document: dict[str, Json] = {
        "v": SCHEMA_VERSION,
        "key": key.digest,
        "call": key.as_json(),
    }
    if isinstance(answer, ToolAnswer):
        document["tool"] = {"value": answer.value, "error": answer.error}
    else:
        document["model"] = {
            "text": answer.text,
            "tool_requests": [{"id": r.id, "name": r.name, "arguments": r.arguments} for r in answer.tool_requests],
            "usage": {name: value for name in Usage.__slots__ if (value := getattr(answer.usage, name)) is not None},
            "finish_reason": answer.finish_reason,
            **({"extra": answer.extra} if answer.extra else {}),
        }
    if paid is not None:
        document["paid"] = dict(paid)
    raw = _write(document, key)
    if b"null" in raw and holds_non_finite(document):
        raise SetupError(
            f"an answer of {key.step_id or key.role!r} has a NaN or infinite number; return it as text or null"
        )
    return raw


def _write(document: dict[str, Json], key: CacheKey) -> bytes:
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError:
        document = map_texts(
            document, lambda text: text.encode(errors="replace").decode()
        )  # half a surrogate pair is not valid JSON
    try:
        return orjson.dumps(document)
    except orjson.JSONEncodeError as error:
        raise SetupError(
            f"an answer of {key.step_id or key.role!r} cannot be written as JSON ({error}); return texts, numbers, "
            "lists, and dicts with text keys"
        ) from error


def decode_answer(raw: bytes) -> StoredAnswer:
    return read_answer(orjson.loads(raw))


def read_answer(document: dict[str, Any]) -> StoredAnswer:
    if "tool" in document:
        return ToolAnswer(**document["tool"])
    model = document["model"]
    return ModelReply(
        text=model["text"],
        tool_requests=tuple(ToolRequest(**request) for request in model["tool_requests"]),
        usage=Usage(**model["usage"]),
        finish_reason=model["finish_reason"],
        extra=model.get("extra", {}),
    )
