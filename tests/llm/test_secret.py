from __future__ import annotations

import pickle
from dataclasses import dataclass

import pytest

from promptiter.llm.litellm import LiteLLMModel
from promptiter.llm.secret import (
    Secret,
    hide_by_name,
    is_secret_name,
    reveal,
    secrets_in,
    secrets_of_address,
    secrets_of_headers,
)
from traces.model import Json


@pytest.mark.parametrize(
    ("address", "secrets"),
    [
        ("https://example.org:8080/v1/gpt-4o-mini-2024-07-18?api-version=2024-10-21&page=3", set()),
        ("https://eve:hunter22@example.org", {"hunter22", "ZXZlOmh1bnRlcjIy"}),
        ("https://eve:a%2Fb%40c@example.org", {"a%2Fb%40c", "a/b@c", "ZXZlOmEvYkBj"}),
        ("https://token-17@example.org", {"token-17", "dG9rZW4tMTc6"}),
        ("https://example.org/v1?key=a%20b&code=c", {"a%20b", "a b", "c"}),
        ("https://example.org/v1?access_token=abc&region=eu", {"abc"}),
        ("https://example.org/0af7651916cd43dd8448eb211c80319c/openai", {"0af7651916cd43dd8448eb211c80319c"}),
        ("http://[broken", set()),
        ("", set()),
    ],
)
def test_secret_parts_of_an_address(address: str, secrets: set[str]) -> None:
    assert set(secrets_of_address(address)) == secrets


def test_secret_parts_of_headers() -> None:
    headers = {
        "Authorization": "Bearer abc",
        "X-Team": "payments-7",
        "X-Short": "seven77",
        "x-route": "Basic dXNlcjpwYXNz",
        "Content-Type": "application/json",
        "anthropic-version": "2023-06-01",
        "User-Agent": "promptiter",
    }
    assert list(secrets_of_headers(headers)) == ["abc", "payments-7", "dXNlcjpwYXNz"]


def test_a_model_reports_its_secrets_and_hides_them_in_its_repr() -> None:
    model = LiteLLMModel(api_base="https://eve:pw-17@h", api_key="key-17", headers={"X-Team": "payments-7"})
    assert set(model.secrets()) == {"key-17", "payments-7", "pw-17", "ZXZlOnB3LTE3"}
    assert not [secret for secret in model.secrets() if secret in repr(model)]


@pytest.mark.parametrize("name", ["api_key", "X-Api-Key", "DB_PASSWORD", "client_secret", "Set-Cookie", "access_token"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize("name", ["max_tokens", "author", "monkey", "temperature", "keyboard"])
def test_names_that_are_not_secret(name: str) -> None:
    assert not is_secret_name(name)


def test_texts_under_a_secret_name_are_hidden_and_can_be_revealed() -> None:
    options: Json = {
        "temperature": 0.5,
        "stop": ["a"],
        "extra_headers": {"X-Any": "b", "Accept": "c"},
        "body": [{"password": ["d", {"e": "f"}]}],
    }
    hidden = hide_by_name(options)
    assert hidden == {
        "temperature": 0.5,
        "stop": ["a"],
        "extra_headers": {"X-Any": "***", "Accept": "c"},
        "body": [{"password": ["***", {"e": "***"}]}],
    }
    assert reveal(hidden) == options
    assert hide_by_name(hidden) == hidden
    assert secrets_in(hide_by_name(hidden)) == ("b", "d", "f")


@dataclass
class Holder:
    value: object


def test_secrets_are_found_in_any_container_with_their_variables() -> None:
    secret = Secret("a-b", source="${A}-${B}", parts=("a", "b"))
    assert secrets_in(Holder([{"x": (Holder(secret), "plain")}, Secret("c")])) == ("a", "a-b", "b", "c")
    again = pickle.loads(pickle.dumps(secret))
    assert (again.reveal(), again.parts, str(again), repr(again)) == ("a-b", ("a", "b"), "${A}-${B}", "'***'")
