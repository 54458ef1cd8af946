from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation, Measured
from promptiter.evaluation.score import Score
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain
from promptiter.policies.constraints import Constraint, TieBreak, check_figures
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.figures import FIGURES, compare_figure
from traces import Failure, Usage


def row(case_id: str, value: float | None, *, tokens: int | None = 100, usd: float | None = 0.01) -> CaseRow:
    """None: it could not be scored."""
    score = Score(metric="clear", value=value, error=None if value is not None else "judge failed", threshold=0.5)
    usage = Usage(input_tokens=tokens, output_tokens=None if tokens is None else 10, cost_usd=usd)
    return CaseRow(case_id=case_id, scores=(score,), usage=usage, measured=Measured(duration_s=2.0))


def of(*rows: CaseRow) -> Evaluation:
    return Evaluation(
        eval_set_id="v", profile_digest="p", rows=rows, thresholds={"clear": 0.5}, max_errored_fraction=1.0
    )


BEFORE = of(row("a", 0.5), row("b", 0.5))


def after(*rows: CaseRow, characters: tuple[int, int] | None = None) -> Evidence:
    return Evidence(accepted=BEFORE, candidate=of(*rows), characters=characters)


SAME = after(row("a", 0.5), row("b", 0.5))
SHORTER = after(row("a", 0.5, tokens=80), row("b", 0.5, tokens=60))
LONGER = after(row("a", 0.5, tokens=130), row("b", 0.5))


def decide_on(policy: AcceptancePolicy, seen: Evidence) -> AcceptanceDecision:
    answer = policy.decide(seen)
    assert isinstance(answer, AcceptanceDecision)
    return answer


# Figures


def test_figures_are_means_over_runs_on_validation() -> None:
    seen = after(row("a", 0.5, tokens=80, usd=0.03), row("b", 1.0, tokens=60, usd=0.01), characters=(10, 7))
    assert compare_figure("tokens", seen) == (110.0, 80.0)
    assert compare_figure("cost_usd", seen) == (0.01, 0.02)
    assert compare_figure("characters", seen) == (10, 7)
    assert compare_figure("latency_s", seen) == (2.0, 2.0)
    assert compare_figure("clear", seen) == (0.5, 0.75)


def test_a_figure_is_unknown_if_it_is_for_one_run_and_a_crash_does_not_count() -> None:
    crash = CaseRow(case_id="b", error=Failure("crash"))
    assert compare_figure("tokens", after(row("a", 0.5, tokens=40), crash)) == (110.0, 50.0)
    assert compare_figure("tokens", after(row("a", 0.5), row("b", 0.5, tokens=None)))[1] is None
    assert compare_figure("cost_usd", after(row("a", 0.5), row("b", 0.5, usd=None)))[1] is None
    assert compare_figure("characters", SAME) == (None, None)
    assert compare_figure("tokens", after(crash))[1] is None


def test_an_unscored_case_counts_as_the_worst() -> None:
    assert compare_figure("clear", after(row("a", 1.0), row("b", None))) == (0.5, 0.5)


def test_cached_answers_have_no_latency() -> None:
    known = replace(row("b", 0.5), measured=Measured(duration_s=0.001, origin="cache"))
    assert (
        compare_figure("latency_s", after(replace(row("a", 0.5), measured=Measured(duration_s=3.0)), known))[1] == 3.0
    )
    assert compare_figure("latency_s", after(known))[1] is None


# Constraints


@pytest.mark.parametrize(
    ("constraint", "accepted", "reason"),
    [
        (Constraint("tokens", at_most=125), True, "tokens 125 is at most 125"),
        (Constraint("tokens", at_most=124.9), False, "tokens 125 is not at most 124.9"),
        (Constraint("tokens", at_least=200), False, "tokens 125 is not at least 200"),
        (Constraint("clear", at_least=0.5), True, "clear 0.5 is at least 0.5"),
        (
            Constraint("tokens", at_most_times=1.1),
            False,
            "tokens 125 is not at most 121, 1.1 times that of the accepted profile (110)",
        ),
        (
            Constraint("tokens", at_most_times=1.2),
            True,
            "tokens 125 is at most 132, 1.2 times that of the accepted profile (110)",
        ),
        (
            Constraint("clear", at_least_times=1.5),
            False,
            "clear 0.5 is not at least 0.75, 1.5 times that of the accepted profile (0.5)",
        ),
        (Constraint("tokens", at_most=1000, at_least=300), False, "tokens 125 is not at least 300"),
        (
            Constraint("characters", at_most=10),
            False,
            "characters is unknown, so it is not known to be at most 10",
        ),
    ],
    ids=repr,
)
def test_the_reason_says_whether_a_constraint_is_met(constraint: Constraint, accepted: bool, reason: str) -> None:
    answer = decide_on(constraint, LONGER)
    assert (answer.accepted, answer.reason) == (accepted, reason)


@given(before=st.integers(1, 10**6), times=st.floats(0.1, 3), tokens=st.integers(0, 10**6))
def test_a_relative_bound_is_a_multiple_of_the_accepted_profiles_figure(before: int, times: float, tokens: int) -> None:
    seen = Evidence(accepted=of(row("a", 0.5, tokens=before)), candidate=of(row("a", 0.5, tokens=tokens)))
    if not math.isclose(tokens + 10, times * (before + 10), rel_tol=1e-9):
        kept = decide_on(Constraint("tokens", at_most_times=times), seen).accepted
        assert kept == (tokens + 10 < times * (before + 10))


