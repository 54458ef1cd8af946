from __future__ import annotations

from random import Random

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.stats.new_cases import (
    FEWEST_NEW_CASES,
    decide_for_new_cases,
    explain_too_few_new_cases,
    merge_cases,
)
from promptiter.evaluation.stats.permutation import PairedScores
from tests.evaluation.stats.test_final_test import FLAKY, cases


def test_whole_changes_are_tested_by_their_signs() -> None:
    result = decide_for_new_cases(cases(8, (0, 0), (1, 1)))
    assert (result.scope, result.outcome) == ("new cases", "shown")
    assert result.p_value == pytest.approx(1 / 256)
    assert result.looks[0].test == "sign"
    assert result.reason.startswith("gain +1.000 (90% interval +0.37")
    assert result.reason.endswith("p = 0.0039 <= 0.05 by the sign test over 8 cases")


def test_other_changes_are_tested_as_bounded() -> None:
    result = decide_for_new_cases(cases(8, (0, 1), (1, 1)))
    assert result.is_shown
    assert result.p_value == pytest.approx((1 / 1.5) ** 8)
    assert result.looks[0].test == "bounded_mean"
    assert result.reason.endswith("by Gaffke's test for bounded means over 8 cases")


@pytest.mark.slow
def test_the_interval_excludes_0_exactly_if_a_gain_or_loss_is_shown() -> None:
    random = Random(1)
    seen = set()
    for _ in range(60):
        shift = random.uniform(-0.5, 0.5)
        some = [
            PairedScores(
                case_id=str(at), before=(0.5,), after=(min(1.0, max(0.0, 0.5 + shift + random.gauss(0, 0.3))),)
            )
            for at in range(12)
        ]
        result = decide_for_new_cases(some)
        assert result.interval is not None
        side = "shown" if result.interval.low > 0 else "loss" if result.interval.high < 0 else "not_shown"
        assert result.outcome == side
        seen.add(side)
    assert len(seen) == 3


def test_a_loss_must_be_shown_too() -> None:
    slight = cases(6, (1,), (0,), name="down") + cases(4, (0,), (1,), name="up")
    assert decide_for_new_cases(slight).outcome == "not_shown"
    clear = decide_for_new_cases(cases(9, (1,), (0,), name="down") + cases(1, (0,), (1,), name="up"))
    assert clear.outcome == "loss"
    assert clear.reason.startswith("loss of 0.800 (90% interval ")
    assert "p = 0.011 <= 0.05 by the sign test over 10 cases" in clear.reason


def test_repeats_of_a_deterministic_agent_are_not_evidence_for_new_cases() -> None:
    settled = cases(6, (0,), (1,), name="up") + cases(2, (1,), (0,), name="down")
    often = [PairedScores(case_id=case.case_id, before=case.before * 50, after=case.after * 50) for case in settled]
    assert decide_for_new_cases(often).p_value == decide_for_new_cases(settled).p_value == pytest.approx(37 / 256)


def test_fewer_than_eight_cases_decide_nothing() -> None:
    result = decide_for_new_cases(cases(7, (0, 0), (1, 1)))
    assert (result.outcome, result.looks) == ("not_shown", ())
    assert result.reason == "7 cases cannot decide about new cases; give at least 8"
    assert explain_too_few_new_cases(FEWEST_NEW_CASES) is None


def test_merged_cases_have_the_mean_of_each_repeat() -> None:
    cases = [
        PairedScores(case_id="a", before=(0.0, 0.0), after=(1.0, 0.5)),
        PairedScores(case_id="b", before=(1.0,), after=(1.0,)),
        PairedScores(case_id="c", before=(0.5, 1.0), after=(0.0, 1.0), numbers=(1, 2)),
    ]
    assert merge_cases(cases, {"a": "one", "b": "two", "c": "one"}) == (
        PairedScores(case_id="a", before=(0.0, 0.25, 1.0), after=(1.0, 0.25, 1.0), numbers=(0, 1, 2)),
        cases[1],
    )


def test_no_worse_by_a_margin_is_tested_for_new_cases() -> None:
    same = decide_for_new_cases(cases(60, (1.0,), (1.0,)), margin=0.05)
    assert same.is_shown
    assert same.p_value == pytest.approx(0.95**60)
    assert "a loss of 0.05 or more is ruled out" in same.reason
    assert decide_for_new_cases(cases(30, (1.0,), (1.0,)), margin=0.05).outcome == "not_shown"
    worse = decide_for_new_cases(cases(12, (1.0,), (0.0,)), margin=0.05)
    assert worse.outcome == "loss"
    assert "more than the margin of 0.05" in worse.reason


@pytest.mark.long
def test_a_loss_of_the_margin_passes_in_at_most_5_percent() -> None:
    random, wrong = Random(1), 0
    for _ in range(400):
        after = [float(random.random() >= 0.1) for _ in range(30)]
        some = [PairedScores(case_id=str(at), before=(1.0,), after=(each,)) for at, each in enumerate(after)]
        wrong += decide_for_new_cases(some, margin=0.1).is_shown
    assert wrong <= 29  # 5% of 400, and two standard errors


def test_invalid_inputs_are_errors() -> None:
    with pytest.raises(SetupError, match="no cases"):
        decide_for_new_cases([])
    with pytest.raises(SetupError, match="given twice"):
        decide_for_new_cases([FLAKY, FLAKY])
