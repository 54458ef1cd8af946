from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.errors import SetupError
from promptiter.evaluation.result import CaseRow, Evaluation, Measured
from promptiter.evaluation.score import Score
from promptiter.policies.acceptance import AcceptancePolicy, decide
from promptiter.policies.constraints import Constraint, TieBreak, check_figures, list_figures
from promptiter.policies.evidence import AcceptanceDecision, Evidence
from promptiter.policies.figure_gain import Bound, Direction, FigureGain, Operator, Side
from promptiter.policies.figures import average_figures, check_recorded_figures, compare_figure
from promptiter.policies.policy_code import parse_acceptance
from traces import Failure, Usage


def of(*runs: Mapping[str, float] | None) -> Evaluation:
    """One evaluation of a scorer, with the figures of each repeat; None is a crash."""
    rows = [
        CaseRow(
            case_id="scorer",
            repeat=repeat,
            scores=() if figures is None else (Score(metric="score", value=0.5),),
            figures=figures or {},
            error=Failure("crash") if figures is None else None,
            usage=Usage(input_tokens=7, output_tokens=0),
            measured=Measured(duration_s=3.0),
        )
        for repeat, figures in enumerate(runs)
    ]
    return Evaluation(
        eval_set_id="scorer", profile_digest="p", rows=tuple(rows), thresholds={"score": 1.0}, max_errored_fraction=0.5
    )


def seen(before: Mapping[str, float], after: Mapping[str, float]) -> Evidence:
    return Evidence(accepted=of(before), candidate=of(after))


def decide_on(policy: AcceptancePolicy, evidence: Evidence) -> AcceptanceDecision:
    answer = decide(policy, evidence)
    assert isinstance(answer, AcceptanceDecision)
    return answer


# Figures


def test_a_recorded_figure_is_its_mean_over_the_runs_without_an_error() -> None:
    evidence = Evidence(
        accepted=of({"f1": 0.5}, {"f1": 0.6}, None), candidate=of({"f1": 0.1}, {"f1": 0.1}, {"f1": 0.1})
    )
    assert compare_figure("f1", evidence) == (0.55, 0.1)
    assert average_figures(evidence.candidate.rows) == {"f1": 0.1}
    assert compare_figure("f1", Evidence(accepted=of({"f1": 1.0}), candidate=of({"f2": 1.0}))) == (1.0, None)


def test_a_recorded_figure_counts_before_a_metric_and_the_usage_of_its_name() -> None:
    evidence = seen({"score": 41.0, "tokens": 3.0}, {"score": 42.0, "tokens": 2.0})
    assert compare_figure("score", evidence) == (41.0, 42.0)
    assert compare_figure("tokens", evidence) == (3.0, 2.0)
    assert compare_figure("tokens", seen({"score": 41.0}, {"score": 42.0})) == (7.0, 7.0)
    assert compare_figure("score", seen({}, {})) == (0.5, 0.5)


def test_other_policies_read_recorded_figures_too() -> None:
    evidence = seen({"lines": 10.0}, {"lines": 12.0})
    assert decide_on(Constraint("lines", at_most=11), evidence).reason == "lines 12 is not at most 11"
    assert decide_on(TieBreak(("lines",)), evidence).accepted


def test_a_name_that_the_scorer_does_not_record_is_an_error_with_those_it_does() -> None:
    policy = Bound("lenght", "<=", 3) & FigureGain("f1", tie_breakers=(("lower", "length"),))
    assert list_figures(policy) == ["lenght", "f1", "length"]
    with pytest.raises(SetupError, match=r"names 'lenght', .* the scorer returned f1, length .did you mean"):
        check_recorded_figures(list_figures(policy), of({"length": 3.0, "f1": 0.5}))
    with pytest.raises(SetupError, match="the scorer returned no figures"):
        check_recorded_figures(["length"], of({}))
    check_recorded_figures(["length", "score", "tokens"], of({"length": 3.0}))
    [first, *_] = check_figures(policy, ["score"])
    assert "names 'lenght', which is not a figure; give a metric" in first


