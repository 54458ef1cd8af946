from __future__ import annotations

from itertools import product
from math import prod
from random import Random

import pytest

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import BLOCKS, Block, decide_for_new_cases, decide_for_these_cases
from promptiter.evaluation.stats.permutation import PairedScores

FLAKY = PairedScores(case_id="flaky", before=(0, 1, 0, 1, 1, 0), after=(1, 0, 0, 1, 0, 1))


def cases(count: int, before: tuple[float, ...], after: tuple[float, ...], *, name: str = "c") -> list[PairedScores]:
    return [PairedScores(case_id=f"{name}{at}", before=before, after=after) for at in range(count)]


def test_the_blocks_spend_5_percent() -> None:
    assert [block.repeats for block in BLOCKS] == [2, 2, 2]
    assert sum(block.alpha for block in BLOCKS) == pytest.approx(0.05)


def test_a_claim_opens_with_the_first_block_and_is_worded() -> None:
    one_draw = [case.first(1) for case in cases(4, (0, 1), (1, 1))]
    claim = decide_for_these_cases(one_draw)
    assert (claim.outcome, claim.needed_repeats, claim.looks) == ("open", 1, ())
    assert claim.gain is None
    assert claim.p_value is None
    assert claim.reason == "block 1 of 3 is to be run"


def test_a_large_gain_is_claimed_after_the_first_block() -> None:
    claim = decide_for_these_cases([FLAKY, *cases(5, (0,) * 6, (1,) * 6)])
    assert claim.is_shown
    assert claim.scope == "these cases"
    assert [look.repeats for look in claim.looks] == [2]
    assert claim.gain == pytest.approx(5 / 6)
    assert claim.p_value == pytest.approx(25 / 6 / 6**5)
    assert claim.reason == "gain +0.833, p = 0.00054 <= 0.01 after 2 repeats"


def test_a_look_that_shows_too_little_wants_the_next_block() -> None:
    some = cases(3, (0, 1, 0, 0, 0, 1), (1, 1, 1, 0, 1, 1))
    first = decide_for_these_cases([case.first(2) for case in some])
    assert (first.outcome, first.needed_repeats) == ("open", 2)
    assert first.reason == "gain +0.500, p = 0.12 > 0.01 after 2 repeats; block 2 of 3 is to be run"
    second = decide_for_these_cases([case.first(5) for case in some])
    assert (second.outcome, second.needed_repeats, len(second.looks)) == ("open", 1, 2)
    assert second.looks[0] == first.looks[0]
    assert decide_for_these_cases(some).outcome == "shown"


def test_without_a_gain_it_is_given_up_at_once() -> None:
    claim = decide_for_these_cases([FLAKY])
    assert claim.outcome == "futile"
    assert claim.reason == "gain +0.000: none: given up after block 1 of 3"
    assert decide_for_these_cases([FLAKY, *cases(2, (1, 1), (0, 1))]).reason.startswith("gain -0.333: worse")


def test_a_gain_within_the_noise_is_not_shown() -> None:
    claim = decide_for_these_cases(cases(3, (0, 1, 0, 1, 0, 1), (1, 1, 0, 1, 0, 1)))
    assert (claim.outcome, len(claim.looks), claim.needed_repeats) == ("not_shown", 3, 0)
    assert claim.reason == "gain +0.167, p = 0.26 > 0.025 after 6 repeats"


def test_draws_that_no_look_needs_change_nothing() -> None:
    short = decide_for_these_cases([FLAKY.first(2), *cases(5, (0, 0), (1, 1))])
    assert decide_for_these_cases([FLAKY, *cases(5, (0,) * 6, (1, 1, 0, 0, 0, 0))]) == short


def test_the_order_of_cases_does_not_matter() -> None:
    some = [FLAKY, *cases(4, (0, 1, 0, 0, 1, 1), (1, 1, 0, 1, 1, 1))]
    assert decide_for_these_cases(some[::-1]) == decide_for_these_cases(some)


def test_without_run_noise_the_difference_is_claimed_for_these_cases_once_noise_can_hardly_hide() -> None:
    """3 cases up and 2 down: a permutation test would find nothing, but each repeat would find the same."""
    settled = cases(3, (0,) * 6, (1,) * 6, name="up") + cases(2, (1,) * 6, (0,) * 6, name="down")
    first = decide_for_these_cases([case.first(2) for case in settled])
    assert first.outcome == "open"
    assert "no case differed from itself in 2 repeats, and so few of them may hide noise" in first.reason
    claim = decide_for_these_cases(settled)
    assert claim.is_shown
    assert [(look.repeats, look.has_run_noise) for look in claim.looks] == [(2, False), (4, False)]
    assert claim.reason == (
        "gain +0.200 and no run noise: no case differed from itself in 4 repeats, so it is no chance on these cases"
    )


