"""Personal data in texts of production: e-mail addresses, phone, card and account numbers, IP addresses.

Each becomes a placeholder such as `<email 1>`. Within a case, the same value has the same placeholder, so that an
answer still fits its question. Secrets become `***`, as everywhere. A number that only looks like one of these is what
a case is about: order numbers, dates, versions and prices stay as they are.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from promptiter.llm.redaction import MASK, Redactor, map_texts
from traces.model import Json


class CaseRedactor:
    """Redacts the texts of one case. `counts` has how often each kind was replaced, with secrets as `secret`."""

    def __init__(self, secrets: Redactor, *, keep_personal_data: bool = False) -> None:
        self.counts: Counter[str] = Counter()
        self._secrets = secrets
        self._kinds = () if keep_personal_data else _KINDS
        self._placeholders: dict[tuple[str, str], str] = {}
        self._known: Counter[str] = Counter()

    def redact_text(self, text: str) -> str:
        """The text without secrets and personal data."""
        safe = self._secrets.redact_text(text)
        self.counts["secret"] += safe.count(MASK) - text.count(MASK) if safe is not text else 0
        return self._replace(safe)

    def redact_json(self, value: Json) -> Json:
        """The value without secrets and personal data in its texts and keys, and below keys such as `api_key`."""
        if isinstance(value, str):
            return self.redact_text(value)
        safe = self._secrets.redact_json(value)
        self.counts["secret"] += max(0, _count_masks(safe) - _count_masks(value))
        return map_texts(safe, self._replace)

    def _replace(self, text: str) -> str:
        for kind in self._kinds:
            if kind.may_be_in(text):
                text = self._replace_kind(kind, text)
        return text

    def _replace_kind(self, kind: _Kind, text: str) -> str:
        parts: list[str] = []
        done = 0
        for start, end, value in kind.find(text):
            parts += [text[done:start], self._name(kind.name, value)]
            done = end
            self.counts[kind.name] += 1
        return "".join([*parts, text[done:]]) if parts else text

    def _name(self, kind: str, value: str) -> str:
        placeholder = self._placeholders.get((kind, value))
        if placeholder is None:
            self._known[kind] += 1
            placeholder = self._placeholders[kind, value] = f"<{kind} {self._known[kind]}>"
        return placeholder


def _count_masks(value: Json) -> int:
    count = 0

    def look(text: str) -> str:
        nonlocal count
        count += text.count(MASK)
        return text

    map_texts(value, look)
    return count


_Found = tuple[int, int, str]
"""Where a value starts and ends, and how it is written without spaces and marks."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of personal data. Only texts that `may_be_in` accepts are searched."""

    name: str
    may_be_in: Callable[[str], object]
    find: Callable[[str], Iterator[_Found]]


def _find_emails(text: str) -> Iterator[_Found]:
    for found in _EMAIL.finditer(text):
        yield found.start(), found.end(), found[0].casefold()


def _find_accounts(text: str) -> Iterator[_Found]:
    """IBANs with correct check digits. A word in capitals that follows one is not a part of it."""
    for found in _IBAN.finditer(text):
        end = found.end()
        while end - found.start() >= 15:
            account = text[found.start() : end].replace(" ", "")
            if (
                15 <= len(account) <= 34
                and int("".join(str(int(each, 36)) for each in account[4:] + account[:4])) % 97 == 1
            ):
                yield found.start(), end, account
                break
            end = text.rfind(" ", found.start(), end)


def _find_cards(text: str) -> Iterator[_Found]:
    """Numbers that an issuer of cards may have given out: its first digits, its length and the check digit."""
    for found in _CARD.finditer(text):
        digits = _keep_digits(found[0])
        if _ISSUED.fullmatch(digits) and _has_check_digit(digits) and not _OTHER_NUMBER.search(text, *_before(found)):
            yield found.start(), found.end(), digits


def _find_phones(text: str) -> Iterator[_Found]:
    """Numbers with a country code or in groups of 3, 3 and 4 digits; other ones only after a word such as `phone`."""
    for found in _PHONE.finditer(text):
        digits = _keep_digits(found[0])
        if len(digits) < (10 if found[0][1:].isdigit() else 7) or _OTHER_NUMBER.search(text, *_before(found)):
            continue
        if found.lastgroup != "national" or _PHONE_WORD.search(text, *_before(found)):
            yield found.start(), found.end(), digits