def test_a_constraint_combines_with_another_policy() -> None:
    policy = AnyGain() & Constraint("tokens", at_most_times=1.0)
    better = after(row("a", 1.0, tokens=101), row("b", 0.5))
    assert decide_on(AnyGain(), better).accepted
    reason = "tokens 110.5 is not at most 110, 1 times that of the accepted profile (110)"
    assert decide_on(policy, better).reason == reason


def test_a_constraint_reads_like_the_code_that_creates_it() -> None:
    for constraint in (
        Constraint("tokens", at_most_times=1.1),
        Constraint("latency_s", at_most=2, at_least=1, measured=True),
    ):
        assert eval(repr(constraint)) == constraint


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"figure": "tokens"}, "the constraint on 'tokens' has no bound; give one of at_most, at_least, at_most_times"),
        ({"figure": "tokens", "at_most": "7"}, "at_most of the constraint on 'tokens' is '7'; give a number"),
        ({"figure": "tokens", "at_most_times": -1}, "at_most_times of the constraint on 'tokens' is -1"),
        ({"figure": "", "at_most": 1}, "the figure is ''; give a metric or one of tokens, cost_usd"),
        ({"figure": "latency_s", "at_most": 1}, "latency_s is measured by the clock, so two equal runs may decide"),
    ],
)
def test_a_constraint_without_a_valid_bound_is_refused(changes: dict[str, object], reason: str) -> None:
    with pytest.raises(SetupError, match=reason):
        Constraint(**changes)  # type: ignore[arg-type]


# Ties


@pytest.mark.parametrize(
    ("seen", "accepted", "reason"),
    [
        (after(row("a", 0.6), row("b", 0.5)), True, "gain +0.05 is above 0.02"),
        (after(row("a", 0.4), row("b", 0.5)), False, "gain -0.05 is below -0.02"),
        (SHORTER, True, "gain +0 is within 0.02, and tokens is 80, was 110"),
        (LONGER, False, "gain +0 is within 0.02, and tokens is 125, was 110"),
        (
            after(row("a", 0.52, tokens=120), row("b", 0.5)),
            False,
            "gain +0.01 is within 0.02, and tokens is 120, was 110",
        ),
        (
            after(row("a", 0.48), row("b", 0.5, tokens=90)),
            True,
            "gain -0.01 is within 0.02, and tokens is 105, was 110",
        ),
        (SAME, False, "gain +0 is within 0.02, and there is no difference in tokens, characters, clear"),
        (
            replace(SAME, characters=(90, 80)),
            True,
            "gain +0 is within 0.02, and characters is 80, was 90",
        ),
        (
            after(row("a", 0.51), row("b", 0.5)),
            True,
            "gain +0.005 is within 0.02, and clear is 0.505, was 0.5",
        ),
        (
            after(row("a", 0.5, tokens=None), row("b", 0.5), characters=(9, 10)),
            False,
            "gain +0 is within 0.02, and characters is 10, was 9",
        ),
    ],
)
def test_in_a_tie_the_first_figure_that_differs_decides(seen: Evidence, accepted: bool, reason: str) -> None:
    answer = decide_on(TieBreak(("tokens", "characters", "clear"), min_gain=0.02), seen)
    assert (answer.accepted, answer.reason) == (accepted, reason)


def test_without_a_minimum_any_gain_is_accepted() -> None:
    assert decide_on(TieBreak(("tokens",)), after(row("a", 0.5001, tokens=900), row("b", 0.5))).accepted
    assert not decide_on(TieBreak(("tokens",)), after(row("a", 0.4999, tokens=9), row("b", 0.5))).accepted


@pytest.mark.parametrize("wrong", ["tokens", (), None])
def test_tie_breakers_are_a_tuple(wrong: tuple[str, ...]) -> None:
    with pytest.raises(SetupError, match=r"give a tuple of figures, such as \('tokens',\)"):
        TieBreak(wrong)


def test_a_negative_minimum_gain_is_refused() -> None:
    with pytest.raises(SetupError, match=r"min_gain is -1; give a number that is not negative"):
        TieBreak(("tokens",), min_gain=-1)


# Names


def test_unknown_figures_are_problems_of_the_request() -> None:
    policy = AnyGain() & Constraint("token", at_most=1) & TieBreak(("clera", "tokens"))
    token, clera = check_figures(policy, ["clear"])
    reason = f"which is not a figure; give a metric or one of {', '.join(FIGURES)}"
    assert token == f"acceptance Constraint('token', at_most=1) names 'token', {reason} (did you mean 'tokens'?)"
    assert clera.endswith(f"names 'clera', {reason} (did you mean 'clear'?)")
    assert list(check_figures(Constraint("clear", at_least=1) | AnyGain(), ["clear"])) == []


@pytest.mark.parametrize("policy", [Constraint("tokens", at_most=1), TieBreak(("tokens",))], ids=repr)
def test_an_unreliable_candidate_is_rejected_whatever_its_figures(policy: AcceptancePolicy) -> None:
    broken = replace(SAME, candidate=replace(SAME.candidate, max_errored_fraction=-1.0))
    assert decide_on(policy, broken).reason.startswith("the candidate is unreliable")
