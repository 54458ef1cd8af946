"""Builds a run from a configuration: imports the agent, loads the cases, builds models, metrics and policies.

Nothing is spent here. All problems are collected and reported together.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from promptiter.agents.base import Agent
from promptiter.agents.black_box.hosts import AgentHosts
from promptiter.agents.in_place.agent import InPlaceAgent
from promptiter.config.agent_yaml.axes import resolve_axes
from promptiter.config.agent_yaml.checks import find_key_problems, find_problems, name_keys, name_surfaces
from promptiter.config.agent_yaml.document import read_agent_file
from promptiter.config.agent_yaml.subagents import install
from promptiter.config.agents import build_agent
from promptiter.config.configured_run import ConfiguredEvaluation, ConfiguredLearning, ConfiguredRun
from promptiter.config.eval_sets import SetsByKey, load_eval_sets, load_one_set
from promptiter.config.evaluator import build_configured_metrics, open_gateway
from promptiter.config.file import FILE_NAME, ParsedConfig, read_document
from promptiter.config.layout import build_layout
from promptiter.config.loading import make_importable
from promptiter.config.namesakes import claim_modules, list_references
from promptiter.config.parts import build_part
from promptiter.config.problems import Problems
from promptiter.config.run_request import build_request, check_configured_request, load_profile, load_teacher
from promptiter.config.search import build_search, build_stages, find_models_of_stages
from promptiter.config.task_yaml.document import read_task_file
from promptiter.config.task_yaml.parts import list_read_files
from promptiter.engine.engine import Engine
from promptiter.engine.model_checks import check_models, list_models_of_evaluator
from promptiter.errors import RequestError
from promptiter.evaluation.evaluator import Evaluator
from promptiter.llm.gateway import Gateway
from promptiter.policies.callback_stop import CallbackStop
from promptiter.profile import Profile
from promptiter.runlog.events import Observer
from promptiter.runs.apply import recover
from promptiter.runs.header import Configuration
from promptiter.stages.roles import OBSERVER
from promptiter.structure import StructureSnapshot

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
    sets: SetsByKey | None = None,
    start: Callable[[StructureSnapshot], Profile] | None = None,
    base: ConfiguredRun | None = None,
    hosts: AgentHosts | None = None,
) -> ConfiguredRun:
    """Build the run that a configuration describes. A RequestError lists every problem, including the given ones.

    `agent` and `sets` take the place of those that the configuration names, and the profile that `start` builds that
    of its initial profile. `base` is another run of the same configuration, whose agent and models this one shares; a
    remote agent is asked again what it is. `stoppers` end the search, besides its stop policies; `search_callbacks` get
    the events of a search that has its own. An agent that is a service must be at one of the `hosts`.
    """
    builder = _RunBuilder(parsed, os.environ if environ is None else environ, problems, agent=agent, hosts=hosts)
    return builder.build(stoppers, search_callbacks, given_sets=sets, start=start, base=base)


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
    def __init__(
        self,
        parsed: ParsedConfig,
        environ: Mapping[str, str],
        problems: Iterable[str] = (),
        *,
        agent: InPlaceAgent | None = None,
        hosts: AgentHosts | None = None,
    ) -> None:
        self.parsed = parsed
        self.config = parsed.config
        self.environ = environ
        self.problems = Problems(parsed, [*parsed.problems, *problems])
        if (file := parsed.config.agent.yaml) is not None:
            self.problems.found.extend(find_key_problems(read_agent_file(file)))
        self.attempt = self.problems.attempt
        self.agent = agent
        self.hosts = hosts

    def build(
        self,
        stoppers: Sequence[CallbackStop],
        search_callbacks: Sequence[Any],
        *,
        given_sets: SetsByKey | None,
        start: Callable[[StructureSnapshot], Profile] | None,
        base: ConfiguredRun | None,
    ) -> ConfiguredRun:
        config = self.config
        self._make_importable()
        agent = self._load_agent() if base is None or config.agent.remote is not None else base.engine.agent
        gateway = open_gateway(self.problems, self.environ, base=None if base is None else base.gateway)
        evaluator = self._build_evaluator(gateway)
        sets = load_eval_sets(self.problems) if given_sets is None else given_sets
        given = {"extra_stop_callbacks": stoppers, "extra_callbacks": search_callbacks}
        axes = self._find_axes(agent)
        with_axes = config.model_copy(update={"search": name_surfaces(config.search, axes)})
        search = self.attempt(lambda: build_search(with_axes, given={key: each for key, each in given.items() if each}))
        targets = list(axes.values()) or None
        request = build_request(self.problems, sets or {}, search=search, stoppers=stoppers, targets=targets)
        if start is not None and agent is not None:
            profile = self.attempt(lambda: start(agent.describe()), place="initial_profile")
            request = replace(request, initial_profile=profile)
        observers = self._build_observers()
        checked = engine = None
        if evaluator is not None:
            checked = check_configured_request(
                self.problems, request, agent=agent, evaluator=evaluator, search=search, is_complete=sets is not None
            )
        if agent is not None and evaluator is not None and search is not None:
            engine = self.attempt(lambda: Engine(agent, evaluator, search=search))
        if self.problems.found or engine is None or checked is None:
            self._fail(gateway, closes=base is None)
        return ConfiguredRun(
            config=config,
            engine=engine,
            checked=checked,
            gateway=gateway,
            observers=observers,
            layout=build_layout(self.parsed, checked, gateway.redactor),
            configuration=self._describe_configuration(),
        )

    def build_evaluation(self, eval_set: str) -> ConfiguredEvaluation:
        self._make_importable()
        agent, gateway = self._load_agent(), open_gateway(self.problems, self.environ)
        evaluator, cases = self._build_evaluator(gateway), load_one_set(self.problems, eval_set)
        place = "profile" if "initial_profile" in self.parsed.settings else "initial_profile"
        profile, teacher = load_profile(self.problems, place=place), load_teacher(self.problems)
        if agent is not None and evaluator is not None and "models" not in self.parsed.broken:
            others = {"teacher": teacher if isinstance(teacher, str) else None}
            self.attempt(partial(check_models, agent, evaluator, profile=profile, others=others))
        if self.problems.found or agent is None or evaluator is None or cases is None:
            self._fail(gateway)
        return ConfiguredEvaluation(
            agent=agent, cases=cases, evaluator=evaluator, gateway=gateway, profile=profile, teacher=teacher
        )

    def build_evaluator(self) -> Evaluator:
        self._make_importable()
        gateway, judge = open_gateway(self.problems, self.environ), self.config.judge
        evaluator = self._build_evaluator(gateway)
        if evaluator is not None and judge is not None:
            evaluator = self.attempt(partial(evaluator.with_judge, judge), place="judge")
        if self.problems.found or evaluator is None:
            self._fail(gateway)
        return evaluator

    def build_gateway(self) -> Gateway:
        self._make_importable()
        gateway = open_gateway(self.problems, self.environ)
        if self.problems.found:
            self._fail(gateway)
        return gateway

    def build_learning(self) -> ConfiguredLearning:
        self._make_importable()
        agent = self._load_agent() if self.config.agent else None
        gateway = open_gateway(self.problems, self.environ)
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

    def _fail(self, gateway: Gateway, *, closes: bool = True) -> NoReturn:
        """Raise all problems as one error."""
        if closes:
            gateway.cache.close()
        found: Iterable[str] = self.problems.found
        if self.config.agent.yaml is not None:
            found = map(name_keys, found)
        raise RequestError(dict.fromkeys(map(gateway.redactor.redact_text, found)))

    def _make_importable(self) -> None:
        folders = self.config.python_path
        if self.parsed.file is not None:
            recover(self.parsed.file.absolute().parent)
        if "python_path" in self.config.model_fields_set:
            for missing in (folder for folder in folders if not folder.is_dir()):
                hint = "paths are relative to the file"
                self.problems.add(f"python_path: the folder {str(missing)!r} does not exist; {hint}")
        if self.config.agent.task is not None:
            sys.dont_write_bytecode = True  # a mutator in the workspace would leave a __pycache__ there
        make_importable(folders)
        for key, value in {**self.parsed.document, **self.parsed.settings}.items():
            for reference in list_references(value) if key != "agent" else ():
                self.attempt(partial(claim_modules, reference.partition(":")[0], folders), place=key)

    def _describe_configuration(self) -> Configuration | None:
        parsed, metrics = self.parsed, self.config.metrics
        if parsed.file is None:
            return None
        return Configuration(
            file=str(parsed.file.absolute()),
            settings=dict(parsed.settings),
            document=dict(parsed.document),
            files={
                **({"metrics": str(metrics)} if isinstance(metrics, Path) else {}),
                **({} if self.config.agent.task is None else list_read_files(read_task_file(self.config.agent.task))),
            },
            code=_find_source(self.config.agent.reference),
        )

    def _find_axes(self, agent: Agent | None) -> dict[str, str]:
        """The axes of an agent.yaml: their surfaces by path. Also checks what only such a file must respect."""
        file = self.config.agent.yaml
        if file is None:
            return {}
        found = read_agent_file(file)
        self.problems.found.extend(find_problems(found))
        if found.optimizer is None or agent is None:
            return {}
        self.attempt(partial(install, found.folder))
        axes, _, problems = resolve_axes((*found.axes.numeric, *found.axes.textual), agent.describe())
        self.problems.found.extend(f"evaluations.optimizer.axes: {each}" for each in problems)
        return axes

    def _load_agent(self) -> Agent | None:
        if self.agent is not None:
            return self.agent
        if not self.problems.require("agent", wanted="name the agent as module:attr, or its command"):
            return None
        build = partial(build_agent, self.config.agent, folders=self.config.python_path, hosts=self.hosts)
        # The scorer of a task.yaml reads the same file: a problem of it is named once, by its own key.
        return self.attempt(build, place="" if self.config.agent.task is not None else "agent")

    def _build_evaluator(self, gateway: Gateway) -> Evaluator | None:
        is_black_box = self.agent is not None or bool(self.config.agent.call and self.config.agent.in_place)
        return build_configured_metrics(self.problems, gateway, self.environ, is_black_box=is_black_box)

    def _build_observers(self) -> tuple[Observer, ...]:
        entries = enumerate(self.config.observers)
        built = [self.attempt(partial(build_part, each, OBSERVER, place=f"observers[{at}]")) for at, each in entries]
        return tuple(each for each in built if each is not None)


def _find_source(reference: str) -> str | None:
    """The source file of the module that `module:attr` names, or None."""
    file = getattr(sys.modules.get(reference.partition(":")[0]), "__file__", None)
    return file if file is not None and Path(file).is_file() else None
