"""Evaluator: run an agent on the cases of an eval set under a profile, and score every run.

A failing case is a row with an error. Only a spent budget, cancellation, or an unexpected call to a scripted model ends
an evaluation. The rows do not depend on the concurrency.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, TypeAlias

from promptiter.agents.base import Agent, RunContext, Substitute, check_agent
from promptiter.agents.runner import Runner
from promptiter.errors import EvalSetError, SetupError, nearest
from promptiter.evaluation.case_runner import CaseJob, CaseRunner
from promptiter.evaluation.data.case import EvalCase, EvalSet, advise_eval_set
from promptiter.evaluation.executor import Executor, FinishedJob, LocalExecutor
from promptiter.evaluation.metrics.metric import Metric, check_metric, describe_metric, is_metric
from promptiter.evaluation.penalties import NO_PENALTIES, Penalties
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.trace_store import FileTraceStore, TraceStore
from promptiter.evaluation.user_simulator import UserSimulator
from promptiter.evaluation.workers.job_host import JobHost
from promptiter.llm.cache.cache import Cache
from promptiter.llm.gateway import Gateway
from promptiter.numbers import is_number
from promptiter.profile import Profile, list_active_profiles
from promptiter.signatures import find_misfit
from promptiter.wording import shorten

CaseRepeat: TypeAlias = tuple[str, int]
"""A case run to make: the case id and the repeat."""

OnRow: TypeAlias = Callable[[CaseRow], None]
"""Called with each case run as it finishes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationOptions:
    """How cases are run. `repeats` is how often each case is run; `case_timeout_s` limits one turn of one run.

    The default `seed` is the gateway's.
    """

    repeats: int = 1
    concurrency: int = 16
    case_timeout_s: float | None = None
    max_errored_fraction: float = 0.25
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("repeats", "concurrency"):
            count = getattr(self, name)
            if not isinstance(count, int) or count < 1:
                raise SetupError(f"{name} is {count!r}; give a whole number of at least 1")
        if self.case_timeout_s is not None and not (is_number(self.case_timeout_s) and self.case_timeout_s > 0):
            raise SetupError(f"case_timeout_s is {self.case_timeout_s!r}; give seconds above 0, or None for no limit")
        if not is_number(self.max_errored_fraction) or not 0 <= self.max_errored_fraction <= 1:
            raise SetupError(f"max_errored_fraction is {self.max_errored_fraction!r}; give a share from 0 to 1")


