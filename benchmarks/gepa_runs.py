"""Runs of GEPA on a planted world: gepa's own `optimize`, and `GepaSearch`, which runs on gepa's engine.

For `optimize`, the components are the text surfaces that may change. The reflective dataset of a component has, per
case, what its node was given, what it gave, and the reason of the metric; the rest of the case is shown where that is
not enough. A reflection model reads gepa's own prompt.
"""

from __future__ import annotations

import asyncio
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.result import CaseRow
from promptiter.llm.models import estimate_tokens
from promptiter.search.gepa_library import ModuleSelector
from tests.worlds.planted_world import PlantedWorld, TaskModel, run_gepa_search
from tests.worlds.prompt_reader import OptimizePrompt, ShownRun, ShownStep, ShownSurface
from tests.worlds.sighted_expert import Knowledge, Spending
from traces import ExecutionTrace

BUDGET = 1_500
"""Case runs of one run."""

SELF_EXPLAINING = frozenset(("rules",))
"""Agents whose steps show what is wrong without the case, so that no tokens are spent on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """How GEPA is run: which components a reflection changes, on how many cases, and whether it is sighted."""

    name: str
    selector: ModuleSelector
    is_sighted: bool
    minibatch: int | None = None


VARIANTS = (
    Variant(name="round_robin blind", selector="round_robin", is_sighted=False),
    Variant(name="round_robin sighted", selector="round_robin", is_sighted=True),
    Variant(name="all blind", selector="all", is_sighted=False),
    Variant(name="all sighted", selector="all", is_sighted=True),
    Variant(name="all full sighted", selector="all", is_sighted=True, minibatch=24),
)


BLAME = Variant(name="blame sighted", selector="blame", is_sighted=True)
"""A variant that only `GepaSearch` has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GepaOutcome:
    """The best candidate of a run, and what it took."""

    values: dict[str, str]
    case_runs: int
    task: Spending
    reflection: Spending


def load_gepa() -> Any:
    """The module gepa, or None if it is not installed."""
    try:
        return importlib.import_module("gepa")
    except ImportError:
        return None


def run_gepa(world: PlantedWorld, variant: Variant, *, seed: int) -> GepaOutcome:
    gepa, stops = load_gepa(), importlib.import_module("gepa.utils.stop_condition")
    task = TaskModel(answer=world.answer, seed=world.seed)
    reflection = Reflection(world.knowledge, is_sighted=variant.is_sighted)
    with asyncio.Runner() as runner:
        adapter = WorldAdapter(world, task, runner)
        result = gepa.optimize(
            seed_candidate=dict(world.texts),
            trainset=list(world.train.cases),
            valset=list(world.validation.cases),
            adapter=adapter,
            reflection_lm=reflection,
            module_selector=variant.selector,
            reflection_minibatch_size=min(variant.minibatch or 3, len(world.train.cases)),
            max_metric_calls=BUDGET,
            stop_callbacks=stops.ScoreThresholdStopper(1.0),
            logger=_Silence(),
            seed=seed,
        )
    if reflection.failure is not None:
        raise reflection.failure
    return GepaOutcome(
        values=dict(result.best_candidate), case_runs=adapter.case_runs, task=task.spent, reflection=reflection.spent
    )


async def run_gepa_here(world: PlantedWorld, variant: Variant) -> GepaOutcome:
    """Run `GepaSearch` with the same expert. Its seed is that of the world."""
    minibatch = None if variant.minibatch is None else min(variant.minibatch, len(world.train.cases))
    outcome = await run_gepa_search(
        world,
        module_selector=variant.selector,
        is_sighted=variant.is_sighted,
        minibatch=minibatch,
        max_case_runs=BUDGET,
    )
    profile = outcome.result.working_profile
    structure = outcome.result.structure
    return GepaOutcome(
        values={name: str(profile.value(name, structure)) for name in world.texts},
        case_runs=outcome.executed_in_search,
        task=Spending(calls=outcome.search_calls, tokens=outcome.task.tokens),
        reflection=outcome.expert.spent,
    )


