"""Evaluations: the case runs of one run. Each row is recorded before it is used, so no case run is repeated."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias

from promptiter.agents.base import Agent
from promptiter.errors import OutageError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, list_case_runs
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.profile import Profile
from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runlog.event_log import EventLog
from promptiter.runlog.events import Phase
from traces import digest
from traces.model import Json

CaseRepeat: TypeAlias = tuple[str, int]
"""A case run to make: the case id and the repeat."""


class Evaluations:
    """Runs cases, one evaluation at a time. `paid` counts evaluated cases; the repeats of a case count once."""

    def __init__(self, log: EventLog, agent: Agent, evaluator: Evaluator) -> None:
        self.case_runs = 0
        self.paid_case_runs = 0
        self.paid = 0
        self._log = log
        self._agent = agent
        self._evaluator = evaluator
        self._number = 0
        self._busy = asyncio.Lock()

    @property
    def is_busy(self) -> bool:
        return self._busy.locked()

    async def evaluate(
        self,
        eval_set: EvalSet,
        profile: Profile,
        *,
        phase: Phase,
        runs: Sequence[CaseRepeat] | None = None,
        kept: Iterable[CaseRow] = (),
        without: Sequence[str] = (),
    ) -> Evaluation:
        """Run cases under a profile, except for rows in the log. Without `runs`, run all repeats of all cases.

        `kept` are rows of another profile that cannot differ; they are recorded with the others. `without` names the
        changes that an ablation leaves out, for observers.
        """
        if self._busy.locked():
            raise RuntimeError("a session evaluates one profile at a time; await each evaluation before the next")
        wanted = list_case_runs(eval_set, range(self._evaluator.options.repeats)) if runs is None else runs
        async with self._busy:
            self._log.phase = phase
            return await self._evaluate(eval_set, profile, wanted, [_mark_as_kept(row) for row in kept], without)

    async def _evaluate(
        self,
        eval_set: EvalSet,
        profile: Profile,
        runs: Sequence[CaseRepeat],
        kept: Sequence[CaseRow],
        without: Sequence[str],
    ) -> Evaluation:
        number, self._number = self._number, self._number + 1
        head: dict[str, Json] = {
            "request": digest([eval_set.id, eval_set.content_digest, profile.digest, *map(list, runs), len(kept)]),
            "evaluation": number,
            "eval_set_id": eval_set.id,
            "profile_digest": profile.digest,
            "cases": len({*(case_id for case_id, _ in runs), *(row.case_id for row in kept)}),
            "runs": len(runs) + len(kept),
        }
        if without:
            head["without"] = list(without)
        gateway = self._evaluator.gateway
        started = await self._log.note("evaluation_started", {**head, "measured": {"mark": gateway.cache.mark()}})
        rows: dict[CaseRepeat, CaseRow] = {}
        paid: set[str] = set()

        def keep(data: dict[str, Json]) -> None:
            row: CaseRow = from_plain(CaseRow, data["row"])
            rows[row.case_id, row.repeat] = row
            self.case_runs += row.origin != "kept"
            if row.origin == "executed":
                self.paid_case_runs += 1
                self.paid += row.case_id not in paid
                paid.add(row.case_id)

        while (event := self._log.take_any("case")) is not None:
            keep(event.data)
        if self._log.take("evaluation_finished") is not None:
            return self._evaluator.build_evaluation(rows.values(), eval_set, profile)
        gateway.recent_from = started.data["measured"]["mark"]  # a killed process may have paid for some answers
        for row in kept:
            if (row.case_id, row.repeat) not in rows:
                keep((await self._log.append("case", {"evaluation": number, "row": to_plain(row)})).data)
        left = [run for run in runs if run not in rows]
        max_lost = max(1.0, self._evaluator.options.max_errored_fraction * (len(runs) + len(kept)))
        async for row in self._stream_rows(eval_set, profile, left, max_lost=max_lost):
            keep((await self._log.append("case", {"evaluation": number, "row": to_plain(row)})).data)
        found = self._evaluator.build_evaluation(rows.values(), eval_set, profile)
        gateway.recent_from = None
        await self._log.append("evaluation_finished", _summarize(found, number))
        return found

    async def _stream_rows(
        self, eval_set: EvalSet, profile: Profile, runs: Sequence[CaseRepeat], *, max_lost: float
    ) -> AsyncIterator[CaseRow]:
        """Yield the rows as they finish; rows that failed in an outage come last.

        If there are too many of those, the evaluation says nothing about the profile: the run fails, and a resumed run
        makes these case runs again.
        """
        lost: list[CaseRow] = []
        async with aclosing(self._evaluator.stream_rows(self._agent, eval_set, profile, runs=runs)) as rows:
            async for row in rows:
                if row.outage is None:
                    yield row
                    continue
                lost.append(row)
                if len(lost) > max_lost:
                    raise OutageError(
                        f"{row.outage}; {len(lost)} case runs were lost to such errors; "
                        "fix the cause, then run `promptiter resume`"
                    )
        for row in lost:
            yield row

    async def restore_traces(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Record missing traces of an evaluation again. The answers are in the cache, so nothing is paid.

        Traces may be missing in a resumed run: after a power loss, or because the run does not keep them.
        """
        trace_store = self._evaluator.trace_store
        missing = [
            (row.case_id, row.repeat)
            for row in evaluation.rows
            if row.origin != "kept" and any(trace_digest not in trace_store for trace_digest in row.trace_digests)
        ]
        if missing:
            async for _ in self._evaluator.stream_rows(self._agent, eval_set, profile, runs=missing):
                pass


def _mark_as_kept(row: CaseRow) -> CaseRow:
    return replace(row, measured=replace(row.measured, origin="kept", paid_calls=0, duration_s=0.0))


def _summarize(found: Evaluation, number: int) -> dict[str, Json]:
    """Return the thresholds and weights, which rows do not have, and the means, for observers."""
    return {
        "evaluation": number,
        "thresholds": dict(found.thresholds),
        "weights": dict(found.weights),
        "max_errored_fraction": found.max_errored_fraction,
        "mean_score": found.mean_score,
        "pass_rate": found.pass_rate,
        "metric_means": found.metric_means,
        "errored_fraction": found.errored_fraction,
    }
