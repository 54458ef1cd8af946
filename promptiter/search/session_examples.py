"""SessionExamples: the few-shot examples of one run, for every search that can change them.

Each search adds the train cases that it runs, and selects examples from all of them. What repeats a validation or test
case is left out. Cases that the examples of a candidate show say nothing about it, so they are not run to judge it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from promptiter.backprop.example_pool import ExamplePool, Exchange
from promptiter.backprop.example_selection import SelectionStrategy
from promptiter.backprop.example_writing import MOST_EXAMPLES, ExampleWriter
from promptiter.backprop.judged_traces import JudgedTraces, judge_traces
from promptiter.engine.session import Session
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.result import Evaluation
from promptiter.profile import Profile
from promptiter.search.blame import BlameReport, extract_case_losses
from promptiter.structure import StructureSnapshot


class SessionExamples:
    """The pool of a run. `surface_ids` are the targets that hold examples; without any, nothing is collected."""

    def __init__(self, session: Session) -> None:
        self._session = session
        surfaces = [each for each in session.snapshot.surfaces if each.type == "examples"]
        self._nodes = {each.id: each.node_id for each in surfaces if each.id in session.targets}
        own = {each.node_id: each.value for each in surfaces if each.id in session.targets}
        self._pool = ExamplePool(redact=session.redact, is_forbidden=session.find_hidden_repeat, own=own)

    @property
    def surface_ids(self) -> tuple[str, ...]:
        return tuple(self._nodes)

    async def add(self, evaluation: Evaluation, eval_set: EvalSet, profile: Profile) -> None:
        """Add train cases that were run under a profile."""
        if self._nodes:
            losses = await extract_case_losses(self._session, evaluation, eval_set, profile)
            traces = JudgedTraces(judge_traces(evaluation, eval_set, self._session.trace, losses=losses))
            await self._pool.add_runs(traces, self._nodes.values())

    async def ask_teacher(self, model: str, cases: EvalSet, profile: Profile) -> None:
        """Run train cases with the teacher in place of the models of nodes, and add what passes."""
        session = self._session
        models = dict.fromkeys(find_replaceable_models(session.snapshot, model), model)
        taught = replace(profile, overrides=dict(sorted({**profile.overrides, **models}.items())))
        evaluation = await session.evaluate(cases, taught, phase="teacher")
        losses = await extract_case_losses(session, evaluation, cases, taught)
        traces = JudgedTraces(judge_traces(evaluation, cases, session.trace, losses=losses))
        await self._pool.add_taught_runs(traces, self._nodes.values())

    async def add_report(self, report: BlameReport) -> None:
        """Add the cases of a backward pass."""
        if self._nodes:
            await self._session.restore_traces(report.evaluation, report.eval_set, report.profile)
            await self._pool.add_runs(report.traces, self._nodes.values())

    def list_exchanges(self) -> dict[str, tuple[Exchange, ...]]:
        """The exchanges that the examples of each surface can be made of."""
        return {surface_id: self._pool.list_exchanges(node_id) for surface_id, node_id in self._nodes.items()}

    def limit(self, most: int) -> int:
        """The number of examples of a node: at least half of the train cases are never shown, to judge them by."""
        return max(1, min(most, len(self._session.train.cases) // 2))

    def build_writer(
        self,
        *,
        most: int = MOST_EXAMPLES,
        strategy: SelectionStrategy = "coverage",
        without: Collection[str] = (),
        weights: Mapping[str, float] | None = None,
    ) -> ExampleWriter:
        """A writer of examples."""
        most = self.limit(most)
        return ExampleWriter(pool=self._pool, most=most, strategy=strategy, without=without, weights=weights or {})

    def find_shown(self, candidate: Profile) -> frozenset[str]:
        """The train cases that the examples of a candidate show."""
        surfaces = [candidate.surface(each, self._session.snapshot) for each in self._nodes]
        return frozenset(case_id for each in surfaces for case_id in self._pool.find_cases(each.node_id, each.value))

    def leave_out_shown(self, eval_set: EvalSet, candidates: Iterable[Profile]) -> EvalSet:
        """The cases that the examples of none of the candidates show."""
        if not self._nodes:
            return eval_set
        shown = frozenset[str]().union(*map(self.find_shown, candidates))
        return replace(eval_set, cases=tuple(case for case in eval_set.cases if case.id not in shown))

    def add_signals(self, report: BlameReport) -> BlameReport:
        """The report with a signal for the examples of each blamed node: they are part of the prompt that is at fault.

        A failure does not show whether a rule or an example fixes it, so both are tried together.
        """
        blamed = {each.surface_id for each in (*report.signals, *report.weak)}
        snapshot = self._session.snapshot
        signals, gradients = list(report.signals), dict(report.gradients)
        for surface_id, node_id in self._nodes.items():
            same = [each for each in report.signals if snapshot.surface(each.surface_id).node_id == node_id]
            if same and surface_id not in blamed:
                signals.append(replace(same[0], surface_id=surface_id))
                gradients[surface_id] = report.gradients[same[0].surface_id]
        return replace(report, signals=tuple(signals), gradients=gradients)


def find_replaceable_models(snapshot: StructureSnapshot, model: str) -> list[str]:
    """The model surfaces that this model can be a value of."""
    return [each.id for each in snapshot.surfaces if each.type == "model" and each.allows(model)]
