"""Axes: the places of agent.yaml that may change, and the surfaces of the agent that they are.

    model.temperature                  agent#parameter.temperature
    model.name                         agent#model
    tools[name=archive].top_k          agent#parameter.archive.top_k
    tools[name=archive].enabled        agent#parameter.archive.enabled
    tools[name=subtract].description   agent#tool.subtract
    instructions.inline                agent#instruction

The id of a surface is a path, too: an agent of your own may have several nodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from promptiter.config.agent_yaml.sections import NumericAxis, TextualAxis
from promptiter.errors import SetupError, SurfaceValueError, nearest
from promptiter.structure import TEXT_TYPES, Limits, StructureSnapshot, Surface

_TOOL = re.compile(r"tools\[(?:name=)?([^\]]+)\]\.(\w+)")
_MODEL = re.compile(r"model\.(\w+)")
_INSTRUCTIONS = ("instructions", "instructions.inline", "instructions.file")

INGESTION = frozenset(("chunking_strategy", "max_chunk_tokens", "contextual_embeddings", "embedding_model"))
"""Settings that need the documents to be ingested again for each value."""


def find_surface(path: str, structure: StructureSnapshot) -> Surface:
    """The surface of a path. SetupError if there is none, or several."""
    if "#" in path:
        return structure.surface(path)
    wanted = _find_suffix(path)
    found = [each for each in structure.surfaces if each.id.partition("#")[2] == wanted]
    if len(found) == 1:
        return found[0]
    known = [name for each in structure.surfaces if (name := name_path(each)) is not None]
    if not found:
        raise SetupError(f"the agent has no {path!r}{nearest(path, known)}; it has {', '.join(known)}")
    raise SetupError(f"{path!r} is in several nodes; name one of {', '.join(each.id for each in found)}")


def name_path(surface: Surface) -> str | None:
    """The path of a surface in agent.yaml; None if it has none there."""
    match surface.type:
        case "instruction":
            return "instructions.inline"
        case "model":
            return "model.name"
        case "tool":
            return f"tools[name={surface.part}].description"
        case "parameter":
            tool, dot, setting = surface.part.rpartition(".")
            return f"tools[name={tool}].{setting}" if dot else f"model.{surface.part}"
    return None


def build_limits(axis: NumericAxis | TextualAxis, surface: Surface) -> Limits:
    """What new values of an axis must respect. SetupError says what is wrong with the axis."""
    limits = _limit_text(axis, surface) if isinstance(axis, TextualAxis) else _limit_number(axis, surface)
    try:
        Surface(node_id=surface.node_id, type=surface.type, part=surface.part, limits=limits).check(surface.value)
    except SurfaceValueError as error:
        raise SetupError(f"its current value is not allowed: {error.problem}; change the value or the axis") from error
    return limits


def resolve_axes(
    axes: Iterable[NumericAxis | TextualAxis], structure: StructureSnapshot
) -> tuple[dict[str, str], dict[str, Limits], list[str]]:
    """The surface ids of axes by path, the limits by surface id, and what is wrong with the others."""
    ids: dict[str, str] = {}
    limits: dict[str, Limits] = {}
    problems = []
    for axis in axes:
        try:
            surface = find_surface(axis.path, structure)
            found = build_limits(axis, surface)
        except SetupError as error:
            problems.append(f"{axis.path}: {error}")
            continue
        if surface.id in limits:
            problems.append(f"{axis.path}: is there twice; remove one of them")
        ids[axis.path], limits[surface.id] = surface.id, found
    return ids, limits, problems


def suggest_axes(structure: StructureSnapshot) -> dict[str, list[dict[str, object]]]:
    """A starter block: every number with a range around its value, every choice and switch, and every text."""
    numeric = [each for surface in structure.surfaces for each in _suggest_number(surface)]
    textual: list[dict[str, object]] = []
    for surface in structure.surfaces:
        if surface.type in TEXT_TYPES and isinstance(surface.value, str):
            room = max(200, 2 * len(surface.value))
            textual.append({"path": name_path(surface) or surface.id, "max_chars": -(-room // 100) * 100})
    return {"numeric": numeric, "textual": textual}


def _suggest_number(surface: Surface) -> Iterator[dict[str, object]]:
    path = name_path(surface) or surface.id
    if surface.type == "model" and surface.limits.choices:
        yield {"path": path, "type": "categorical", "choices": list(surface.limits.choices)}
    if surface.type != "parameter":
        return
    value = surface.value
    if isinstance(value, bool):
        yield {"path": path, "type": "bool"}
    elif surface.limits.choices:
        yield {"path": path, "type": "categorical", "choices": list(surface.limits.choices)}
    elif isinstance(value, int):
        yield {"path": path, "range": [max(1, value // 2), max(4, 3 * value)], "type": "int"}
    elif isinstance(value, float):
        is_share = 0 <= value <= 1
        yield {"path": path, "range": [0.0, 1.0] if is_share else [min(0.0, value / 2), max(1.0, 2 * value)]}


def _find_suffix(path: str) -> str:
    """What comes after the `#` in the id of a path's surface."""
    if path in _INSTRUCTIONS:
        return "instruction"
    if path == "model.name":
        return "model"
    if found := _MODEL.fullmatch(path):
        return f"parameter.{found[1]}"
    if found := _TOOL.fullmatch(path):
        tool, field = found.groups()
        return f"tool.{tool}" if field == "description" else f"parameter.{tool}.{field}"
    raise SetupError(
        f"{path!r} is not a path; write model.NAME, instructions.inline, tools[name=NAME].SETTING, "
        "tools[name=NAME].description, or the id of a surface"
    )


