"""Tokens: who may do what at a server. A file holds their hashes, never the tokens themselves.

    tokens:
    - {name: ci, sha256: 9f86d0…, scopes: [read, run], apps: [desk], expires: 2027-01-01T00:00:00Z}

`promptiter token` writes such entries. A token without `apps` is for all of them, one without `expires` for ever.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.runs.app_names import APP_NAME, check_app_name
from promptiter.user_files import Location, describe_problems
from promptiter.wording import shorten
from traces.files import write_atomically

Scope: TypeAlias = Literal["read", "run", "admin"]
"""`read` sees runs, `run` also starts, cancels and resumes them, `admin` also deletes them and reads the metrics."""

SCOPES: tuple[Scope, ...] = ("read", "run", "admin")
PREFIX = "pit_"
LONGEST_NAME = 100


class TokenEntry(BaseModel):
    """One token of a file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$", repr=False)]
    scopes: Annotated[frozenset[Scope], Field(min_length=1)]
    apps: frozenset[Annotated[str, Field(pattern=APP_NAME)]] | None = None
    expires: AwareDatetime | None = None


class _TokenFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    tokens: tuple[TokenEntry, ...] = ()


class Refusal(Exception):  # noqa: N818 - a decision, which becomes a status
    """Why a request is refused: 401 without a valid token, 403 with one that does not suffice."""

    def __init__(self, status: Literal[401, 403], message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a server."""

    entries: tuple[TokenEntry, ...]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Tokens:
        """Read the tokens of a file. Raises SetupError with what is wrong."""
        try:
            document = read_yaml(Path(path).read_text(encoding="utf-8"), file=os.fspath(path))
            found = _TokenFile.model_validate(document)
        except OSError as error:
            raise SetupError(f"{os.fspath(path)!r} cannot be read: {error.strerror or error}") from error
        except ValidationError as error:
            problems = describe_problems(error, _TokenFile, Location(os.fspath(path)), is_secret=lambda _: True)
            raise SetupError("; ".join(problems)) from error
        return Tokens(found.tokens)

    def check(self, header: str | None, scope: Scope, app: str | None) -> TokenEntry:
        """The token of an Authorization header, if it may do this. Raises Refusal."""
        kind, _, given = (header or "").partition(" ")
        if kind.lower() != "bearer" or not given:
            raise Refusal(401, "a token is required: send `Authorization: Bearer TOKEN`")
        hashed = hash_token(given.strip())
        matching = [each for each in self.entries if hmac.compare_digest(each.sha256, hashed)]
        if not matching:
            raise Refusal(401, "the token is not known here")
        [entry, *_] = matching
        if entry.expires is not None and entry.expires <= self.now():
            raise Refusal(401, f"the token expired at {entry.expires.isoformat(timespec='seconds')}")
        if app is not None and entry.apps is not None and app not in entry.apps:
            raise Refusal(403, f"the token is not for the app {app!r}")
        if not includes(entry.scopes, scope):
            raise Refusal(403, f"the token lacks the scope {scope!r}")
        return entry


def includes(scopes: Iterable[Scope], wanted: Scope) -> bool:
    """Whether one of the scopes covers another: `admin` covers `run`, which covers `read`."""
    return any(SCOPES.index(each) >= SCOPES.index(wanted) for each in scopes)


def new_token() -> tuple[str, str]:
    """A new token, and its hash for the file."""
    token = PREFIX + secrets.token_urlsafe(32)
    return token, hash_token(token)


def hash_token(token: str) -> str:
    """The hash of a token. Tokens are long and random, so that a plain hash does."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def add_token(
    path: str | os.PathLike[str], *, name: str, scope: Scope, apps: Sequence[str] | None, expires: datetime
) -> str:
    """Add a new token to a file, and return it. Raises SetupError if a name is unusable, or the file has it already."""
    import yaml

    if not 0 < len(name) <= LONGEST_NAME:
        raise SetupError(
            f"{shorten(name)} cannot be the name of a token: use 1 to {LONGEST_NAME} characters, such as ci"
        )
    for each in apps or ():
        check_app_name(each)
    file = Path(path)
    known = Tokens.load(file).entries if file.exists() else ()
    if any(each.name == name for each in known):
        raise SetupError(f"{os.fspath(path)!r} has a token {name!r}; choose another name, or delete that entry")
    token, hashed = new_token()
    entry = TokenEntry(
        name=name,
        sha256=hashed,
        scopes=frozenset([scope]),
        apps=None if apps is None else frozenset(apps),
        expires=expires,
    )
    plain = [each.model_dump(mode="json", exclude_none=True) for each in (*known, entry)]
    with write_atomically(file) as written:
        written.write(yaml.safe_dump({"tokens": plain}, sort_keys=False).encode())
        os.fchmod(written.fileno(), 0o600)
    return token
