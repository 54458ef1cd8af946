from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.policies.acceptance import NoRegression, decide, find_first_request
from promptiter.policies.evidence import AcceptanceDecision, Evidence, MoreEvidence
from promptiter.policies.sigma_gain import Holdout, SigmaGain, skips_holdout

Repeats = Sequence[Sequence[float]]


def of(cases: Repeats, name: str = "v") -> Evaluation:
    rows = tuple(
        CaseRow(case_id=f"{name}{n}", repeat=repeat, scores=(Score(metric="m", value=value, threshold=0.5),))
        for n, repeats in enumerate(cases)
        for repeat, value in enumerate(repeats)
    )
    return Evaluation(eval_set_id=name, profile_digest="p", rows=rows, thresholds={"m": 0.5})


def evidence(train: tuple[Repeats, Repeats] | None, held: tuple[Repeats, Repeats] = ((), ())) -> Evidence:
    on_train = Evidence(accepted=of(train[0], "t"), candidate=of(train[1], "t")) if train is not None else None
    return Evidence(accepted=of(held[0] or [[0.5]]), candidate=of(held[1]), train=on_train)


def decide_on(policy: SigmaGain, seen: Evidence) -> AcceptanceDecision:
    answer = decide(policy, seen)
    assert isinstance(answer, AcceptanceDecision), answer
    return answer


def ask(policy: SigmaGain, seen: Evidence) -> MoreEvidence:
    answer = decide(policy, seen)
    assert isinstance(answer, MoreEvidence), answer
    return answer


BEFORE, AFTER, NOISY = [[0.1, 0.2, 0.3]], [[0.5, 0.5, 0.5]], [[0.1, 0.25, 0.3]]
EVERY: tuple[Holdout, ...] = ("on_train_improve", "every_trial", "skip", "k_fold")


@pytest.mark.parametrize("holdout", EVERY)
def test_it_starts_with_all_sweeps_of_train(holdout: Holdout) -> None:
    request = find_first_request(SigmaGain(holdout=holdout, repeats=4))
    assert request is not None
    assert (request.repeats, request.on, request.cases) == (4, "train", ())


def test_a_gain_on_train_that_clears_its_noise_asks_for_the_hold_out() -> None:
    answer = ask(SigmaGain(), evidence((BEFORE, AFTER)))
    assert (answer.repeats, answer.on, answer.cases) == (3, "validation", ())
    assert answer.reason.startswith(
        "train gains 0.300, which clears its noise of 0.082 (1 sigma); validation needs 3 sweeps"
    )


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (NOISY, "train gains 0.017, which is below its noise of 0.118 (1 sigma)"),
        (BEFORE, "train gains nothing"),
        ([[0.0, 0.0, 0.0]], "train loses 0.200"),
    ],
)
def test_without_a_gain_on_train_the_hold_out_is_not_paid(after: Repeats, reason: str) -> None:
    answer = decide_on(SigmaGain(), evidence((BEFORE, after)))
    assert (answer.accepted, answer.reason) == (False, reason)
    assert ask(SigmaGain(holdout="every_trial"), evidence((BEFORE, after))).on == "validation"


def test_missing_sweeps_are_requested() -> None:
    short = evidence(([case[:2] for case in BEFORE], [case[:2] for case in AFTER]))
    assert (ask(SigmaGain(), short).on, ask(SigmaGain(), short).repeats) == ("train", 1)
    held = evidence((BEFORE, AFTER), ([[0.5]], [[0.5]]))
    assert (ask(SigmaGain(), held).on, ask(SigmaGain(), held).repeats) == ("validation", 2)
    assert ask(SigmaGain(), evidence(None, (BEFORE, AFTER))).on == "train"


@pytest.mark.parametrize(
    ("held", "accepted", "reason"),
    [
        ((BEFORE, AFTER), True, "the hold-out gains 0.300"),
        ((BEFORE, [[0.1, 0.1, 0.3]]), True, "the hold-out loses 0.033, within its noise of 0.125"),
        ((BEFORE, [[0.0, 0.0, 0.0]]), False, "the hold-out loses 0.200, more than its noise of 0.082"),
        (([[0.5] * 3], [[0.5] * 3]), True, "the hold-out gains 0.000"),
        (([[0.5] * 3], [[0.49] * 3]), False, "the hold-out loses 0.010, more than its noise of 0.000"),
    ],
)
@pytest.mark.parametrize("holdout", ["on_train_improve", "every_trial"])
def test_the_hold_out_may_lose_no_more_than_its_own_noise(
    held: tuple[Repeats, Repeats], accepted: bool, reason: str, holdout: Holdout
) -> None:
    answer = decide_on(SigmaGain(holdout=holdout), evidence((BEFORE, AFTER), held))
    assert answer.accepted == accepted
    assert answer.reason == f"train gains 0.300, which clears its noise of 0.082 (1 sigma); {reason}"


def test_every_trial_reports_both_sets() -> None:
    answer = decide_on(SigmaGain(holdout="every_trial"), evidence((BEFORE, BEFORE), (BEFORE, AFTER)))
    assert (answer.accepted, answer.reason) == (False, "train gains nothing; the hold-out gains 0.300")


def test_skip_decides_on_train_alone_and_says_so() -> None:
    answer = decide_on(SigmaGain(holdout="skip"), evidence((BEFORE, AFTER)))
    assert answer.accepted
    assert answer.delta == pytest.approx(0.3)
    assert answer.reason.endswith("; the hold-out was not used, so it may be overfitted")
    rejected = decide_on(SigmaGain(holdout="skip"), evidence((BEFORE, NOISY)))
    assert (rejected.accepted, "hold-out" in rejected.reason) == (False, False)