class WorldAdapter:
    """Runs cases for gepa, each time at a repeat of its own, and shows it the steps of each node."""

    propose_new_texts = None

    def __init__(self, world: PlantedWorld, task: TaskModel, runner: asyncio.Runner) -> None:
        self.case_runs = 0
        self._world = world
        self._evaluator = world.build_evaluator(task)
        self._runner = runner
        self._batch: Any = importlib.import_module("gepa.core.adapter").EvaluationBatch

    def evaluate(self, batch: list[EvalCase], candidate: dict[str, str], capture_traces: bool = False) -> Any:
        rows = self._runner.run(self._run(batch, candidate))
        scores = [min(score.value or 0.0 for score in row.scores) for row in rows]
        traces = [self._runner.run(self._load(row)) for row in rows] if capture_traces else None
        trajectories = None if traces is None else list(zip(rows, traces, strict=True))
        return self._batch(outputs=[row.output for row in rows], scores=scores, trajectories=trajectories)

    def make_reflective_dataset(
        self,
        candidate: dict[str, str],  # noqa: ARG002 - part of gepa's protocol
        eval_batch: Any,
        components_to_update: list[str],
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        return {
            name: [record for row, trace in eval_batch.trajectories for record in self._list_records(name, row, trace)]
            for name in components_to_update
        }

    async def _run(self, batch: Sequence[EvalCase], candidate: Mapping[str, str]) -> list[CaseRow]:
        profile = self._world.make_profile(candidate)
        self.case_runs += len(batch)
        repeat = self.case_runs
        sets = {case.id: each for each in (self._world.train, self._world.validation) for case in each.cases}
        rows = {}
        eval_set = sets[batch[0].id]
        runs = [(case.id, repeat) for case in batch]
        async for row in self._evaluator.stream_rows(self._world.agent, eval_set, profile, runs=runs):
            rows[row.case_id] = row
        return [rows[case.id] for case in batch]

    def _list_records(self, component: str, row: CaseRow, trace: ExecutionTrace) -> Iterator[Mapping[str, str]]:
        reasons = "; ".join(score.reason for score in row.scores if not score.passed) or "right"
        sets = (self._world.train, self._world.validation)
        [turn] = next(case for each in sets for case in each.cases if case.id == row.case_id).turns
        case = {"Component": component, "Message": turn.user, "Expected answer": str(turn.expected)}
        for step in trace.steps:
            if step.node_id == component.partition("#")[0]:
                calls = {"Tool calls": ", ".join(each.name for each in step.tool_calls)} if step.tool_calls else {}
                yield {
                    **({} if self._world.agent.name in SELF_EXPLAINING else case),
                    "Inputs": str(step.input.text),
                    **calls,
                    "Generated Outputs": str(step.output.text),
                    "Feedback": reasons,
                }

    async def _load(self, row: CaseRow) -> ExecutionTrace:
        return await self._evaluator.trace_store.get(row.trace_digests[0])


class Reflection:
    """The reflection model: reads gepa's prompt and writes the new text of one component."""

    def __init__(self, knowledge: Knowledge, *, is_sighted: bool) -> None:
        self.spent = Spending()
        self.failure: Exception | None = None
        self._knowledge = knowledge
        self._is_sighted = is_sighted

    def __call__(self, prompt: str) -> str:
        try:
            return self._answer(prompt)
        except Exception as error:
            self.failure = error  # gepa logs it and continues without a new text
            raise

    def _answer(self, prompt: str) -> str:
        current, shown = re.findall(r"```\n(.*?)\n```", prompt, re.DOTALL)[:2]
        records = [_read_record(each) for each in re.split(r"^# Example \d+\n", shown, flags=re.MULTILINE)[1:]]
        surface = ShownSurface(alias="S1", id=records[0].get("Component", "") if records else "", value=current)
        signal = "\n".join(dict.fromkeys(text for each in records for text in self._list_points(each, surface)))
        new = self._knowledge.rewrite(OptimizePrompt(surface=surface, signal=signal, examples=(), rejected=()))
        self.spent.calls += 1
        self.spent.tokens += estimate_tokens(prompt) + estimate_tokens(new)
        return f"```\n{new}\n```"

    def _list_points(self, record: Mapping[str, str], surface: ShownSurface) -> list[str]:
        if not self._is_sighted:
            return [record["Feedback"]]
        step = ShownStep(
            alias="",
            node="",
            input=record["Inputs"],
            output=record["Generated Outputs"],
            calls=(record["Tool calls"],) if "Tool calls" in record else (),
            blamable=(surface.alias,),
        )
        run = ShownRun(
            user=record.get("Message", ""),
            expected=record.get("Expected answer", ""),
            reports={"F1": record["Feedback"]},
            steps=(step,),
        )
        return [each.text for each in self._knowledge.find_faults(step, {surface.alias: surface}, run).values()]


def _read_record(text: str) -> dict[str, str]:
    parts = re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL)
    return {name: value.strip() for name, value in parts}


class _Silence:
    """A logger for gepa that prints nothing."""

    def log(self, message: str) -> None:
        pass
