"""Builds a refinement: finds the seed, and what its iterations are run and measured by.

    configured = build_refinement(Path("essay"), RefinementSettings(command=("python", "step.py")))
    session = asyncio.run(configured.refine())

A run of ours knows its agent and metrics; one with a scorer knows only what measures its files. For other seeds, the
agent is named or is a command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from promptiter.agents.base import Agent, check_agent_health, restore_agent
from promptiter.config.agents import build_agent
from promptiter.config.build import build_configured_evaluator, build_configured_gateway
from promptiter.config.file import FILE_NAME, ParsedConfig, RunConfig, read_document, read_file
from promptiter.config.refine_checks import (
    check_agent_unchanged,
    check_case_settings,
    check_settings,
    create_work_folder,
)
from promptiter.config.refine_roles import choose_floors, choose_roles
from promptiter.config.refine_section import RefineSection
from promptiter.config.refinement_settings import REFINEMENT, RefinementSettings
from promptiter.engine.engine import Engine
from promptiter.engine.model_checks import list_models_of_evaluator
from promptiter.engine.request_checks import CheckedRequest
from promptiter.errors import RequestError, SetupError
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.llm.gateway import Gateway
from promptiter.runlog.results import RunResult
from promptiter.runs.summary import read_result
from promptiter.search.edits import EditSearch
from promptiter.tasks.refine.agent_runner import AgentRunner
from promptiter.tasks.refine.budget import BudgetFloors
from promptiter.tasks.refine.command_agent import IterationCommand, prepare_command
from promptiter.tasks.refine.iteration_guard import NodeRoles
from promptiter.tasks.refine.loop import IterationRequest, RefinementOptions, refine
from promptiter.tasks.refine.records import ModelPair
from promptiter.tasks.refine.run_seeds import open_case, open_files
from promptiter.tasks.refine.scored_files import ScoredFiles
from promptiter.tasks.refine.seeds import (
    RUBRIC,
    Seed,
    find_target_sessions,
    is_run_folder,
    not_a_result,
    open_rubric_folder,
    open_run_folder,
    open_target,
    read_text,
)
from promptiter.tasks.refine.sessions import RefinementSession
from promptiter.tasks.refine.tiers import TierPlan
from promptiter.tasks.rubrics import list_rubrics
from traces.model import Json

MIXED = "refinement.mixed_body: tier_* set; ignoring legacy model/worker_model"
"""The warning if models are given with tiers and without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredRefinement:
    """A refinement that is ready to start. `warnings` are messages for the user."""

    seed: Seed
    runner: AgentRunner
    options: RefinementOptions
    gateway: Gateway
    agent: Agent | None = None
    warnings: tuple[str, ...] = ()

    async def refine(
        self,
        *,
        notify: Callable[[str], None] = lambda _: None,
        on_begin: Callable[[str], None] = lambda _: None,
    ) -> RefinementSession:
        """Refine the seed. The session is stored in every case."""
        if self.agent is not None:
            await check_agent_health(self.agent)
        try:
            return await refine(self.seed, self.runner, self.options, notify=notify, on_begin=on_begin)
        finally:
            if self.agent is not None:
                await restore_agent(self.agent)


