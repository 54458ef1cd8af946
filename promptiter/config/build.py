"""Builds a run from a configuration: imports the agent, loads the cases, builds models, metrics and policies.

Nothing is spent here. All problems are collected and reported together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from functools import partial, reduce
from operator import or_
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from promptiter.agents.base import Agent
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.agents.runner import Runner, load_runner
from promptiter.config.agents import build_agent
from promptiter.config.configured_run import ConfiguredEvaluation, ConfiguredLearning, ConfiguredRun
from promptiter.config.eval_sets import SetsByKey, load_eval_sets, load_one_set
from promptiter.config.file import FILE_NAME, ParsedConfig, read_document
from promptiter.config.layout import build_layout
from promptiter.config.loading import build_evaluator, make_importable
from promptiter.config.models import build_gateway
from promptiter.config.optimizer_json.trace_metrics import find_trace_metrics
from promptiter.config.parts import build_part, build_scorer
from promptiter.config.policies import build_acceptance, build_final_test, build_goal, build_stop
from promptiter.config.problems import Problems
from promptiter.config.search import build_search, build_stages, find_models_of_stages
from promptiter.engine.engine import Engine
from promptiter.engine.model_checks import check_models, list_models_of_evaluator
from promptiter.engine.request import RunRequest
from promptiter.engine.request_checks import CheckedRequest, check_request
from promptiter.errors import RequestError, UnknownSurfaceError
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.executor import Executor
from promptiter.evaluation.metrics.eval_config import EvalConfig
from promptiter.evaluation.metrics.metric_config import load_eval_config, parse_eval_config
from promptiter.llm.cache.cache import open_cache
from promptiter.llm.gateway import Gateway
from promptiter.policies.acceptance import AnyGain
from promptiter.policies.callback_stop import CallbackStop
from promptiter.profile import Profile
from promptiter.references import is_reference
from promptiter.runlog.events import Observer
from promptiter.runs.apply import recover
from promptiter.runs.header import Configuration
from promptiter.stages.losses import LossHint, LossPlacement
from promptiter.stages.roles import EXECUTOR, OBSERVER

T = TypeVar("T")

_ONLY_FOR_RUNS = frozenset(("search", "stages", "observers"))


def build_evaluation(
    parsed: ParsedConfig, eval_set: str = "validation", *, environ: Mapping[str, str] | None = None
) -> ConfiguredEvaluation:
    """Build the evaluation of a configuration's agent on its train, validation or test set, or on an eval set file.

    It uses neither search nor observers, so the environment may lack the variables of their options.
    """
    if not parsed.broken.isdisjoint(_ONLY_FOR_RUNS):
        used = {key: value for key, value in parsed.document.items() if key not in _ONLY_FOR_RUNS}
        parsed = read_document(used, file=parsed.file or Path(FILE_NAME), environ=environ)
    return _RunBuilder(parsed, os.environ if environ is None else environ).build_evaluation(eval_set)


def build_run(
    parsed: ParsedConfig,
    *,
    problems: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
    agent: InPlaceAgent | None = None,
    stoppers: Sequence[CallbackStop] = (),
    search_callbacks: Sequence[Any] = (),
) -> ConfiguredRun:
    """Build the run that a configuration describes. A RequestError lists every problem, including the given ones.

    `agent` takes the place of the one that the configuration names. `stoppers` end the search, besides its stop
    policies; `search_callbacks` get the events of a search that has its own.
    """
    builder = _RunBuilder(parsed, os.environ if environ is None else environ, problems)
    builder.agent, builder.stoppers, builder.search_callbacks = agent, stoppers, search_callbacks
    return builder.build()


def build_configured_evaluator(parsed: ParsedConfig, *, environ: Mapping[str, str] | None = None) -> Evaluator:
    """Build the metrics of a configuration with their judges and models. It may have no agent and no eval sets."""
    return _RunBuilder(parsed, os.environ if environ is None else environ).build_evaluator()


def build_configured_gateway(parsed: ParsedConfig, *, environ: Mapping[str, str] | None = None) -> Gateway:
    """Build the gateway of a configuration. It may have no agent, no metrics and no eval sets."""
    return _RunBuilder(parsed, os.environ if environ is None else environ).build_gateway()


def build_learning(parsed: ParsedConfig, *, environ: Mapping[str, str] | None = None) -> ConfiguredLearning:
    """Build what learning from traces takes: stages, metrics and the live agent, as far as there are any."""
    return _RunBuilder(parsed, os.environ if environ is None else environ).build_learning()


class _RunBuilder:
    def __init__(self, parsed: ParsedConfig, environ: Mapping[str, str], problems: Iterable[str] = ()) -> None:
        self.parsed = parsed
        self.config = parsed.config
        self.environ = environ
        self.problems = Problems(parsed, [*parsed.problems, *problems])
        self.attempt = self.problems.attempt
        self.agent: InPlaceAgent | None = None
        self.stoppers: Sequence[CallbackStop] = ()
        self.search_callbacks: Sequence[Any] = ()

    def build(self) -> ConfiguredRun:
        config = self.config
        self._make_importable()
        agent = self._load_agent()
        gateway = self._build_gateway()
        evaluator = self._build_evaluator(gateway)
        sets = load_eval_sets(self.problems)
        given = {"extra_stop_callbacks": self.stoppers, "extra_callbacks": self.search_callbacks}
        search = self.attempt(lambda: build_search(config, given={key: each for key, each in given.items() if each}))
        request = self._build_request(sets or {}, search)
        observers = self._build_observers()
        checked = engine = None
        if evaluator is not None:
            checked = self._check(agent, evaluator, request, is_complete=sets is not None)
        if agent is not None and evaluator is not None and search is not None:
            engine = self.attempt(lambda: Engine(agent, evaluator, search=search))
        if self.problems.found or engine is None or checked is None:
            self._fail(gateway)
        return ConfiguredRun(
            config=config,
            engine=engine,
            checked=checked,
            gateway=gateway,
            observers=observers,
            layout=build_layout(self.parsed, gateway.redactor),
            configuration=self._describe_configuration(),
        )

    def build_evaluation(self, eval_set: str) -> ConfiguredEvaluation:
        self._make_importable()
        agent, gateway = self._load_agent(), self._build_gateway()
        evaluator, cases = self._build_evaluator(gateway), load_one_set(self.problems, eval_set)
        place = "profile" if "initial_profile" in self.parsed.settings else "initial_profile"
        profile, teacher = self._load_profile(place=place), self._load_teacher()
        if agent is not None and evaluator is not None:
            others = {"teacher": teacher if isinstance(teacher, str) else None}
            self.attempt(partial(check_models, agent, evaluator, profile=profile, others=others))
        if self.problems.found or agent is None or evaluator is None or cases is None:
            self._fail(gateway)
        return ConfiguredEvaluation(
            agent=agent, cases=cases, evaluator=evaluator, gateway=gateway, profile=profile, teacher=teacher
        )

    def build_evaluator(self) -> Evaluator:
        self._make_importable()
        gateway, judge = self._build_gateway(), self.config.judge
        evaluator = self._build_evaluator(gateway)
        if evaluator is not None and judge is not None:
            evaluator = self.attempt(partial(evaluator.with_judge, judge), place="judge")
        if self.problems.found or evaluator is None:
            self._fail(gateway)
        return evaluator

    def build_gateway(self) -> Gateway:
        self._make_importable()
        gateway = self._build_gateway()
        if self.problems.found:
            self._fail(gateway)
        return gateway

    def build_learning(self) -> ConfiguredLearning:
        self._make_importable()
        agent = self._load_agent() if self.config.agent else None
        gateway = self._build_gateway()
        evaluator: Evaluator | None = Evaluator(gateway=gateway)
        if self.config.metrics is not None:
            evaluator = self._build_evaluator(gateway)
        stages = self.attempt(lambda: build_stages(self.config.stages, self.config.models))
        judges = () if evaluator is None else list_models_of_evaluator(evaluator)
        models = {*find_models_of_stages(self.config).values(), *(model for _, model in judges)}
        self.problems.found.extend(gateway.find_unpriced_models(models))
        structure = self.attempt(agent.describe) if agent is not None else None
        if self.problems.found or evaluator is None or stages is None:
            self._fail(gateway)
        names = ("backwarder", "aggregator", "optimizer")
        return ConfiguredLearning(
            config=self.config,
            evaluator=evaluator,
            stages={name: stage for name, stage in stages.items() if name in names},
            live=structure,
        )

    def _fail(self, gateway: Gateway) -> NoReturn:
        """Raise all problems as one error."""
        gateway.cache.close()
        raise RequestError(dict.fromkeys(map(gateway.redactor.redact_text, self.problems.found)))

    def _make_importable(self) -> None:
        folders = self.config.python_path
        if self.parsed.file is not None:
            recover(self.parsed.file.absolute().parent)
        if "python_path" in self.config.model_fields_set:
            for missing in (folder for folder in folders if not folder.is_dir()):
                hint = "paths are relative to the file"
                self.problems.add(f"python_path: the folder {str(missing)!r} does not exist; {hint}")
        make_importable(folders)

    def _load_profile(self, *, place: str = "initial_profile") -> Profile | None:
        path = self.config.initial_profile
        return self.attempt(partial(Profile.load, path), place=place) if path else None

    def _load_teacher(self) -> Runner | str | None:
        teacher = self.config.teacher
        if teacher is None or not is_reference(teacher):
            return teacher
        return self.attempt(partial(load_runner, teacher, what="teacher"))

    def _describe_configuration(self) -> Configuration | None:
        parsed, metrics = self.parsed, self.config.metrics
        if parsed.file is None:
            return None
        return Configuration(
            file=str(parsed.file.absolute()),
            settings=dict(parsed.settings),
            document=dict(parsed.document),
            files={"metrics": str(metrics)} if isinstance(metrics, Path) else {},
            code=_find_source(self.config.agent.reference),
        )

    def _load_agent(self) -> Agent | None:
        if self.agent is not None:
            return self.agent
        if not self.problems.require("agent", wanted="name the agent as module:attr, or its command"):
            return None
        return self.attempt(partial(build_agent, self.config.agent, folders=self.config.python_path), place="agent")

    def _build_observers(self) -> tuple[Observer, ...]:
        entries = enumerate(self.config.observers)
        built = [self.attempt(partial(build_part, each, OBSERVER, place=f"observers[{at}]")) for at, each in entries]
        return tuple(each for each in built if each is not None)

    def _build_gateway(self) -> Gateway:
        where = self.config.cache
        shared = None if where == "memory" else self.attempt(lambda: open_cache(where), place="cache")
        return build_gateway(self.config, shared, environ=self.environ)

    def _build_evaluator(self, gateway: Gateway) -> Evaluator | None:
        config, how = self.config, self.config.evaluation
        executor = self._build_executor()
        metrics = _NO_METRICS
        if config.scorer is None:
            if not self.problems.require("metrics", wanted="name a metrics file, or list metrics here"):
                return None
            place = "metrics" if isinstance(config.metrics, Path) else ""
            metrics = self.attempt(self._load_metrics, place=place) or _NO_METRICS
            if not metrics.metrics:
                return None
            if self.agent is not None or (self.config.agent.call and self.config.agent.in_place):
                self.problems.found.extend(find_trace_metrics(metrics))
        options = EvaluationOptions(
            repeats=how.repeats or metrics.num_runs,
            concurrency=how.concurrency,
            case_timeout_s=how.case_timeout_s,
            max_errored_fraction=how.max_errored_fraction,
            seed=config.seed,
        )
        evaluator = self.attempt(
            lambda: build_evaluator(metrics, gateway, options, judge=config.judge, executor=executor), place="metrics"
        )
        if evaluator is None:
            return None
        return self.attempt(lambda: evaluator.with_weights(config.weights), place="weights")

    def _build_executor(self) -> Executor | None:
        if self.config.executor is None:
            return None
        concurrency = {"concurrency": self.config.evaluation.concurrency}
        return self.attempt(
            partial(
                build_part,
                self.config.executor,
                EXECUTOR,
                place="executor",
                supplied=concurrency,
                supplied_by={"concurrency": "evaluation.concurrency"},
            )
        )

    def _load_metrics(self) -> EvalConfig:
        given = self.config.metrics
        if isinstance(given, Path):
            return load_eval_config(given, environ=self.environ)
        return parse_eval_config(given, source="metrics", environ=self.environ)

    def _build_request(self, sets: SetsByKey, search: object) -> RunRequest:
        config = self.config
        goal = build_goal(config.goal)
        stop = build_stop(config.stop, objective=config.objective, goal=goal)
        if self.stoppers and not hasattr(search, "extra_stop_callbacks"):  # GEPA asks them itself, with its state
            stop = reduce(or_, self.stoppers if stop is None else (stop, *self.stoppers))
        return RunRequest(
            train=sets.get("train"),
            validation=sets.get("validation"),
            cases=sets.get("cases"),
            test=sets.get("test"),
            scorer=self.attempt(partial(build_scorer, config.scorer)) if config.scorer else None,
            initial_profile=self._load_profile(),
            teacher=self._load_teacher(),
            judge=config.judge,
            acceptance=self.attempt(partial(build_acceptance, config.acceptance, goal), place="acceptance")
            or AnyGain(),
            final_test=build_final_test(config.final_test),
            alpha=config.alpha,
            stop=stop,
            max_rounds=config.max_rounds,
            max_metric_calls=config.budget.max_metric_calls,
            targets=config.targets,
            objective=config.objective,
            goal=goal,
            loss_placements=tuple(LossPlacement(**each.model_dump()) for each in config.loss_placements),
            hints=tuple(LossHint(**each.model_dump()) for each in config.hints),
            protected=frozenset(config.acceptance.protected),
            seed=config.seed,
        )

    def _check(
        self, agent: Agent | None, evaluator: Evaluator, request: RunRequest, *, is_complete: bool
    ) -> CheckedRequest | None:
        """Check the request, and add what the engine would refuse later, so that all problems are in one list."""
        self.problems.found.extend(evaluator.gateway.find_unpriced_models(find_models_of_stages(self.config).values()))
        if self.config.review and request.goal.kind != "score":
            self.problems.add(
                f"review: only patches for the score are reviewed, but the goal is {request.goal.kind}; remove it"
            )
        if agent is None:
            return None
        self.attempt(lambda: self._check_models(agent, evaluator, request))
        self.attempt(lambda: self._check_sources(agent), place="sources")
        if is_complete:
            return self.attempt(lambda: check_request(request, agent.describe(), evaluator))
        known = agent.describe().surface_ids
        unknown = [target for target in request.targets or () if target not in known]
        self.problems.found.extend(str(UnknownSurfaceError(target, known=known)) for target in unknown)
        return None

    def _check_sources(self, agent: Agent) -> None:
        if self.config.sources:
            known = agent.describe().surface_ids
            for name in self.config.sources:
                if name not in known:
                    raise UnknownSurfaceError(name, known=known)

    def _check_models(self, agent: Agent, evaluator: Evaluator, request: RunRequest) -> None:
        teacher = request.teacher if isinstance(request.teacher, str) else None
        others = {"teacher": teacher, **find_models_of_stages(self.config)}
        if request.judge is not None:
            evaluator = evaluator.with_judge(request.judge)
        check_models(agent, evaluator, profile=request.initial_profile, others=others)


def _find_source(reference: str) -> str | None:
    """The source file of the module that `module:attr` names, or None."""
    file = getattr(sys.modules.get(reference.partition(":")[0]), "__file__", None)
    return file if file is not None and Path(file).is_file() else None


_NO_METRICS = EvalConfig(metrics=())
