"""forecast.json: what a run was expected to take, written before it starts. `promptiter.forecast` makes it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from promptiter.runlog.codec import from_plain, to_plain
from promptiter.runs.cost_ranges import Cost, Figure, Range
from promptiter.runs.stage_costs import Stage
from traces.files import write_atomically

FILE_NAME = "forecast.json"
SCHEMA_VERSION = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a run is expected to take: in all, each stage over all rounds, and each node over all stages.

    `budget` says how many rounds the caps allow, and `needed` what the whole run would take of each figure that has a
    cap. `source` what the figures are based on, `runs` which earlier runs were
    used, and `notes` what is unknown or left out. `uncounted` are the models of `total.unpriced` whose price is known,
    but not how many tokens they take.
    """

    schema_version: int = SCHEMA_VERSION
    total: Cost
    rounds: Range
    stages: Mapping[Stage, Cost]
    nodes: Mapping[str, Cost]
    budget: tuple[str, ...] = ()
    needed: Mapping[Figure, Range] = field(default_factory=dict)
    source: str = ""
    runs: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def write_forecast(folder: str | os.PathLike[str], forecast: Forecast) -> Path:
    """Write forecast.json into the folder of a run, whole or not at all."""
    path = Path(folder) / FILE_NAME
    with write_atomically(path) as file:
        file.write(orjson.dumps(to_plain(forecast), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    return path


def read_forecast(folder: str | os.PathLike[str]) -> Forecast | None:
    """The forecast that a run was started with; None if there is none that can be read."""
    try:
        found: Forecast = from_plain(Forecast, orjson.loads((Path(folder) / FILE_NAME).read_bytes()))
    except (OSError, ValueError):
        return None
    return found
