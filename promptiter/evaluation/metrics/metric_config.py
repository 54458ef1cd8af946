"""Metric files: `test_config.json`, `*.metrics.json`, or the `evaluate` block of optimizer.json.

Everything is checked before anything is spent: an unknown key, a wrong type or an unset `${VAR}` is a MetricError that
names its place. Keys may be snake_case or camelCase; `metric_files` has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import orjson

from promptiter.errors import MetricError
from promptiter.evaluation.metrics.eval_config import EvalConfig
from traces.model import Json


def load_eval_config(path: str | os.PathLike[str], *, environ: Mapping[str, str] | None = None) -> EvalConfig:
    """Read a metric file. `environ` (default: that of the process) gives the values of `${VAR}`."""
    try:
        document = orjson.loads(Path(path).read_bytes())
    except OSError as error:
        raise MetricError(f"{path}: cannot be read: {error.strerror or error}") from error
    except orjson.JSONDecodeError as error:
        raise MetricError(f"{path}: is not valid JSON: {error}") from error
    return parse_eval_config(document, source=os.fspath(path), environ=environ)


def parse_eval_config(
    document: Json, *, source: str = "metrics", environ: Mapping[str, str] | None = None
) -> EvalConfig:
    """Read a document: an array of metrics, an EvalConfig, or an optimizer.json with an `evaluate` block."""
    from promptiter.evaluation.metrics.metric_files import read_metrics

    return read_metrics(document, source=source, environ=os.environ if environ is None else environ)
