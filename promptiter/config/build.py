"""Builds a run from a configuration: imports the agent, loads the cases, builds models, metrics and policies.

Nothing is spent here. All problems are collected and reported together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn, TypeVar

from promptiter.agents.base import Agent
from promptiter.agents.runner import Runner, load_runner
from promptiter.config.configured_run import ConfiguredEvaluation, ConfiguredRun
from promptiter.config.file import ParsedConfig, RunConfig
from promptiter.config.loading import build_evaluator, load_agent, make_importable
from promptiter.config.models import build_gateway, build_search, find_unpriced_models
from promptiter.config.policies import build_acceptance, build_final_test, build_goal, build_stop
from promptiter.engine.engine import Engine
from promptiter.engine.model_checks import check_models
from promptiter.engine.request_checks import CheckedRequest, check_request, merge_eval_sets
from promptiter.errors import RequestError, SetupError, UnknownSurfaceError
from promptiter.evaluation.data.case import EvalSet
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.data.splits import split
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.metrics.metric_config import EvalConfig, load_eval_config, parse_eval_config
from promptiter.llm.cache.cache import open_cache
from promptiter.llm.gateway import Gateway
from promptiter.policies.acceptance import AnyGain
from promptiter.profile import Profile
from promptiter.references import is_reference
from promptiter.runlog.results import RunRequest
from promptiter.runs.header import Configuration
from promptiter.search.cheaper import ModelDownsizing
from promptiter.search.shorter import PromptShortening
from promptiter.stages.losses import LossHint, LossPlacement

T = TypeVar("T")


def build_evaluation(
    parsed: ParsedConfig, eval_set: str = "validation", *, environ: Mapping[str, str] | None = None
) -> ConfiguredEvaluation:
    """Build the evaluation of a configuration's agent on its train, validation or test set, or on an eval set file."""
    return _RunBuilder(parsed, os.environ if environ is None else environ, [*parsed.problems]).build_evaluation(
        eval_set
    )


def build_run(
    parsed: ParsedConfig, *, problems: Iterable[str] = (), environ: Mapping[str, str] | None = None
) -> ConfiguredRun:
    """Build the run that a configuration describes. A RequestError lists every problem, including the given ones."""
    builder = _RunBuilder(parsed, os.environ if environ is None else environ, [*parsed.problems, *problems])
    return builder.build()


