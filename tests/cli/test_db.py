from __future__ import annotations

from pathlib import Path

import pytest

from promptiter.cli import main

pytestmark = pytest.mark.slow


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr("sys.argv", ["promptiter", "db", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_a_database_is_created_and_then_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    for expected in (f"{url}: schema 1 (runs, events, answers and traces)\n", f"{url} is up to date\n"):
        assert run(monkeypatch, "upgrade", url) == 0
        assert capsys.readouterr().out == expected


def test_a_url_that_is_wrong_is_an_error_without_its_password(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, "upgrade", "postgresql://ann:secret@127.0.0.1:1/runs") == 2
    message = capsys.readouterr().err
    assert "postgresql://ann:***@127.0.0.1:1/runs" in message
    assert "secret" not in message


def test_the_schema_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, "sql", "--dialect", "sqlite") == 0
    assert "CREATE TABLE IF NOT EXISTS promptiter_events" in capsys.readouterr().out
