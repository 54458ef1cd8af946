"""Statistics of cache files, and how to clear them while other processes may use them.

A file that is not certainly a cache is refused.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import orjson

from promptiter.errors import SetupError
from promptiter.llm.cache.keys import SCHEMA_VERSION, read_answer, usage_of
from promptiter.llm.cache.lines import START, is_intact, read_key, version_error
from promptiter.llm.cache.storage import BUSY_TIMEOUT_S, SUFFIXES, explain_errors, size_of
from promptiter.llm.ledger import NOTHING, Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContents:
    """The answers of a cache by role: how many there are (as `calls`), and what they cost when they were paid."""

    path: Path
    bytes: int
    by_role: Mapping[str, Spending] = field(default_factory=dict)

    @property
    def total(self) -> Spending:
        return sum(self.by_role.values(), start=NOTHING)


def read_contents(path: str | os.PathLike[str]) -> CacheContents | None:
    """Read the contents of the cache at a path, as a stream; None if there is no file."""
    file = _find_file(path)
    if file is None:
        return None
    if file.suffix == ".jsonl":
        with explain_errors(file), file.open("rb") as opened:
            by_role = _sum_by_role(_lines(opened, path=file))
    else:
        with _database(file) as database:
            by_role = _sum_by_role(_rows(database, path=file))
    return CacheContents(path=file, bytes=size_of(file), by_role=by_role)


def clear_cache(path: str | os.PathLike[str]) -> int:
    """Remove all answers, and return how many there were. Processes that use the cache are not disturbed.

    A file of lines is deleted: a process that has it open continues with its own copy.
    """
    file = _find_file(path)
    if file is None:
        return 0
    if file.suffix == ".jsonl":
        return _delete_file(file)
    with _database(file) as database:
        return _clear_database(database, path=file)


def _find_file(path: str | os.PathLike[str]) -> Path | None:
    """The file at a path; None if there is none."""
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise SetupError(f"the cache {os.fspath(path)!r} is of an unknown kind; give a path in .jsonl, .sqlite or .db")
    if not file.exists():
        return None
    if not file.is_file():
        raise _not_a_cache(file, "it is not a file")
    return file


def _delete_file(path: Path) -> int:
    import fcntl  # not on Windows, which has no such caches

    with explain_errors(path), path.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)  # wait for a write in progress
        answers = sum(1 for _ in _lines(opened, path=path))
        if not os.path.samestat(os.fstat(opened.fileno()), path.stat()):
            raise _not_a_cache(path, "it was replaced meanwhile")
        path.unlink()
    return answers


def _lines(opened: IO[bytes], *, path: Path) -> Iterator[dict[str, Any]]:
    """The answers in a file of lines, without damaged ones. A line that is not of a cache raises SetupError."""
    number = sound = 0
    for number, line in enumerate(opened, 1):
        if not (line.startswith(START) or (START.startswith(line) and not line.endswith(b"\n"))):
            raise _not_a_cache(path, f"line {number} is not of a cache")
        if not line.endswith(b"\n") or not is_intact(line):
            continue
        sound += 1
        if read_key(line, path=path) is not None:
            yield orjson.loads(line)
    if number and not sound:
        raise _not_a_cache(path, "no line matches its checksum")


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    where = f"{path.absolute().as_uri()}?mode=rw"  # does not create the file
    with (
        explain_errors(path),
        closing(sqlite3.connect(where, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as database,
    ):
        yield database


def _rows(database: sqlite3.Connection, *, path: Path) -> Iterator[dict[str, Any]]:
    if _has_answers(database, path=path):
        for (body,) in database.execute("SELECT body FROM answers"):
            yield orjson.loads(body)


def _clear_database(database: sqlite3.Connection, *, path: Path) -> int:
    if not _has_answers(database, path=path):
        return 0
    removed = database.execute("DELETE FROM answers").rowcount
    database.execute("VACUUM")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return removed


def _has_answers(database: sqlite3.Connection, *, path: Path) -> bool:
    """Whether a database has the table of a cache. A database with other tables raises SetupError."""
    try:
        [version] = database.execute("PRAGMA user_version").fetchone()
        columns = [tuple(row) for row in database.execute(_COLUMNS)]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        raise _not_a_cache(path, "it is not an SQLite database") from error
    if columns and columns != [("answers", "key"), ("answers", "body")]:
        raise _not_a_cache(path, f"it has the columns {', '.join(map('.'.join, columns))}")
    if version not in (0, SCHEMA_VERSION):
        raise version_error(path, version)
    return bool(columns)


_COLUMNS = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"


def _sum_by_role(documents: Iterable[dict[str, Any]]) -> dict[str, Spending]:
    found: dict[str, Spending] = {}
    for document in documents:
        role = document["call"]["role"]
        found[role] = found.get(role, NOTHING) + Spending.of_call(usage_of(read_answer(document)))
    return dict(sorted(found.items()))


def _not_a_cache(path: Path, why: str) -> SetupError:
    return SetupError(f"{str(path)!r} is not a cache: {why}; give the path of a cache file")
