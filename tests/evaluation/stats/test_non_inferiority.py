from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from promptiter.errors import SetupError
from promptiter.evaluation.stats.final_test import Block
from promptiter.evaluation.stats.non_inferiority import decide_non_inferiority
from promptiter.evaluation.stats.permutation import PairedScores, sign_flip

FLAKY = PairedScores(case_id="flaky", before=(0, 1, 0, 1, 1, 0), after=(1, 0, 0, 1, 0, 1))


def cases(count: int, before: tuple[float, ...], after: tuple[float, ...], *, name: str = "c") -> list[PairedScores]:
    return [PairedScores(case_id=f"{name}{at}", before=before, after=after) for at in range(count)]


def chances(world: str, count: int, loss: float) -> Iterator[tuple[float, float]]:
    """With which chance each case passes before and after; on average the loss is as large as it says."""
    left = loss * count
    for at in range(count):
        match world:
            case "rare failures of a perfect baseline":
                yield 1.0, 1.0 - loss
            case "a few cases lose it all":
                lost = min(1.0, left)
                left -= lost
                yield 1.0, 1.0 - lost
            case "noise everywhere":
                yield 0.8, 0.8 - loss
            case "noise in every other case":
                yield (1.0, 1.0) if at % 2 else (0.6, 0.6 - 2 * loss * count / (2 * math.ceil(count / 2)))


WORLDS = (
    "rare failures of a perfect baseline",
    "a few cases lose it all",
    "noise everywhere",
    "noise in every other case",
)


def sample_cases(rng: Random, world: str, count: int, loss: float, *, repeats: int = 6) -> list[PairedScores]:
    def arm(chance: float) -> tuple[float, ...]:
        return tuple(float(rng.random() < chance) for _ in range(repeats))

    pairs = enumerate(chances(world, count, loss))
    return [PairedScores(case_id=str(at), before=arm(before), after=arm(after)) for at, (before, after) in pairs]


def share_shown(world: str, count: int, *, loss: float, margin: float, trials: int) -> float:
    rng = Random(f"{world} {count} {loss} {margin}")
    found = sum(
        decide_non_inferiority(sample_cases(rng, world, count, loss), margin=margin).is_shown for _ in range(trials)
    )
    return found / trials


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("count", "trials"),
    [(12, 600), pytest.param(30, 300, marks=pytest.mark.long), pytest.param(100, 150, marks=pytest.mark.long)],
)
@pytest.mark.parametrize("margin", [0.05, 0.1])
def test_a_true_loss_of_the_margin_passes_in_at_most_5_percent(
    world: str, count: int, trials: int, margin: float
) -> None:
    assert share_shown(world, count, loss=margin, margin=margin, trials=trials) <= 0.05


def test_flipping_the_signs_of_shifted_changes_would_pass_far_too_often() -> None:
    """Why the test is no other: nothing fails in 24 runs, and each such picture looks like proof."""
    rng = Random(0)
    samples = (sample_cases(rng, "rare failures of a perfect baseline", 12, 0.05, repeats=2) for _ in range(200))
    shifted = ([case.gain + 0.05 for case in pairs] for pairs in samples)
    assert sum(sign_flip(changes).p_value <= 0.01 for changes in shifted) > 40


@pytest.mark.slow
@pytest.mark.parametrize(
    ("world", "count", "margin", "least", "most"),
    [
        ("rare failures of a perfect baseline", 12, 0.05, 0.0, 0.0),  # no noise, and 72 runs are too few
        ("rare failures of a perfect baseline", 12, 0.1, 1.0, 1.0),
        ("rare failures of a perfect baseline", 30, 0.05, 1.0, 1.0),
        ("noise everywhere", 12, 0.1, 0.05, 0.2),
        ("noise everywhere", 30, 0.1, 0.25, 0.4),
        ("noise everywhere", 100, 0.05, 0.15, 0.35),
        ("noise everywhere", 100, 0.1, 0.85, 1.0),
        ("noise in every other case", 100, 0.05, 0.25, 0.45),
        ("noise in every other case", 100, 0.1, 0.9, 1.0),
    ],
)
def test_power_when_nothing_is_lost(world: str, count: int, margin: float, least: float, most: float) -> None:
    assert least <= share_shown(world, count, loss=0.0, margin=margin, trials=200) <= most


def test_equal_arms_without_noise_pass_once_the_repeats_rule_out_the_loss() -> None:
    same = cases(30, (1.0,) * 6, (1.0,) * 6)
    result = decide_non_inferiority(same, margin=0.05)
    assert (result.outcome, result.gain, len(result.looks)) == ("shown", 0.0, 2)
    assert result.reason.startswith(
        "gain +0.000 (95% interval -0.042 to +0.042), a loss of 0.05 or more is ruled out, p = 0.013"
    )
    few = decide_non_inferiority(same[:12], margin=0.05)
    assert few.outcome == "not_shown"
    assert few.reason.endswith("no run noise was seen, but there are too few runs to rule it out")


