"""What a step says about its failure."""

from __future__ import annotations

import pytest

from tests.traces.recover.spans import Tree, agent, list_spans
from traces.errors import UnknownConventionError
from traces.otel.runs import build_traces

TRACEBACK = "Traceback (most recent call last):\n\n  File \"a.py\", line 1, in run\n    go()\n\nKeyError: 'tides'\n"


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("no such topic", "no such topic"),
        (TRACEBACK, "KeyError: 'tides'"),
        (f"KeyError('tides'){TRACEBACK}", "KeyError('tides')"),
    ],
)
def test_the_message_of_a_failure_has_no_traceback(status: str, message: str) -> None:
    spans = [span._replace(is_error=True, status_message=status) for span in list_spans(agent("a", 0, 1))]
    error = build_traces(spans)[0].steps[0].error
    assert error is not None
    assert error.message == message


def test_one_span_that_is_not_a_step_is_called_the_only_one() -> None:
    with pytest.raises(UnknownConventionError, match=r"^the only span of trace run \(scopes: .*\) is not a model call"):
        build_traces(list_spans(Tree("GET", 0, 1)))
