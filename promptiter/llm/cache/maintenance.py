"""Caches at rest: what a file holds, by who asked, and how to empty it while others may use it.

Only what is a cache beyond doubt is touched; a file with anything else in it is refused.
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
from promptiter.llm.cache.keys import SCHEMA_VERSION, answer_in, usage_of
from promptiter.llm.cache.lines import START, is_sound, key_in, other_version
from promptiter.llm.cache.storage import BUSY_TIMEOUT_S, SUFFIXES, explain_errors, size_of
from promptiter.llm.ledger import NOTHING, Spending


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheContents:
    """What a cache holds: by role, how many answers (as `calls`), and what they cost when they were asked for."""

    path: Path
    bytes: int
    by_role: Mapping[str, Spending] = field(default_factory=dict)

    @property
    def total(self) -> Spending:
        return sum(self.by_role.values(), start=NOTHING)


def contents_of(path: str | os.PathLike[str]) -> CacheContents | None:
    """What the cache at a path holds; None if there is no file. It is only read, as a stream."""
    file = _checked(path)
    if file is None:
        return None
    if file.suffix == ".jsonl":
        with explain_errors(file), file.open("rb") as opened:
            by_role = _by_role(_lines(opened, path=file))
    else:
        with _database(file) as database:
            by_role = _by_role(_rows(database, path=file))
    return CacheContents(path=file, bytes=size_of(file), by_role=by_role)


def clear_cache(path: str | os.PathLike[str]) -> int:
    """Remove all answers, and say how many. Who uses the cache at this moment is not disturbed.

    A file of lines is removed: whoever has it open goes on with it alone.
    """
    file = _checked(path)
    if file is None:
        return 0
    if file.suffix == ".jsonl":
        return _unlinked(file)
    with _database(file) as database:
        return _emptied(database, path=file)


def _checked(path: str | os.PathLike[str]) -> Path | None:
    """The file behind a path; None if there is none."""
    file = Path(path)
    if file.suffix not in SUFFIXES:
        raise SetupError(f"cannot tell what cache {os.fspath(path)!r} is: give a path in .jsonl, .sqlite or .db")
    if not file.exists():
        return None
    if not file.is_file():
        raise _foreign(file, "it is no file")
    return file


def _unlinked(path: Path) -> int:
    import fcntl  # not on Windows, where there are no such caches

    with explain_errors(path), path.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)  # nobody is in the middle of a write
        answers = sum(1 for _ in _lines(opened, path=path))
        if not os.path.samestat(os.fstat(opened.fileno()), path.stat()):
            raise _foreign(path, "it was replaced at this moment")
        path.unlink()
    return answers


def _lines(opened: IO[bytes], *, path: Path) -> Iterator[dict[str, Any]]:
    """The answers in a file of lines. Damaged ones are left out; but all must be lines of a cache, or none is."""
    number = sound = 0
    for number, line in enumerate(opened, 1):
        if not (line.startswith(START) or (START.startswith(line) and not line.endswith(b"\n"))):
            raise _foreign(path, f"line {number} is not of a cache")
        if not line.endswith(b"\n") or not is_sound(line):
            continue
        sound += 1
        if key_in(line, path=path) is not None:
            yield orjson.loads(line)
    if number and not sound:
        raise _foreign(path, "it has no line with a checksum that fits")


@contextmanager
def _database(path: Path) -> Iterator[sqlite3.Connection]:
    where = f"{path.absolute().as_uri()}?mode=rw"  # which makes no file
    with (
        explain_errors(path),
        closing(sqlite3.connect(where, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)) as database,
    ):
        yield database


def _rows(database: sqlite3.Connection, *, path: Path) -> Iterator[dict[str, Any]]:
    if _has_answers(database, path=path):
        for (body,) in database.execute("SELECT body FROM answers"):
            yield orjson.loads(body)


def _emptied(database: sqlite3.Connection, *, path: Path) -> int:
    if not _has_answers(database, path=path):
        return 0
    removed = database.execute("DELETE FROM answers").rowcount
    database.execute("VACUUM")
    database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    return removed


def _has_answers(database: sqlite3.Connection, *, path: Path) -> bool:
    """Whether a database has the table of a cache; one without any table may become a cache. Others are refused."""
    try:
        [version] = database.execute("PRAGMA user_version").fetchone()
        columns = [tuple(row) for row in database.execute(_COLUMNS)]
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_NOTADB:
            raise
        raise _foreign(path, "it is no SQLite database") from error
    if columns and columns != [("answers", "key"), ("answers", "body")]:
        raise _foreign(path, f"it has the columns {', '.join(map('.'.join, columns))}")
    if version not in (0, SCHEMA_VERSION):
        raise other_version(path, version)
    return bool(columns)


_COLUMNS = "SELECT t.name, c.name FROM sqlite_master t, pragma_table_info(t.name) c WHERE t.type = 'table'"


def _by_role(documents: Iterable[dict[str, Any]]) -> dict[str, Spending]:
    found: dict[str, Spending] = {}
    for document in documents:
        role = document["call"]["role"]
        found[role] = found.get(role, NOTHING) + Spending.of_call(usage_of(answer_in(document)))
    return dict(sorted(found.items()))


def _foreign(path: Path, why: str) -> SetupError:
    return SetupError(f"{str(path)!r} is no cache: {why}; name the cache's own file")