def test_without_run_noise_and_gain_nothing_is_claimed() -> None:
    assert decide_for_these_cases(cases(12, (1,) * 6, (1,) * 6)).outcome == "futile"


def test_repeats_of_a_settled_agent_are_no_evidence_for_new_cases() -> None:
    settled = cases(3, (0,), (1,), name="up") + cases(2, (1,), (0,), name="down")
    often = [PairedScores(case_id=case.case_id, before=case.before * 50, after=case.after * 50) for case in settled]
    assert decide_for_new_cases(often).p_value == decide_for_new_cases(settled).p_value == 0.5


@pytest.mark.parametrize("repeats", [2, 4])
def test_noise_hides_behind_a_gain_with_no_more_than_the_stated_chance(repeats: int) -> None:
    """Of up to three cases, all with equal arms, the chance that none shows noise and yet more rose than fell."""

    def chances(q: float) -> dict[int, float]:
        differs = (q * (1 - q)) ** repeats
        return {1: differs, 0: q ** (2 * repeats) + (1 - q) ** (2 * repeats), -1: differs}

    most = 0.0
    for qs in product([0.0, 0.02, 0.1, 0.2, 0.3, 0.4, 0.45, 0.5], repeat=3):
        each = [chances(q) for q in qs]
        picture = sum(
            prod(chance[way] for chance, way in zip(each, ways, strict=True))
            for ways in product((-1, 0, 1), repeat=3)
            if sum(ways) > 0
        )
        most = max(most, picture)
    assert most == pytest.approx(0.25**repeats)


@pytest.mark.parametrize("chances", [(0.5, 0.5), (0.5, 0.0), (0.3, 0.7), (0.1, 0.5)])
def test_equal_arms_are_claimed_no_more_often_than_the_blocks_spend(chances: tuple[float, float]) -> None:
    """All outcomes of two cases in two blocks of one and one repeat, and of one case in two blocks of two."""
    for count, repeats in ((2, 1), (1, 2)):
        blocks = [Block(repeats=repeats, alpha=0.2), Block(repeats=repeats, alpha=0.2)]
        claimed = 0.0
        for scores in product([0.0, 1.0], repeat=4 * count * repeats):
            likely, some, size = 1.0, [], 2 * repeats
            for at in range(count):
                mine = scores[2 * size * at : 2 * size * (at + 1)]
                likely *= prod(chances[at] if score else 1 - chances[at] for score in mine)
                some.append(PairedScores(case_id=str(at), before=mine[:size], after=mine[size:]))
            claimed += likely * decide_for_these_cases(some, blocks=blocks).is_shown
        assert claimed <= 0.4


def test_a_profile_against_itself_is_rarely_claimed() -> None:
    random, claimed = Random(11), 0
    for _ in range(300):
        some = []
        for at in range(12):
            chance = random.betavariate(0.6, 0.4)
            scores = tuple(float(random.random() < chance) for _ in range(12))
            some.append(PairedScores(case_id=str(at), before=scores[:6], after=scores[6:]))
        claimed += decide_for_these_cases(some).is_shown
    assert claimed <= 24  # 5% of 300, and three standard errors


def test_new_cases_are_claimed_by_the_signs_of_their_changes() -> None:
    claim = decide_for_new_cases(cases(6, (0, 1), (1, 1)))
    assert (claim.scope, claim.outcome, claim.p_value) == ("new cases", "shown", 1 / 64)
    assert claim.reason == "gain +0.500, p = 0.016 <= 0.05 after 2 repeats over 6 test cases"


def test_too_few_new_cases_say_so() -> None:
    claim = decide_for_new_cases(cases(4, (0, 0), (1, 1)))
    assert claim.outcome == "not_shown"
    assert claim.reason.endswith("with so few cases no gain could be shown, the p-value is at least 0.062")


def test_nonsense_is_refused() -> None:
    with pytest.raises(SetupError, match="no cases"):
        decide_for_these_cases([])
    with pytest.raises(SetupError, match="given twice"):
        decide_for_new_cases([FLAKY, FLAKY])
    with pytest.raises(SetupError, match="at least 1 repeat"):
        decide_for_these_cases([FLAKY], blocks=[Block(repeats=0, alpha=0.05)])
    with pytest.raises(SetupError, match=r"add up to 1\.2"):
        decide_for_these_cases([FLAKY], blocks=[Block(alpha=0.6), Block(alpha=0.6)])
