from __future__ import annotations

from random import Random

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import Block
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.saving import decide_saving, decide_saving_for_new_cases
from tests.evaluation.stats.test_final_test import cases


def sample_amounts(random: Random, count: int, *, saving: float = 0.0, spread: float = 0.3) -> list[PairedScores]:
    """Cases of different lengths, with heavy tails around each."""
    found = []
    for at in range(count):
        length = random.lognormvariate(6, 1)
        before, after = (
            tuple(round(part * length * random.lognormvariate(0, spread)) + 1 for _ in range(6))
            for part in (1.0, 1 - saving)
        )
        found.append(PairedScores(case_id=str(at), before=before, after=after))
    return found


def test_a_clear_saving_is_shown() -> None:
    result = decide_saving(sample_amounts(Random(0), 12, saving=0.5))
    assert result.is_shown
    assert result.gain == pytest.approx(0.5, abs=0.15)
    assert "fewer tokens (95% interval " in result.reason
    assert "the limit for the first look, 0.05 for all looks" in result.reason
    assert result.reason.endswith(
        "; runs of over twice the tokens, rarer than about 3 in 24 runs, would not have been seen"
    )


@pytest.mark.long
def test_noise_is_rarely_a_saving() -> None:
    random, shown = Random(1), 0
    for _ in range(60):
        shown += decide_saving(sample_amounts(random, 12)).is_shown
    assert shown <= 8  # 5% of 60, and three standard errors


def test_more_tokens_end_the_test() -> None:
    result = decide_saving(cases(12, (100, 100), (110, 110)), unit="dollars")
    assert (result.outcome, result.reason) == ("futile", "10.0% more dollars; stopped after block 1 of 3")
    assert decide_saving(cases(12, (0, 0), (0, 0))).reason == "no tokens are saved; stopped after block 1 of 3"


@pytest.mark.slow
def test_a_small_saving_needs_enough_runs_to_exclude_expensive_ones() -> None:
    few = decide_saving(cases(12, (100,) * 6, (95,) * 6))
    assert few.outcome == "not_shown"
    assert few.reason.endswith("but runs too rare to be seen in 72 runs could take more")
    assert decide_saving(cases(40, (100,) * 6, (95,) * 6)).is_shown


@pytest.mark.slow
def test_rare_expensive_runs_of_the_same_mean_are_rarely_a_saving() -> None:
    random, shown = Random(2), 0
    for _ in range(100):
        some = [
            PairedScores(
                case_id=str(at),
                before=(100.0,) * 6,
                after=tuple(195.0 if random.random() < 0.05 else 95.0 for _ in range(6)),
            )
            for at in range(12)
        ]
        shown += decide_saving(some).is_shown
    assert shown <= 11


def test_new_cases_are_tested_by_their_saving_in_all() -> None:
    some = cases(19, (100, 100), (80, 70), name="less") + cases(1, (100, 100), (101, 99), name="same")
    result = decide_saving_for_new_cases(some)
    assert (result.scope, result.outcome) == ("new cases", "shown")
    assert result.reason.startswith("23.8% fewer tokens, fewer in 19 of 20 cases, p = 0.01")
    assert result.reason.endswith("<= 0.05 by Gaffke's test for bounded means")
    assert decide_saving_for_new_cases(some[:7]).reason == "7 cases cannot decide about new cases; give at least 8"


def test_savings_on_most_cases_with_the_same_total_are_rarely_shown_for_new_cases() -> None:
    random, shown = Random(3), 0
    for _ in range(200):
        changes = [290 if random.random() < 0.05 else 90 for _ in range(30)]
        some = [PairedScores(case_id=str(at), before=(100.0,), after=(float(each),)) for at, each in enumerate(changes)]
        shown += decide_saving_for_new_cases(some).is_shown
    assert shown <= 20  # a sign test would show about 160


def test_a_saving_on_most_cases_that_costs_more_in_all_is_not_shown() -> None:
    some = cases(11, (100,), (90,), name="less") + cases(1, (100,), (1_000,), name="more")
    assert decide_saving_for_new_cases(some).outcome == "not_shown"


def test_negative_amounts_are_errors() -> None:
    with pytest.raises(SetupError, match="case 'c0' took a negative number of tokens"):
        decide_saving(cases(1, (-1, 0), (0, 0)), blocks=[Block(repeats=2, alpha=0.05)])