def test_a_repeat_that_an_outage_lost_is_replaced_by_a_later_one() -> None:
    both = of([[0.1, 0.2, 0.3, 0.9], [0.1, 0.2, 0.3, 0.3]]), of([[0.5] * 4, [0.5] * 4])
    accepted, candidate = (
        replace(each, rows=tuple(row for row in each.rows if (row.case_id, row.repeat) != ("v1", 1))) for each in both
    )
    seen = Evidence(accepted=of([[0.5]]), candidate=of([]), train=Evidence(accepted=accepted, candidate=candidate))
    answer = decide_on(SigmaGain(holdout="skip"), seen)
    assert answer.reason.startswith("train gains 0.283, which clears its noise of 0.085")


@given(
    cases=st.lists(st.tuples(*[st.lists(st.floats(0, 1), min_size=3, max_size=3)] * 2), min_size=1, max_size=5),
    sigma=st.sampled_from([0.0, 0.5, 1.0, 2.0]),
)
def test_train_must_gain_the_pooled_spread_of_its_sweeps(
    cases: list[tuple[list[float], list[float]]], sigma: float
) -> None:
    before, after = ([fmean(case[arm][repeat] for case in cases) for repeat in range(3)] for arm in (0, 1))
    gain = fmean(after) - fmean(before)
    bar = sigma * (pstdev(before) ** 2 + pstdev(after) ** 2) ** 0.5
    seen = evidence(([case[0] for case in cases], [case[1] for case in cases]))
    if abs(gain - bar) > 1e-9 and abs(gain) > 1e-9:
        assert decide_on(SigmaGain(sigma, holdout="skip"), seen).accepted == (gain > 0 and gain > bar)


def test_a_gain_that_equals_the_bar_but_for_rounding_clears_it() -> None:
    bar = pstdev([0.1, 0.2, 0.6])
    seen = evidence(([[0.1, 0.2, 0.6]], [[0.3 + bar] * 3]))
    assert decide_on(SigmaGain(holdout="skip"), seen).accepted
    rounding = evidence(([[0.3] * 3], [[0.1 + 0.2] * 3]))
    assert decide_on(SigmaGain(holdout="skip"), rounding).reason.startswith("train gains nothing")


# Folds

RISES = ([[0.2, 0.3, 0.2]] * 6, [[0.8, 0.7, 0.8]] * 6)


def test_folds_agree_where_all_cases_gain() -> None:
    answer = decide_on(SigmaGain(holdout="k_fold"), evidence(RISES, RISES))
    assert answer.accepted
    assert answer.reason == (
        "the pool of 12 cases gains 0.533, which clears its noise of 0.067 (1 sigma), "
        "and so do the cases outside each of 5 folds"
    )


def test_a_gain_from_one_case_fails_in_the_fold_that_holds_it_out() -> None:
    flat = [[0.5, 0.5, 0.5]] * 5
    seen = evidence(([[0.0] * 3, *flat], [[1.0] * 3, *flat]), (flat, flat))
    assert not decide_on(SigmaGain(holdout="k_fold", folds=11), seen).accepted
    assert "the rest gains nothing" in decide_on(SigmaGain(holdout="k_fold", folds=11), seen).reason


def test_a_fold_that_regresses_beyond_its_noise_is_enough_to_reject() -> None:
    flat = [[0.5, 0.5, 0.5]]
    seen = evidence(RISES, (flat * 6, [*flat * 5, [0.0] * 3]))
    answer = decide_on(SigmaGain(holdout="k_fold", folds=12), seen)
    assert not answer.accepted
    assert "the fold loses 0.500, more than its noise of 0.000" in answer.reason


def test_the_seed_determines_the_folds() -> None:
    rising, falling = [[0.2] * 3], [[0.9] * 3]
    seen = evidence((rising * 3 + falling * 2, falling * 3 + rising * 2), (rising * 2, falling * 2))
    reasons = [decide_on(SigmaGain(holdout="k_fold", folds=3, seed=seed), seen).reason for seed in range(9)]
    assert reasons == [decide_on(SigmaGain(holdout="k_fold", folds=3, seed=seed), seen).reason for seed in range(9)]
    assert len(set(reasons)) > 1


def test_there_are_at_most_as_many_folds_as_cases() -> None:
    seen = evidence(([[0.2] * 3], [[0.8] * 3]), ([[0.2] * 3], [[0.8] * 3]))
    assert decide_on(SigmaGain(holdout="k_fold"), seen).reason.endswith("the cases outside each of 2 folds")


# Invalid settings


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accept_sigma": -1}, "accept_sigma is -1; give a number that is not negative"),
        ({"repeats": 0}, "repeats is 0; give a whole number of at least 1"),
        ({"repeats": 2.5}, r"repeats is 2\.5; give a whole number"),
        ({"folds": 1}, "folds is 1; give a whole number of at least 2"),
        ({"seed": "a"}, "seed is 'a'; give a whole number"),
        ({"holdout": "sometimes"}, "holdout is 'sometimes'; give one of on_train_improve, every_trial, skip, k_fold"),
    ],
)
def test_invalid_settings_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(SetupError, match=message):
        SigmaGain(**changes)  # type: ignore[arg-type]


def test_a_combination_skips_the_hold_out_if_one_of_its_policies_does() -> None:
    assert skips_holdout(SigmaGain(holdout="skip") & NoRegression())
    assert not skips_holdout(SigmaGain() & NoRegression())
