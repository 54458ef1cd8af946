"""Audit: finds nodes that behave differently in a replay that should have changed nothing.

A request that was not recorded, or a different answer, means that the node reads something its trace does not record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain, zip_longest

from promptiter.evaluation.result import CaseRow
from promptiter.evaluation.trace_store import ReadTrace
from promptiter.runlog.payloads import UndeclaredRead
from traces import Step


async def find_undeclared_reads(
    pairs: Iterable[tuple[CaseRow, CaseRow]], read_trace: ReadTrace
) -> tuple[UndeclaredRead, ...]:
    """The first node that behaved differently, for each pair of a recorded run and its replay that differ."""
    found = [await _find_undeclared_read(before, after, read_trace) for before, after in pairs]
    return tuple(each for each in found if each is not None)


async def _find_undeclared_read(before: CaseRow, after: CaseRow, read_trace: ReadTrace) -> UndeclaredRead | None:
    """The first node that behaved differently, or None if all steps are as recorded."""
    for one, other in zip_longest(before.trace_digests, after.trace_digests):
        if one != other:
            recorded, replayed = [() if name is None else (await read_trace(name)).steps for name in (one, other)]
            if (step := _first_other(recorded, replayed)) is not None:
                return UndeclaredRead(node_id=step.node_id, case_id=after.case_id, repeat=after.repeat)
    return None


def _first_other(recorded: Sequence[Step], replayed: Sequence[Step]) -> Step | None:
    """The first step, in canonical order, that differs from the recording."""
    known = {step.id: _without_clocks(step) for step in recorded}
    again = {step.id for step in replayed}
    others = (step for step in replayed if known.get(step.id) != _without_clocks(step))
    gone = (step for step in recorded if step.id not in again)
    return next(chain(others, gone), None)


def _without_clocks(step: Step) -> Step:
    calls = tuple(replace(call, start_ns=None, end_ns=None) for call in step.tool_calls)
    return replace(step, start_ns=None, end_ns=None, tool_calls=calls)
