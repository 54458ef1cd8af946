from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest

from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import Score
from promptiter.policies.acceptance import (
    AcceptancePolicy,
    AnyGain,
    ComposablePolicy,
    MinGain,
    NoRegression,
    find_first_request,
)
from promptiter.policies.evidence import AcceptanceDecision, Answer, Evidence, MoreEvidence
from promptiter.policies.sequential import decide_sequentially

ON_TRAIN = MoreEvidence(repeats=3, on="train", reason="train first")
ALL_AGAIN = MoreEvidence(reason="once more")


def of(*values: float) -> Evaluation:
    rows = tuple(
        CaseRow(case_id=f"c{n}", scores=(Score(metric="m", value=value, threshold=0.5),))
        for n, value in enumerate(values)
    )
    return Evaluation(eval_set_id="v", profile_digest="p", rows=rows, thresholds={"m": 0.5})


BETTER = Evidence(accepted=of(0.2, 0.4), candidate=of(0.6, 0.4))
WORSE = Evidence(accepted=of(0.6, 0.4), candidate=of(0.2, 0.4))


class Gathers:
    """Returns prepared evidence, look by look, and records the requests."""

    def __init__(self, *evidence: Evidence) -> None:
        self.evidence = list(evidence)
        self.requests: list[MoreEvidence | None] = []

    async def __call__(self, request: MoreEvidence | None) -> Evidence:
        self.requests.append(request)
        return self.evidence.pop(0)


@dataclass(frozen=True)
class OnTrain(ComposablePolicy):
    """Starts on train, and accepts what is better there."""

    @property
    def first_request(self) -> MoreEvidence:
        return ON_TRAIN

    def decide(self, evidence: Evidence) -> AcceptanceDecision:
        assert evidence.train is not None
        gain = evidence.train.gain
        return evidence.accept("train gains") if gain is not None and gain > 0 else evidence.reject("train does not")


@dataclass(frozen=True)
class Never(ComposablePolicy):
    def decide(self, evidence: Evidence) -> Answer:  # noqa: ARG002
        return ALL_AGAIN


def unvalidated(train: Evidence) -> Evidence:
    return Evidence(accepted=BETTER.accepted, candidate=of(), train=train)


async def test_a_policy_that_decides_at_once_is_called_once() -> None:
    gathers = Gathers(BETTER)
    answer = await decide_sequentially(AnyGain(), gathers)
    assert (answer.accepted, answer.delta, gathers.requests) == (True, 0.2, [None])


async def test_a_policy_gets_what_it_asks_for_up_to_the_limit() -> None:
    gathers = Gathers(*[BETTER] * 8)
    answer = await decide_sequentially(Never(), gathers)
    assert answer == BETTER.reject("still undecided after 8 looks: once more")
    assert gathers.requests == [None, *[ALL_AGAIN] * 7]
    few = Gathers(BETTER)
    assert (await decide_sequentially(Never(), few, max_looks=1)).reason.startswith("still undecided after 1 looks")


@pytest.mark.parametrize(
    ("policy", "first"),
    [
        (AnyGain() & NoRegression(), None),
        (OnTrain(), ON_TRAIN),
        (AnyGain() & OnTrain(), ON_TRAIN),
        (AnyGain() | (NoRegression() & OnTrain()), ON_TRAIN),
    ],
    ids=repr,
)
def test_a_policy_starts_on_train_if_one_of_its_parts_does(
    policy: AcceptancePolicy, first: MoreEvidence | None
) -> None:
    assert find_first_request(policy) == first


async def test_a_decision_on_train_costs_no_validation_and_has_the_gain_of_train() -> None:
    gathers = Gathers(unvalidated(WORSE))
    answer = await decide_sequentially(OnTrain() & MinGain(), gathers)
    assert answer == AcceptanceDecision(accepted=False, delta=-0.2, reason="train does not")
    assert gathers.requests == [ON_TRAIN]


async def test_validation_runs_as_soon_as_another_part_needs_it() -> None:
    gathers = Gathers(unvalidated(BETTER), replace(BETTER, train=BETTER))
    answer = await decide_sequentially(MinGain(0.1) & OnTrain(), gathers)
    assert answer == AcceptanceDecision(accepted=True, delta=0.2, reason="gain +0.200 reaches 0.1; train gains")
    assert gathers.requests == [ON_TRAIN, MoreEvidence(reason="the candidate is not validated yet")]


@pytest.mark.parametrize("validated", [True, False])
async def test_a_candidate_that_fails_too_often_on_train_is_rejected(validated: bool) -> None:
    broken = Evidence(accepted=BETTER.accepted, candidate=replace(of(0.6, 0.4), max_errored_fraction=-1.0))
    seen = replace(BETTER, train=broken) if validated else unvalidated(broken)
    answer = await decide_sequentially(OnTrain(), Gathers(seen))
    assert not answer.accepted
    assert answer.reason.startswith("on train, the candidate is unreliable")


def test_the_cases_of_a_request_are_sorted() -> None:
    requested: Sequence[str] = MoreEvidence(cases=("b", "a", "b")).cases
    assert requested == ("a", "b")