# Bounds


@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        (Bound("violations", "<=", 0), "violations is 2, which is not <= 0"),
        (Bound("violations", "<", 2), "violations is 2, which is not < 2"),
        (Bound("violations", ">=", 3), "violations is 2, which is not >= 3"),
        (Bound("violations", ">", 2), "violations is 2, which is not > 2"),
        (Bound("violations", "==", 1), "violations is 2, which is not == 1"),
        (Bound("violations", "!=", 2), "violations is 2, which is not != 2"),
        (Bound("has_sections", "==", True), "has_sections is 0, which is not == True"),
        (Bound("unknown", "<=", 0), "unknown is unknown, so it is not known to be <= 0"),
    ],
    ids=repr,
)
def test_a_candidate_that_breaks_a_bound_is_rejected_whatever_it_scored(bound: Bound, reason: str) -> None:
    evidence = seen({"f1": 0.1}, {"f1": 0.9, "violations": 2.0, "has_sections": 0.0})
    decision = decide_on(bound & FigureGain("f1"), evidence)
    assert (decision.accepted, decision.reason) == (False, reason)


@given(st.sampled_from(["<=", "<", ">=", ">", "==", "!="]), st.floats(-2, 2), st.floats(-2, 2))
def test_bounds_compare_as_python_does(op: Operator, figure: float, value: float) -> None:
    expected = eval(f"{figure!r} {op} {value!r}")
    decision = decide_on(Bound("x", op, value), seen({"x": 0.0}, {"x": figure}))
    assert (decision.accepted, "not" in decision.reason) == (expected, not expected)


# Gains

FIGURES = ("primary", "first", "second")
COARSE = st.integers(-2, 2).map(lambda number: number / 10)
MEASURED = st.fixed_dictionaries(dict.fromkeys(FIGURES, COARSE))
SIDES: st.SearchStrategy[Side] = st.sampled_from(["lower", "higher"])


def is_better(
    before: Mapping[str, float], after: Mapping[str, float], *, sign: int, min_gain: float, ties: list[tuple[Side, str]]
) -> bool:
    """The order, plainly: by the primary figure, then the tie-breakers."""

    def exact(figure: float) -> Fraction:
        return Fraction(str(figure))

    gain = sign * (exact(after["primary"]) - exact(before["primary"]))
    if abs(gain) > exact(min_gain):
        return gain > 0
    changes = [(exact(after[name]) - exact(before[name])) * (1 if side == "higher" else -1) for side, name in ties]
    return next((change > 0 for change in changes if change), False)


@given(
    MEASURED,
    MEASURED,
    st.sampled_from(["maximize", "minimize"]),
    st.sampled_from([0.0, 0.1, 0.2]),
    st.lists(st.tuples(SIDES, st.sampled_from(["first", "second"])), max_size=2),
)
def test_a_candidate_is_kept_exactly_if_it_comes_first_in_the_order(
    before: dict[str, float],
    after: dict[str, float],
    direction: Direction,
    min_gain: float,
    ties: list[tuple[Side, str]],
) -> None:
    policy = FigureGain("primary", direction, min_gain, tuple(ties))
    expected = is_better(before, after, sign=1 if direction == "maximize" else -1, min_gain=min_gain, ties=ties)
    assert decide_on(policy, seen(before, after)).accepted == expected


