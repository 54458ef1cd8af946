"""Runs in an SQL database: SQLite, PostgreSQL, MariaDB or MySQL. Only this package imports SQLAlchemy and drivers."""

from importlib.util import find_spec

from promptiter.errors import SetupError

if find_spec("sqlalchemy") is None:
    raise SetupError("a store in SQL needs SQLAlchemy; run: pip install 'promptiter[sql]'")