def test_without_noise_a_plain_loss_within_the_margin_passes() -> None:
    """3 of 100 cases always fail now: as noise it would not be excluded that 5 do; as a plain difference it is."""
    settled = [*cases(97, (1.0,) * 6, (1.0,) * 6), *cases(3, (1.0,) * 6, (0.0,) * 6, name="lost")]
    result = decide_non_inferiority(settled, margin=0.05)
    assert result.is_shown
    assert result.gain == pytest.approx(-0.03)
    assert not decide_non_inferiority([*settled, FLAKY], margin=0.05).is_shown


def test_the_p_value_is_one_over_what_five_gamblers_own_on_average() -> None:
    pairs = [
        PairedScores(case_id="a", before=(1, 0), after=(0, 1)),
        PairedScores(case_id="b", before=(0, 0), after=(1, 1)),
    ]
    [look] = decide_non_inferiority(pairs, margin=0.2, blocks=[Block(repeats=2, alpha=0.01)]).looks
    owned = []
    for share in (0.9, 0.45, 0.225, 0.1125):
        stake = share / 0.8
        owned.append((1 - stake * 0.8) * (1 + stake * 1.2) ** 3)
    assert look.p_value == pytest.approx(5 / (sum(owned) + 0))  # one bet on no noise, and lost
    [quiet] = decide_non_inferiority(cases(2, (1, 1), (1, 1)), margin=0.2, blocks=[Block(repeats=2, alpha=0.01)]).looks
    owned = [(1 + share / 0.8 * 0.2) ** 4 for share in (0.9, 0.45, 0.225, 0.1125)]
    assert quiet.p_value == pytest.approx(5 / (sum(owned) + 0.9 ** (-2 * 2)))


def test_a_loss_of_the_margin_stops_the_test_at_once() -> None:
    result = decide_non_inferiority([*cases(9, (1, 1), (1, 1)), *cases(1, (1, 1), (0, 0), name="lost")], margin=0.1)
    assert (result.outcome, result.needed_repeats) == ("futile", 0)
    assert result.reason == "loss of 0.100, which is not below the margin of 0.1; stopped after block 1 of 3"


def test_the_blocks_must_be_run_in_order() -> None:
    one = decide_non_inferiority([case.first(1) for case in cases(12, (1,) * 6, (1,) * 6)], margin=0.05)
    assert (one.outcome, one.needed_repeats, one.reason) == ("open", 1, "block 1 of 3 has not been run")
    two = decide_non_inferiority([case.first(2) for case in cases(12, (1,) * 6, (1,) * 6)], margin=0.05)
    assert (two.outcome, two.needed_repeats, len(two.looks)) == ("open", 2, 1)


def test_repeats_after_the_deciding_look_change_nothing() -> None:
    short = decide_non_inferiority(cases(100, (1, 1), (1, 1)), margin=0.1)
    assert short.is_shown
    assert decide_non_inferiority(cases(100, (1, 1, 1), (1, 1, 0)), margin=0.1) == short


def test_invalid_inputs_are_errors() -> None:
    for margin in (0.0, 1.0, math.nan):
        with pytest.raises(SetupError, match="the margin is"):
            decide_non_inferiority([FLAKY], margin=margin)
    with pytest.raises(SetupError, match="scores differ by 10"):
        decide_non_inferiority(cases(2, (0, 10), (0, 10)), margin=0.1)
    assert decide_non_inferiority(cases(2, (0, 10), (0, 10)), margin=1.0, spread=10.0).outcome == "open"
    with pytest.raises(SetupError, match="no cases"):
        decide_non_inferiority([], margin=0.1)


@given(some.data())
def test_wealth_is_a_fair_game_for_every_pair_of_chances(data: some.DataObject) -> None:
    """Over all outcomes of one repeat of two cases: the mean of 1 / p is at most 1 if the mean loss is the margin."""
    margin = data.draw(some.sampled_from((0.05, 0.1, 0.3)))
    first = data.draw(some.floats(0, min(1.0, 2 * margin)))
    losses = (first, 2 * margin - first)
    mean = 0.0
    for one in (0.0, 1.0):
        for other in (0.0, 1.0):
            weight = (losses[0] if one == 0 else 1 - losses[0]) * (losses[1] if other == 0 else 1 - losses[1])
            pairs = [PairedScores(case_id=str(at), before=(1.0,), after=(end,)) for at, end in enumerate((one, other))]
            [look] = decide_non_inferiority(pairs, margin=margin, blocks=[Block(repeats=1, alpha=0.01)]).looks
            mean += weight / look.p_value if look.p_value < 1 else 0.0
    assert mean <= 1 + 1e-9
