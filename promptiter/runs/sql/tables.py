"""The tables. Only rows of `runs` are ever updated: events, calls, answers and traces are inserted and read.

Texts that are compared (ids) have binary collations. Everything else that may hold any text is bytes: JSON, which is
compressed if it is long (see packing).
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

LONGEST_APP = 200
LONGEST_RUN_ID = 200

METADATA = MetaData()


def _text(length: int) -> TypeEngine[str]:
    return String(length).with_variant(String(length, collation="C"), "postgresql")


def _table(name: str, *parts: SchemaItem, is_numbered: bool = False) -> Table:
    return Table(
        f"promptiter_{name}",
        METADATA,
        *parts,
        sqlite_autoincrement=is_numbered,  # otherwise SQLite gives the number of a deleted row to a new one
        mysql_engine="InnoDB",
        mysql_charset="utf8mb4",
        mysql_collate="utf8mb4_bin",
    )


_BYTES = LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")
_HASH = LargeBinary(32).with_variant(mysql.BINARY(32), "mysql")
_NUMBER = BigInteger().with_variant(Integer(), "sqlite")  # only an INTEGER of SQLite counts by itself

VERSIONS = _table("schema", Column("version", Integer, primary_key=True, autoincrement=False))
"""The numbers of the migrations that were applied."""

RUNS = _table(
    "runs",
    Column("run_key", _NUMBER, primary_key=True, autoincrement=True),
    Column("app", _text(LONGEST_APP), nullable=False),
    Column("run_id", _text(LONGEST_RUN_ID), nullable=False),
    Column("created_at", _text(40), nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("status", _text(20), nullable=False),
    Column("verdict", _text(40)),
    Column("round", Integer, nullable=False),
    Column("baseline", Double),
    Column("best", Double),
    Column("duration_s", Double),
    Column("details", _BYTES),
    Column("is_final", SmallInteger, nullable=False),
    Column("is_named", SmallInteger, nullable=False),
    Column("next_seq", BigInteger, nullable=False),
    Column("lease_number", BigInteger, nullable=False),
    Column("lease_holder", _BYTES),
    Column("lease_expires_at", Double),
    Column("is_stop_requested", SmallInteger, nullable=False),
    Column("is_cancel_requested", SmallInteger, nullable=False),
    UniqueConstraint("app", "run_id", name="promptiter_runs_id"),
    # For lists. Every database creates a constraint together with its table, which an index would need a statement for.
    UniqueConstraint("app", "status", "run_id", name="promptiter_runs_status"),
    is_numbered=True,
)
"""One row per run, the only one that changes. Times are Unix timestamps, but for `created_at`.

A `run_key` is never used again: views and leases of a deleted run may still have it.

`status` is that of the last event; before the first one it is `queued` or `interrupted`, and `queued` if the run is to
be resumed. Each opening of a run has a `lease_number`, which every append checks. `details` is JSON with what is only
shown: cost, stop reason, error.
"""

HEADERS = _table(
    "headers",
    Column("run_key", BigInteger, primary_key=True, autoincrement=False),
    Column("body", _BYTES, nullable=False),
)
"""The inputs of each run, apart from its row, which is written again with each event."""

EVENTS = _table(
    "events",
    Column("run_key", BigInteger, primary_key=True, autoincrement=False),
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("body", _BYTES, nullable=False),
)

CALLS = _table(
    "calls",
    Column("run_key", BigInteger, primary_key=True, autoincrement=False),
    Column("place", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", _text(10), nullable=False),
    Column("call_hash", _HASH, nullable=False),
    Column("entry", _BYTES),
)
"""The account: calls that were asked, answered and given up, with what they cost or may have cost, in this order."""

ANSWERS = _table(
    "answers",
    Column("run_key", BigInteger, primary_key=True, autoincrement=False),
    Column("call_hash", _HASH, primary_key=True),
    Column("place", BigInteger, nullable=False),
    Column("is_paid", SmallInteger, nullable=False),
    Column("body", _BYTES, nullable=False),
)

TRACES = _table(
    "traces",
    Column("run_key", BigInteger, primary_key=True, autoincrement=False),
    Column("trace_hash", _HASH, primary_key=True),
    Column("body", _BYTES, nullable=False),
)

CASE_USES = _table(
    "case_uses",
    Column("app", _text(LONGEST_APP), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("use_hash", _HASH, nullable=False),
    Column("body", _BYTES, nullable=False),
    UniqueConstraint("app", "use_hash", name="promptiter_case_uses_id"),
)
"""The uses of cases, which outlive the runs."""

PARTS_OF_A_RUN = (HEADERS, EVENTS, CALLS, ANSWERS, TRACES)
