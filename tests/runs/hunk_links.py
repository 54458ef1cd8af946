"""Follows the links of the hunks of a run."""

from __future__ import annotations

from promptiter.backprop.record import get_passes
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.trace_file import TraceFile
from promptiter.runlog.results import RunResult
from promptiter.runs.hunk_evidence import HunkEvidence, read_hunks

MIN_OWN = 0.8
"""The share of hunks that must have evidence of their own."""


def list_hunks(result: RunResult) -> list[HunkEvidence]:
    return [hunk for found in read_hunks(result).values() for hunk in found]


def check_links(result: RunResult, train: EvalSet, traces: TraceFile | None = None) -> None:
    """Follow the links of all hunks: to gradients in the record, cases of the eval set, and steps of stored traces."""
    recorded = {
        gradient.id: gradient for each in result.rounds for one in get_passes(each) for gradient in one.gradients
    }
    rows = {
        name for each in result.rounds for one in each.all_evaluations for row in one.rows for name in row.trace_digests
    }
    known = {case.id for case in train.cases}
    hunks = list_hunks(result)
    assert hunks
    for hunk in hunks:
        assert (hunk.gradients, hunk.cases, hunk.steps) > ((), (), ()), hunk
        assert set(hunk.cases) <= known
        assert {each.case_id for each in hunk.gradients} == set(hunk.cases)
        assert {(each.case_id, each.step_id) for each in hunk.gradients} == {
            (each.case_id, each.step_id) for each in hunk.steps
        }
        for each in hunk.gradients:
            assert (recorded[each.id].text, recorded[each.id].surface_id) == (each.text, hunk.surface_id)
            assert each.trace_digest in rows
            if traces is not None:
                [step] = [step for step in traces.get(each.trace_digest).steps if step.id == each.step_id]
                assert step.node_id == each.node_id
    assert sum(not hunk.whole_surface for hunk in hunks) >= MIN_OWN * len(hunks)
    anchors = [hunk.anchor for hunk in hunks]
    anchors += [each.anchor for hunk in hunks for each in hunk.gradients]
    anchors += [each.anchor for hunk in hunks for each in hunk.steps]
    assert all(anchor.replace("-", "").replace("_", "").isalnum() for anchor in anchors)
