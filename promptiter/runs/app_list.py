"""Which apps have runs in a folder or in a database, for those who look for their runs elsewhere."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import read_header
from promptiter.runs.stores import is_url


def list_apps(where: str | os.PathLike[str]) -> list[str]:
    """The names of the apps that have runs in a folder, or in the database at a URL."""
    return _list_in_database(str(where)) if is_url(where) else _list_in_folder(Path(where))


def _list_in_database(url: str) -> list[str]:
    from sqlalchemy import select

    from promptiter.runs.sql.address import parse_address
    from promptiter.runs.sql.database import Database
    from promptiter.runs.sql.tables import RUNS

    database = Database(parse_address(url))
    try:
        found = database.read(lambda connection: connection.scalars(select(RUNS.c.app).distinct()).all())
    finally:
        database.close()
    return sorted(name for name in found if name)


def _list_in_folder(folder: Path) -> list[str]:
    """Folders with runs that say so in their headers. Comparisons have folders with runs, too."""
    apps = []
    for place in sorted(folder.glob("*/")):
        header = next(place.glob(f"*/{HEADER}"), None)
        with suppress(SetupError):
            if header is not None and read_header(header.parent).app == place.name:
                apps.append(place.name)
    return apps
