from __future__ import annotations

import importlib
from pathlib import Path

import pytest

import promptiter.runs.sql
from promptiter.errors import SetupError
from promptiter.runs.sql.address import parse_address

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("url", "driver", "name"),
    [
        ("postgresql://ann:secret@host/runs", "postgresql+psycopg", "postgresql://ann:***@host/runs"),
        ("postgres://ann:secret@host:5433/runs", "postgresql+psycopg", "postgres://ann:***@host:5433/runs"),
        ("postgresql+psycopg://host/runs?password=secret", "postgresql+psycopg", "postgresql://host/runs"),
        (
            "postgresql://ann:secret@/runs?host=/run/pg&sslpassword=secret",
            "postgresql+psycopg",
            "postgresql://ann:***@/runs?host=%2Frun%2Fpg",
        ),
        ("mysql://ann:secret@host/runs?ssl_ca=secret", "mysql+pymysql", "mysql://ann:***@host/runs"),
        ("mariadb://ann:secret@host/runs", "mysql+pymysql", "mariadb://ann:***@host/runs"),
        ("sqlite:////data/runs.db", "sqlite+pysqlite", "sqlite:////data/runs.db"),
    ],
)
def test_urls_are_taken_as_people_write_them_and_named_without_secrets(url: str, driver: str, name: str) -> None:
    address = parse_address(url)
    assert (address.url.drivername, address.name) == (driver, name)
    assert "secret" not in repr(address)


def test_a_file_stays_the_same_if_the_process_changes_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert parse_address("sqlite:///runs.db").url.database == str(tmp_path / "runs.db")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("postgresq://ann:secret@host/runs", r"'postgresq' is not a known database \(did you mean 'postgresql'\?\)"),
        ("postgresql+asyncpg://ann:secret@host/runs", "names a driver that is not supported; write postgresql://"),
        ("postgresql://ann:secret@host", "names no database"),
        ("sqlite://", "ends with its connection; give a file"),
        ("secret", "not the URL of a database"),
        ("postgresql://ann:secret@host:port/runs", "not the URL of a database"),
    ],
)
def test_an_unusable_url_is_refused_without_its_password(url: str, problem: str) -> None:
    with pytest.raises(SetupError, match=problem) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("promptiter.runs.sql.address.find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"postgresql needs psycopg; run: pip install 'promptiter\[sql\]'"):
        parse_address("postgresql://host/runs")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(SetupError, match=r"needs SQLAlchemy; run: pip install 'promptiter\[sql\]'"):
        importlib.reload(promptiter.runs.sql)