class Evaluator:
    """Runs cases and scores them. One evaluator serves many evaluations, also several at once in one event loop.

    `weights` are those of metrics in the mean score, by name; the default is 1. `penalties` are part of the weighted
    loss.
    """

    def __init__(
        self,
        metrics: Sequence[Metric] = (),
        *,
        gateway: Gateway | None = None,
        options: EvaluationOptions | None = None,
        executor: Executor | None = None,
        trace_store: TraceStore | None = None,
        user_simulator: UserSimulator | None = None,
        weights: Mapping[str, float] | None = None,
        penalties: Penalties = NO_PENALTIES,
    ) -> None:
        _check_parts(gateway=gateway, options=options, executor=executor)
        metrics = _check_metrics(metrics)
        names = [metric.name for metric in metrics]
        if len(set(names)) < len(names):
            raise SetupError(f"an evaluation needs metrics with unique names, got {', '.join(names)}")
        self.metrics = metrics
        self.gateway = gateway or Gateway()
        self.is_gateway_given = gateway is not None
        self.options = options or EvaluationOptions()
        self.executor: Executor = executor or LocalExecutor(concurrency=self.options.concurrency)
        self.shared_trace_store = trace_store
        """The trace store of all runs, if one was given. Otherwise each run has its own."""
        self.trace_store: TraceStore = trace_store or FileTraceStore()
        self.user_simulator = user_simulator
        self.weights = dict(weights or {})
        self.penalties = penalties
        _check_weights(self.weights, names)

    @property
    def seed(self) -> int:
        """The seed of the options, or that of the gateway."""
        return self.gateway.seed if self.options.seed is None else self.options.seed

    def with_options(self, options: EvaluationOptions) -> Evaluator:
        """The same evaluator with other options. Another concurrency is that of a LocalExecutor too."""
        if options.concurrency == self.options.concurrency or not isinstance(self.executor, LocalExecutor):
            return self._with(options=options)
        return self._with(options=options, executor=LocalExecutor(concurrency=options.concurrency))

    def for_run(self, *, cache: Cache | None = None, trace_store: TraceStore | None = None) -> Evaluator:
        """The evaluator of one run: the same, with a gateway and traces of its own; see `Gateway.for_run`.

        Without a `trace_store`, it is the one that this evaluator was given, or a new one in a temporary folder.
        """
        gateway = self.gateway.for_run(cache=cache, seed=self.seed)
        return self._with(gateway=gateway, trace_store=trace_store or self.shared_trace_store or FileTraceStore())

    def with_gateway(self, gateway: Gateway) -> Evaluator:
        """The same evaluator with another gateway."""
        return self._with(gateway=gateway)

    def with_metrics(self, metrics: Iterable[Metric]) -> Evaluator:
        """The same evaluator with other metrics."""
        checked = _check_metrics(metrics)
        _check_weights(self.weights, [metric.name for metric in checked])
        return self._with(metrics=checked)

    def with_weights(self, weights: Mapping[str, float]) -> Evaluator:
        """The same evaluator with other weights of its metrics."""
        _check_weights(weights, [metric.name for metric in self.metrics])
        return self._with(weights=dict(weights))

    def with_penalties(self, penalties: Penalties) -> Evaluator:
        """The same evaluator with other penalties."""
        return self._with(penalties=penalties)

    def with_judge(self, judge: Runner | str) -> Evaluator:
        """The same evaluator with this model, agent or function as the judge."""
        from promptiter.evaluation.metrics.judge import JudgeMetric

        return self.with_metrics(
            each.with_judge(judge) if isinstance(each, JudgeMetric) else each for each in self.metrics
        )

    async def evaluate(
        self,
        agent: Agent,
        eval_set: EvalSet,
        profile: Profile | None = None,
        *,
        on_row: OnRow | None = None,
    ) -> Evaluation:
        """Run every case and repeat, and collect the rows. `on_row` is called with each row as it finishes."""
        _check_inputs(agent, eval_set, profile)
        profile = profile or Profile.baseline(agent.describe())
        rows = []
        async for row in self.stream_rows(agent, eval_set, profile):
            rows.append(row)
            if on_row is not None:
                on_row(row)
        return self.build_evaluation(rows, eval_set, profile)

    def build_evaluation(
        self,
        rows: Iterable[CaseRow],
        eval_set: EvalSet,
        profile: Profile,
        *,
        number: int | None = None,
        phase: str = "",
    ) -> Evaluation:
        """Build the evaluation of these rows. `number` and `phase` are its place in a run."""
        return Evaluation(
            eval_set_id=eval_set.id,
            profile_digest=profile.digest,
            rows=tuple(rows),
            thresholds={metric.name: metric.threshold for metric in self.metrics},
            max_errored_fraction=self.options.max_errored_fraction,
            weights=self.weights,
            penalties=self.penalties,
            number=number,
            phase=phase,
            criteria={metric.name: describe_metric(metric) for metric in self.metrics},
        )

    async def stream_rows(
        self,
        agent: Agent,
        eval_set: EvalSet,
        profile: Profile,
        *,
        runs: Sequence[CaseRepeat] | None = None,
    ) -> AsyncGenerator[CaseRow, None]:
        """Yield the rows as they finish, in any order, without keeping them.

        `runs` selects case ids and repeats; the default is every repeat of every case.
        """
        wanted = list_case_runs(eval_set, range(self.options.repeats)) if runs is None else runs
        self.check(agent, [(eval_set, profile)])
        cases = eval_set.by_id
        jobs = (CaseJob(case=cases[case_id], profile=profile, repeat=repeat) for case_id, repeat in wanted)
        async with aclosing(self.stream_jobs(agent, jobs)) as finished:
            async for _, row in finished:
                yield row

    def stream_jobs(self, agent: Agent, jobs: Iterable[CaseJob]) -> AsyncGenerator[FinishedJob, None]:
        """Yield the jobs as they finish, each with its row. They are started in the given order.

        They may belong to several evaluations. These are not checked here: see `check`. Once the user has asked to
        stop, no other job is started.
        """
        until_stop = takewhile(lambda _: not self.gateway.is_stopping, jobs)
        runner = CaseRunner(
            agent=agent,
            metrics=self.metrics,
            context=RunContext(seed=self.seed, deadline_s=self.options.case_timeout_s),
            user_simulator=self.user_simulator,
            active_profiles=list_active_profiles(),
        )
        gateway = self.gateway.with_seed(self.seed)
        gateway.bind_to_running_loop()
        return self.executor.run(until_stop, JobHost(runner, gateway=gateway, trace_store=self.trace_store))

    async def replay(
        self, agent: Agent, case: EvalCase, profile: Profile, *, repeat: int, substitutes: tuple[Substitute, ...]
    ) -> CaseRow:
        """Run one case again with some outputs substituted, and score it. Unchanged calls come from the cache."""
        self.gateway.check_stop()
        job = CaseJob(case=case, profile=profile, repeat=repeat, substitutes=substitutes)
        [(_, row)] = [finished async for finished in self.stream_jobs(agent, [job])]
        return row

    def _with(self, **parts: object) -> Evaluator:
        other = copy.copy(self)
        vars(other).update(parts)
        return other

    def check(self, agent: Agent, pairs: Iterable[tuple[EvalSet, Profile]]) -> None:
        """Raise if one of these evaluations could not start: no metrics, another structure, duplicate case ids."""
        if not self.metrics:
            raise SetupError("an evaluation needs metrics; give the evaluator at least one")
        structure = agent.describe()
        for eval_set, profile in pairs:
            profile.check(structure)
            if len(eval_set.by_id) < len(eval_set.cases):
                raise EvalSetError(f"eval set {eval_set.id!r} has duplicate case ids")
            self._check_scenarios(eval_set)

    def _check_scenarios(self, eval_set: EvalSet) -> None:
        scenarios = [case.id for case in eval_set.cases if case.scenario is not None]
        if scenarios and self.user_simulator is None:
            raise SetupError(
                f"case {scenarios[0]!r} is a scenario and needs a simulated user; set user_simulator_config"
            )


