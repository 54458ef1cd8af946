"""Errors of a service, by the classes of the clients that report them."""

from __future__ import annotations

import subprocess
import sys
import urllib.error
from email.message import Message

import aiohttp
import httpx
import openai
import pytest
import requests
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from promptiter.errors import (
    AccessDeniedError,
    BadRequestError,
    ModelNotFoundError,
    ModelTimeoutError,
    ModelUnavailableError,
    RateLimitedError,
    RunnerError,
    ToolFailedError,
)
from promptiter.outages import is_outage, is_outage_name

REQUEST = httpx.Request("POST", "http://service")


def answer(status: int) -> httpx.Response:
    return httpx.Response(status, request=REQUEST)


def httpx_status(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError("refused", request=REQUEST, response=answer(status))


def requests_status(status: int) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    return requests.HTTPError("refused", response=response)


def aiohttp_status(status: int) -> aiohttp.ClientResponseError:
    headers: CIMultiDict[str] = CIMultiDict()
    asked = aiohttp.RequestInfo(URL("http://service"), "POST", CIMultiDictProxy(headers), URL("http://service"))
    return aiohttp.ClientResponseError(asked, (), status=status)


def urllib_status(status: int) -> urllib.error.HTTPError:
    return urllib.error.HTTPError("http://service", status, "refused", Message(), None)


class ClientError(Exception):
    """As in botocore, which gives services' errors classes of their own, derived from this one."""

    def __init__(self, status: int) -> None:
        super().__init__("refused")
        self.response = {"Error": {"Code": "Refused"}, "ResponseMetadata": {"HTTPStatusCode": status}}


class ServiceUnavailableError(Exception):
    """As in litellm and anthropic."""


class APIError(Exception):
    """As in google.genai: `code` is the status, and `status` is a text."""

    def __init__(self, code: int) -> None:
        super().__init__("refused")
        self.code, self.status = code, "REFUSED"


BY_STATUS = [httpx_status, requests_status, aiohttp_status, urllib_status, ClientError, APIError]
OUTAGES = [
    RateLimitedError("429"),
    ModelUnavailableError("503"),
    ModelTimeoutError("no answer in 60 s"),
    AccessDeniedError("the key has expired"),
    RunnerError("RateLimitError: 429", is_outage=True),
    ConnectionError("down"),
    ConnectionResetError("reset by peer"),
    urllib.error.URLError("connection refused"),
    httpx.ConnectError("refused"),
    httpx.ReadError("broken"),
    httpx.ReadTimeout("late"),
    httpx.PoolTimeout("late"),
    httpx.RemoteProtocolError("broken"),
    requests.ConnectionError("refused"),
    requests.ConnectTimeout("late"),
    requests.ReadTimeout("late"),
    aiohttp.ServerDisconnectedError(),
    aiohttp.ServerTimeoutError(),
    aiohttp.ClientPayloadError("broken"),
    openai.APIConnectionError(request=REQUEST),
    openai.APITimeoutError(request=REQUEST),
    openai.RateLimitError("429", response=answer(429), body=None),
    openai.InternalServerError("529", response=answer(529), body=None),
    ServiceUnavailableError("503"),
    *(make(status) for make in BY_STATUS for status in (408, 429, 500, 503, 529)),
]
FAULTS = [
    TimeoutError("no answer in 5 s"),
    ValueError("RateLimitError: 429"),
    RunnerError("RateLimitError: 429"),
    ToolFailedError("search", "ConnectionError: down"),
    BadRequestError("400"),
    ModelNotFoundError("404"),
    OSError("disk full"),
    httpx.UnsupportedProtocol("ftp"),
    httpx.InvalidURL("what"),
    requests.exceptions.InvalidURL("what"),
    aiohttp.InvalidURL("what"),
    openai.BadRequestError("400", response=answer(400), body=None),
    *(make(status) for make in BY_STATUS for status in (400, 404, 422)),
]


def name(error: BaseException) -> str:
    return f"{type(error).__module__.partition('.')[0]}.{type(error).__name__}"


@pytest.mark.parametrize("error", OUTAGES, ids=name)
def test_errors_of_a_service_are_outages(error: Exception) -> None:
    assert is_outage(error)


@pytest.mark.parametrize("error", FAULTS, ids=name)
def test_other_errors_are_faults_of_the_agent(error: Exception) -> None:
    assert not is_outage(error)


def test_the_cause_of_an_error_counts_and_what_was_handled_before_does_not() -> None:
    class RetryError(Exception):
        pass

    gave_up, unrelated, own_cause = RetryError("3 attempts"), KeyError("city"), ValueError()
    gave_up.__cause__, unrelated.__context__, own_cause.__cause__ = ConnectionError(), ConnectionError(), own_cause
    assert [is_outage(each) for each in (gave_up, unrelated, own_cause)] == [True, False, False]


def test_a_group_is_an_outage_if_each_of_its_errors_is() -> None:
    down, wrong = ConnectionError("down"), ValueError("wrong")
    assert is_outage(ExceptionGroup("", [down, ExceptionGroup("", [down])]))
    assert not is_outage(ExceptionGroup("", [down, wrong]))


def test_an_error_that_an_agent_reports_by_name_is_known_too() -> None:
    names = ["ConnectionResetError", "openai.RateLimitError", "Timeout", "TimeoutError", "ValueError"]
    assert [is_outage_name(each) for each in names] == [True, True, True, False, False]


def test_no_client_is_imported_to_recognize_its_errors() -> None:
    clients = "httpx requests aiohttp openai anthropic litellm botocore"
    code = f"import promptiter.outages, sys; print(set(sys.modules) & set({clients.split()!r}))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"
