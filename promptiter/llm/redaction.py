"""Redaction: whatever is written, logged or shown goes through a Redactor first.

A redactor knows the secrets that it was given (see `secrets_from_environment`) and what common credentials look like.
A secret becomes `***`; the words around it stay, so a reader sees that there was one: `Authorization: Bearer ***`.

In errors, both are redacted. In data (answers, outputs, events) only known secrets are: a text that merely looks like a
credential may be what a case is about.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote, unquote

import orjson

from traces.model import Json

MASK = "***"

SHORTEST_SECRET = 4
"""Shorter values are not redacted: they are parts of ordinary words."""

SHORTEST_IN_DATA = 8
"""In data, shorter values and single words are not redacted: a mistake would change a case."""

SHORTEST_LINE = 16
"""Shorter lines of a secret of several lines are redacted only with the others."""

TextChange: TypeAlias = Callable[[str], str]
TextChangeUnder: TypeAlias = Callable[[str, str], str]


class Redactor:
    """Replaces secrets by `***`: the values it is given, and whatever looks like a credential."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        self._secrets: frozenset[str] = frozenset()
        self._in_texts: tuple[str, ...] = ()
        self._in_data: tuple[str, ...] = ()
        self._in_documents: tuple[bytes, ...] = ()
        self.learn(secrets)

    def learn(self, secrets: Iterable[str]) -> None:
        """Redact these too from now on, except for placeholders such as `dummy-key`."""
        given = {secret.strip() for secret in secrets}
        given |= {line for secret in given if "\n" in secret for line in _find_lines(secret)}
        known = self._secrets | {
            secret for secret in given if len(secret) >= SHORTEST_SECRET and secret.lower() not in _PLACEHOLDERS
        }
        if known == self._secrets:
            return
        _known_anywhere.update(known)
        self._secrets = known
        self._in_texts = _spellings(known)
        self._in_data = _spellings(secret for secret in known if not _is_common(secret))
        self._in_documents = tuple(
            json.dumps(each, ensure_ascii=False)[1:-1].encode(errors="replace") for each in self._in_data
        )

    def redact_text(self, text: str) -> str:
        """Redact a text. Returns the same object if there is nothing to redact."""
        for secret in self._in_texts:
            if secret in text:
                text = text.replace(secret, MASK)
        lowered = text.lower()
        for known in _PATTERNS:
            if any(mark in lowered for mark in known.marks):
                text = known.regex.sub(_mask, text)
        if any(mark in lowered for mark in _NAME_MARKS):
            text = _mask_assignments(text)
        return text

    def redact_json(self, value: Json) -> Json:
        """Redact the texts and keys of a JSON value. A text under a key such as `api_key` is replaced as a whole."""
        return map_texts(value, self.redact_text, under=_mask_under)

    def redact_known(self, text: str) -> str:
        """Redact known secrets in a text that is data. Returns the same object if there are none."""
        for secret in self._in_data:
            if secret in text:
                text = text.replace(secret, MASK)
        return _SESSION_KEY.sub(MASK, text) if SESSION_PREFIX in text else text

    def redact_known_json(self, value: Json) -> Json:
        """Redact known secrets in a JSON value that is data. Returns the same object if there are none."""
        try:
            raw = orjson.dumps(value, default=repr, option=orjson.OPT_NON_STR_KEYS)
        except TypeError:  # too deep, or half a surrogate pair
            return map_texts(value, self.redact_known)
        return map_texts(value, self.redact_known) if self._is_known_in(raw) else value

    def redact_known_document(self, raw: bytes) -> bytes:
        """Redact known secrets in a serialized JSON document."""
        if not self._is_known_in(raw):
            return raw
        # Not orjson, which refuses large integers; and not in the bytes, where `\\n` is one letter.
        safe = map_texts(json.loads(raw), self.redact_known)
        return json.dumps(safe, ensure_ascii=False, separators=(",", ":")).encode()

    def _is_known_in(self, raw: bytes) -> bool:
        return _SESSION_MARK in raw or any(secret in raw for secret in self._in_documents)

    def __repr__(self) -> str:
        return f"Redactor({len(self._secrets)} secrets)"


def process_redactor() -> Redactor:
    """A redactor for code without a gateway: it knows the secrets of all redactors of this process."""
    return Redactor((*secrets_from_environment(os.environ), *_known_anywhere))


