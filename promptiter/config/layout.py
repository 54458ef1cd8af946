"""Builds the layout of a run's artifacts: `layout` and `output_dir` of promptiter.yaml."""

from __future__ import annotations

from typing import cast

from promptiter.config.file import ParsedConfig
from promptiter.config.optimizer_json.conversion import name_algorithm
from promptiter.engine.engine import DEFAULT_SEARCH
from promptiter.evaluation.data.evalset_yaml import read_yaml
from promptiter.llm.redaction import Redactor
from promptiter.runs.header import mask_secrets
from promptiter.runs.layout_001 import Layout001
from traces.model import Json


def build_layout(parsed: ParsedConfig, redactor: Redactor) -> Layout001 | None:
    """The layout that a configuration asks for, with a copy of its file that has no secrets."""
    config = parsed.config
    if config.layout is None:
        return None
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
