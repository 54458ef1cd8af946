"""The uses of cases by the runs of an app, in a database. Uses are numbered, so all processes see them in one order."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

import orjson
from sqlalchemy import Connection, func, select
from sqlalchemy.exc import IntegrityError

from promptiter.concurrency import run_in_thread
from promptiter.runlog.case_uses import CaseUse
from promptiter.runlog.codec import from_plain, to_short_plain
from promptiter.runs.sql.database import Database
from promptiter.runs.sql.packing import pack, unpack
from promptiter.runs.sql.tables import CASE_USES


class SqlCaseUses:
    """Keeps the uses of cases."""

    def __init__(self, database: Database, app: str) -> None:
        self._database = database
        self._app = app

    async def add(self, use: CaseUse) -> Sequence[CaseUse]:
        return await run_in_thread(lambda: self._add(use))

    def _add(self, use: CaseUse) -> Sequence[CaseUse]:
        while True:
            try:
                return self._database.write(lambda connection: self._insert(connection, use))
            except IntegrityError:  # another process has added one, which comes first
                continue

    def _insert(self, connection: Connection, use: CaseUse) -> Sequence[CaseUse]:
        known = self._read(connection)
        if any(each.id == use.id for each in known):
            return known
        last = select(func.max(CASE_USES.c.number)).where(CASE_USES.c.app == self._app)
        row = {
            "app": self._app,
            "number": (connection.scalars(last).one() or 0) + 1,
            "use_hash": sha256(use.id.encode(errors="surrogatepass")).digest(),
            "body": pack(orjson.dumps(to_short_plain(use))),
        }
        connection.execute(CASE_USES.insert().values(row))
        return self._read(connection)

    def _read(self, connection: Connection) -> Sequence[CaseUse]:
        found = select(CASE_USES.c.body).where(CASE_USES.c.app == self._app).order_by(CASE_USES.c.number)
        return [from_plain(CaseUse, orjson.loads(unpack(body))) for body in connection.scalars(found)]
