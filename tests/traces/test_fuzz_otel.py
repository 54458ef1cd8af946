"""Damaged exports give typed errors or counted warnings. `benchmarks.bench_fuzz` tries ten times as many."""

from __future__ import annotations

import pytest

from tests.worlds.mutations import list_mutations
from traces import TraceError, read_otel
from traces.documents import from_json, to_json
from traces.otel.recover.coverage import Coverage


@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_damaged_exports_give_traces_or_typed_errors(part: int) -> None:
    for name, raw in list_mutations(50, seed=part):
        try:
            found = read_otel(raw, coverage=Coverage())
        except TraceError:
            continue
        except Exception as error:
            raise AssertionError(name) from error
        for trace in found:
            assert from_json(to_json(trace)) == trace, name
