from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.policies.acceptance import AcceptancePolicy, AllOf, AnyGain, AnyOf, MinGain, NoRegression, Protected
from promptiter.policies.combine import describe_policy
from promptiter.policies.constraints import Constraint
from promptiter.policies.error_rate import check_false_accept_rate, false_accept_rate, ignores_holdout
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.paired_gain import PairedGain
from promptiter.policies.sigma_gain import SigmaGain


class Strict:
    """A custom policy that bounds false accepts."""

    alpha = 0.01

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        return evidence.reject("no")


class Unsure(Strict):
    alpha = "often"  # type: ignore[assignment]


LOOSE: list[AcceptancePolicy] = [
    AnyGain(),
    MinGain(),
    NoRegression(),
    Protected(),
    SigmaGain(),
    Constraint("tokens", at_most=1),
]
single: st.SearchStrategy[AcceptancePolicy] = st.sampled_from(LOOSE) | st.floats(0.001, 0.3).map(PairedGain)
policies: st.SearchStrategy[AcceptancePolicy] = st.recursive(
    single,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: AllOf(*parts))
        | st.lists(inner, min_size=1, max_size=3).map(lambda parts: AnyOf(*parts))
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("policy", LOOSE, ids=repr)
def test_lenient_policies_have_no_bound(policy: AcceptancePolicy) -> None:
    assert false_accept_rate(policy) is None
    assert list(check_false_accept_rate(policy, 0.05)) == []


def test_a_custom_policy_may_have_a_bound() -> None:
    assert false_accept_rate(Strict()) == 0.01
    assert false_accept_rate(PairedGain(0.02) | Strict()) == pytest.approx(0.03)
    assert false_accept_rate(Unsure()) is None


@given(parts=st.lists(policies, min_size=1, max_size=4))
def test_or_adds_the_bounds_and_and_takes_the_smallest(parts: list[AcceptancePolicy]) -> None:
    errors = [false_accept_rate(part) for part in parts]
    known = [error for error in errors if error is not None]
    assert false_accept_rate(AllOf(*parts)) == (min(known) if known else None)
    both = false_accept_rate(AnyOf(*parts))
    if len(known) < len(errors):
        assert both is None
    else:
        assert both is not None
        assert math.isclose(both, math.fsum(known))


@given(one=policies, other=policies)
def test_the_order_does_not_matter_and_combining_never_tightens_a_bound(
    one: AcceptancePolicy, other: AcceptancePolicy
) -> None:
    def errs(policy: AcceptancePolicy) -> float:
        found = false_accept_rate(policy)
        return math.inf if found is None else found

    for kind in (AllOf, AnyOf):
        assert errs(kind(one, other)) == pytest.approx(errs(kind(other, one)))
    assert errs(AllOf(one, other)) <= min(errs(one), errs(other)) + 1e-12
    assert errs(AnyOf(one, other)) >= max(errs(one), errs(other)) - 1e-12


@given(policy=policies, level=st.floats(0.01, 0.5))
def test_there_is_no_problem_exactly_if_the_bound_is_within_alpha_or_there_is_none(
    policy: AcceptancePolicy, level: float
) -> None:
    error = false_accept_rate(policy)
    problems = list(check_false_accept_rate(policy, level))
    if error is not None:
        assert bool(problems) == (error > level * (1 + 1e-9))
    elif "PairedGain" not in repr(policy):
        assert problems == []
    else:
        assert problems
        assert all("bounds false accepts at" in each for each in problems)


def test_a_sum_above_alpha_says_what_to_do() -> None:
    [problem] = check_false_accept_rate(PairedGain(0.04) | PairedGain(0.03), 0.05)
    assert problem == (
        "acceptance PairedGain(0.04, (2, 2, 2)) | PairedGain(0.03, (2, 2, 2)) allows false accepts in 7% of runs, "
        "above this run's alpha of 0.05; lower the alpha of its parts, join them with & instead of |, or raise "
        "the run's alpha"
    )
    assert list(check_false_accept_rate(PairedGain(0.02) | PairedGain(0.03), 0.05)) == []
    assert list(check_false_accept_rate(PairedGain(0.1) & PairedGain(0.03), 0.05)) == []


def test_a_bound_is_lost_by_or_with_an_unbounded_policy() -> None:
    [problem] = check_false_accept_rate(NoRegression() & (MinGain(0.1) | PairedGain()), 0.05)
    assert problem == (
        "acceptance PairedGain(0.05, (2, 2, 2)) bounds false accepts at 5% per run; | MinGain(0.1) removes the bound. "
        "Use &, or drop one"
    )
    assert list(check_false_accept_rate(PairedGain() & (PairedGain() | MinGain()), 0.05)) == []


SKIPS, HOLDS = SigmaGain(holdout="skip"), SigmaGain()


@pytest.mark.parametrize(
    ("policy", "ignores"),
    [
        (SKIPS, True),
        (SKIPS & Protected(), True),
        (SKIPS & Constraint("tokens", at_most=1), True),
        (SKIPS & NoRegression(), False),
        (SKIPS & HOLDS, False),
        (SKIPS | HOLDS, True),
        (SKIPS | AnyGain(), True),
        (HOLDS, False),
        (AnyGain() & Protected(), False),
        (Protected(), False),
        (Strict(), False),
    ],
    ids=describe_policy,
)
def test_a_policy_that_skips_the_hold_out_ignores_it_unless_another_part_uses_it(
    policy: AcceptancePolicy, ignores: bool
) -> None:
    assert ignores_holdout(policy) == ignores
