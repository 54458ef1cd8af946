from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from promptiter.tasks.files.python_scorer import main

CODE = """\
def score_by_output(folder, output):
    print("noise")
    return {"score": len(output) / 10}

def score_in_words(folder):
    return "good"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_scorer.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "stdin", io.StringIO("four"))


def test_the_result_is_all_that_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main("own_scorer:score_by_output")
    assert json.loads(capsys.readouterr().out) == {"score": 0.4}


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("own_scorer:score_in_words", "the scorer returned 'good'; return a number, or a mapping with score"),
        ("own_scorer:scored", "cannot import 'own_scorer:scored': module 'own_scorer' has no attribute 'scored'"),
        ("other_scorer:score", "cannot import 'other_scorer:score': No module named 'other_scorer'"),
    ],
)
def test_a_function_that_cannot_be_used_ends_with_one_line(function: str, message: str) -> None:
    with pytest.raises(SystemExit, match=f"^{message}"):
        main(function)