def secrets_from_environment(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values, of 8 characters or more, of variables that are named like keys, tokens and passwords.

    Of other variables, the secret parts of addresses, such as `postgresql://desk:password@db/orders`.
    """
    given = dict(environ)  # os.environ decodes each variable whenever it is read
    found = {value for name, value in given.items() if len(value) >= 8 and _SECRET_VARIABLE.search(name.upper())}
    parts = {part for value in given.values() if "://" in value for part in _find_in_addresses(value)}
    return tuple(sorted(found | parts | {unquote(each) for each in parts}))


def _find_in_addresses(text: str) -> Iterator[str]:
    """The secret parts of all addresses in a text: passwords, tokens in place of a user name, keys in the query.

    A password may contain an unescaped `@` or quote, and a `/` if no `@` comes before it.
    """
    for scheme in _SCHEME.finditer(text):
        address = _END_OF_ADDRESS.split(text[scheme.end() :], maxsplit=1)[0]
        if (quote_before := text[: scheme.start()][-1:]) in ("'", '"'):
            address = address.split(quote_before)[0]
        server = re.split("[/?#]", address, maxsplit=1)[0]
        login, at, _ = server.rpartition("@")
        if not at and ":" in server and not server.partition(":")[2].isdigit():
            login, at, _ = address.partition("@")
        user, _, password = login.partition(":")
        if at and len(password) >= SHORTEST_SECRET:
            yield password
        if at and _OPAQUE.fullmatch(user):
            yield user
        for name, value in _PARAMETER.findall(address):
            ending = name.lower().replace("-", "_")
            if ending.endswith(_SECRET_NAMES) or (ending.endswith(_OPAQUE_PARAMETERS) and _OPAQUE.fullmatch(value)):
                yield value


def map_texts(value: Json, change: TextChange, *, under: TextChangeUnder | None = None) -> Json:
    """A copy of a JSON value, of any depth, with every text and key changed. Tuples become lists, as in JSON.

    `under` gets a key and the text below it, before `change` does. Keys that become equal are numbered.
    """
    copied: list[Json] = []
    waiting: list[tuple[Json, Json]] = [([value], copied)]
    while waiting:
        source, copy = waiting.pop()
        keyed = isinstance(source, Mapping)
        for key, item in source.items() if keyed else enumerate(source):
            made = item
            if isinstance(item, str):
                made = change(under(key, item) if under and isinstance(key, str) else item)
            elif isinstance(item, Mapping | list | tuple):
                made = {} if isinstance(item, Mapping) else []
                waiting.append((item, made))
            if keyed:
                copy[_free_key(change(key), copy) if isinstance(key, str) else key] = made
            else:
                copy.append(made)
    return copied[0]


def _free_key(key: str, taken: Mapping[str, Json]) -> str:
    free, number = key, 1
    while free in taken:
        number += 1
        free = f"{key}~{number}"
    return free


def _spellings(secrets: Iterable[str]) -> tuple[str, ...]:
    """The secrets as they are, and as written in JSON, code and URLs; longest first, as one may be part of another."""
    spelled: set[str] = set()
    for secret in secrets:
        in_json = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
        in_json |= {json.dumps(each, ensure_ascii=False)[1:-1] for each in in_json}  # a tool's arguments in an answer
        spelled |= {secret, *in_json, repr(secret)[1:-1], quote(secret, safe="", errors="replace")}
    return tuple(sorted(spelled, key=lambda text: (-len(text), text)))


def _find_lines(secret: str) -> Iterator[str]:
    """The lines of a secret of several lines, such as a PEM key. A model may repeat one of them alone."""
    for line in map(str.strip, secret.splitlines()):
        if len(line) >= SHORTEST_LINE and not line.startswith("-----"):
            yield line


def _is_common(secret: str) -> bool:
    """Whether data is likely to contain the same text by chance."""
    return len(secret) < SHORTEST_IN_DATA or _WORD.fullmatch(secret) is not None


def _mask(match: re.Match[str]) -> str:
    """The replacement of a match. A pattern may have a group for the words before the secret."""
    return f"{match[match.lastindex]}{MASK}" if match.lastindex else MASK


def _mask_under(key: str, text: str) -> str:
    """The text below a key of a JSON object, or the mask if the key names a secret."""
    name = key.lower().replace("-", "_")
    if name.endswith(_SECRET_NAMES + _SECRET_HEADERS):
        return MASK if text and not _VARIABLE.fullmatch(text) else text
    return MASK if name.endswith(_OPAQUE_NAMES) and _OPAQUE.fullmatch(text) else text


def _mask_assignments(text: str) -> str:
    """Mask values in assignments such as `password=***` and `"token": "***"`, by the name before `=` or `:`."""
    parts, done = [], 0
    for sign in _SIGN.finditer(text):
        if sign.start() < done:
            continue
        name = text[max(done, sign.start() - 30) : sign.start()].rstrip(" \"'\\").lower().replace("-", "_")
        if name.endswith(_SECRET_NAMES):
            value = (_QUOTED if sign["quote"] else _AFTER[sign["sign"]]).match(text, sign.end())
        elif name.endswith(_OPAQUE_NAMES):
            value = _OPAQUE.match(text, sign.end())
        else:
            continue
        if value:
            parts += [text[done : value.start()], MASK]
            done = value.end()
    return "".join([*parts, text[done:]]) if parts else text


@dataclass(frozen=True, slots=True)
class _Pattern:
    """A pattern of credentials. Only texts that contain one of its marks, in lower case, are searched."""

    marks: tuple[str, ...]
    regex: re.Pattern[str]


_PATTERNS = (
    _Pattern(("key-----",), re.compile(r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*KEY-----|\Z)")),
    _Pattern(("sk-", "sk_", "rk_"), re.compile(r"\b(?:sk-|gsk_|[sr]k_(?:live|test)_)[\w-]{16,}")),
    _Pattern(("akia", "asia"), re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b")),
    _Pattern(
        ("ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"), re.compile(r"\b(?:gh[pousr]|github_pat)_\w{20,}")
    ),
    _Pattern(("hf_", "xox"), re.compile(r"\b(?:hf_\w{20,}|xox[abeprs]-[\w-]{10,})")),
    _Pattern(("aiza", "eyj"), re.compile(r"\b(?:AIza[\w-]{30,}|eyJ[\w-]{8,}\.[\w-]{8,}(?:\.[\w-]*)?)")),
    _Pattern(("bearer",), re.compile(r"\b(B(?:earer|EARER)\s+|bearer\s+(?=[^\s\d]*\d|\S{20}))[\w.~+/=-]{8,}")),
    _Pattern(("basic",), re.compile(r"\b([Bb]asic\s+)(?=[A-Za-z+/]*[\d=])[A-Za-z0-9+/]{8,}={0,2}")),
    _Pattern(("://",), re.compile(r"(://[^\s/:@\"']*:)[^\s/\"']+(?=@)")),
    _Pattern(("://",), re.compile(r"(://)(?=[A-Za-z_.~-]*\d)[\w.~-]{16,}(?=(?::[^\s/@\"']*)?@)")),
    _Pattern(
        ("authorization",),
        re.compile(
            r"(?i)(authorization\\?[\"']?\s*[:=]\s*\\?[\"']?(?:[a-z]\w*\s+)?)(?=[^\s\d]*\d|\S{20})[^\s\"',\\]{8,}"
        ),
    ),
)

SESSION_PREFIX = "sk-promptiter-"
"""How the keys of the endpoint begin. Each run of a case has one, so they are known by their form."""
_SESSION_KEY = re.compile(rf"{SESSION_PREFIX}[\w-]{{16,}}")
_SESSION_MARK = SESSION_PREFIX.encode()

_known_anywhere: set[str] = set()
"""The secrets of all redactors of this process, for `process_redactor`."""

_VARIABLE = re.compile(r"(?:[A-Za-z]+ )?\$\{\w+\}")
"""Where a secret is read from, such as `Bearer ${TOKEN}`."""
_WORD = re.compile(r"[^\W\d_]{1,12}")
_PLACEHOLDERS = frozenset(
    (
        *("anything", "dummy", "empty", "fake", "local", "none", "null", "ollama", "placeholder", "test", "vllm"),
        *("lm-studio", "no-key", "no-key-required", "not-needed", "sk-no-key-required", "dummy-key", "fake-key"),
        *("test-key", "your-api-key", "not-a-key", "no-api-key", "dummy_key", "fake_key", "test_key", "your_api_key"),
    )
)

_KEYS = (
    "api",
    "secret",
    "access",
    "private",
    "auth",
    "signing",
    "encryption",
    "session",
    "account",
    "master",
    "storage",
)
_SECRET_NAMES = (
    *(f"{which}{joint}key" for which in _KEYS[:4] for joint in ("", "_")),
    *("client_secret", "clientsecret", "password", "passwd", "passphrase"),
)
_SECRET_HEADERS = ("authorization", "cookie")
_OPAQUE_NAMES = (
    *(f"{which}{joint}key" for which in _KEYS[4:] for joint in ("", "_")),
    *("token", "secret", "credential", "credentials", "signature"),
)
_OPAQUE_PARAMETERS = (*_OPAQUE_NAMES, "key", "auth", "sig")
_NAME_MARKS = ("key", "secret", "passw", "passphrase", "token", "credential", "signature")
_SIGN = re.compile(r"(?P<sign>[:=])\s*(?P<quote>\\?[\"'])?")
_OPAQUE = re.compile(r"(?=[A-Za-z+/_=.~-]*\d)[A-Za-z0-9+/_=.~-]{16,}")
_QUOTED = re.compile(r"(?:[^\"'\\\n]|\\[^\"'\n]){4,}")
_AFTER = {
    "=": re.compile(r"[^\s\"'&,;\\]{4,}"),
    ":": re.compile(r"(?=[^\s\d\"',;]*\d)[^\s\"'&,;\\]{6,}"),  # "Password: required" has no secret
}
_SCHEME = re.compile(r"\b[A-Za-z][A-Za-z0-9+.-]{0,30}://")
_END_OF_ADDRESS = re.compile(rf"\s|{_SCHEME.pattern}")
_PARAMETER = re.compile(r"[?&;]([\w.-]+)=([^&;#\"']{8,})")
_SECRET_VARIABLE = re.compile(
    r"(?:^|_)(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|PASS|CREDENTIALS?|PAT|DSN)\d*(?:_|$)"
    r"|_PWD\d*(?:_|$)|(?:PASSWORD|APIKEY|TOKEN)$"  # PWD itself is the current folder of a shell
)
