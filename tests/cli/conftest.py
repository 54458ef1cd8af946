from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import pytest

from promptiter.cli import main


class Run(Protocol):
    def __call__(self, *arguments: str | Path, code: int = 0, stream: str = "") -> str: ...


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line as a user would; gives standard output, or standard error where a code is expected."""

    def run_once(*arguments: str | Path, code: int = 0, stream: str = "") -> str:
        monkeypatch.setenv("COLUMNS", "120")
        monkeypatch.setattr(sys, "argv", ["promptiter", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        assert (ended.value.code or 0) == code, printed.err
        return printed.err if (stream or ("err" if code else "out")) == "err" else printed.out

    return run_once
