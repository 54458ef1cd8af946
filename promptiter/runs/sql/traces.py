"""The traces of a run in a database, by digest."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, delete, select

from promptiter.concurrency import run_in_thread
from promptiter.errors import SetupError
from promptiter.evaluation.trace_store import SMALL, encode_trace
from promptiter.llm.redaction import Redactor
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.packing import pack, unpack
from promptiter.runs.sql.tables import TRACES
from promptiter.runs.sql.writer import Writer
from promptiter.runs.sql.writes import Lease, PutTrace, Sync
from traces import ExecutionTrace
from traces.documents import from_json

DIGITS = 64
CHUNK = 500
"""Traces that one statement deletes."""


class SqlTraces:
    """The traces of a run that is open."""

    def __init__(self, database: Database, writer: Writer, lease: Lease) -> None:
        self._database = database
        self._writer = writer
        self._lease = lease

    async def put(self, trace: ExecutionTrace, *, redactor: Redactor | None = None) -> str:
        name, raw = encode_trace(trace, redactor)
        body = pack(raw) if len(raw) <= SMALL else await run_in_thread(lambda: pack(raw))
        await self._writer.submit(PutTrace(lease=self._lease, trace_hash=bytes.fromhex(name), body=body))
        return name

    async def get(self, name: str) -> ExecutionTrace:
        return await self._database.read_async(lambda connection: read_trace(connection, self._lease.run_key, name))

    async def has(self, name: str) -> bool:
        found = select(TRACES.c.run_key).where(
            TRACES.c.run_key == self._lease.run_key, TRACES.c.trace_hash == _hash_of(name)
        )
        return await self._database.read_async(lambda connection: connection.scalars(found).first()) is not None

    async def sync(self) -> None:
        await self._writer.submit(Sync(lease=self._lease))


def read_trace(connection: Connection, run_key: int, name: str) -> ExecutionTrace:
    """Read a trace. SetupError if it is not stored."""
    found = select(TRACES.c.body).where(TRACES.c.run_key == run_key, TRACES.c.trace_hash == _hash_of(name))
    body = connection.scalars(found).one_or_none()
    if body is None:
        raise SetupError(f"the trace {name[:12]}… cannot be read: it is not stored")
    return from_json(unpack(body))


def keep_only(connection: Connection, run_key: int, kept: Collection[str]) -> None:
    """Delete all traces of a run but these."""
    hashes = {_hash_of(name) for name in kept}
    found = connection.scalars(select(TRACES.c.trace_hash).where(TRACES.c.run_key == run_key))
    dropped = sorted({bytes(each) for each in found} - hashes)
    for start in range(0, len(dropped), CHUNK):
        chunk = dropped[start : start + CHUNK]
        connection.execute(delete(TRACES).where(TRACES.c.run_key == run_key, TRACES.c.trace_hash.in_(chunk)))


def _hash_of(name: str) -> bytes:
    """The hash that a digest stands for; one that no trace has if it is not a digest."""
    try:
        return bytes.fromhex(name) if len(name) == DIGITS else b""
    except ValueError:
        return b""
