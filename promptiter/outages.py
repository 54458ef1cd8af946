"""Outages: errors of a service, whichever client reports them. They say nothing about the agent or its prompts.

Errors are recognized by the names of their classes and base classes, so that no client has to be imported.
"""

from __future__ import annotations

from collections.abc import Mapping

from promptiter.errors import (
    AccessDeniedError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    RunnerError,
)

_OWN = (AccessDeniedError, ModelTimeoutError, ModelUnavailableError, RateLimitedError)
"""Errors of the gateway, after all its retries."""
OWN_NAMES = frozenset(each.__name__ for each in _OWN)
"""The names of these classes. Their messages say in words what failed."""

_CONNECTION_ERRORS = (
    "ConnectionError",  # Python with the four below, requests, botocore
    "BrokenPipeError",
    "ConnectionAbortedError",
    "ConnectionRefusedError",
    "ConnectionResetError",
    "gaierror",  # Python: a host name could not be resolved
    "URLError",  # urllib
    "ConnectError",  # httpx
    "NetworkError",  # httpx: the base class of ConnectError, ReadError, WriteError and CloseError
    "ProxyError",  # httpx, requests
    "RemoteProtocolError",  # httpx: the server broke off
    "ChunkedEncodingError",  # requests: the same
    "ClientPayloadError",  # aiohttp: the same
    "ClientConnectionError",  # aiohttp: the base class of all its connection errors
    "APIConnectionError",  # openai, anthropic, litellm
    "EndpointConnectionError",  # botocore, and the next one
    "ConnectionClosedError",
)
"""The service could not be reached, or the connection broke."""

_TIMEOUTS = (
    "ConnectTimeout",  # httpx, requests
    "ReadTimeout",  # httpx, requests
    "WriteTimeout",  # httpx
    "PoolTimeout",  # httpx
    "Timeout",  # requests, litellm
    "ServerTimeoutError",  # aiohttp
    "APITimeoutError",  # openai, anthropic
    "ConnectTimeoutError",  # botocore, urllib3
    "ReadTimeoutError",  # botocore, urllib3
)
"""The service did not answer a client in time. Python's TimeoutError may be a limit of the agent's own, so it is not
listed."""

_RATE_LIMITS = (
    "RateLimitError",  # openai, anthropic, litellm
    "TooManyRequests",  # Google
    "ThrottlingException",  # AWS
)
"""The service asked for a pause."""

_SERVER_ERRORS = (
    "InternalServerError",  # openai, anthropic, litellm: any 5xx
    "ServiceUnavailableError",  # anthropic, litellm
    "DeadlineExceededError",  # anthropic: 504
    "OverloadedError",  # anthropic: 529
    "BadGatewayError",  # litellm
    "ServerError",  # Google
)
"""The service failed."""

OUTAGES = frozenset((*OWN_NAMES, *_CONNECTION_ERRORS, *_TIMEOUTS, *_RATE_LIMITS, *_SERVER_ERRORS))
"""The names of classes whose errors are outages."""

_STATUS_ERRORS = frozenset(
    (
        "HTTPError",  # requests, urllib
        "HTTPStatusError",  # httpx
        "ClientResponseError",  # aiohttp
        "APIError",  # openai, anthropic, litellm, Google
        "ClientError",  # botocore
    )
)
"""Errors for any refused request: the status of the answer decides."""


def is_outage(error: BaseException) -> bool:
    """Whether an error, or one of its causes (`raise ... from error`), is one of a service."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is each for each in causes):
        causes.append(cause)
        cause = cause.__cause__
    return any(map(_is_of_service, causes))


def is_outage_name(name: str) -> bool:
    """Whether the name of a class, such as `RateLimitError` or `openai.RateLimitError`, is that of an outage."""
    return name.rpartition(".")[2] in OUTAGES


def _is_of_service(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(is_outage, error.exceptions))
    if isinstance(error, RunnerError) and error.is_outage:
        return True
    names = {each.__name__ for each in type(error).__mro__}
    status = _find_status(error) if names & _STATUS_ERRORS else None
    return bool(names & OUTAGES) if status is None else status in (408, 429) or status >= 500


def _find_status(error: BaseException) -> int | None:
    """The HTTP status of the answer, wherever the client keeps it."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):  # botocore
        found = iter([response.get("ResponseMetadata", {}).get("HTTPStatusCode")])
    else:
        found = (getattr(each, name, None) for name in ("status_code", "status", "code") for each in (error, response))
    return next((each for each in found if isinstance(each, int)), None)