def build_refinement(
    folder: Path | None,
    settings: RefinementSettings | None = None,
    *,
    target: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRefinement:
    """Build the refinement of a result that is not a run of ours: a run of AWP, a folder with a rubric, or a target.

    SetupError says what is missing.
    """
    settings = settings or RefinementSettings()
    if target is not None:
        home, _ = find_target_sessions(target)
        if settings.work is not None and not settings.work.resolve().is_relative_to(home.parents[1].resolve()):
            raise SetupError(
                f"--work-dir {str(settings.work)!r} must be below {str(home.parents[1])!r}: the next refinement of "
                f"{target!r} starts from the best run, which is kept there"
            )
        return _build_other(lambda _: open_target(target), settings, environ)
    if folder is None or not folder.is_dir():
        raise SetupError(f"there is no folder {str(folder)!r}; name a finished run, or a folder with a {RUBRIC}")
    if is_run_folder(folder):
        return _build_other(lambda _: open_run_folder(folder), settings, environ)
    if settings.rubric is not None or (folder / RUBRIC).is_file():
        open_folder = partial(open_rubric_folder, folder, task=settings.task)
        return _build_other(lambda given: open_folder(rubric=settings.rubric or given.rubric), settings, environ)
    raise not_a_result(folder)


def build_case_refinement(
    folder: Path,
    *,
    engine: Engine,
    checked: CheckedRequest,
    section: RefineSection,
    settings: RefinementSettings,
    case_id: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfiguredRefinement:
    """The refinement of a run in a folder: of a case, by the engine that made it, or of the files of a scorer.

    SetupError if there is nothing to refine.
    """
    result = read_result(folder)
    if result.status not in ("succeeded", "failed", "cancelled"):
        raise SetupError(f"the run {folder.name!r} is {result.status}; wait until it has ended, or stop it")
    if checked.request.scorer is not None:
        if case_id is not None:
            raise SetupError(f"--case {case_id!r}: the run {folder.name!r} has a scorer instead of cases. Leave it out")
        return _build_files(folder, result, engine, checked, section, settings, environ)
    check_case_settings(folder, settings)
    sets = (checked.train, checked.validation, *([] if checked.test is None else [checked.test]))
    cases: dict[str, EvalCase] = {}
    for each in sets:
        cases |= {name: case for name, case in each.by_id.items() if name not in cases}
    agent = engine.agent
    if not settings.command:
        check_agent_unchanged(agent, result, folder)
    roles = choose_roles(section, agent, is_command=bool(settings.command))
    evaluator = engine.evaluator.for_run()
    seed = open_case(folder, result, cases, case_id=case_id, weights=evaluator.weights, roles=roles)
    is_configured = bool(section.manager or section.prefix_node)
    if not is_configured and seed.record.use.loops == 0:  # what should manage was not seen: the prefix is for the task
        roles = NodeRoles(workers=roles.workers)
    floors = choose_floors(agent, roles, seed)
    return _finish(
        seed,
        section,
        settings,
        evaluator=evaluator,
        gateway=evaluator.gateway,
        agent=None if settings.command else agent,
        roles=roles,
        floors=floors,
    )


def _build_files(
    folder: Path,
    result: RunResult,
    engine: Engine,
    checked: CheckedRequest,
    section: RefineSection,
    settings: RefinementSettings,
    environ: Mapping[str, str] | None,
) -> ConfiguredRefinement:
    """The refinement of the files of a run with a scorer. Such a run knows what measures them, and no agent."""
    check_settings(folder, settings, ("rubric", "task", "judge"), why="has its own scorer and task")
    evaluator = checked.evaluator.for_run()
    files = ScoredFiles(
        agent=checked.choose_agent(engine.agent),
        evaluator=evaluator,
        profile=result.accepted_profile,
        policy=checked.request.acceptance,
    )
    seed = open_files(folder, result, files, task=_describe_task(engine))
    agent = None if settings.command else _build_named_agent(_read_config(settings, {}, environ), settings)
    roles = choose_roles(section, agent, is_command=bool(settings.command))
    gateway = evaluator.gateway
    return _finish(seed, section, settings, evaluator=evaluator, gateway=gateway, agent=agent, roles=roles, files=files)


def _build_other(
    open_seed: Callable[[RefineSection], Seed], settings: RefinementSettings, environ: Mapping[str, str] | None
) -> ConfiguredRefinement:
    """The refinement of a seed that does not know its agent."""
    parsed = _read_config(settings, {}, environ)
    seed = open_seed(parsed.config.refine)
    section = parsed.config.refine
    rubric = seed.rubric or (settings.rubric or section.rubric or "")
    text = read_text(rubric, what="the rubric") if isinstance(rubric, Path) else rubric
    evaluator: Evaluator | None = None
    if text:
        if parsed.config.judge is None:
            raise SetupError("a rubric needs a judge; give --judge MODEL, or judge: in promptiter.yaml")
        metrics: Json = {"metrics": [_build_metric(text, section.threshold)]}
        evaluator = build_configured_evaluator(_read_config(settings, metrics, environ), environ=environ).for_run()
    elif settings.config is not None and parsed.config.metrics is not None:
        evaluator = build_configured_evaluator(parsed, environ=environ).for_run()
    gateway = build_configured_gateway(parsed, environ=environ) if evaluator is None else evaluator.gateway
    agent = None if settings.command else _build_named_agent(parsed, settings)
    if evaluator is None and agent is not None:
        raise SetupError(
            "nothing would measure what the agent delivers; give --rubric FILE, or --config with metrics. A --command "
            "may also write a run_completion.json with its own figures"
        )
    roles = choose_roles(section, agent, is_command=bool(settings.command))
    if evaluator is not None:
        seed = replace(seed, is_measured=False)
    return _finish(seed, section, settings, evaluator=evaluator, gateway=gateway, agent=agent, roles=roles)


def _finish(
    seed: Seed,
    section: RefineSection,
    settings: RefinementSettings,
    *,
    evaluator: Evaluator | None,
    gateway: Gateway,
    agent: Agent | None,
    roles: NodeRoles,
    floors: BudgetFloors | None = None,
    files: ScoredFiles | None = None,
) -> ConfiguredRefinement:
    if settings.work is not None:
        create_work_folder(settings.work, seed)
    tiers = section.tiers.build() if settings.tiers is None else settings.tiers
    has_both = settings.tiers is not None and settings.models != ModelPair()
    models = ModelPair() if has_both else settings.models
    judges = [] if evaluator is None else [model for _, model in list_models_of_evaluator(evaluator)]
    named = {*tiers.models, *filter(None, (models.manager, models.worker))}
    if problems := gateway.find_setup_problems([*judges, *([] if settings.command else named)]):
        raise RequestError(problems, subject=REFINEMENT)

    command = prepare_command(settings.command) if agent is None else ()
    least = section.floors.build(floors or BudgetFloors())

    def build(request: IterationRequest) -> Agent:
        return IterationCommand(command=command, request=request) if agent is None else agent

    return ConfiguredRefinement(
        seed=seed,
        runner=AgentRunner(
            build_agent=build,
            gateway=gateway,
            evaluator=evaluator,
            case=seed.case,
            files=files,
            profile=seed.profile if agent is not None else None,
            roles=roles,
            shows_deliverable=agent is not None,
        ),
        options=RefinementOptions(
            iterations=section.iterations if settings.iterations is None else settings.iterations,
            models=models,
            tiers=tiers if models == ModelPair() else TierPlan(),
            weights=section.loss.build(),
            floors=least,
            least_wall_time_s=0.0 if seed.case is None else least.wall_time_s,  # one case may take milliseconds
            work=settings.work,
        ),
        gateway=gateway,
        agent=agent,
        warnings=(MIXED,) if has_both else (),
    )


def _describe_task(engine: Engine) -> str:
    """What those who write files are asked for: the instructions of the search, or what the structure says."""
    if isinstance(engine.search, EditSearch) and engine.search.instructions:
        return engine.search.instructions
    structure = engine.agent.describe()
    return "\n\n".join(each.description for each in structure.nodes if each.description) or structure.name


def _read_config(
    settings: RefinementSettings, metrics: Mapping[str, Json], environ: Mapping[str, str] | None
) -> ParsedConfig:
    """The configuration with the settings of the command, or only these if there is no file."""
    given: dict[str, Json] = dict(metrics)
    if settings.agent is not None:
        given["agent"] = settings.agent
    if settings.judge is not None:
        given["judge"] = settings.judge
    if settings.max_usd is not None:
        given["budget"] = {"max_usd": settings.max_usd}
    file = settings.config or Path(FILE_NAME)
    file = file / FILE_NAME if file.is_dir() else file
    document = read_file(file, environ=environ) if settings.config is not None or file.exists() else {}
    others = {key: value for key, value in document.items() if key not in metrics}  # given metrics replace those of it
    parsed = read_document(others, file=file, settings=given, environ=environ)
    if parsed.problems:
        raise RequestError(parsed.problems, subject=REFINEMENT)
    return parsed


def _build_named_agent(parsed: ParsedConfig, settings: RefinementSettings) -> Agent:
    config: RunConfig = parsed.config
    if not config.agent or (settings.agent is None and settings.config is None):
        raise SetupError(
            "this result does not say which agent made it; name one with --agent module:attr, or give a --command that "
            "is run in the folder of each iteration"
        )
    return build_agent(config.agent, folders=config.python_path)


def _build_metric(rubric: str, threshold: float) -> Json:
    """The metric of a rubric: a judge has a verdict on each entry of its list, or on the whole text."""
    rubrics: Json = [
        {"id": f"criterion_{number}", "content": {"text": text}}
        for number, text in enumerate(list_rubrics(rubric), start=1)
    ]
    return {
        "metric_name": "llm_rubric_response",
        "threshold": threshold,
        "criterion": {"llm_judge": {"rubrics": rubrics}},
    }
