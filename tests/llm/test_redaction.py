from __future__ import annotations

import copy
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.llm.redaction import MASK, Redactor, map_texts, secrets_from_environment
from tests.traces.strategies import json_values
from traces.model import Json

SECRET = 'p@ss "wörd"/17'


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("use sk-proj-abcDEF123_456-789xyz now", "use *** now"),
        ("key: sk-" + "ab-12_CD" * 5, "key: ***"),
        ("id AKIAIOSFODNN7EXAMPLE, region eu", "id ***, region eu"),
        ("ghp_0123456789abcdefghijABCDEFGHIJ012345", "***"),
        ("Authorization: Bearer abc.def-123", "Authorization: Bearer ***"),
        ("authorization: Token 0123456789abcdef", "authorization: Token ***"),
        ('{"Authorization": "Basic dXNlcjpwYXNzMQ=="}', '{"Authorization": "Basic ***"}'),
        ("GET /v1?api_key=hunter22&page=2", "GET /v1?api_key=***&page=2"),
        ("OPENAI_API_KEY=hunter22 make", "OPENAI_API_KEY=*** make"),
        ("{'api-key': 'hun ter'}", "{'api-key': '***'}"),
        (r"{\"password\": \"hunter\", \"user\": \"eve\"}", r"{\"password\": \"***\", \"user\": \"eve\"}"),
        ("password: hunter22", "password: ***"),
        ("a=b=password=hunter&c=d", "a=b=password=***&c=d"),
        ("AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMI/K7MDENG/bPxRfiCY", "AWS_SECRET_ACCESS_KEY=***"),
        ("session_token: 9f86d081884c7d659a2feaa0c55ad015", "session_token: ***"),
        ("postgres://eve:hunter2@db/prod", "postgres://eve:***@db/prod"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijk", "***"),
        ("a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb", "a\n***\nb"),
    ],
)
def test_what_looks_like_a_credential_is_masked(text: str, redacted: str) -> None:
    assert Redactor().redact_text(text) == redacted
    assert Redactor().redact_text(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "the task-oriented-dialogue-system of Asia",
        "max_tokens: 1024, tokens=17",
        "Password: at least one letter",
        "a basic understanding of bearer instruments",
        "the key is that the secret: patience",
        '{"key": "9f86d081884c7d659a2feaa0c55ad0159f86d081884c7d659a2feaa0c55ad015"}',
        "https://example.org:8080/a?b=c see http://x.y/z@home",
        "authorization: is asked first",
    ],
)
def test_ordinary_text_is_the_same_object(text: str) -> None:
    assert Redactor(["hunter22"]).redact_text(text) is text


@pytest.mark.parametrize(
    "text",
    [
        f"it is {SECRET}!",
        r"{\"a\": \"p@ss \"wörd\"/17\"}",
        r"p@ss \"wörd\"/17",
        r"p@ss \"w\u00f6rd\"/17",
        "p%40ss%20%22w%C3%B6rd%22%2F17",
    ],
)
def test_a_known_secret_is_found_also_inside_json_and_addresses(text: str) -> None:
    redacted = Redactor([SECRET]).redact_text(text)
    assert MASK in redacted
    assert "rd" not in redacted


def test_a_secret_that_is_part_of_a_longer_one_leaves_no_rest() -> None:
    assert Redactor(["hunter", "hunter-two"]).redact_text("hunter-two hunter") == "*** ***"


def test_short_values_are_not_looked_for() -> None:
    assert Redactor(["", "a", "the"]).redact_text("the cat") == "the cat"


def test_the_redactor_does_not_show_its_secrets() -> None:
    assert repr(Redactor(["hunter22", "hunter23"])) == "Redactor(2 secrets)"


def test_json_is_redacted_in_values_keys_and_under_secret_names() -> None:
    value = {
        "headers": [{"X-Api-Key": "anything", "Authorization": "short", "Accept": "json"}],
        "hunter22": ("hunter22", 7),
        "a hunter22": None,
        "token": "word",
        "access_token": "9f86d081884c7d659a2f",
        "key": "9f86d081884c7d659a2f",
        "password": "",
    }
    before = copy.deepcopy(value)
    assert Redactor(["hunter22"]).redact_json(value) == {
        "headers": [{"X-Api-Key": MASK, "Authorization": MASK, "Accept": "json"}],
        MASK: [MASK, 7],
        "a ***": None,
        "token": "word",
        "access_token": MASK,
        "key": "9f86d081884c7d659a2f",
        "password": "",
    }
    assert value == before


def test_keys_that_become_equal_are_all_kept() -> None:
    assert list(Redactor(["hunter22", "hunter33"]).redact_json({"hunter22": 1, "hunter33": 2, "***": 3}).items()) == [
        ("***", 1),
        ("***~2", 2),
        ("***~3", 3),
    ]


def test_json_of_any_depth_is_redacted() -> None:
    deep: Json = "hunter22"
    for _ in range(50_000):
        deep = [{"a": deep}]
    redacted = Redactor(["hunter22"]).redact_json(deep)
    while not isinstance(redacted, str):
        redacted = redacted[0]["a"]
    assert redacted == MASK


@given(json_values)
def test_a_copy_with_unchanged_texts_is_equal(value: Json) -> None:
    assert map_texts(value, lambda text: text) == value


@given(json_values, st.from_regex(r"[a-h][a-h0-9]{7,11}", fullmatch=True))
def test_no_known_secret_is_left(value: Json, secret: str) -> None:
    def everywhere(text: str) -> str:
        return f"{text}{secret}{text}"

    assert secret not in repr(Redactor([secret]).redact_json(map_texts(value, everywhere)))


@given(
    st.lists(
        st.sampled_from(["api_key", "=", ":", " ", '"', "\\", "Bearer ", "token", "a1", "x" * 20, "://", "@", "\n"])
    )
)
def test_redacting_twice_changes_nothing_more(words: list[str]) -> None:
    once = Redactor(["secret-value"]).redact_text("".join(words))
    assert Redactor(["secret-value"]).redact_text(once) == once


@pytest.mark.parametrize(
    "unit", ["api_key=", "bearer ", "://a:", "sk-", 'password": "', "-----BEGIN PRIVATE KEY-----", "eyJaaaaaaaaa."]
)
def test_hostile_text_takes_linear_time(unit: str) -> None:
    started = time.perf_counter()
    Redactor().redact_text(unit * (400_000 // len(unit)))
    assert time.perf_counter() - started < 2


def test_the_environment_gives_its_secrets() -> None:
    environ = {
        "OPENAI_API_KEY": "value-1-long",
        "GITHUB_TOKEN": "value-2-long",
        "PGPASSWORD": "value-3-long",
        "DB_PASSWORD_2": "value-4-long",
        "AWS_SECRET_ACCESS_KEY": "value-5-long",
        "SHORT_TOKEN": "1234567",
        "MAX_TOKENS": "not-a-secret",
        "KEYBOARD_LAYOUT": "not-a-secret",
        "PATH": "/usr/bin:/bin",
        "COPY_TOKEN": "value-2-long",
    }
    assert secrets_from_environment(environ) == tuple(f"value-{number}-long" for number in range(1, 6))
