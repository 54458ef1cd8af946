"""The address of a database: a URL as people write it, its driver, and a name for messages, without secrets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, TypeAlias

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from promptiter.errors import SetupError, nearest

Backend: TypeAlias = Literal["sqlite", "postgresql", "mysql"]

SCHEMES: Mapping[str, Backend] = {
    "sqlite": "sqlite",
    "postgresql": "postgresql",
    "postgres": "postgresql",
    "mysql": "mysql",
    "mariadb": "mysql",
}
DRIVERS: Mapping[Backend, str] = {"sqlite": "pysqlite", "postgresql": "psycopg", "mysql": "pymysql"}
EXAMPLES = "sqlite:///runs.db, postgresql://user@host/database or mysql://user@host/database"


@dataclass(frozen=True, slots=True)
class Address:
    """Where a database is. `name` is for messages: without the password, and without options that may hold one."""

    backend: Backend
    url: URL = field(repr=False)
    name: str


def parse_address(url: str) -> Address:
    """Parse a URL. SetupError, without the password, if it cannot be used."""
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise SetupError(f"this is not the URL of a database; give one such as {EXAMPLES}") from error
    scheme, _, driver = parsed.drivername.partition("+")
    backend = SCHEMES.get(scheme)
    if backend is None:
        raise SetupError(f"{scheme!r} is not a known database{nearest(scheme, SCHEMES)}; give {EXAMPLES}")
    if driver not in ("", DRIVERS[backend]):
        raise SetupError(f"{parsed.drivername!r} names a driver that is not supported; write {scheme}://")
    if backend == "sqlite":
        parsed = _locate_file(parsed)
    elif find_spec(DRIVERS[backend]) is None:
        raise SetupError(f"{scheme} needs {DRIVERS[backend]}; run: pip install 'promptiter[sql]'")
    shown = {key: value for key, value in parsed.query.items() if key in _SHOWN}
    name = parsed.set(drivername=scheme, query=shown).render_as_string()
    if backend != "sqlite" and not parsed.database:
        raise SetupError(f"{name!r} names no database; give {EXAMPLES}")
    return Address(backend, parsed.set(drivername=f"{backend}+{DRIVERS[backend]}"), name)


_SHOWN = ("host", "port", "unix_socket")
"""Options that say where a database is."""


def _locate_file(url: URL) -> URL:
    """The URL with an absolute path, which stays valid if the process changes its folder."""
    if url.database in (None, "", ":memory:"):
        raise SetupError("a database in memory ends with its connection; give a file (sqlite:///runs.db), or 'memory'")
    if url.query:
        raise SetupError(f"the URL of an SQLite database takes no options, and this has {', '.join(url.query)!r}")
    return url.set(database=str(Path(str(url.database)).absolute()))
