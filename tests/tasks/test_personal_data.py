from __future__ import annotations

import pytest

from promptiter.llm.redaction import Redactor
from promptiter.tasks.personal_data import CaseRedactor


def redact(text: str) -> str:
    return CaseRedactor(Redactor()).redact_text(text)


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("mail ada.l+x@mail.example.co.uk.", "mail <email 1>."),
        ("from müller@straße.de to ada@example.com", "from <email 1> to <email 2>"),
        ("call +49 170 1234567!", "call <phone 1>!"),
        ("+1 (415) 555-2671 or 415-555-2671", "<phone 1> or <phone 2>"),
        ("my phone is 030 1234567", "my phone is <phone 1>"),
        ("card 4111 1111 1111 1111, 378282246310005", "card <card 1>, <card 2>"),
        ("DE89 3704 0044 0532 0130 00 PLEASE PAY", "<iban 1> PLEASE PAY"),
        ("BE68 5390 0754 7034 THIS ONE", "<iban 1> THIS ONE"),
        ("GB29NWBK60161331926819", "<iban 1>"),
        ("10.1.2.3:8080 and 2001:db8::8a2e:370:7334", "<ip 1>:8080 and <ip 2>"),
        ("Authorization: Bearer abcdefgh12345678", "Authorization: Bearer ***"),
        ("key sk-abcdefghijklmnop1234567", "key ***"),
    ],
)
def test_secrets_and_personal_data_become_placeholders(text: str, safe: str) -> None:
    assert redact(text) == safe


@pytest.mark.parametrize(
    "text",
    [
        "order 4111111111111111",
        "order number is 4539578763621486",
        "1234567890123456 has no check digit",
        "order #415-555-2671, 112-4567890-1234567, A-2041, INV-9",
        "tracking 1Z999AA10123456784",
        "978-3-16-148410-0 is a book",
        "2024-01-15, 15.01.2024 10:30, 07/12/2024, 20240115-0001",
        "2024-01-15T10:00:00+0200 or 1700000000000",
        "version 10.20.30.40, 1.2.3.4, Chrome 120.0.6099.109, react@18.2.0",
        "$1,234.56, €12.500.000,00, 2.000.000 units, +12.50, +10000000",
        "550e8400-e29b-41d4-a716-446655440000",
        "std::vector, Face::Add, aa:bb:cc:dd:ee:ff, 12:30:45, @ada",
        "127.0.0.1, 0.0.0.0, ::1",
        "DE12345678901234567890 has wrong check digits",
        "0123456789, 0012-345678, 0800-1500",
    ],
)
def test_numbers_that_a_case_is_about_stay(text: str) -> None:
    assert redact(text) == text


def test_a_value_has_one_placeholder_within_a_case_however_it_is_written() -> None:
    redactor = CaseRedactor(Redactor())
    assert redactor.redact_text("I am Ada@Example.com, card 4111-1111-1111-1111") == "I am <email 1>, card <card 1>"
    assert redactor.redact_json({"to": "ada@example.com", "cards": ["4111111111111111", 7], "bob@b.com": "cc"}) == {
        "to": "<email 1>",
        "cards": ["<card 1>", 7],
        "<email 2>": "cc",
    }
    assert +redactor.counts == {"email": 3, "card": 2}


def test_secrets_are_redacted_even_if_personal_data_is_kept() -> None:
    redactor = CaseRedactor(Redactor(["hunter2-hunter2"]), keep_personal_data=True)
    assert redactor.redact_text("ada@example.com: hunter2-hunter2") == "ada@example.com: ***"
    assert redactor.redact_json({"api_key": "abc123", "to": "ada@example.com"}) == {
        "api_key": "***",
        "to": "ada@example.com",
    }
    assert +redactor.counts == {"secret": 2}
