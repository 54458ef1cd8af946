"""Whether a run can show its gain for new cases: what is known before its first call, and what its end finds."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.engine.outline import OutlinedSearch
from promptiter.engine.request_checks import CheckedRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.stats.new_cases import FEWEST_NEW_CASES
from promptiter.runlog.case_uses import CaseUse, count_seen_cases, list_case_digests
from promptiter.runlog.payloads import ValidationReader
from promptiter.runlog.results import RunShape
from promptiter.wording import plural


def find_obstacle_in_advance(
    checked: CheckedRequest, search: object, uses: Iterable[CaseUse], *, is_reviewed: bool = False
) -> str | None:
    """Why a run that starts now cannot show its gain for new cases, and what to do; None if it may.

    `uses` are the earlier uses of cases in the project.
    """
    if checked.request.final_test is None:
        return "there is no final test; remove `final_test: false`"
    if checked.test is not None and _count_inputs(checked.test) >= FEWEST_NEW_CASES:
        return None
    outline = search.outline() if isinstance(search, OutlinedSearch) else None
    reader: ValidationReader | None = "search" if outline is not None and outline.reads_validation else None
    validation = list_case_digests(checked.validation)
    why = explain_obstacle(
        checked.shape,
        reader=reader or ("reviewer" if is_reviewed else None),
        is_first_run=not count_seen_cases(validation, uses),
    )
    if why is None and len(validation) < FEWEST_NEW_CASES:
        why = f"{plural(len(validation), 'validation case')} cannot decide about new cases"
    return None if why is None else f"{why}; {advise(checked.shape, checked.test)}"


def explain_obstacle(shape: RunShape, *, reader: ValidationReader | None, is_first_run: bool) -> str | None:
    """Why the cases of the search cannot speak for new cases; None if they can.

    `reader` has seen validation results. In its `is_first_run`, no validation case was used before.
    """
    if shape == "scorer":
        return "a scorer measures no cases"
    if shape == "one_set":
        return "the search learned from these cases"
    if reader == "search":
        return "the search reads results of the validation cases"
    if reader == "reviewer":
        return "patches are reviewed by someone who may see results of the validation cases"
    return None if is_first_run else "the validation cases were used before this run"


def advise(shape: RunShape, test: EvalSet | None) -> str:
    """What to do if the cases of the search cannot speak for new cases."""
    if shape == "scorer":
        return "give cases instead of it"
    given = "" if test is None else f" (this one has {_count_inputs(test)})"
    return f"give a test set (`test`) of {FEWEST_NEW_CASES} cases or more{given}"


def _count_inputs(eval_set: EvalSet) -> int:
    """The number of cases with different inputs."""
    return len(list_case_digests(eval_set))
