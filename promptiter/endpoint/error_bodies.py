"""Errors in the shape that clients of the protocols expect, with the status that makes them do the right thing.

The gateway has already retried, so `x-should-retry: false` keeps clients from retrying on top of it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from promptiter.endpoint.http_messages import HttpAnswer, RefusedRequestError
from promptiter.errors import (
    AccessDeniedError,
    BadRequestError,
    BudgetEndedError,
    ModelError,
    ModelNotFoundError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    SetupError,
    StopRequestedError,
)
from promptiter.llm.redaction import Redactor
from traces.errors import UnwritableTraceError
from traces.model import Json

WireProtocol: TypeAlias = Literal["openai", "anthropic"]

NO_RETRY = {"x-should-retry": "false"}

_KINDS: tuple[tuple[type[Exception], int, str], ...] = (
    (BudgetEndedError, 403, "budget_ended"),
    (StopRequestedError, 403, "stop_requested"),
    (SetupError, 400, "invalid_request_error"),
    (AccessDeniedError, 401, "authentication_error"),
    (ModelNotFoundError, 404, "not_found_error"),
    (BadRequestError, 400, "invalid_request_error"),
    (RateLimitedError, 429, "rate_limit_error"),
    (ModelTimeoutError, 504, "timeout_error"),
    (ModelUnavailableError, 502, "api_error"),
    (ModelError, 502, "api_error"),
    (UnwritableTraceError, 400, "invalid_request_error"),  # a body that is nested too deeply
)
"""Status and type of an error: the first line whose class fits."""


def render_error(error: Exception, protocol: WireProtocol, *, redactor: Redactor | None = None) -> HttpAnswer:
    """An error as the answer of a protocol, without secrets."""
    if isinstance(error, RefusedRequestError):
        status, kind, message, param = error.status, error.kind, str(error), error.param
    else:
        status, kind = _classify(error)
        message, param = f"{type(error).__name__}: {error}", ""
    safe = (redactor or Redactor()).redact_text(message)
    return HttpAnswer.of_json(_shape(safe, kind, param, protocol), status=status, headers=NO_RETRY)


def _classify(error: Exception) -> tuple[int, str]:
    found = ((status, kind) for each, status, kind in _KINDS if isinstance(error, each))
    status, kind = next(found, (500, "api_error"))
    upstream = error.status if isinstance(error, ModelError) else None
    return upstream or status, kind


def _shape(message: str, kind: str, param: str, protocol: WireProtocol) -> Json:
    if protocol == "anthropic":
        return {"type": "error", "error": {"type": kind, "message": message}}
    return {"error": {"message": message, "type": kind, "param": param or None, "code": kind}}