@dataclass(frozen=True, slots=True)
class _RunBuilder:
    parsed: ParsedConfig
    environ: Mapping[str, str]
    problems: list[str]

    @property
    def config(self) -> RunConfig:
        return self.parsed.config

    def build(self) -> ConfiguredRun:
        config = self.config
        make_importable(config.python_path)
        agent = self._load_agent()
        gateway = self._build_gateway()
        evaluator = self._build_evaluator(gateway)
        sets = self._load_eval_sets()
        request = self._build_request(sets or _NO_SETS)
        checked = engine = None
        if evaluator is not None:
            checked = self._check(agent, evaluator, request, is_complete=sets is not None)
        if agent is not None and evaluator is not None:
            engine = self.attempt(lambda: _build_engine(agent, evaluator, config))
        if self.problems or engine is None or checked is None:
            self._fail(gateway)
        return ConfiguredRun(
            config=config,
            engine=engine,
            checked=checked,
            gateway=gateway,
            configuration=self._describe_configuration(),
        )

    def build_evaluation(self, eval_set: str) -> ConfiguredEvaluation:
        make_importable(self.config.python_path)
        agent, gateway = self._load_agent(), self._build_gateway()
        evaluator, cases = self._build_evaluator(gateway), self._load_cases(eval_set)
        profile, teacher = self._load_profile(), self._load_teacher()
        if agent is not None and evaluator is not None:
            others = [teacher] if isinstance(teacher, str) else []
            self.attempt(partial(check_models, agent, evaluator, profile=profile, others=others))
        if self.problems or agent is None or evaluator is None or cases is None:
            self._fail(gateway)
        return ConfiguredEvaluation(
            agent=agent, cases=cases, evaluator=evaluator, gateway=gateway, profile=profile, teacher=teacher
        )

    def _fail(self, gateway: Gateway) -> NoReturn:
        """Raise all problems as one error."""
        gateway.cache.close()
        raise RequestError(dict.fromkeys(map(gateway.redactor.redact_text, self.problems)))

    def _load_cases(self, eval_set: str) -> EvalSet | None:
        """The cases of one of the configuration's sets, or of a file."""
        if eval_set not in (*_SETS, "cases", "test"):
            return self.attempt(partial(load_eval_set, eval_set))
        if self.config.cases and eval_set in _SETS:
            eval_set = "cases"
        sets = self._load_eval_sets() if self.config.data else None
        chosen = getattr(sets, eval_set) if sets else self._load(getattr(self.config, eval_set), place=eval_set)
        if not chosen:
            if not self.problems:
                self.problems.append(f"{eval_set}: is missing; name its eval set, or pass --eval-set FILE")
            return None
        return merge_eval_sets(chosen, name=eval_set)

    def _load_profile(self) -> Profile | None:
        path = self.config.initial_profile
        return self.attempt(partial(Profile.load, path), place="initial_profile") if path else None

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
            code=_find_source(self.config.agent),
        )

    def attempt(self, make: Callable[[], T], *, place: str = "") -> T | None:
        """Return the result of `make`; if it fails, add its error to the problems and return None."""
        try:
            return make()
        except RequestError as error:
            self.problems.extend(error.problems)
        except SetupError as error:
            self.problems.append(f"{place}: {error}" if place else str(error))
        return None

    def _is_given(self, key: str, *, wanted: str) -> bool:
        """Whether the file has a key. Adds a missing key to the problems."""
        if getattr(self.config, key):
            return True
        if key not in self.parsed.broken:
            self.problems.append(f"{key}: is missing; {wanted}")
        return False

    def _load_agent(self) -> Agent | None:
        if not self._is_given("agent", wanted="name the agent as module:attr"):
            return None
        return self.attempt(partial(load_agent, self.config.agent, folders=self.config.python_path), place="agent")

    def _load_eval_sets(self) -> _EvalSets | None:
        config = self.config
        if "data" in self.parsed.broken:
            return None
        if not config.data:
            wanted = self._choose_sets()
            loaded = {key: self._load(getattr(config, key), place=key) for key in (*wanted, "test")}
            is_whole = wanted and loaded["test"] is not None and all(loaded[key] for key in wanted)
            return _EvalSets(**{key: sets or () for key, sets in loaded.items()}) if is_whole else None
        if config.train or config.validation or config.cases or config.test:
            self.problems.append("data: is split into train, validation and test; give either data or the sets")
            return None
        cases = self._load(config.data, place="data")
        return None if cases is None else self.attempt(lambda: _split(cases, config), place="data")

    def _choose_sets(self) -> tuple[str, ...]:
        """The keys of the sets to learn from and to validate on; none if some are missing or too many are given."""
        config = self.config
        if not config.cases and "cases" not in self.parsed.broken:
            wanted = "name its eval set, or give `cases` to use one set for both, or `data` to split"
            given = [self._is_given(key, wanted=wanted) for key in _SETS]
            return _SETS if all(given) else ()
        if config.train or config.validation:
            self.problems.append("cases: are used as train and validation set; give either cases or the two sets")
            return ()
        return ("cases",) if config.cases else ()

    def _load(self, files: Iterable[Path], *, place: str) -> tuple[EvalSet, ...] | None:
        loaded = [self.attempt(partial(load_eval_set, file), place=place) for file in files]
        sets = tuple(each for each in loaded if each is not None)
        return sets if len(sets) == len(loaded) else None

    def _build_gateway(self) -> Gateway:
        where = self.config.cache
        shared = None if where == "memory" else self.attempt(lambda: open_cache(where), place="cache")
        return build_gateway(self.config, shared, environ=self.environ)

    def _build_evaluator(self, gateway: Gateway) -> Evaluator | None:
        if not self._is_given("metrics", wanted="name a metrics file, or list metrics here"):
            return None
        config, how = self.config, self.config.evaluation
        metrics = self.attempt(self._load_metrics, place="metrics" if isinstance(config.metrics, Path) else "")
        if metrics is None:
            return None

        def build() -> Evaluator:
            options = EvaluationOptions(
                repeats=how.repeats or metrics.num_runs,
                concurrency=how.concurrency,
                case_timeout_s=how.case_timeout_s,
                max_errored_fraction=how.max_errored_fraction,
                seed=config.seed,
            )
            return build_evaluator(metrics, gateway, options, judge=config.judge)

        return self.attempt(build, place="metrics")

    def _load_metrics(self) -> EvalConfig:
        given = self.config.metrics
        if isinstance(given, Path):
            return load_eval_config(given, environ=self.environ)
        return parse_eval_config(given, source="metrics", environ=self.environ)

    def _build_request(self, sets: _EvalSets) -> RunRequest:
        config = self.config
        goal = build_goal(config.goal)
        return RunRequest(
            train=sets.train or None,
            validation=sets.validation or None,
            cases=sets.cases or None,
            test=sets.test or None,
            initial_profile=self._load_profile(),
            teacher=self._load_teacher(),
            judge=config.judge,
            acceptance=self.attempt(partial(build_acceptance, config.acceptance, goal), place="acceptance")
            or AnyGain(),
            final_test=build_final_test(config.final_test),
            alpha=config.alpha,
            stop=build_stop(config.stop, objective=config.objective, goal=goal),
            max_rounds=config.max_rounds,
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
        self.problems.extend(find_unpriced_models(self.config, evaluator.gateway))
        if self.config.review and request.goal.kind != "score":
            self.problems.append(
                f"review: only patches for the score are reviewed, but the goal is {request.goal.kind}; remove it"
            )
        if agent is None:
            return None
        self.attempt(lambda: self._check_models(agent, evaluator, request))
        if is_complete:
            return self.attempt(lambda: check_request(request, agent.describe(), evaluator))
        known = agent.describe().surface_ids
        unknown = [target for target in request.targets or () if target not in known]
        self.problems.extend(str(UnknownSurfaceError(target, known=known)) for target in unknown)
        return None

    def _check_models(self, agent: Agent, evaluator: Evaluator, request: RunRequest) -> None:
        others = [request.teacher] if isinstance(request.teacher, str) else []
        if request.goal.kind == "score":
            others += self.config.models.stages.models
        if request.judge is not None:
            evaluator = evaluator.with_judge(request.judge)
        check_models(agent, evaluator, profile=request.initial_profile, others=others)


@dataclass(frozen=True, slots=True)
class _EvalSets:
    train: tuple[EvalSet, ...] = ()
    validation: tuple[EvalSet, ...] = ()
    cases: tuple[EvalSet, ...] = ()
    test: tuple[EvalSet, ...] = ()


def _build_engine(agent: Agent, evaluator: Evaluator, config: RunConfig) -> Engine:
    """Build an engine with the search for the goal. Only the search for the score has stages."""
    match build_goal(config.goal).kind:
        case "cheaper":
            return Engine(agent, evaluator, search=ModelDownsizing())
        case "fewer_tokens":
            return Engine(agent, evaluator, search=PromptShortening())
        case "score":
            return Engine(agent, evaluator, search=build_search(config))


def _find_source(reference: str) -> str | None:
    """The source file of the module that `module:attr` names, or None."""
    file = getattr(sys.modules.get(reference.partition(":")[0]), "__file__", None)
    return file if file is not None and Path(file).is_file() else None


_SETS = ("train", "validation")
_NO_SETS = _EvalSets()


def _split(cases: tuple[EvalSet, ...], config: RunConfig) -> _EvalSets:
    shares = config.split
    whole = merge_eval_sets(cases, name="data")
    parts = split(whole, train=shares.train, validation=shares.validation, test=shares.test, seed=shares.seed)
    test = (parts.test,) if parts.test.cases else ()
    return _EvalSets(train=(parts.train,), validation=(parts.validation,), test=test)
