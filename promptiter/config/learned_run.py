"""The run that validates what was learned from traces: that of promptiter.yaml, with the learned patches as its search.

Cases from the traces join the user's own: those that taught the patches join the train set, the others validation.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from promptiter.config.file import FILE_NAME, ParsedConfig, RunConfig, merge_settings, read_document
from promptiter.config.search import find_models_of_stages
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.llm.budget import Budget, Budgets
from promptiter.tasks.lesson_files import LEARNED_CASES, OTHER_CASES, PATCHES
from traces.model import Json, digest


def read_learned_run(
    parsed: ParsedConfig,
    folder: Path,
    *,
    metrics: Sequence[Json] | None = None,
    budget: Budget | Budgets | None = None,
) -> ParsedConfig:
    """The configuration of the run that validates the lessons of a folder. Of the `budget` it gets what is left.

    `metrics` are those of a configuration without any.

    The run reads copies of the patches and cases that are named by their content, so that it can be resumed and re-run
    after something else was learned.
    """
    learned, others = (
        _copy(file) if (file := folder / name).exists() else None for name in (LEARNED_CASES, OTHER_CASES)
    )
    changed: dict[str, Json] = {
        "search": {"name": "learned_patches", "options": {"patches": str(_copy(folder / PATCHES).absolute())}},
        **_add_sets(parsed.config, learned, others),
    }
    if metrics is not None:
        changed["metrics"] = list(metrics)
    if left := find_budget_left(budget):
        changed["budget"] = left
    settings = merge_settings(parsed.settings, changed)
    return read_document(parsed.document, file=parsed.file or Path(FILE_NAME), settings=settings)


def choose_metrics(config: RunConfig, folder: Path) -> list[dict[str, Json]]:
    """Metrics for a configuration without any, by the references of the cases. None fits if the list is empty.

    Answers that are JSON are compared as such. Whether others mean the same, a judge is asked, if there is a model.
    """
    files = [file for name in (LEARNED_CASES, OTHER_CASES) if (file := folder / name).exists()]
    cases = [case for file in files for case in load_eval_set(file).cases]
    references = [turn.expected for case in cases for turn in case.turns if turn.expected is not None]
    if not references:
        return []
    if all(map(_is_json, references)):
        return [{"metric_name": "json_match"}]
    model = config.judge or next(iter(sorted(find_models_of_stages(config).values())), None)
    if model is None:
        return []
    return [
        {"metric_name": "llm_final_response", "criterion": {"llm_judge": {"judge_model": {"model_name": model}}}},
    ]


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict | list)
    except ValueError:
        return False


def _copy(file: Path) -> Path:
    content = file.read_bytes()
    copy = file.with_stem(f"{file.stem}-{digest(content)[:8]}")
    copy.write_bytes(content)
    return copy


def find_budget_left(budget: Budget | Budgets | None) -> dict[str, Json]:
    """What is left of each cap, by name."""
    if not isinstance(budget, Budget):
        return {}
    spent = {"max_calls": budget.state.calls, "max_tokens": budget.state.tokens, "max_usd": budget.state.cost_usd}
    return {name: max(0, cap - spent[name]) for name, cap in asdict(budget.caps).items() if cap is not None}


def has_cases_to_show(config: RunConfig, folder: Path) -> bool:
    """Whether the run has cases that can show a fault: of the user, or of runs that failed."""
    own = config.train or config.validation or config.cases or config.data
    return bool(own) or (folder / LEARNED_CASES).exists()


def list_own_cases(config: RunConfig) -> Iterable[EvalCase]:
    """All cases of the user's own eval sets."""
    files = (*config.train, *config.validation, *config.cases, *config.test, *config.data)
    return (case for file in files for case in load_eval_set(file).cases)


def _add_sets(config: RunConfig, learned: Path | None, others: Path | None) -> Mapping[str, Json]:
    new = [str(each.absolute()) for each in (learned, others) if each is not None]
    if config.data:
        return {"data": [*map(str, config.data), *new]}
    if config.train and config.validation:
        added = {"train": learned, "validation": others}
        return {
            name: [*map(str, getattr(config, name)), str(file.absolute())]
            for name, file in added.items()
            if file is not None
        }
    return {"cases": [*map(str, config.cases), *new]}
