from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import replace
from itertools import count

import pytest

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.node_context import NodeContext
from promptiter.agents.nodes import FunctionNode, ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import CaseRow
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.policies.evidence import Answer, Evidence
from promptiter.policies.final_test import FinalTest
from promptiter.policies.stopping import MaxRounds
from promptiter.profile import PatchSet, Profile, SurfacePatch
from promptiter.runlog.fold import fold
from promptiter.runlog.journal import MemoryJournal
from promptiter.structure import StructureSnapshot
from tests.worlds import desk
from traces import record, step

CASES = 10
"""Every fifth case is a refund: 2 of 10."""

_profile: ContextVar[Profile] = ContextVar("profile")


class Desk:
    """Sorts a question; a refund is then repaired. Counts model calls by node, case and repeat."""

    def __init__(self, *, peeks: bool = False) -> None:
        self.asked: Counter[tuple[str, str, int]] = Counter()
        self.graph = GraphAgent(
            name="desk",
            nodes=(
                ModelNode(name="sort", instruction="Sort.", model="scripted"),
                FunctionNode(name="tone", function=self._tone if peeks else _plain_tone),
                ModelNode(name="answer", instruction="Answer.", model="scripted"),
                ModelNode(name="refund", instruction="Refund.", model="scripted"),
                FunctionNode(name="end", function=_end),
            ),
            edges=(
                Choice("sort", lambda _: "tone", {"tone": "tone"}),
                Choice("tone", _route, {"refund": "refund", "answer": "answer"}),
                Choice("refund", lambda _: "end", {"end": "end"}),
                Choice("answer", lambda _: "end", {"end": "end"}),
            ),
        )

    def describe(self) -> StructureSnapshot:
        return self.graph.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        _profile.set(profile)
        return await self.graph.run(case, profile, context)

    async def _tone(self, sort: str) -> str:
        """Uses the instruction of another node, and reads it without recording that."""
        return f"{sort} {_profile.get().value('refund#instruction', self.describe())}"

    async def model(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        instruction, asked = request.messages[0].content, request.messages[-1].content
        self.asked[instruction, asked, repeat] += 1
        return ModelReply(text=f"{asked} careful" if "careful" in instruction else asked)


async def _plain_tone(sort: str) -> str:
    return sort


def _route(node_context: NodeContext) -> str:
    return "refund" if int(node_context.input.split()[-1]) % 5 == 0 else "answer"


async def _end(node_context: NodeContext) -> str:
    return str(node_context.incoming)


class Opaque:
    """The same, but it calls nothing through the gateway: it only records what it read. Counts its runs."""

    def __init__(self) -> None:
        self.runs: Counter[tuple[str, str, int]] = Counter()
        self.snapshot = Desk().describe()

    def describe(self) -> StructureSnapshot:
        return self.snapshot

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        self.runs[profile.digest, context.case_id, context.repeat] += 1
        node = self.node(case, context)
        with record(context.case_id, resolve=lambda surface: profile.value(surface, self.snapshot)) as recording:
            with step("sort") as sorting:
                sorting.read_surface("sort#instruction")
            with step(node, after=("sort",)) as answering:
                text = answering.read_surface(f"{node}#instruction")
                answering.output = "careful" if "careful" in text else ""
        return AgentRun(output="careful" * ("careful" in text), trace=recording.trace)

    def node(self, case: CaseInput, context: RunContext) -> str:  # noqa: ARG002 - of every repeat
        return "refund" if int(case.text.split()[-1]) % 5 == 0 else "answer"


REFUND = {"refund#instruction": "Refund: careful."}
REFUND_ALIKE = {"refund#instruction": "Refund, in other words."}
SORT, SORT_AGAIN = ({"sort#instruction": f"Sort. Version {number}."} for number in range(2))


def request(**changes: object) -> RunRequest:
    values: dict[str, object] = {
        "validation": desk.eval_set("validation", CASES),
        "stop": MaxRounds(9),
        "max_rounds": 9,
        "final_test": None,
    }
    return desk.request(**(values | changes))


def gateway_engine(agent: Desk, *rounds: dict[str, str]) -> Engine:
    gateway = Gateway(models={"scripted": agent.model})
    return Engine(agent, desk.evaluator(gateway), search=_Validates(*rounds))


def opaque_engine(agent: Opaque, *rounds: dict[str, str]) -> Engine:
    return Engine(agent, desk.evaluator(), search=_Validates(*rounds))


class _Validates(desk.Tries):
    """Validates one set of patches per round, and runs no train cases."""

    async def search(self, session: Session) -> None:
        for values in self.rounds:
            await session.begin_round()
            patches = [SurfacePatch(surface_id=key, value=text, reason="tried") for key, text in values.items()]
            await session.validate(PatchSet(tuple(patches)))
            await session.complete_round()


def origins(rows: tuple[CaseRow, ...] | None) -> Counter[str]:
    return Counter(row.origin for row in rows or ())


async def test_the_first_candidate_pays_for_affected_cases_and_the_cache_replays_the_rest() -> None:
    agent = Desk()
    result = await gateway_engine(agent, REFUND_ALIKE).run(request())
    [only] = result.rounds
    assert only.validation is not None
    assert origins(only.validation.rows) == {"executed": 2, "cache": 8}
    assert only.compared is None, "the baseline's record is used"
    assert result.measured.paid_case_runs == CASES + 2
    assert agent.asked.total() == 2 * CASES + 2, "the sorting of a refund is replayed up to the patched read"
    assert result.measured.problems == (), "the replay behaved as recorded"


async def test_a_later_candidate_runs_affected_cases_again_under_both_profiles() -> None:
    agent = Desk()
    result = await gateway_engine(agent, REFUND_ALIKE, REFUND).run(request())
    later = result.rounds[1]
    assert later.validation is not None
    assert later.compared is not None
    assert origins(later.validation.rows) == {"executed": 2, "cache": 8}
    assert [(row.case_id, row.repeat) for row in later.compared.rows] == [("validation-0", 1), ("validation-5", 1)]
    assert result.measured.paid_case_runs == CASES + 2 + 4
    assert agent.asked.total() == 2 * CASES + 2 + 4 + 2, "calls before the patched read are made once"
    assert later.decision is not None
    assert later.decision.delta == 0.1, "2 of 10 cases gain 0.5"


async def test_a_patch_that_all_cases_read_runs_on_all() -> None:
    result = await gateway_engine(Desk(), SORT, SORT_AGAIN).run(request())
    first, later = result.rounds
    assert first.validation is not None
    assert later.validation is not None
    assert origins(first.validation.rows) == origins(later.validation.rows) == {"executed": CASES}
    assert result.measured.paid_case_runs == CASES + CASES + 2 * CASES


async def test_an_opaque_agent_runs_affected_cases_again_and_keeps_the_other_rows() -> None:
    agent = Opaque()
    result = await opaque_engine(agent, REFUND_ALIKE, REFUND).run(request())
    assert agent.runs.total() == result.measured.paid_case_runs == CASES + 4 + 4
    assert max(agent.runs.values()) == 1
    for found in result.rounds:
        assert found.validation is not None
        assert found.compared is not None, "its record selected the cases, so it is not used for the comparison"
        kept = tuple(row for row in found.validation.rows if row.origin == "kept")
        assert origins(found.validation.rows) == {"executed": 2, "kept": 8}
        assert result.baseline is not None
        assert all(row in result.baseline.rows for row in kept)


async def test_an_opaque_agent_that_runs_all_cases_is_compared_with_its_record_once() -> None:
    agent = Opaque()
    result = await opaque_engine(agent, SORT, SORT_AGAIN).run(request())
    assert agent.runs.total() == CASES + CASES + 2 * CASES
    assert [found.compared is None for found in result.rounds] == [True, False]


@pytest.mark.parametrize("agent", [Desk(), Opaque()], ids=["gateway", "opaque"])
async def test_a_patch_that_no_case_reads_costs_nothing_and_gains_nothing(agent: Desk | Opaque) -> None:
    engine = gateway_engine(agent, REFUND) if isinstance(agent, Desk) else opaque_engine(agent, REFUND)
    answered = EvalSet(id="validation", cases=desk.eval_set("validation", CASES).cases[1:5])
    result = await engine.run(request(validation=answered))
    assert result.measured.paid_case_runs == len(answered.cases)
    [only] = result.rounds
    assert only.decision is not None
    assert only.decision.reason == "gain +0.000: no better"


async def test_an_undeclared_read_is_reported_and_its_cases_always_run_from_then_on() -> None:
    agent = Desk(peeks=True)
    result = await gateway_engine(agent, REFUND_ALIKE, REFUND).run(request())
    message = "'tone' gave a different output in case 'validation-1' although none of its recorded inputs changed"
    assert [message in problem for problem in result.measured.problems] == [True]
    ran = [origins(found.compared.rows) if found.compared else None for found in result.rounds]
    assert ran == [None, {"executed": CASES}]


@pytest.mark.slow
async def test_a_run_killed_near_its_audit_resumes_to_the_same_result() -> None:
    """Also without its cache and its traces."""
    whole, rounds = MemoryJournal(), (REFUND_ALIKE, REFUND)
    asked = request(validation=desk.eval_set("validation", 3))
    await gateway_engine(Desk(peeks=True), *rounds).run(asked, journal=whole)
    events = list(whole.events)
    [audit] = [event.seq for event in events if event.type == "audit"]
    for cut in range(audit - 3, audit + 3):
        journal = MemoryJournal()
        for event in events[:cut]:
            await journal.append(event)
        again = await gateway_engine(Desk(peeks=True), *rounds).run(asked, journal=journal)
        assert fold(journal.events) == fold(whole.events), f"cut before event {cut}"
        assert len(again.measured.problems) == 1


class Flips(Desk):
    """Answers are right in every other repeat; a refund is as right as its instruction."""

    async def model(self, request: ModelRequest, *, repeat: int) -> ModelReply:
        found = await super().model(request, repeat=repeat)
        is_right = request.messages[0].content == "Answer." and repeat % 2 == 0
        return replace(found, text=f"{found.text} careful") if is_right else found


@pytest.mark.slow
async def test_the_noise_of_cases_that_the_change_does_not_reach_does_not_hide_a_gain() -> None:
    agent = Flips()
    result = await gateway_engine(agent, REFUND).run(request(final_test=FinalTest()))
    assert result.verdict == "improved_on_validation"
    assert result.conclusion is not None
    test, on_new_cases = result.conclusion.results
    assert not any(look.has_run_noise for look in (*test.looks, *on_new_cases.looks))
    assert test.gain == 0.1
    [runs] = result.conclusion.runs
    assert (runs.cases, runs.unreached, runs.before.runs, runs.after.runs) == (CASES, 8, 6 * CASES, 6 * CASES)
    asked = Counter(instruction for instruction, _, repeat in agent.asked if repeat > 0)
    assert asked == {"Sort.": 6 * CASES, "Answer.": 6 * 8, "Refund.": 6 * 2, "Refund: careful.": 6 * 2}
    assert agent.asked.total() == len(agent.asked), "both profiles share the answers before the first changed call"


class Unsteady(Flips):
    """Depends on more than its calls: every run of it has a number."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = count()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        found = await super().run(case, profile, context)
        return replace(found, output=f"{found.output} {next(self.numbers)}")


@pytest.mark.slow
async def test_the_noise_of_runs_that_the_profiles_do_not_share_is_tested() -> None:
    result = await gateway_engine(Unsteady(), REFUND).run(request(final_test=FinalTest()))
    assert result.conclusion is not None
    assert [runs.unreached for runs in result.conclusion.runs] == [0]
    assert any(look.has_run_noise for look in result.conclusion.results[0].looks)


class Moody(Opaque):
    """Refunds only in the first repeat; in later ones it answers such a case from another surface."""

    def node(self, case: CaseInput, context: RunContext) -> str:
        return super().node(case, context) if context.repeat == 0 else "answer"


async def test_a_case_that_once_read_a_surface_runs_for_all_patches_of_it() -> None:
    agent = Moody()
    rounds = ({"refund#instruction": f"Refund. Version {number}."} for number in range(3))
    result = await opaque_engine(agent, *rounds).run(request(acceptance=_AcceptsAll()))
    ran = [origins(each.validation.rows)["executed"] for each in result.rounds if each.validation is not None]
    assert ran == [2, 2, 2], "also after a candidate was accepted whose own runs did not read it"


class _AcceptsAll:
    def decide(self, evidence: Evidence) -> Answer:
        return evidence.accept("anything")
