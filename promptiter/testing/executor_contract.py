"""ExecutorContract: wherever cases run, the result is that of the LocalExecutor, outside `measured`.

Implementers of an executor run these tests with pytest:

    from promptiter.testing.executor_contract import ExecutorContract

    class TestMyExecutor(ExecutorContract):
        def make_executor(self):
            return MyExecutor(...)

They need no plugin and no fixture.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeVar

from promptiter.agents.base import Agent, Substitute
from promptiter.errors import BudgetEndedError, UnexpectedCallError
from promptiter.evaluation.case_runner import CaseJob
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.executor import Executor
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.llm.budget import Budget
from promptiter.llm.models import ScriptedModel
from promptiter.profile import Profile
from promptiter.testing import office

E = TypeVar("E", bound=Exception)


class ExecutorContract:
    """What an executor must do. Subclass it and implement `make_executor`."""

    def make_executor(self) -> Executor:
        """A new executor, for one test."""
        raise NotImplementedError

    def close_executor(self, executor: Executor) -> None:
        """Release what the executor holds. Called at the end of each test."""

    def test_rows_counts_and_ledger_are_those_of_the_local_executor(self) -> None:
        local = office.make_evaluator()
        expected = asyncio.run(local.evaluate(office.agent, office.CASES))
        assert {row.error.type for row in expected.rows if row.error} >= {"ValueError", "AgentError", "EmptyCase"}
        assert any(row.measured.paid_calls > 7 for row in expected.rows)
        with _Closing(self) as executor:
            evaluator = office.make_evaluator(executor)
            found = asyncio.run(evaluator.evaluate(office.agent, office.CASES))
            again = asyncio.run(evaluator.evaluate(office.agent, office.CASES))
        assert found.rows == expected.rows
        assert _count_calls(found.rows) == _count_calls(expected.rows)
        assert again.rows == expected.rows
        spent = _read_ledger(evaluator)
        asyncio.run(local.evaluate(office.agent, office.CASES))
        assert _count_calls(again.rows) != _count_calls(found.rows), "the second evaluation is answered from the cache"
        assert spent == _read_ledger(local)

    def test_traces_are_stored_by_the_host(self) -> None:
        case = office.CASES.cases[0]
        with _Closing(self) as executor:
            evaluator = office.make_evaluator(executor)
            row = asyncio.run(_run_once(evaluator, office.agent, case.id))
        [name] = row.trace_digests
        trace = asyncio.run(evaluator.trace_store.get(name))
        assert [step.node_id for step in trace.steps] == ["sort", "clerk", "check", "clerk", "stamp"]
        assert trace.steps[1].tool_calls[0].result == {"order": "A-1", "note": "kettle, 12 €"}

    def test_profiles_and_substitutes_reach_the_agent(self) -> None:
        profile = Profile.of(office.agent.describe(), {"stamp#instruction": "Señal — 印"})
        given = Substitute(step_id="clerk", output="checked by hand: “ok” €")
        case = office.CASES.cases[0]
        with _Closing(self) as executor:
            rows = [
                asyncio.run(
                    evaluator.replay(office.agent, case, profile, repeat=1, substitutes=(given,)),
                )
                for evaluator in (office.make_evaluator(executor), office.make_evaluator())
            ]
        assert rows[0] == rows[1]
        assert rows[0].output == "checked by hand: “ok” € [sealed 1, Señal — 印]"

    def test_several_evaluations_share_the_executor(self) -> None:
        profiles = [Profile.of(office.agent.describe(), {"clerk#instruction": text}) for text in ("A", "B")]
        some = replace(office.CASES, cases=office.CASES.cases[:5])

        async def evaluate_all(evaluator: Evaluator) -> list[Evaluation]:
            rows: list[list[CaseRow]] = [[] for _ in profiles]
            jobs = [
                CaseJob(case=case, profile=profile, evaluation=number)
                for case in some.cases
                for number, profile in enumerate(profiles)
            ]
            async for job, row in evaluator.stream_jobs(office.agent, jobs):
                rows[job.evaluation].append(row)
            whole = await asyncio.gather(*(evaluator.evaluate(office.agent, some, each) for each in profiles))
            return [*map(evaluator.build_evaluation, rows, [some] * len(profiles), profiles), *whole]

        with _Closing(self) as executor:
            found = asyncio.run(evaluate_all(office.make_evaluator(executor)))
        assert found == asyncio.run(evaluate_all(office.make_evaluator()))

    def test_a_case_that_takes_too_long_has_an_error(self) -> None:
        with _Closing(self) as executor:
            rows = [
                asyncio.run(
                    _run_once(office.make_evaluator(each, case_timeout_s=0.1), office.sleeper, office.CASES.cases[0].id)
                )
                for each in (executor, None)
            ]
        assert rows[0] == rows[1]
        assert str(rows[0].error) == "TimeoutError: no answer in 0.1 s"

    def test_a_spent_budget_ends_the_evaluation(self) -> None:
        with _Closing(self) as executor:
            evaluator = office.make_evaluator(executor, budget=Budget(max_calls=20))
            error = _find_error(evaluator, BudgetEndedError)
            assert error.cap == "max_calls"
            assert evaluator.gateway.ledger.snapshot().of_models.calls == 20
            unlimited = office.make_evaluator(executor)
            assert len(asyncio.run(unlimited.evaluate(office.agent, office.CASES)).rows) == 2 * len(office.CASES.cases)

    def test_an_unexpected_call_ends_the_evaluation(self) -> None:
        with _Closing(self) as executor:
            evaluator = office.make_evaluator(executor)
            evaluator.gateway.add_model("sealer", ScriptedModel([]))
            assert "is not in the script" in str(_find_error(evaluator, UnexpectedCallError))

    def test_an_evaluation_can_be_closed_early(self) -> None:
        async def take_one(evaluator: Evaluator) -> None:
            stream = evaluator.stream_rows(office.agent, office.CASES, Profile.baseline(office.agent.describe()))
            await anext(stream)
            await stream.aclose()
            await asyncio.sleep(0.2)
            begun = evaluator.gateway.ledger.snapshot().total.calls
            await evaluator.evaluate(office.agent, office.CASES)
            whole = evaluator.gateway.ledger.snapshot().total.calls
            assert begun < whole / 2, "the other jobs did not run on"

        with _Closing(self) as executor:
            asyncio.run(take_one(office.make_evaluator(executor)))


class _Closing:
    def __init__(self, contract: ExecutorContract) -> None:
        self._contract = contract
        self._executor = contract.make_executor()

    def __enter__(self) -> Executor:
        return self._executor

    def __exit__(self, *_: object) -> None:
        self._contract.close_executor(self._executor)


async def _run_once(evaluator: Evaluator, agent: Agent, case_id: str) -> CaseRow:
    profile = Profile.baseline(agent.describe())
    [row] = [row async for row in evaluator.stream_rows(agent, office.CASES, profile, runs=[(case_id, 0)])]
    return row


def _find_error(evaluator: Evaluator, kind: type[E]) -> E:
    try:
        asyncio.run(evaluator.evaluate(office.agent, office.CASES))
    except kind as error:
        return error
    raise AssertionError(f"the evaluation ended without a {kind.__name__}")


def _count_calls(rows: Iterable[CaseRow]) -> list[tuple[int, int]]:
    return [(row.measured.paid_calls, row.measured.cache_hits) for row in rows]


def _read_ledger(evaluator: Evaluator) -> list[object]:
    """What was spent by role, model and node, without times."""
    return [
        (each.role, each.model, each.node_id, each.spent.calls, each.spent.cache_hits, each.spent.cost_usd)
        for each in evaluator.gateway.ledger.snapshot().entries
    ]
