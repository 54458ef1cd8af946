"""Configured runs and evaluations: everything that promptiter.yaml describes, built and ready to start."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from promptiter.agents.base import Agent, check_agent_health
from promptiter.agents.runner import Runner
from promptiter.config.file import RunConfig
from promptiter.config.layout import Layout
from promptiter.engine.aa_test import measure_noise
from promptiter.engine.engine import Engine
from promptiter.engine.interrupts import Interrupt, run_blocking
from promptiter.engine.new_cases import find_obstacle_in_advance
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.evaluator import Evaluator, OnRow
from promptiter.evaluation.judgements import JUDGE_REPEATS
from promptiter.evaluation.result import Evaluation
from promptiter.evaluation.stats.noise import REPEATS, NoiseReport
from promptiter.evaluation.teacher import write_expected_answers
from promptiter.forecast.forecast import forecast_run
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.runlog.events import Observer
from promptiter.runs.case_use_file import CaseUseFile
from promptiter.runs.directory import TEST_NOW, RunDirectory
from promptiter.runs.forecast_file import Forecast, write_forecast
from promptiter.runs.header import Configuration
from promptiter.structure import StructureSnapshot
from traces.model import Json

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredRun:
    """A run that is ready to start. Its gateway holds the ledger and the shared cache, if there is one.

    `run.engine.run_sync(run.request, observers=run.observers)` writes nothing to disk. `run.begin().run_sync()` has a
    folder and can be resumed. `overlay` is what a request changed about the configuration.
    """

    config: RunConfig
    engine: Engine
    checked: CheckedRequest
    gateway: Gateway
    observers: tuple[Observer, ...] = ()
    notes: tuple[str, ...] = ()
    layout: Layout | None = None
    configuration: Configuration | None = None
    overlay: Mapping[str, Json] | None = None

    @property
    def request(self) -> RunRequest:
        return self.checked.request

    def begin(self) -> RunDirectory:
        """Create a folder for the run, below `runs` of the configuration, with its forecast."""
        forecast = self._try_to_forecast()
        directory = RunDirectory.begin(
            self.config.runs,
            self.engine,
            self.checked,
            configuration=self.configuration,
            overlay=self.overlay,
            keep_traces=self.config.keep_traces,
            keep_best_only=self.config.keep_best_only,
            observers=self._all_observers,
        )
        if forecast is not None:
            write_forecast(directory.path, forecast)
        return directory

    def forecast(self) -> Forecast:
        """Estimate what the run will take, using matching earlier runs if there are any. Makes no calls."""
        return forecast_run(self.engine, self.checked, runs=self.config.runs)

    def find_obstacle(self) -> str | None:
        """Why this run cannot show its gain for new cases, and what to do, if that is known before it starts."""
        uses = CaseUseFile(self.config.runs).read()
        return find_obstacle_in_advance(
            self.checked, self.engine.search, uses, is_reviewed=self.config.review is not None
        )

    def noise(
        self,
        *,
        repeats: int = REPEATS,
        judge_repeats: int = JUDGE_REPEATS,
        stronger: str | None = None,
        on_row: OnRow | None = None,
        notify: Callable[[str], None] = lambda _: None,
    ) -> NoiseReport:
        """Measure the noise of the baseline on the validation cases, and whether there is anything to win.

        Writes nothing but cached answers. `stronger` names a model that the agent also tries in place of its own.
        After Ctrl-C, or when the budget ends, the report covers what was measured so far.
        """
        stopping = Interrupt()
        return run_blocking(
            lambda: measure_noise(
                self.engine,
                self.checked,
                repeats=repeats,
                judge_repeats=judge_repeats,
                stronger=stronger,
                on_row=on_row,
                interrupt=stopping,
            ),
            stopping,
            notify=notify,
        )

    def resume(self, path: str | os.PathLike[str]) -> RunDirectory:
        """Open the folder of this run to resume it. ChangedInputsError if its inputs have changed."""
        directory = RunDirectory.resume(
            path,
            self.engine,
            self.checked,
            configuration=self.configuration,
            keep_traces=self.config.keep_traces,
            keep_best_only=self.config.keep_best_only,
            observers=self._all_observers,
        )
        directory.notes += self.notes
        return directory

    def watch_output_dir(self, interrupt: Interrupt) -> None:
        """Also end the search once the file `optimize.stop` is in the folder of the artifacts."""
        if (folder := self.config.output_dir) is not None:
            interrupt.end_search_when((folder / TEST_NOW).exists)

    @property
    def _all_observers(self) -> tuple[Observer, ...]:
        return self.observers if self.layout is None else (*self.observers, self.layout)

    def _try_to_forecast(self) -> Forecast | None:
        try:
            return self.forecast()
        except Exception as error:  # noqa: BLE001 - it calls the user's code, and a run can start without a forecast
            logger.warning("the run starts without a forecast: %s", type(error).__name__)
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedCases:
    """An evaluation and its cases, with the references that a teacher wrote, and the cases that it failed on."""

    evaluation: Evaluation
    cases: EvalSet
    teacher_errors: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredEvaluation:
    """An agent, its cases and its evaluator, ready to be evaluated: a run without the search."""

    agent: Agent
    cases: EvalSet
    evaluator: Evaluator
    gateway: Gateway
    profile: Profile | None = None
    teacher: Runner | str | None = None

    async def evaluate(self, case_ids: Collection[str] | None = None, *, on_row: OnRow | None = None) -> EvaluatedCases:
        """Run all cases, or those with these ids, once the teacher has written missing references, if there is one."""
        await check_agent_health(self.agent)
        cases, errors = self.cases, tuple[tuple[str, str], ...]()
        if case_ids is not None:
            cases = replace(cases, cases=tuple(each for each in cases.cases if each.id in case_ids))
        if self.teacher is not None:
            labelled = await write_expected_answers(cases, self.teacher, gateway=self.gateway)
            cases, errors = labelled.eval_set, labelled.errors
        evaluation = await self.evaluator.evaluate(self.agent, cases, self.profile, on_row=on_row)
        return EvaluatedCases(evaluation=evaluation, cases=cases, teacher_errors=errors)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredLearning:
    """What learning from traces takes: an evaluator, stages by name, and the structure of the live agent, if any."""

    config: RunConfig
    evaluator: Evaluator
    stages: Mapping[str, Any]
    live: StructureSnapshot | None = None

    @property
    def gateway(self) -> Gateway:
        return self.evaluator.gateway
