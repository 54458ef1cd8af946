from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from promptiter.observers.opentelemetry import OpenTelemetryObserver
from promptiter.runlog.results import RunResult
from tests.observers import stores
from tests.observers.stopping import StopAt
from tests.worlds.starter import SmallShop

pytestmark = pytest.mark.slow

IN_A_ROUND, IN_THE_ABLATION = 30, 50


@pytest.fixture
def collector() -> Iterator[stores.Collector]:
    with stores.Collector() as collector:
        yield collector


def run(runs: Path, collector: stores.Collector, *, stop_at: int = -1) -> RunResult:
    observers = (OpenTelemetryObserver(endpoint=collector.url), StopAt(stop_at, runs))
    return SmallShop().run(runs, observers=observers)


def test_a_run_that_is_stopped_and_resumed_sends_each_span_once(tmp_path: Path, collector: stores.Collector) -> None:
    for seq in (IN_A_ROUND, IN_THE_ABLATION):
        assert not run(tmp_path, collector, stop_at=seq).is_final
    assert run(tmp_path, collector).is_final
    assert set(Counter(span.span_id for span in collector.spans).values()) == {1}
    ids = {span.span_id for span in collector.spans}
    assert [span.name for span in collector.spans if span.parent_span_id not in ids] == ["run support_desk"]
    assert [span.name for span in collector.spans].count("interruption") == 2


def test_a_run_that_is_stopped_sends_what_it_has(tmp_path: Path, collector: stores.Collector) -> None:
    result = run(tmp_path, collector, stop_at=IN_THE_ABLATION)
    [interruption] = [span for span in collector.spans if span.name == "interruption"]
    found = stores.read_attributes(interruption)
    assert found["promptiter.verdict"] == result.verdict
    assert found["promptiter.result.best"] == result.accepted_score
    assert "promptiter.profile.filing#instruction" in found
    assert "round 1" in {span.name for span in collector.spans}
    assert "run support_desk" not in {span.name for span in collector.spans}