def _find_addresses(text: str) -> Iterator[_Found]:
    """IP addresses, except for those of this computer, and versions with four numbers."""
    for found in _IP.finditer(text):
        written = found[0].rstrip(":")
        if (
            _VERSION_WORD.search(text, *_before(found))
            or len(written.replace(".", "")) == 4
            or not _DIGIT.search(written)
        ):
            continue
        try:
            address = ipaddress.ip_address(written)
        except ValueError:
            continue
        if not address.is_loopback and not address.is_unspecified:
            yield found.start(), found.start() + len(written), str(address)


def _before(found: re.Match[str]) -> tuple[int, int]:
    """Where the words before a match start and end."""
    return max(0, found.start() - 30), found.start()


def _keep_digits(text: str) -> str:
    return re.sub(r"\D", "", text)


def _has_check_digit(digits: str) -> bool:
    """Whether the last digit is the check digit of the others (Luhn)."""
    doubled = [int(each) * (2 if at % 2 else 1) for at, each in enumerate(reversed(digits))]
    return sum(each - 9 if each > 9 else each for each in doubled) % 10 == 0


_DIGIT = re.compile(r"\d")
_EMAIL = re.compile(r"(?<![\w.%+/-])[\w.%+-]{1,64}@(?:[^\W_](?:[\w-]{0,62})\.){1,8}[^\W\d_]{2,24}(?![\w@])")
_IBAN = re.compile(r"\b[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){2,7}(?: ?[A-Z0-9]{1,3})?\b")
_CARD = re.compile(
    r"(?<![\w.,#/+-])(?:\d{4}(?:[ -]?\d{4}){3}(?:[ -]?\d{3})?|3\d{3}[ -]?\d{6}[ -]?\d{4,5})(?![\w-]|[.,]\d)"
)
_ISSUED = re.compile(
    r"4\d{15}(?:\d{3})?|(?:5[1-5]|2[3-6]|22[2-9]|27[01])\d{13,14}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}|35\d{14}"
    r"|6(?:011|5\d\d|4[4-9]\d|2\d\d)\d{12}(?:\d{3})?"
)
_PHONE = re.compile(
    r"(?=[+(\d])(?:(?P<international>(?<![\w+)])\+[1-9](?:[ ().\-/\xa0]{0,2}\d){7,14}(?![\w-]))"
    r"|(?P<grouped>(?<![\w.,#/+-])(?:1[ .-])?(?:\([2-9]\d{2}\) ?|[2-9]\d{2}[ .-])\d{3}[ .-]\d{4}(?![\w-]|[.,]\d))"
    r"|(?P<national>(?<![\w.,#/+-])\(?0\d{1,4}\)?[ /.-]?\d{2,8}(?:[ .-]\d{2,6}){0,4}(?![\w-]|[.,]\d)))"
)
_PHONE_WORD = re.compile(
    r"(?i)\b(?:tele)?(?:phone|fon)\w*|\b(?:tel|cell|mobil\w*|handy\w*|fax|whatsapp|sms|call|ring|text|reach|dial)\b"
)
_OTHER_NUMBER = re.compile(
    r"(?i)(?:#|\b(?:order|invoice|ticket|tracking|parcel|shipment|reference|ref|case|booking|article|item|product|serial|"
    r"batch|part|sku|isbn|ean|version|id|transaction|rechnung\w*|bestell\w*|auftrag\w*)"
    r"(?:[ -]?(?:number|nr|no|id|code))?)"
    r"[\s:#.=\"'(-]*(?:is\s+|was\s+)?\Z"
)
_VERSION_WORD = re.compile(r"(?i)\b(?:v|ver|version|release|build|firmware|driver|section|chapter|§)[\s:.=]*\Z")
_IP = re.compile(
    r"(?<![\w.:-])(?:\d{1,3}(?:\.\d{1,3}){3}(?![\w-]|\.\d)|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w.]*[\w]))"
)
_KINDS = (
    _Kind("email", lambda text: "@" in text, _find_emails),
    _Kind("iban", _DIGIT.search, _find_accounts),
    _Kind("card", _DIGIT.search, _find_cards),
    _Kind("ip", _DIGIT.search, _find_addresses),
    _Kind("phone", _DIGIT.search, _find_phones),
)
