"""Exit codes by the outcome of a run, and what `--require` asks of it."""

from __future__ import annotations

import pytest

from promptiter.cli.exit_codes import EXIT_CODES, NOT_SHOWN, choose_exit_code
from promptiter.runs.outcome import Outcome


def test_both_kinds_of_improvement_succeed() -> None:
    assert choose_exit_code("improved") == choose_exit_code("improved_on_validation") == 0


@pytest.mark.parametrize("outcome", EXIT_CODES)
def test_only_a_gain_for_new_cases_meets_the_requirement_unseen(outcome: Outcome) -> None:
    code = choose_exit_code(outcome, require="unseen")
    assert (code == 0) == (outcome == "improved")
    assert code in (EXIT_CODES[outcome], NOT_SHOWN)


def test_a_missed_requirement_has_a_code_of_its_own() -> None:
    assert NOT_SHOWN not in EXIT_CODES.values()