def _check_parts(*, gateway: object, options: object, executor: object) -> None:
    if gateway is not None and not isinstance(gateway, Gateway):
        raise SetupError(
            f"the gateway of an Evaluator is {shorten(gateway)}; give a Gateway, such as Gateway(models=...)"
        )
    if options is not None and not isinstance(options, EvaluationOptions):
        raise SetupError(f"the options of an Evaluator are {shorten(options)}; give EvaluationOptions(...)")
    run: Any = getattr(executor, "run", None)
    if executor is not None and not callable(run):
        raise SetupError(f"the executor of an Evaluator is {shorten(executor)}; give one, such as ThreadExecutor()")
    if executor is not None and (problem := find_misfit(run, "jobs", "host")):
        name = type(executor).__name__
        raise SetupError(f"{name}.run does not fit: {problem}; define it as `def run(self, jobs, host)`")


def _check_inputs(agent: object, eval_set: object, profile: object) -> None:
    check_agent(agent)
    if not isinstance(eval_set, EvalSet):
        raise SetupError(f"the eval set is {shorten(eval_set)}; give an EvalSet{advise_eval_set(eval_set)}")
    if profile is not None and not isinstance(profile, Profile):
        raise SetupError(f"the profile is {shorten(profile)}; give a Profile, such as Profile.load('best.json')")


def _check_metrics(metrics: Iterable[Metric]) -> tuple[Metric, ...]:
    if not isinstance(metrics, Iterable):
        one = shorten(metrics) if is_metric(metrics) else "FunctionMetric(name=..., function=...)"
        raise SetupError(
            f"the metrics of an Evaluator are {shorten(metrics)}; give a list: [{one}], or build_metrics()"
        )
    given = tuple(metrics)
    for metric in given:
        check_metric(metric)
    return given


def list_case_runs(eval_set: EvalSet, repeats: Iterable[int]) -> list[CaseRepeat]:
    """The case runs of these repeats: all cases of the first, then of the next."""
    return [(case.id, repeat) for repeat in repeats for case in eval_set.cases]


def _check_weights(weights: Mapping[str, float], metrics: Sequence[str]) -> None:
    """Raise SetupError for a weight that is not a number, or not of a metric. Without metrics, a scorer gives them."""
    for name, weight in weights.items():
        if not is_number(weight, least=0):
            raise SetupError(f"the weight of {name!r} is {weight!r}; give a finite number of at least 0")
        if metrics and name not in metrics:
            known = ", ".join(metrics)
            raise SetupError(f"unknown metric {name!r} in the weights{nearest(name, metrics)}; the metrics are {known}")
    if metrics and not any(weights.get(name, 1.0) for name in metrics):
        raise SetupError("all metrics have the weight 0; give one of them more")
