"""Run folders in the layout of AWP: what a seed or an iteration left, read from its files.

    run_completion.json             task, final_budget, evaluation; iterations that we run are written in the same shape
    iterations/<k>/critique.json    defects
    logs/<run_id>/events.jsonl      gate rejections; also beside the folder of runs, or as events.jsonl in the run

The files are written by other programs, also by older releases. What is missing or has another type is left out.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import cast

import orjson

from promptiter.errors import SetupError
from promptiter.numbers import is_number
from promptiter.tasks.refine.deliverables import can_name_folder
from promptiter.tasks.refine.gradient import LAST_REJECTIONS
from promptiter.tasks.refine.records import Defect, GateRejection, MetricValue, ModelPair, ObservedUse, RunRecord
from traces.files import write_file
from traces.model import Json

logger = logging.getLogger(__name__)

COMPLETION = "run_completion.json"
EVENTS = "events.jsonl"


def read_run(run_dir: Path) -> RunRecord:
    """Read a finished run. SetupError if the folder has no readable run_completion.json."""
    completion = _read_completion(run_dir / COMPLETION)
    run_id = _text(completion.get("run_id")) or run_dir.absolute().name
    budget = _mapping(completion.get("final_budget"))
    return RunRecord(
        run_id=run_id,
        task=_text(completion.get("task")),
        status=_text(completion.get("status")) or "completed",
        parent_run_id=_text(completion.get("parent_run_id")),
        defects=tuple(_read_defects(run_dir, completion)),
        rejections=_read_rejections(find_events(run_dir, run_id)),
        metrics=tuple(_read_metrics(_mapping(completion.get("evaluation")))),
        use=read_use(budget, elapsed_s=completion.get("wall_time_s")),
        models=_read_models(completion),
    )


def write_run(run_dir: Path, record: RunRecord) -> Path:
    """Write the run_completion.json of a run, in the shape that `read_run` reads."""
    metrics, use = record.metrics, record.use
    used: dict[str, tuple[str, str, Json]] = {
        "loops": ("used", "max", use.loops),
        "workers": ("spawned", "max", use.workers),
        "tokens": ("consumed", "max", use.tokens),
        "tool_calls": ("used", "max", use.tool_calls),
        "wall_time": ("elapsed_s", "max_s", use.wall_time_s),
        "depth": ("used", "max", use.max_depth),
    }
    document: Json = {
        "run_id": record.run_id,
        "parent_run_id": record.parent_run_id,
        "task": record.task,
        "status": record.status,
        "models": {"manager": record.models.manager, "worker": record.models.worker},
        "final_budget": {
            name: {(cap if name == "depth" else key): value}
            for name, (key, cap, value) in used.items()
            if value is not None
        },
        "evaluation": {
            "per_metric": {each.name: each.value for each in metrics},
            "thresholds": {each.name: each.threshold for each in metrics if each.threshold is not None},
            "weights": {each.name: each.weight for each in metrics if each.weight != 1.0},
        },
        "critique": {
            "defects": [
                {"summary": each.description, "severity": each.severity}
                | {name: text for name in ("category", "location") if (text := getattr(each, name))}
                for each in record.defects
            ]
        },
    }
    raw = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    write_file(run_dir / COMPLETION, raw)
    return run_dir / COMPLETION


def read_use(budget: Mapping[str, Json], *, elapsed_s: Json = None) -> ObservedUse:
    """What a run used, from its final budget: nested with what was used, or the flat caps of older releases."""
    return ObservedUse(
        loops=_whole(_find(budget, "loops", ("used", "max"), "max_loops")),
        workers=_whole(_find(budget, "workers", ("spawned", "used", "max"), "max_total_workers")),
        tool_calls=_whole(_find(budget, "tool_calls", ("used", "max"), "max_tool_calls")),
        tokens=_whole(_find(budget, "tokens", ("consumed", "used", "max"), "max_total_tokens")),
        wall_time_s=_amount(
            elapsed_s
            if _amount(elapsed_s) is not None
            else _find(budget, "wall_time", ("elapsed_s", "max_s"), "max_wall_time")
        ),
        max_depth=_whole(_find(budget, "depth", ("max",), "max_depth")),
    )


def find_events(run_dir: Path, run_id: str) -> Path | None:
    """The events of a run: logs/<run_id>/events.jsonl in its folder or in one above it, or events.jsonl in its own."""
    run_dir = run_dir.absolute()
    if can_name_folder(run_id):
        for folder in (run_dir, *run_dir.parents):
            if (file := folder / "logs" / run_id / EVENTS).is_file():
                return file
    return file if (file := run_dir / EVENTS).is_file() else None


def _read_completion(file: Path) -> Mapping[str, Json]:
    try:
        document = orjson.loads(file.read_bytes())
    except OSError as error:
        raise SetupError(
            f"{str(file)!r} cannot be read: {error.strerror}; name the folder of a finished run"
        ) from error
    except orjson.JSONDecodeError as error:
        raise SetupError(f"{str(file)!r} is not JSON: {error}; name the folder of a finished run") from error
    if not isinstance(document, dict):
        raise SetupError(f"{str(file)!r} must be a JSON object; name the folder of a finished run")
    return document


def _read_defects(run_dir: Path, completion: Mapping[str, Json]) -> list[Defect]:
    """The defects of all critiques; if there are none, those of run_completion.json."""
    found = [defect for file in _list_critiques(run_dir) for defect in _read_critique(file)]
    return found or list(_parse_defects(_mapping(completion.get("critique")).get("defects")))


def _list_critiques(run_dir: Path) -> list[Path]:
    def order(file: Path) -> tuple[int, str]:
        name = file.parent.name
        return (int(name) if name.isascii() and name.isdigit() else 1 << 30), name

    return sorted(filter(Path.is_file, run_dir.glob("iterations/*/critique.json")), key=order)


def _read_critique(file: Path) -> Iterator[Defect]:
    try:
        document = _mapping(orjson.loads(file.read_bytes()))
    except (OSError, orjson.JSONDecodeError) as error:
        logger.warning("the critique %s is skipped: %s", file, error)
        return
    for critique in _list(document.get("critiques")):
        yield from _parse_defects(_mapping(critique).get("defects"))


def _parse_defects(given: Json) -> Iterator[Defect]:
    for each in map(_mapping, _list(given)):
        description = _text(each.get("description")) or _text(each.get("summary"))
        if description:
            rest = {name: _text(each.get(name)) for name in ("severity", "category", "location")}
            yield Defect(description=description, **rest)


def _read_rejections(file: Path | None) -> tuple[GateRejection, ...]:
    """The last gate rejections of the events. Lines that are not events are skipped."""
    last: deque[GateRejection] = deque(maxlen=LAST_REJECTIONS)
    if file is None:
        return ()
    with file.open("rb") as lines:
        for line in lines:
            if b"gate" not in line:
                continue
            try:
                event = _mapping(orjson.loads(line))
            except orjson.JSONDecodeError:
                continue
            if (rejection := _parse_rejection(event)) is not None:
                last.append(rejection)
    return tuple(last)


def _parse_rejection(event: Mapping[str, Json]) -> GateRejection | None:
    fields = _mapping(event.get("fields"))
    if event.get("category") == "gate" and fields.get("triggered") is True:
        return GateRejection(gate=_text(fields.get("gate")), reason=_text(fields.get("reason")))
    if event.get("type") == "gate.reject":
        return GateRejection(gate=_text(event.get("gate")), reason=_text(event.get("reason")))
    return None


def _read_metrics(evaluation: Mapping[str, Json]) -> Iterator[MetricValue]:
    thresholds, weights = _mapping(evaluation.get("thresholds")), _mapping(evaluation.get("weights"))
    for name, given in sorted(_mapping(evaluation.get("per_metric")).items()):
        inner = _mapping(given)
        value = _number(inner.get("score", inner.get("value")) if inner else given)
        if value is None:
            continue
        weight = _number(weights.get(name))
        yield MetricValue(
            name=name,
            value=value,
            threshold=_number(thresholds.get(name)),
            weight=1.0 if weight is None or weight < 0 else weight,
        )


def _read_models(completion: Mapping[str, Json]) -> ModelPair:
    models = _mapping(completion.get("models"))
    both = _text(completion.get("model"))
    return ModelPair(
        manager=_text(models.get("manager")) or _text(completion.get("manager_model")) or both,
        worker=_text(models.get("worker")) or _text(completion.get("worker_model")) or both,
    )


def _find(budget: Mapping[str, Json], name: str, keys: tuple[str, ...], flat: str) -> Json:
    """The first number of a nested entry, or the flat one."""
    entry = _mapping(budget.get(name))
    found = (entry.get(key) for key in keys)
    return next((each for each in found if _number(each) is not None), budget.get(flat, budget.get(f"{flat}_s")))


def _mapping(value: Json) -> Mapping[str, Json]:
    return cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else {}


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _text(value: Json) -> str:
    return value.strip() if isinstance(value, str) else ""


def _number(value: Json) -> float | None:
    return float(value) if is_number(value) else None


def _amount(value: Json) -> float | None:
    number = _number(value)
    return None if number is None or number < 0 else number


def _whole(value: Json) -> int | None:
    amount = _amount(value)
    return None if amount is None else int(amount)