def _limit_text(axis: TextualAxis, surface: Surface) -> Limits:
    if surface.type not in TEXT_TYPES:
        raise SetupError(f"is not a text but a {surface.type}; move it to axes.numeric")
    if axis.max_chars is not None and len(str(surface.value)) > axis.max_chars:
        raise SetupError(f"max_chars is {axis.max_chars}, and the current text has {len(str(surface.value))}; raise it")
    return Limits(max_chars=axis.max_chars, placeholders=surface.limits.placeholders, locked=surface.limits.locked)


def _limit_number(axis: NumericAxis, surface: Surface) -> Limits:
    if surface.type not in ("parameter", "model"):
        raise SetupError(f"is a text, of type {surface.type}; move it to axes.textual")
    if (setting := surface.part.rpartition(".")[2]) in INGESTION and axis.rebuild is None:
        raise SetupError(f"{setting} needs new ingestion for each value; give the command that does it as rebuild")
    match axis.kind:
        case "categorical":
            if len(axis.choices) < 2:
                raise SetupError(f"has {len(axis.choices)} choices; list at least two as choices")
            return (
                Limits(kind="choice", choices=tuple(axis.choices))
                if surface.type == "parameter"
                else Limits(choices=tuple(axis.choices))
            )
        case "bool":
            return Limits(kind="boolean", choices=(False, True))
    if surface.type == "model":
        raise SetupError("is the name of a model; give type: categorical and choices")
    if axis.range is None:
        raise SetupError("has no range; give one, such as range: [0.0, 1.0]")
    low, high = axis.range
    if not low < high:
        raise SetupError(f"the range [{low:g}, {high:g}] is empty; the first number must be the smaller one")
    if axis.scale == "log" and low <= 0:
        raise SetupError(f"a log scale needs a range above 0, and it begins at {low:g}")
    if axis.kind == "int" and (not low.is_integer() or not high.is_integer()):
        raise SetupError(f"the range [{low:g}, {high:g}] of an int must have whole numbers")
    return Limits(kind="integer" if axis.kind == "int" else "number", minimum=low, maximum=high, scale=axis.scale)


def describe_limits(limits: Limits) -> str:
    """The values of an axis in a few words."""
    if limits.kind == "boolean":
        return "true or false"
    if limits.choices:
        return "one of " + ", ".join(map(str, limits.choices))
    if limits.minimum is not None and limits.maximum is not None:
        kind = "whole numbers " if limits.kind == "integer" else ""
        return f"{kind}{limits.minimum:g} to {limits.maximum:g}" + " (log scale)" * (limits.scale == "log")
    return "text" + ("" if limits.max_chars is None else f", at most {limits.max_chars} characters")
