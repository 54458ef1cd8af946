"""The run that validates what was learned from traces: that of promptiter.yaml, with the learned patches as its search.

Cases from the traces join the user's own: those that taught the patches join the train set, the others validation.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from promptiter.config.file import FILE_NAME, ParsedConfig, RunConfig, merge_settings, read_document
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.data.evalset import load_eval_set
from promptiter.tasks.lesson_files import LEARNED_CASES, OTHER_CASES, PATCHES
from traces.model import Json


def read_learned_run(parsed: ParsedConfig, folder: Path) -> ParsedConfig:
    """The configuration of the run that validates the lessons of a folder."""
    learned, others = (file if (file := folder / name).exists() else None for name in (LEARNED_CASES, OTHER_CASES))
    changed: dict[str, Json] = {
        "search": {"name": "learned_patches", "options": {"patches": str((folder / PATCHES).absolute())}},
        **_add_sets(parsed.config, learned, others),
    }
    settings = merge_settings(parsed.settings, changed)
    return read_document(parsed.document, file=parsed.file or Path(FILE_NAME), settings=settings)


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
