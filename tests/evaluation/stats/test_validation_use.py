from __future__ import annotations

from collections.abc import Callable
from itertools import product
from random import Random

import pytest

from promptiter.evaluation.stats.new_cases import decide_for_new_cases
from promptiter.evaluation.stats.permutation import PairedScores
from promptiter.evaluation.stats.validation_use import ValidationUse, find_acceptance_share


def test_each_answer_costs_its_share() -> None:
    use = ValidationUse()
    assert use.find_alpha(0.05) == 0.05
    use = use.add_decision(accepted=False).add_decision(accepted=True)
    assert use.find_alpha(0.05) == pytest.approx(0.05 * 0.75 * 0.25)
    assert use.add_stop_by_score().share == pytest.approx(0.75 * 0.25 / 2)
    assert use.add_stop_by_score().describe() == "1 accepted, 1 rejected, 1 stop decision"
    assert 1 / ValidationUse(accepted=1, rejected=7).share == pytest.approx(30, abs=0.1)


@pytest.mark.parametrize("rounds", [1, 2, 3, 6])
@pytest.mark.parametrize("stops", [lambda _: False, any], ids=["all rounds", "first acceptance"])
def test_the_shares_of_all_searches_add_up_to_1(rounds: int, stops: Callable[[tuple[bool, ...]], bool]) -> None:
    """Whatever the rule for stopping, as long as it depends on the answers alone."""
    ends = set()
    for answers in product([True, False], repeat=rounds):
        length = next((at for at in range(rounds) if stops(answers[:at])), rounds)
        ends.add(answers[:length])
    p = find_acceptance_share(rounds)
    uses = [ValidationUse(acceptance_share=p, accepted=sum(end), rejected=len(end) - sum(end)) for end in ends]
    assert sum(use.share for use in uses) == pytest.approx(1.0)


@pytest.mark.slow
@pytest.mark.parametrize("rounds", [1, 6])
def test_a_reshuffling_rewrite_is_rarely_better_for_new_cases(rounds: int) -> None:
    """A deterministic agent, 30 cases, and a search that stops at its first acceptance."""
    random, shown, trials = Random(rounds), 0, 300
    for _ in range(trials):
        baseline = [random.random() < 0.6 for _ in range(30)]
        use, accepted = ValidationUse(acceptance_share=find_acceptance_share(rounds)), baseline
        for _ in range(rounds):
            candidate = [random.random() < 0.6 for _ in range(30)]
            use = use.add_decision(accepted=sum(candidate) > sum(baseline))
            if sum(candidate) > sum(baseline):
                accepted = candidate
                break
        pairs = [
            PairedScores(case_id=str(at), before=(float(b),), after=(float(a),))
            for at, (b, a) in enumerate(zip(baseline, accepted, strict=True))
        ]
        shown += decide_for_new_cases(pairs, alpha=use.find_alpha(0.05)).is_shown
    assert shown <= 24  # 5% of 300, and two and a half standard errors; tested at 0.05, it is about 10%
