"""The addresses of remote agents."""

from __future__ import annotations

import pytest

from promptiter.agents.remote.address import check_address, is_loopback
from promptiter.errors import SetupError


@pytest.mark.parametrize(
    "url", ["http://localhost:8080", "https://agents.example/desk/", "http://[::1]:80", "HTTP://A.example"]
)
def test_addresses_of_agents(url: str) -> None:
    check_address(url)


@pytest.mark.parametrize(
    "url",
    ["", "localhost:80", "ftp://a", "http://", "http://a:b", "http://[::1", "http://a?b=c", "http://a#b", "file:///a"],
)
def test_what_is_not_an_address_is_refused(url: str) -> None:
    with pytest.raises(SetupError, match="give one such as http://localhost:8080"):
        check_address(url)


def test_a_login_is_refused_without_showing_it() -> None:
    with pytest.raises(SetupError, match="contains a login; give it as a header") as error:
        check_address("http://user:s3cret@a.example")
    assert "s3cret" not in str(error.value)


def test_loopback() -> None:
    assert [is_loopback(f"http://{each}") for each in ("127.0.0.1:8", "localhost", "[::1]:1", "a.example")] == [
        *(True, True, True),
        False,
    ]
