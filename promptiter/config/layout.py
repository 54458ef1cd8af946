"""Builds the layout of a run's artifacts: `layout` and `output_dir` of promptiter.yaml."""

from __future__ import annotations

import hashlib
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeAlias, cast

from promptiter.config.agent_yaml.axes import name_path
from promptiter.config.agent_yaml.conversion import RESULTS, find_fields
from promptiter.config.agent_yaml.document import AgentDocument, read_agent_file
from promptiter.config.agent_yaml.subagents import ROLES, read_subagent
from promptiter.config.file import ParsedConfig, RunConfig
from promptiter.config.optimizer_json.conversion import name_algorithm
from promptiter.engine.engine import DEFAULT_SEARCH
from promptiter.engine.request_checks import CheckedRequest
from promptiter.errors import SetupError
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.llm.redaction import Redactor
from promptiter.runs.header import FILE_NAME as HEADER
from promptiter.runs.header import mask_secrets, read_header
from promptiter.runs.layout_000.candidate_files import AgentYaml
from promptiter.runs.layout_000.header import FILE_NAME as LAYOUT_HEADER
from promptiter.runs.layout_000.header import LayoutHeader, read_layout_header
from promptiter.runs.layout_000.layout import Layout000, LayoutInputs
from promptiter.runs.layout_001 import Layout001
from traces.model import Json

Layout: TypeAlias = Layout000 | Layout001


def build_layout(parsed: ParsedConfig, checked: CheckedRequest, redactor: Redactor) -> Layout | None:
    """The layout that a configuration asks for, with a copy of its file that has no secrets."""
    config = parsed.config
    if config.layout is None:
        return None
    if config.layout == "000":
        return _build_000(config, checked, redactor)
    document: Json = None
    if parsed.file is not None and parsed.file.exists():
        document = mask_secrets(read_yaml(parsed.file.read_text(encoding="utf-8-sig"), file=str(parsed.file)), redactor)
    return Layout001(
        config.output_dir,
        algorithm=name_algorithm(DEFAULT_SEARCH if config.search is None else config.search.name),
        configuration=cast("dict[str, Json] | None", document),
        max_metric_calls=config.budget.max_metric_calls,
        update_source=config.apply,
    )


def find_results(found: AgentDocument) -> Path:
    """The folder with the artifacts of the runs of an agent.yaml."""
    return found.folder / RESULTS


def list_artifacts(found: AgentDocument) -> dict[str, Path]:
    """The folders with the artifacts of the runs of an agent.yaml, by run id, oldest first; also those of `-o`."""
    folders = [file.parent for file in find_results(found).glob(f"*/{LAYOUT_HEADER}")]
    listed = {folder.name: folder for folder in folders}
    for file in (found.folder / "runs").glob(f"*/{HEADER}"):
        try:
            configuration = read_header(file.parent).configuration
            place = None if configuration is None else configuration.document.get("output_dir")
            if place is not None and read_layout_header(Path(str(place))).run_id == file.parent.name:
                listed[file.parent.name] = Path(str(place))
        except SetupError:
            continue  # another run, or one whose artifacts were removed
    return dict(sorted(listed.items()))


def _build_000(config: RunConfig, checked: CheckedRequest, redactor: Redactor) -> Layout000:
    if config.agent.yaml is None:
        raise SetupError("layout: 000 needs an agent.yaml with an optimizer block; run that file")
    found = read_agent_file(config.agent.yaml)
    text = redactor.redact_text(found.file.read_text(encoding="utf-8-sig"))
    instruction = f"{found.given.name}#instruction"
    names = {each.id: path for each in checked.snapshot.surfaces if (path := name_path(each)) is not None}
    if found.prompt_file is not None:
        names[instruction] = "instructions.file"
    sigma = config.acceptance.sigma_gain
    return Layout000(
        config.output_dir,
        root=find_results(found),
        inputs=LayoutInputs(
            agent=AgentYaml(
                file=found.file,
                text=text,
                fields=find_fields(found),
                prompt=None if found.prompt_file is None else instruction,
                prefix=f"{found.given.model.provider}/",
            ),
            header=_describe_run(found, config, checked),
            names=names,
            accept_sigma=None if sigma is None else sigma.accept_sigma,
            repeats=None if sigma is None else sigma.repeats,
            has_holdout=checked.shape == "two_sets",
        ),
        keep_best_only=config.keep_best_only,
    )


def _describe_run(found: AgentDocument, config: RunConfig, checked: CheckedRequest) -> LayoutHeader:
    """What run.json says of a run before it begins."""
    sigma, options = config.acceptance.sigma_gain, {} if config.search is None else config.search.options
    subagents = [read_subagent(role, found.folder, found.given.model) for role in ROLES]
    return LayoutHeader(
        run_id="",
        promptiter_version=_find_version(),
        baseline_agent_path="",
        baseline_sha256=hashlib.sha256(found.file.read_bytes()).hexdigest(),
        seed=config.seed,
        optimizer_config={
            "loss_weights": dict(config.weights),
            "penalties": config.penalties.model_dump(),
            "axes": found.axes.model_dump(mode="json", exclude_none=True),
            "repeats": 1 if sigma is None else sigma.repeats,
            "accept_sigma": 1.0 if sigma is None else sigma.accept_sigma,
            "budget": {
                "global": {
                    "max_cycles": options.get("max_cycles"),
                    "max_minutes": None if config.stop is None else config.stop.minutes,
                    "max_usd": config.budget.max_usd,
                },
                "numeric_phase": {
                    "max_trials": options.get("numeric_max_trials"),
                    "patience": options.get("numeric_patience"),
                },
                "textual_phase": {
                    "max_trials": options.get("textual_max_trials"),
                    "patience": options.get("textual_patience"),
                },
            },
            "holdout_eval_policy": None if sigma is None else sigma.holdout,
            "min_holdout_cases": None if found.optimizer is None else found.optimizer.min_holdout_cases,
        },
        train_cases_count=len(checked.train.cases),
        holdout_cases_count=_count_holdout(found, checked),
        subagents={
            each.role: {"model": each.model, "agent_path": _name_file(each.file, found.folder)} for each in subagents
        },
    )


def _count_holdout(found: AgentDocument, checked: CheckedRequest) -> int:
    """The cases of the hold-out, also if the run does not use them."""
    if checked.shape == "two_sets":
        return len(checked.validation.cases)
    if found.optimizer is None or found.optimizer.holdout_cases_file is None:
        return 0
    try:
        return len(load_eval_set(found.folder / found.optimizer.holdout_cases_file).cases)
    except SetupError:
        return 0  # the run does not need the file


def _name_file(file: Path, folder: Path) -> str:
    return file.relative_to(folder).as_posix() if file.is_relative_to(folder) else str(file)


def _find_version() -> str:
    try:
        return version("promptiter")
    except PackageNotFoundError:
        return "unknown"
