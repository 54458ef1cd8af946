from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.policies.acceptance import AcceptancePolicy, AnyGain, MinGain, NoRegression, Protected
from promptiter.policies.constraints import Constraint, TieBreak
from promptiter.policies.evidence import Answer, Evidence, MoreEvidence
from promptiter.policies.sigma_gain import SigmaGain
from promptiter.profile import Profile
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.results import RunResult
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from tests.worlds.desk import DRAFT, POLISH, Tries

SNAPSHOT = desk.agent().describe()
RESTYLED = {"draft#instruction": "Draft, in other words."}
CARELESS = {"polish#instruction": "Break."}


class Noisy:
    """Is careful with the chance that its instructions give, at random in each repeat; counts its runs."""

    def __init__(self) -> None:
        self.runs: Counter[tuple[str, str, int]] = Counter()

    def describe(self) -> StructureSnapshot:
        return SNAPSHOT

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002
        self.runs[profile.digest, context.case_id, context.repeat] += 1
        texts = [str(profile.value(surface, SNAPSHOT)) for surface in ("draft#instruction", "polish#instruction")]
        chance = 0.3 + 0.3 * sum("careful" in text for text in texts) - 0.3 * ("Break." in texts)
        dice = Random(f"{context.case_id} {context.repeat} {profile.digest}")
        return AgentRun(output="careful " * (2 * (dice.random() < chance)))


def engine(agent: Noisy, *rounds: dict[str, str]) -> Engine:
    return Engine(agent, desk.evaluator(), search=Tries(*rounds))


def request(acceptance: AcceptancePolicy, *, cases: int = 30, **changes: object) -> RunRequest:
    sets = {"train": desk.eval_set("train", cases), "validation": desk.eval_set("validation", cases)}
    return desk.request(acceptance=acceptance, max_rounds=9, **({"final_test": None} | sets | changes))


def reasons(result: RunResult) -> list[str]:
    return [each.decision.reason for each in result.rounds if each.decision is not None]


def list_repeats(agent: Noisy, set_name: str) -> set[tuple[str, int]]:
    """The profiles and repeats that ran on an eval set."""
    return {(profile, repeat) for profile, case_id, repeat in agent.runs if case_id.startswith(set_name)}


@pytest.mark.slow
async def test_a_sigma_gain_pays_for_the_hold_out_only_where_train_improves() -> None:
    agent = Noisy()
    result = await engine(agent, CARELESS, DRAFT).run(request(SigmaGain()))
    worse, draft = reasons(result)
    assert worse.startswith("train ")
    assert "hold-out" not in worse
    assert result.rounds[0].validation is None
    assert "which clears its noise" in draft
    assert "; the hold-out " in draft
    assert result.verdict == "no_evidence"
    held = {
        repeat for profile, repeat in list_repeats(agent, "validation") if profile == result.accepted_profile.digest
    }
    assert len(held) == 3


@pytest.mark.slow
async def test_every_trial_runs_the_hold_out_for_each_candidate() -> None:
    result = await engine(Noisy(), CARELESS).run(request(SigmaGain(holdout="every_trial")))
    assert "; the hold-out " in reasons(result)[0]


@pytest.mark.slow
async def test_a_run_that_skips_the_hold_out_never_runs_a_candidate_on_it() -> None:
    agent = Noisy()
    result = await engine(agent, DRAFT, POLISH).run(request(SigmaGain(holdout="skip")))
    assert all("the hold-out was not used" in each for each in reasons(result))
    assert result.verdict == "no_evidence"
    assert result.working_profile != result.initial_profile
    assert {profile for profile, _ in list_repeats(agent, "validation")} == {result.initial_profile.digest}


@pytest.mark.slow
async def test_folds_take_the_cases_of_both_sets() -> None:
    result = await engine(Noisy(), DRAFT).run(request(SigmaGain(holdout="k_fold")))
    assert reasons(result)[0].startswith("the pool of 60 cases gains")


async def test_policies_that_start_on_train_combine_with_those_that_do_not() -> None:
    agent = Noisy()
    policy = MinGain(0.05) & SigmaGain(repeats=2) & NoRegression()
    result = await engine(agent, CARELESS, DRAFT).run(request(policy, cases=30))
    assert result.rounds[0].validation is None
    assert result.rounds[1].validation is not None


async def test_protected_cases_are_run_again_and_the_others_are_not() -> None:
    agent = Noisy()
    protected = frozenset(f"validation-{number}" for number in range(30))
    result = await engine(agent, CARELESS).run(request(_AcceptsAll(), protected=protected))
    assert reasons(result)[0].startswith("protected, and no longer passing: ")
    candidate = result.rounds[0].validation
    assert candidate is not None
    again = {row.case_id for row in candidate.rows if row.repeat > 0}
    assert 0 < len(again) < 30
    assert max(row.repeat for row in candidate.rows) <= 5


async def test_tokens_and_texts_of_a_run_are_figures() -> None:
    shorter = {"draft#instruction": "Do."}
    result = await desk.engine(shorter).run(desk.request(acceptance=TieBreak(("characters",))))
    assert reasons(result) == ["gain +0 is within 0, and characters is 10, was 13"]
    bounded = await desk.engine(DRAFT).run(desk.request(acceptance=AnyGain() & Constraint("tokens", at_most=29)))
    assert reasons(bounded) == ["tokens 30 is not at most 29"]


@pytest.mark.long
@pytest.mark.parametrize(
    "policy",
    [
        SigmaGain(holdout="every_trial") & Protected(("validation-1", "validation-2", "validation-3")),
        SigmaGain(),
        SigmaGain(holdout="skip"),
        SigmaGain(repeats=2, holdout="k_fold") & Protected(("validation-0",)),
    ],
    ids=repr,
)
async def test_a_run_killed_anywhere_resumes_to_the_same_result_and_repeats_no_case_run(
    policy: AcceptancePolicy,
) -> None:
    whole, asked = MemoryJournal(), request(policy, cases=4)
    rounds = (RESTYLED, DRAFT, POLISH)
    result = await engine(Noisy(), *rounds).run(asked, journal=whole)
    events = list(whole.events)
    for cut in range(1, len(events), 1 + len(events) // 15):
        agent, journal = Noisy(), MemoryJournal()
        for event in events[:cut]:
            await journal.append(event)
        again = await engine(agent, *rounds).run(asked, journal=journal)
        assert fold(journal.events) == fold(whole.events), f"cut before event {cut}"
        assert again.rounds == result.rounds
        known = sum(event.type == "case" for event in events[:cut])
        assert agent.runs.total() == sum(event.type == "case" for event in events) - known


class _AcceptsAll:
    def decide(self, evidence: Evidence) -> Answer:
        return evidence.accept("anything")


class _AsksForUnknown:
    """Asks for an unknown case, then gives up."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def decide(self, evidence: Evidence) -> Answer:
        self.seen.append(len(evidence.candidate.rows))
        return MoreEvidence(cases=("unknown",)) if len(self.seen) < 2 else evidence.reject("enough")


async def test_a_request_for_unknown_cases_changes_nothing() -> None:
    policy = _AsksForUnknown()
    await desk.engine(DRAFT).run(desk.request(acceptance=policy))
    assert policy.seen == [2, 2]
