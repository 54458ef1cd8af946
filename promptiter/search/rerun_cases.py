"""Which failed train cases are run again, and whether they do better."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from itertools import zip_longest

from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation, Objective
from promptiter.policies.evidence import Evidence
from promptiter.stages.contracts import AggregateResult


def select_cases(eval_set: EvalSet, signals: Iterable[AggregateResult], *, most: int) -> EvalSet:
    """Choose failed cases from each signal in turn, in the order of the signals."""
    in_turn = zip_longest(*(signal.case_ids for signal in signals))
    chosen = list(dict.fromkeys(case_id for each in in_turn for case_id in each if case_id is not None))[:most]
    return replace(eval_set, cases=tuple(case for case in eval_set.cases if case.id in chosen))


def measure_gain(before: Evaluation, after: Evaluation, objective: Objective) -> float | None:
    """How much better the cases scored that both have; None if that is unknown."""
    both = {row.case_id for row in before.rows} & {row.case_id for row in after.rows}
    accepted, candidate = (
        replace(each, rows=tuple(row for row in each.rows if row.case_id in both)) for each in (before, after)
    )
    return Evidence(accepted=accepted, candidate=candidate, objective=objective).gain