@pytest.mark.parametrize(
    ("policy", "after", "accepted", "reason"),
    [
        (FigureGain("f1"), {"f1": 0.75}, True, "f1 is 0.75, was 0.7: better by 0.05"),
        (FigureGain("f1", min_gain=0.05), {"f1": 0.75}, False, "f1 is 0.75, was 0.7: a difference of at most 0.05"),
        (FigureGain("f1", "minimize"), {"f1": 0.75}, False, "f1 is 0.75, was 0.7: worse by 0.05"),
        (FigureGain("f1"), {"f1": 0.7}, False, "f1 is 0.7, as before"),
        (
            FigureGain("f1", tie_breakers=(("lower", "length"),)),
            {"f1": 0.7, "length": 40},
            True,
            "f1 is 0.7, as before; length is 40, was 50: better",
        ),
        (
            FigureGain("f1", tie_breakers=(("lower", "length"),)),
            {"f1": 0.7, "length": 50},
            False,
            "f1 is 0.7, as before; no difference in length",
        ),
        (
            FigureGain("f1", tie_breakers=(("lower", "length"),)),
            {"f1": 0.7},
            False,
            "f1 is 0.7, as before; length is unknown",
        ),
        (FigureGain("latency_s"), {"f1": 0.7}, False, "latency_s is unknown"),
    ],
    ids=repr,
)
def test_the_reason_has_the_raw_figures(policy: FigureGain, after: Any, accepted: bool, reason: str) -> None:
    decision = decide_on(policy, seen({"f1": 0.7, "length": 50}, after))
    assert (decision.accepted, decision.reason) == (accepted, reason)


def test_a_crash_is_rejected_with_its_share() -> None:
    decision = decide_on(FigureGain("f1"), Evidence(accepted=of({"f1": 0.5}), candidate=of(None)))
    assert "the candidate is unreliable: 100.0% of its runs" in decision.reason


def test_the_code_of_a_policy_creates_it() -> None:
    policy = Bound("violations", "<=", 0) & FigureGain("f1", "minimize", 0.1, (("lower", "length"),))
    code = (
        "Bound('violations', '<=', 0) & "
        "FigureGain('f1', direction='minimize', min_gain=0.1, tie_breakers=(('lower', 'length'),))"
    )
    assert repr(policy) == code
    assert parse_acceptance(code) == policy
    assert repr(FigureGain("f1")) == "FigureGain('f1')"


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: Bound("", "<=", 0), "the figure is ''"),
        (lambda: Bound("f1", "=", 0), "the operator of the bound on 'f1' is '='"),  # type: ignore[arg-type]
        (lambda: Bound("f1", "<=", float("nan")), "the value of the bound on 'f1' is nan"),
        (lambda: FigureGain("f1", "up"), "the direction of 'f1' is 'up'; give maximize or minimize"),  # type: ignore[arg-type]
        (lambda: FigureGain("f1", min_gain=-1), "min_gain is -1"),
        (lambda: FigureGain("f1", tie_breakers=("tokens",)), "a tie-breaker is 'tokens'; give the better side"),  # type: ignore[arg-type]
    ],
)
def test_a_policy_that_makes_no_sense_is_an_error(build: Any, problem: str) -> None:
    with pytest.raises(SetupError, match=problem):
        build()


@pytest.mark.parametrize(
    ("after", "is_accepted", "reason"),
    [
        ((0.5, 0.62, 0.68), False, "a difference of no more than the noise"),
        ((0.8, 0.82, 0.84), True, "better by"),
    ],
)
def test_with_sigma_a_gain_must_exceed_the_spread_of_equal_runs(
    after: tuple[float, ...], is_accepted: bool, reason: str
) -> None:
    before = of({"f1": 0.5}, {"f1": 0.55}, {"f1": 0.6})
    evidence = Evidence(accepted=before, candidate=of(*({"f1": each} for each in after)))
    decision = decide_on(FigureGain("f1", sigma=1.0), evidence)
    assert decision.accepted is is_accepted
    assert reason in decision.reason
    assert decide_on(FigureGain("f1"), evidence).accepted


def test_with_sigma_a_tie_breaker_within_its_noise_does_not_decide() -> None:
    policy = FigureGain("f1", tie_breakers=(("lower", "runtime"), ("lower", "length")), sigma=1.0)
    before = of({"f1": 1, "runtime": 2.0, "length": 9}, {"f1": 1, "runtime": 2.4, "length": 9})
    after = of({"f1": 1, "runtime": 2.1, "length": 8}, {"f1": 1, "runtime": 2.2, "length": 8})
    decision = decide_on(policy, Evidence(accepted=before, candidate=after))
    assert decision.accepted
    assert decision.reason == "f1 is 1, as before; length is 8, was 9: better"
