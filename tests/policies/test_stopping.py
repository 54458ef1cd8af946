from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from promptiter.errors import SetupError, UnknownNameError
from promptiter.evaluation.result import CaseRow, Evaluation, Objective
from promptiter.evaluation.score import Score
from promptiter.llm.ledger import Spending
from promptiter.policies.stop_decision import CONTINUE, STOP_KINDS, StopDecision, StopReason
from promptiter.policies.stop_limits import Deadline, MaxCalls, MaxEvaluations, MaxFailures, MaxTokens, MaxUsd
from promptiter.policies.stopping import (
    ComposableStop,
    MaxRounds,
    Patience,
    Progress,
    RequiredMetrics,
    StopFile,
    StopOnAll,
    StopOnAny,
    StopPolicy,
    TargetScore,
    UserStop,
    check_metrics,
)
from traces import Failure

THRESHOLDS = {"exact": 0.9, "format": 0.5}


def evaluation(*cases: tuple[float, float] | None, limit: float = 0.25) -> Evaluation:
    """Cases with their scores for exact and format; None is a run that crashed."""
    rows = [
        CaseRow(case_id=f"c{number}", error=Failure("crash"))
        if case is None
        else CaseRow(
            case_id=f"c{number}",
            scores=tuple(
                Score(metric=metric, value=value, threshold=THRESHOLDS[metric])
                for metric, value in zip(THRESHOLDS, case, strict=True)
            ),
        )
        for number, case in enumerate(cases)
    ]
    return Evaluation(
        eval_set_id="v", profile_digest="p", rows=tuple(rows), thresholds=THRESHOLDS, max_errored_fraction=limit
    )


GOOD = evaluation((1.0, 1.0), (1.0, 0.6))  # mean_score 0.9, pass_rate 1.0, weighted_loss 0.1
FAIR = evaluation((1.0, 1.0), (0.0, 0.6))
EVERYTHING = Progress(
    round=9,
    rounds_without_acceptance=9,
    best=GOOD,
    elapsed_s=9_000.0,
    evaluations=900,
    spent=Spending(calls=900, input_tokens=800, output_tokens=100, cost_usd=9.0),
    user_stop="Ctrl-C",
)
ALL: dict[str, StopPolicy] = {
    "required_metrics": RequiredMetrics(),
    "target_score": TargetScore(0.9),
    "user_stop": UserStop(),
    "patience": Patience(3),
    "deadline": Deadline(minutes=30),
    "max_evaluations": MaxEvaluations(900),
    "max_calls": MaxCalls(900),
    "max_tokens": MaxTokens(900),
    "max_usd": MaxUsd(9.0),
    "max_rounds": MaxRounds(9),
}


class Says(ComposableStop):
    """A policy that always gives one answer."""

    def __init__(self, *kinds: str) -> None:
        self.kinds = kinds

    def decide(self, progress: Progress) -> StopDecision:  # noqa: ARG002
        return StopDecision(bool(self.kinds), tuple(StopReason(kind, f"{kind} holds") for kind in self.kinds))


class Breached:
    """A custom class with only `decide`, and a custom kind."""

    def decide(self, progress: Progress) -> StopDecision:
        return StopDecision(True, (StopReason("slo", f"latency is too high in round {progress.round}"),))


kinds = st.sampled_from([*STOP_KINDS, "slo", "another"])
policies = st.lists(kinds, max_size=2).map(lambda held: Says(*held))


# All conditions


@pytest.mark.parametrize("kind", ALL)
def test_each_condition_that_holds_stops_with_its_kind(kind: str) -> None:
    decision = ALL[kind].decide(EVERYTHING)
    assert (decision.stop, decision.reason) == (True, kind)


@pytest.mark.parametrize("kind", ALL)
def test_no_condition_holds_at_the_start(kind: str) -> None:
    assert ALL[kind].decide(Progress()) == CONTINUE


