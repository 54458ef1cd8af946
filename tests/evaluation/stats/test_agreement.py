from __future__ import annotations

from random import Random

import pytest
from scipy.stats import spearmanr

from promptiter.evaluation.stats.agreement import (
    JudgedAnswer,
    estimate_kappa,
    estimate_mean,
    estimate_rank_correlation,
)


def judged(*pairs: tuple[float, float]) -> list[JudgedAnswer]:
    return [JudgedAnswer(label, (value,)) for label, value in pairs]


def find_kappa(answers: list[JudgedAnswer]) -> float:
    found = estimate_kappa(answers)
    assert found is not None
    return found.value


def test_kappa_of_verdicts_is_that_of_cohens_table() -> None:
    both, only_people, only_judge, neither = 20, 5, 10, 15  # a textbook example: observed 0.7, by chance 0.5
    answers = judged(*[(1, 1)] * both, *[(1, 0)] * only_people, *[(0, 1)] * only_judge, *[(0, 0)] * neither)
    assert find_kappa(answers) == pytest.approx(0.4)


def test_kappa_of_grades_is_the_quadratically_weighted_one() -> None:
    pairs = [(0.0, 0.0), (0.5, 0.0), (0.5, 0.5), (1.0, 0.5), (1.0, 1.0), (0.0, 1.0)]
    observed = sum((label - value) ** 2 for label, value in pairs) / 6
    by_chance = sum((label - value) ** 2 for label, _ in pairs for _, value in pairs) / 36
    assert find_kappa(judged(*pairs)) == pytest.approx(1 - observed / by_chance)


def test_several_judgements_of_an_answer_count_as_one_answer() -> None:
    once = judged((1, 1), (1, 0), (0, 0), (0, 1))
    twice = [JudgedAnswer(answer.label, answer.values * 2) for answer in once]
    assert find_kappa(twice) == find_kappa(once) == 0.0
    assert estimate_kappa(twice) == estimate_kappa(once)


def test_kappa_is_undefined_if_nothing_varies_and_0_for_a_judge_that_always_says_the_same() -> None:
    assert estimate_kappa(judged((1, 1), (1, 1))) is None
    assert find_kappa(judged((1, 1), (0, 1))) == 0.0


def test_perfect_agreement_on_few_answers_is_not_certain() -> None:
    few = estimate_kappa(judged(*[(1, 1)] * 6, *[(0, 0)] * 6))
    many = estimate_kappa(judged(*[(1, 1)] * 100, *[(0, 0)] * 100))
    assert few is not None
    assert many is not None
    assert (few.value, few.high) == (1.0, 1.0)
    assert few.low == pytest.approx(0.515, abs=0.01)  # Wilson: at least 0.757 of 12 agree, of which 0.5 by chance
    assert many.low > 0.95


@pytest.mark.long
@pytest.mark.parametrize(("prevalence", "right"), [(0.5, 0.9), (0.7, 0.8), (0.5, 0.5)])
def test_intervals_hold_the_true_kappa_in_95_of_100_samples(prevalence: float, right: float) -> None:
    random = Random(f"{prevalence} {right}")
    judged_1 = prevalence * right + (1 - prevalence) * (1 - right)
    chance = prevalence * judged_1 + (1 - prevalence) * (1 - judged_1)
    true, held, samples = (right - chance) / (1 - chance), 0, 60
    for _ in range(samples):
        labels = [float(random.random() < prevalence) for _ in range(40)]
        found = estimate_kappa(judged(*((label, label if random.random() < right else 1 - label) for label in labels)))
        assert found is not None
        held += found.low <= true <= found.high
    assert held >= samples * 0.9


def test_rank_correlation_is_spearmans() -> None:
    random = Random(3)
    pairs = [(float(random.randint(0, 5)), float(random.randint(0, 5))) for _ in range(40)]
    found = estimate_rank_correlation(pairs)
    assert found is not None
    assert found.value == pytest.approx(spearmanr([a for a, _ in pairs], [b for _, b in pairs]).statistic)
    assert estimate_rank_correlation([(1, 2), (1, 3)]) is None
    rising = estimate_rank_correlation([(float(n), float(n + n % 3)) for n in range(30)])
    assert rising is not None
    assert rising.excludes_zero


def test_the_interval_of_a_mean_is_that_of_its_standard_error() -> None:
    random = Random(7)
    found = estimate_mean([random.gauss(0.2, 1.0) for _ in range(400)])
    assert found.high - found.low == pytest.approx(2 * 1.96 / 20, rel=0.15)
