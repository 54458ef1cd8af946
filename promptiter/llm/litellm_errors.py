"""Errors of litellm as errors of promptiter: which a retry can help, and which may have been billed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from promptiter.errors import (
    AccessDeniedError,
    BadRequestError,
    ModelError,
    ModelNotFoundError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    TransientModelError,
)
from promptiter.llm.redaction import Redactor


def translate_error(error: Any, litellm: ModuleType, redactor: Redactor, *, place: str | None = None) -> ModelError:
    """An error of litellm as one of ours: transient if a retry can help. `place` is the server that was called."""
    translated = _translate(error, litellm, redactor, place=place)
    status = getattr(error, "status_code", None)
    if isinstance(status, int) and 400 <= status < 500 and not isinstance(translated, TransientModelError):
        translated.status = status
    return translated


def _translate(error: Any, litellm: ModuleType, redactor: Redactor, *, place: str | None) -> ModelError:
    known = litellm.exceptions
    redacted = redactor.redact_text(str(error))  # before it is cut: part of a key is not recognized
    message = f"{type(error).__name__}: {redacted[:500]}"
    if place is not None and _is_unreachable(error):
        message = f"{message} (no connection to {place})"
    if isinstance(error, known.RateLimitError):
        return RateLimitedError(message, retry_after_s=_retry_after_s(error))
    if isinstance(error, known.Timeout):
        return ModelTimeoutError(message, may_be_billed=_may_be_billed(error))
    if isinstance(error, known.AuthenticationError | known.PermissionDeniedError) or _MISSING_KEY.search(str(error)):
        return AccessDeniedError(message)
    if isinstance(error, known.NotFoundError):
        return ModelNotFoundError(f"{message}; check the name of the model and the address of its server")
    if isinstance(error, known.BadRequestError | known.UnprocessableEntityError):
        return BadRequestError(message)
    return ModelUnavailableError(message, retry_after_s=_retry_after_s(error), may_be_billed=_may_be_billed(error))


def _may_be_billed(error: BaseException) -> bool:
    """Whether a request was sent and the server did not refuse it: it broke off, or the answer cannot be read."""
    import httpx  # litellm needs it

    for cause in _list_causes(error):
        if isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
            return False
        if isinstance(cause, httpx.HTTPStatusError):
            return cause.response.status_code in _STATUSES_OF_PROXIES
    return True


def _is_unreachable(error: BaseException) -> bool:
    """Whether no connection to the server could be made."""
    import httpx  # litellm needs it

    return any(isinstance(cause, httpx.ConnectError | httpx.ConnectTimeout) for cause in _list_causes(error))


def _list_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, and those that it was raised from."""
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.__cause__ or cause.__context__


_STATUSES_OF_PROXIES = (408, 502, 504, 520, 524)
"""A proxy answers so if the server behind it takes too long, or its answer cannot be read. That server may bill."""


_MISSING_KEY = re.compile(r"missing (credentials|[\w ]*api[ _]key)", re.IGNORECASE)
"""litellm raises some of these as server errors."""


def _retry_after_s(error: Any) -> float | None:
    response = getattr(error, "response", None)
    for headers in (getattr(response, "headers", None), getattr(error, "headers", None)):
        if headers and (value := headers.get("retry-after")):
            try:
                return max(0.0, float(value))
            except ValueError:  # a date: rare, and the usual pause will do
                return None
    return None