def test_on_the_baseline_only_metrics_target_and_user_stop_a_run() -> None:
    baseline = Progress(best=GOOD, elapsed_s=9_000.0, evaluations=900, spent=EVERYTHING.spent, user_stop="Ctrl-C")
    decision = StopOnAny(*ALL.values()).decide(baseline)
    assert [reason.kind for reason in decision.reasons] == ["user_stop"]
    decision = StopOnAny(*ALL.values()).decide(replace(baseline, user_stop=None))
    assert [reason.kind for reason in decision.reasons] == ["required_metrics", "target_score"]


@given(order=st.permutations(list(ALL.values())))
def test_all_reasons_are_listed_in_one_order_however_the_policies_were_composed(order: list[StopPolicy]) -> None:
    everything = StopOnAll(*order).decide(EVERYTHING)
    assert [reason.kind for reason in everything.reasons] == [kind for kind in STOP_KINDS if kind in ALL]
    decision = StopOnAny(*order).decide(replace(EVERYTHING, user_stop=None))
    assert decision.reasons == tuple(reason for reason in everything.reasons if reason.kind != "user_stop")


@given(order=st.permutations(list(ALL.values())))
def test_a_stop_by_the_user_is_the_only_reason_because_the_run_is_resumed(order: list[StopPolicy]) -> None:
    decision = StopOnAny(*order).decide(EVERYTHING)
    assert (decision.is_user_stop, decision.text) == (True, "stopped on request: Ctrl-C")


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (RequiredMetrics(), "required metrics reach thresholds: exact 1.000 of 0.9, format 0.800 of 0.5"),
        (TargetScore(0.9), "mean_score 0.900 reaches 0.9"),
        (UserStop(), "stopped on request: Ctrl-C"),
        (Patience(3), "nothing was accepted in 9 rounds, the patience is 3"),
        (Deadline(minutes=1, seconds=30), "the deadline of 90 s has passed"),
        (MaxEvaluations(10), "10 evaluations were made"),
        (MaxCalls(10), "10 calls were made"),
        (MaxTokens(10), "10 tokens were used"),
        (MaxUsd(0.5), "$0.5 was spent"),
        (MaxRounds(9), "9 rounds finished, of at most 9"),
    ],
    ids=repr,
)
def test_reasons_have_figures(policy: StopPolicy, text: str) -> None:
    assert policy.decide(EVERYTHING).text == text


def test_a_reason_contains_no_times_and_no_amounts_spent() -> None:
    policy = Deadline(seconds=1) | MaxEvaluations(1) | MaxCalls(1) | MaxTokens(1) | MaxUsd(1)
    slower = Progress(
        round=9, elapsed_s=9_001.0, evaluations=901, spent=Spending(calls=7, input_tokens=7, cost_usd=7.0)
    )
    assert policy.decide(EVERYTHING) == policy.decide(slower)


# One by one


