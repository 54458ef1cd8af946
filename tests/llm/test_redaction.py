from __future__ import annotations

import contextlib
import copy
import json
import time

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.llm.redaction import (
    MASK,
    SESSION_PREFIX,
    Redactor,
    map_texts,
    process_redactor,
    secrets_from_environment,
)
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
        ("mysql://u:p@ssw0rd@h/db or a@b", "mysql://u:***@h/db or a@b"),
        ("https://tok-9f86d081884c7d65:x@h and https://9f86d081884c7d659a@h", "https://***:***@h and https://***@h"),
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
def test_a_known_secret_is_also_found_in_json_and_addresses(text: str) -> None:
    redacted = Redactor([SECRET]).redact_text(text)
    assert MASK in redacted
    assert "rd" not in redacted


def test_a_secret_inside_a_longer_one_leaves_nothing_of_it() -> None:
    assert Redactor(["hunter", "hunter-two"]).redact_text("hunter-two hunter") == "*** ***"


def test_short_values_are_not_redacted() -> None:
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


@pytest.mark.slow
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
    started = time.thread_time()
    Redactor().redact_text(unit * (400_000 // len(unit)))
    assert time.thread_time() - started < 2


KNOWN = 'k9-value/of "mine"'


@pytest.mark.parametrize(
    "value",
    [
        KNOWN,
        {"a": [f"it is {KNOWN}!", 1], KNOWN: None},
        json.dumps({"inner": json.dumps(KNOWN)}),
        (KNOWN, {"deep": [[KNOWN]]}),
        {7: KNOWN, "object": object()},
        f"half an emoji \ud83d and {KNOWN}",
    ],
)
def test_a_known_secret_is_found_in_data_of_any_form(value: Json) -> None:
    redactor = Redactor([KNOWN])
    assert "k9-value" in repr(value)
    assert "k9-value" not in repr(redactor.redact_known_json(value))
    if isinstance(value, str):
        assert "k9-value" not in redactor.redact_known(value)


def test_data_of_any_depth_is_searched() -> None:
    deep: Json = KNOWN
    for _ in range(20_000):
        deep = [deep]
    redacted = Redactor([KNOWN]).redact_known_json(deep)
    while not isinstance(redacted, str):
        [redacted] = redacted
    assert redacted == MASK


@given(json_values)
def test_data_without_a_known_secret_is_the_same_object(value: Json) -> None:
    assert Redactor().redact_known_json(value) is value
    assert Redactor([KNOWN]).redact_known_json(value) == value
    document = {"a": [value, "api_key=sk-proj-abcDEF123_456-789xyz"]}
    with contextlib.suppress(TypeError):
        orjson.dumps(document)
        assert Redactor([KNOWN]).redact_known_json(document) is document


@given(json_values, st.from_regex(r"[a-h][a-h0-9]{7,11}[0-9\"\\\n]", fullmatch=True))
def test_a_document_stays_json_and_holds_no_known_secret(value: Json, secret: str) -> None:
    """Also where an escape in the document and the beginning of the secret would make up a match."""
    document = map_texts(value, lambda text: f"\n{secret[1:]}{text}{secret}")
    raw = json.dumps(document).encode()
    redactor = Redactor([secret])
    assert json.loads(redactor.redact_known_document(raw)) == map_texts(document, redactor.redact_known)


def test_large_numbers_of_a_document_stay() -> None:
    raw = b'{"n":123456789012345678901234567890,"k":"value-1-long"}'
    assert Redactor(["value-1-long"]).redact_known_document(raw) == raw.replace(b"value-1-long", b"***")


@pytest.mark.parametrize("common", ["short12", "postgres", "production"])
def test_short_values_and_words_are_masked_in_errors_but_not_in_data(common: str) -> None:
    redactor = Redactor([common])
    assert redactor.redact_text(f"key {common} refused") == "key *** refused"
    assert redactor.redact_known(f"say {common}") == f"say {common}"
    assert redactor.redact_known_json([common]) == [common]


def test_placeholder_keys_are_not_secrets() -> None:
    redactor = Redactor(["none", "EMPTY", "lm-studio"])
    assert redactor.redact_text("none of lm-studio is EMPTY") == "none of lm-studio is EMPTY"
    assert repr(redactor) == "Redactor(0 secrets)"


def test_a_redactor_learns_further_secrets() -> None:
    redactor = Redactor(["value-1-long"])
    redactor.learn(["value-2-long\n", "", "value-1-long"])
    assert redactor.redact_known("value-1-long value-2-long") == "*** ***"
    assert repr(redactor) == "Redactor(2 secrets)"
    assert process_redactor().redact_known("value-2-long") == MASK


def test_the_working_folder_of_a_shell_is_not_a_secret() -> None:
    assert secrets_from_environment({"PWD": "/home/eve/project", "OLDPWD": "/home/eve", "DB_PWD": "value-1-long"}) == (
        "value-1-long",
    )


def test_secrets_are_collected_from_the_environment() -> None:
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


def test_passwords_in_addresses_of_the_environment_are_secrets() -> None:
    environ = {
        "DATABASE_URL": "postgresql://desk:s3cr3t-passw%21rd@db.example/orders",
        "HOMEPAGE": "https://example.org/a:b@c",
        "PROXY": "http://user@proxy:8080",
    }
    assert secrets_from_environment(environ) == ("s3cr3t-passw!rd", "s3cr3t-passw%21rd")
    redactor = Redactor(secrets_from_environment(environ))
    assert redactor.redact_known("the password is s3cr3t-passw!rd") == f"the password is {MASK}"
    assert redactor.redact_text(environ["DATABASE_URL"]) == f"postgresql://desk:{MASK}@db.example/orders"


@pytest.mark.parametrize(
    ("address", "secrets"),
    [
        ("mysql://u:p@ssw0rd@h/db", ["p@ssw0rd"]),
        ("mysql://u:p'ss\"w0rd@h/db", ["p'ss\"w0rd"]),
        ("mysql://u:pa/ss-w0rd@h/db", ["pa/ss-w0rd"]),
        ("mysql://h/db?user=u&password=s3cr3t-9&api_key=value-1-long", ["s3cr3t-9", "value-1-long"]),
        ("jdbc:sqlserver://h:1433;user=u;password=s3cr3t-9", ["s3cr3t-9"]),
        ("https://h/v1?key=9f86d081884c7d659a&page=9f86d081884c7d659a1", ["9f86d081884c7d659a"]),
        ("https://9f86d081884c7d659a@h/repo", ["9f86d081884c7d659a"]),
        ("https://9f86d081884c7d659a:x-oauth@h/repo", ["9f86d081884c7d659a", "x-oauth"]),
        ("redis://:s3cr3t-1@h1,redis://:s3cr3t-2@h2", ["s3cr3t-1", "s3cr3t-2"]),
        ('{"a": "x://u:s3cr3t-1@h", "mail": "me@h"}', ["s3cr3t-1"]),
        ("http://proxy:8080/see@home ssh://deploy@h https://h/a?next=page&sort=key", []),
    ],
)
def test_secret_parts_of_addresses_in_the_environment(address: str, secrets: list[str]) -> None:
    assert list(secrets_from_environment({"ADDRESS": address})) == secrets


def test_a_line_of_a_secret_of_several_lines_is_redacted_alone() -> None:
    lines = [
        "-----BEGIN PRIVATE KEY-----",
        "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC",
        "BKcwggSjAgEAAoIBAQC7",
        "-----END PRIVATE KEY-----",
    ]
    redactor = Redactor(["\n".join(lines)])
    assert redactor.redact_known(f"line 2 is {lines[1]}, then {lines[2]}") == f"line 2 is {MASK}, then {MASK}"
    assert redactor.redact_known(lines[0]) == lines[0]


@pytest.mark.parametrize("said", ["correcthorse", "Y29ycmVjdC1ob3JzZS05", "CORRECT-HORSE-9"])
def test_what_the_docs_say_is_not_caught_in_data(said: str) -> None:
    """Short single words, and values that were changed: base64, or other letters."""
    assert Redactor(["correcthorse", "correct-horse-9"]).redact_known(said) == said


def test_keys_of_the_endpoint_are_redacted_in_data_too() -> None:
    key = f"{SESSION_PREFIX}{'aB3_-' * 8}"
    assert Redactor().redact_known(f"base url http://127.0.0.1:9/{key}/v1") == "base url http://127.0.0.1:9/***/v1"
    assert Redactor().redact_known_json({"env": [key]}) == {"env": ["***"]}
    assert Redactor().redact_known_document(f'{{"a":"{key}"}}'.encode()) == b'{"a":"***"}'
    assert Redactor().redact_text(key) == "***"
