from __future__ import annotations

import orjson
import pytest

from promptiter.errors import CommandError
from promptiter.tasks.files.scorer_output import read_output
from promptiter.tasks.files.task import OutputFields

FIELDS = OutputFields()


def test_the_score_and_the_metrics_are_read_and_truth_counts_as_one() -> None:
    found = read_output(b'{"score": 0.75, "metrics": {"violations": 2, "ok": true, "note": "x"}}', FIELDS, name="s")
    assert (found.score, dict(found.metrics)) == (0.75, {"violations": 2.0, "ok": 1.0})


def test_the_last_line_counts_if_more_is_printed() -> None:
    assert read_output(b'loading\n{"score": 1}\n', FIELDS, name="s").score == 1.0


def test_fields_may_be_paths() -> None:
    fields = OutputFields(score="result.f1", metrics="result.more")
    found = read_output(b'{"result": {"f1": 0.5, "more": {"n": 3}}}', fields, name="s")
    assert (found.score, dict(found.metrics)) == (0.5, {"n": 3.0})


@pytest.mark.parametrize(
    ("stdout", "message"),
    [
        (b"", "it printed nothing"),
        (b"done", "it printed 'done'"),
        (b"[1]", "print a JSON object"),
        (b'{"scores": 1}', r"neither 'score' nor .*did you mean 'scores'"),
        (b'{"score": "high"}', "'score' is 'high'"),
        (b'{"score": null, "metrics": {}}', "'score' is null; print a finite number"),
        (b'{"score": NaN}', "it printed NaN, which is not JSON; print finite numbers"),
        (b'ready\n{"score": 1, "metrics": {"n": -Infinity}}', "it printed -Infinity"),
        (b'{"score": 1, "metrics": [1]}', "'metrics' is"),
    ],
)
def test_output_without_figures_is_an_error_that_says_what_is_missing(stdout: bytes, message: str) -> None:
    with pytest.raises(CommandError, match=message):
        read_output(stdout, FIELDS, name="the scorer")


def test_cases_that_failed_are_read_in_several_shapes() -> None:
    document = {
        "score": 0.5,
        "cases": [
            {"name": "plural", "passed": False, "expected": "mice", "actual": "mouses", "file": "words.py"},
            {"id": "tense", "score": 1},
            {"test": "case", "status": "FAILED", "message": "AssertionError"},
        ],
        "steps": {"build": True, "lint": False},
        "failures": ["it timed out"],
    }
    found = read_output(orjson.dumps(document), FIELDS, name="s").cases
    assert [each.name for each in found if each.has_failed] == ["plural", "case", "lint", "1"]
    assert (found[0].expected, found[0].actual, found[0].file) == ("mice", "mouses", "words.py")
    assert found[2].reason == "AssertionError"