@pytest.mark.parametrize(
    ("policy", "below", "at"),
    [
        (MaxRounds(3), Progress(round=2), Progress(round=3)),
        (Patience(2), Progress(rounds_without_acceptance=1), Progress(rounds_without_acceptance=2)),
        (Deadline(minutes=2), Progress(round=1, elapsed_s=119.9), Progress(round=1, elapsed_s=120.0)),
        (MaxEvaluations(60), Progress(round=1, evaluations=59), Progress(round=1, evaluations=60)),
        (
            MaxCalls(5),
            Progress(round=1, spent=Spending(calls=4, cache_hits=9)),
            Progress(round=1, spent=Spending(calls=5)),
        ),
        (
            MaxTokens(10),
            Progress(round=1, spent=Spending(calls=1, input_tokens=9)),
            Progress(round=1, spent=Spending(calls=1, input_tokens=9, output_tokens=1)),
        ),
        (
            MaxUsd(0.3),
            Progress(round=1, spent=Spending(calls=1, cost_usd=0.29)),
            Progress(round=1, spent=Spending(calls=1, cost_usd=0.1) + Spending(calls=1, cost_usd=0.2)),
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, ComposableStop) else "",
)
def test_a_limit_stops_the_run_when_it_is_reached(policy: StopPolicy, below: Progress, at: Progress) -> None:
    assert not policy.decide(below).stop
    assert policy.decide(at).stop


def test_an_unknown_cost_is_not_compared_with_a_limit() -> None:
    assert not MaxUsd(0.01).decide(Progress(round=1, spent=Spending(calls=3, cost_usd=None, unpriced_calls=3))).stop


@pytest.mark.parametrize(
    ("target", "progress", "text"),
    [
        (0.9, Progress(best=GOOD), "mean_score 0.900 reaches 0.9"),
        (1.0, Progress(best=GOOD), ""),
        (1.0, Progress(best=GOOD, objective="pass_rate"), "pass_rate 1.000 reaches 1"),
        (0.5, Progress(best=FAIR, objective="pass_rate"), "pass_rate 0.500 reaches 0.5"),
        (0.1, Progress(best=GOOD, objective="weighted_loss"), "weighted_loss 0.100 is at most 0.1"),
        (0.05, Progress(best=GOOD, objective="weighted_loss"), ""),
        (0.0, Progress(best=None), ""),
        (0.0, Progress(best=evaluation(None, limit=1.0)), ""),
    ],
)
def test_a_target_is_a_minimum_score_or_a_maximum_loss(target: float, progress: Progress, text: str) -> None:
    assert TargetScore(target).decide(progress).text == text


@given(value=st.integers(0, 100).map(lambda hundredths: hundredths / 100), count=st.integers(1, 9))
def test_a_mean_of_equal_scores_reaches_that_score(value: float, count: int) -> None:
    assert TargetScore(value).decide(Progress(best=evaluation(*[(value, value)] * count))).stop


@pytest.mark.parametrize("policy", [TargetScore(0.9), RequiredMetrics()], ids=repr)
def test_an_unreliable_evaluation_reaches_no_target(policy: StopPolicy) -> None:
    crashing = (*((1.0, 1.0),) * 10, None)
    assert not policy.decide(Progress(best=evaluation(*crashing, limit=0.05))).stop
    assert policy.decide(Progress(best=evaluation(*crashing, limit=0.1))).stop


@pytest.mark.parametrize("objective", ["mean_score", "pass_rate", "weighted_loss"])
def test_a_run_that_the_agent_made_fail_counts_with_the_worst_value(objective: Objective) -> None:
    best = evaluation(*((1.0, 1.0),) * 4, None)
    is_loss = objective == "weighted_loss"
    for target, stops in ((0.0 if is_loss else 1.0, False), (0.2 if is_loss else 0.8, True)):
        assert TargetScore(target).decide(Progress(best=best, objective=objective)).stop is stops
    assert not RequiredMetrics().decide(Progress(best=best)).stop


def test_a_run_that_an_outage_lost_counts_for_nothing() -> None:
    lost = replace(evaluation(None).rows[0], case_id="lost", error=Failure("Busy", is_outage=True))
    best = replace(evaluation(*((1.0, 1.0),) * 4), rows=(*evaluation(*((1.0, 1.0),) * 4).rows, lost))
    assert TargetScore(1.0).decide(Progress(best=best)).stop


@pytest.mark.parametrize(
    ("names", "best", "stops"),
    [
        ("all", GOOD, True),
        ("all", FAIR, False),
        ("format", FAIR, True),
        (("format",), FAIR, True),
        (("format", "exact"), FAIR, False),
        ("all", evaluation(), False),
        ("all", None, False),
    ],
)
def test_required_metrics_stop_when_each_named_mean_reaches_its_threshold(
    names: str | tuple[str, ...], best: Evaluation | None, stops: bool
) -> None:
    assert RequiredMetrics(names).decide(Progress(best=best)).stop is stops


def test_unknown_required_metrics_are_all_reported_with_the_nearest() -> None:
    policy = MaxRounds(3) | (RequiredMetrics(("exakt", "format")) & RequiredMetrics("style")) | RequiredMetrics()
    with pytest.raises(UnknownNameError) as caught:
        check_metrics(policy, THRESHOLDS)
    assert str(caught.value) == (
        "unknown required metric: 'exakt' (did you mean 'exact'?), 'style'; known are exact, format"
    )
    with pytest.raises(UnknownNameError):
        policy.decide(Progress(best=GOOD))
    check_metrics(RequiredMetrics("exact") | MaxRounds(3), THRESHOLDS)


def test_a_stop_file_stops_as_soon_as_it_exists(tmp_path: Path) -> None:
    policy = StopFile(tmp_path / "stop")
    assert policy.decide(Progress()) == CONTINUE
    (tmp_path / "stop").touch()
    decision = policy.decide(Progress())
    assert (decision.reason, decision.text) == ("user_stop", f"the stop file {str(tmp_path / 'stop')!r} exists")


# Decisions


@given(held=st.lists(kinds, min_size=1), random=st.randoms(use_true_random=False))
def test_a_decision_lists_each_reason_once_in_a_fixed_order(held: list[str], random: Any) -> None:
    reasons = [StopReason(kind, kind) for kind in held]
    shuffled = reasons + reasons
    random.shuffle(shuffled)
    decision = StopDecision(True, tuple(shuffled))
    assert decision == StopDecision(True, tuple(reasons))
    assert len(decision.reasons) == len(set(held))
    known = [STOP_KINDS.index(reason.kind) for reason in decision.reasons if reason.kind in STOP_KINDS]
    assert known == sorted(known)


def test_the_first_kind_is_the_stop_reason_and_custom_kinds_come_last() -> None:
    decision = StopOnAny(Breached(), MaxRounds(9), Patience(9)).decide(EVERYTHING)
    assert [reason.kind for reason in decision.reasons] == ["patience", "max_rounds", "slo"]
    assert decision.reason == "patience"
    assert decision.text.endswith("; latency is too high in round 9")
    assert (CONTINUE.reason, CONTINUE.text) == (None, "")


def test_a_decision_survives_json() -> None:
    adapter = TypeAdapter(StopDecision)
    decision = StopOnAny(*ALL.values()).decide(EVERYTHING)
    assert adapter.validate_json(adapter.dump_json(decision)) == decision


@pytest.mark.parametrize("wrong", [lambda: StopDecision(True), lambda: StopDecision(False, (StopReason("slo", ""),))])
def test_a_decision_has_reasons_exactly_when_it_stops(wrong: Callable[[], StopDecision]) -> None:
    with pytest.raises(SetupError, match="give reasons exactly when it stops"):
        wrong()


# Combining


@given(a=policies, b=policies, c=policies)
def test_and_and_or_are_associative_commutative_and_absorbing(a: Says, b: Says, c: Says) -> None:
    def same(one: StopPolicy, other: StopPolicy) -> bool:
        return one.decide(Progress()) == other.decide(Progress())

    assert ((a & b) & c).policies == (a & (b & c)).policies == (a, b, c)
    assert ((a | b) | c).policies == (a | (b | c)).policies == (a, b, c)
    assert same(a & StopOnAny(b & c), StopOnAny(a & b) & c)
    assert same(a | StopOnAll(b | c), StopOnAll(a | b) | c)
    assert same(a & b, b & a)
    assert same(a | b, b | a)
    assert same(a & a, a)
    assert same(a | a, a)
    assert (a & (a | b)).decide(Progress()).stop == a.decide(Progress()).stop


def test_or_lists_every_reason_and_and_waits_for_all() -> None:
    progress = Progress(round=4, rounds_without_acceptance=2)
    assert (MaxRounds(4) | Patience(2) | Deadline(minutes=1)).decide(progress).text == (
        "nothing was accepted in 2 rounds, the patience is 2; 4 rounds finished, of at most 4"
    )
    assert (MaxRounds(4) & Patience(3)).decide(progress) == CONTINUE
    assert (MaxRounds(4) & Patience(2)).decide(progress).reason == "patience"
    assert [r.kind for r in ((Patience(2) & MaxRounds(9)) | MaxRounds(4)).decide(progress).reasons] == ["max_rounds"]


def test_a_repr_reads_like_the_expression_and_evaluates_to_the_same_policy() -> None:
    written = {
        "MaxRounds(8) | TargetScore(0.95) | Deadline(minutes=30)": MaxRounds(8)
        | TargetScore(0.95)
        | Deadline(minutes=30),
        "(MaxRounds(2) | Patience(1)) & MaxUsd(0.5)": (MaxRounds(2) | Patience(1)) & MaxUsd(0.5),
        "StopFile('stop') & UserStop() | MaxCalls(5)": StopFile("stop") & UserStop() | MaxCalls(5),
        "MaxTokens(5) & MaxEvaluations(6)": MaxTokens(5) & MaxEvaluations(6),
        "RequiredMetrics('all') | RequiredMetrics(('a', 'b'))": RequiredMetrics() | RequiredMetrics(("a", "b", "a")),
        "Deadline(minutes=1, seconds=0.5)": Deadline(minutes=1, seconds=0.5),
    }
    assert {repr(policy): policy for policy in written.values()} == written
    assert all(eval(text) == policy for text, policy in written.items())


def test_a_class_with_only_decide_combines_from_either_side() -> None:
    assert repr(Breached() | MaxRounds(3)) == "Breached() | MaxRounds(3)"
    assert repr(MaxRounds(3) & Breached()) == "MaxRounds(3) & Breached()"
    assert (Breached() & MaxRounds(3)).decide(Progress(round=3)).reason == "max_rounds"


# Invalid arguments


@pytest.mark.parametrize("policy", [MaxRounds, Patience, MaxEvaluations, MaxCalls, MaxTokens])
@pytest.mark.parametrize("wrong", [0, -1, 2.5, "3", True, None])
def test_a_count_is_a_whole_number_of_at_least_one(policy: Callable[[Any], StopPolicy], wrong: object) -> None:
    with pytest.raises(SetupError, match=f"is {wrong!r}; give a whole number of at least 1"):
        policy(wrong)


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: TargetScore(math.nan), r"the target score is nan; give a finite number, such as 0\.95"),
        (lambda: TargetScore(-math.inf), "give a finite number"),
        (lambda: MaxUsd(0), "the most to spend is 0 dollars; give a number above 0"),
        (lambda: MaxUsd(math.inf), "give a number above 0"),
        (Deadline, r"the deadline is Deadline\(\); give a time above 0, such as Deadline\(minutes=30\)"),
        (lambda: Deadline(minutes=5, seconds=-1), r"Deadline\(minutes=5, seconds=-1\); give a time above 0"),
        (lambda: StopFile(""), "the stop file has no path; give one, such as 'stop'"),
        (lambda: RequiredMetrics(()), r'required metrics are \(\); give names or "all", or leave the policy out'),
        (lambda: MaxRounds(3) | 5, "5 is not a policy"),  # type: ignore[operator]
        (StopOnAny, r"StopOnAny\(\) combines no policies; give at least one"),
    ],
)
def test_invalid_arguments_are_refused_with_advice(make: Callable[[], object], advice: str) -> None:
    with pytest.raises(SetupError, match=advice):
        make()


def test_a_run_stops_once_so_many_candidates_crashed() -> None:
    policy = MaxFailures(2)
    assert policy.decide(replace(EVERYTHING, crashes=1)) == CONTINUE
    decision = policy.decide(replace(EVERYTHING, crashes=2))
    assert (decision.reason, decision.text) == ("max_failures", "2 candidates crashed, the limit is 2")
    assert policy.decide(Progress(crashes=2)) == CONTINUE  # the baseline alone never ends a run
    with pytest.raises(SetupError, match="the number of failures is 0"):
        MaxFailures(0)
