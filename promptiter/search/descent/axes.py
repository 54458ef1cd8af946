"""The numeric axes of a run: targets that a study can search, with their bounds or choices.

Numbers with bounds, switches, and parameters and models with choices are axes. Texts and examples are not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from promptiter.errors import SetupError
from promptiter.structure import TEXT_TYPES, StructureSnapshot, Surface
from promptiter.wording import join_names
from traces.model import Json

AxisKind: TypeAlias = Literal["number", "integer", "choice"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One surface that a study searches: a number from `minimum` to `maximum`, or one of the `choices`."""

    surface_id: str
    kind: AxisKind
    minimum: float = 0.0
    maximum: float = 1.0
    is_log: bool = False
    choices: tuple[Json, ...] = ()

    def describe(self) -> str:
        """`agent#parameter.top_k: whole number from 3 to 20`."""
        if self.kind == "choice":
            return f"{self.surface_id}: {' | '.join(str(each) for each in self.choices)}"
        what = "whole number" if self.kind == "integer" else "number"
        return f"{self.surface_id}: {what} from {self.minimum:g} to {self.maximum:g}{', log scale' * self.is_log}"


def find_axes(snapshot: StructureSnapshot, targets: Iterable[str]) -> tuple[Axis, ...]:
    """The axes among the targets, in the order of the structure.

    Raises SetupError if a target is a number without bounds, or a model or parameter without choices.
    """
    wanted = frozenset(targets)
    surfaces = [each for each in snapshot.surfaces if each.id in wanted and each.type in ("parameter", "model")]
    axes = [_build_axis(each) for each in surfaces]
    unbounded = [surface.id for surface, axis in zip(surfaces, axes, strict=True) if axis is None]
    if unbounded:
        raise SetupError(
            f"{join_names(unbounded)}: a study needs a minimum and a maximum, or choices, to search a value; "
            "declare them, such as Parameter(value=0.5, minimum=0, maximum=1), or leave it out of the targets"
        )
    return tuple(axis for axis in axes if axis is not None and not _is_fixed(axis))


def choose_axes(snapshot: StructureSnapshot) -> tuple[str, ...]:
    """All surfaces that can be axes: what has no bounds or choices is left out."""
    axes = [_build_axis(each) for each in snapshot.surfaces if each.is_setting]
    return tuple(axis.surface_id for axis in axes if axis is not None and not _is_fixed(axis))


def find_texts(snapshot: StructureSnapshot, targets: Iterable[str]) -> tuple[str, ...]:
    """The targets that hold text, in the order of the structure."""
    wanted = frozenset(targets)
    return tuple(each.id for each in snapshot.surfaces if each.id in wanted and each.type in TEXT_TYPES)


def find_examples(snapshot: StructureSnapshot, targets: Iterable[str]) -> tuple[str, ...]:
    """The targets that hold few-shot examples, in the order of the structure."""
    wanted = frozenset(targets)
    return tuple(each.id for each in snapshot.surfaces if each.id in wanted and each.type == "examples")


def describe_no_targets(snapshot: StructureSnapshot, phases: Iterable[str]) -> str:
    """Say that no target can be changed by these kinds of phases, and which surfaces could be targets."""
    kinds = {"numeric": "a number with bounds, a switch or a choice", "textual": "a text", "examples": "examples"}
    names = [*phases]
    known = [each.id for each in snapshot.surfaces if each.type in ("parameter", "model")] if "numeric" in names else []
    advice = f"; list some as targets, such as {join_names(known, limit=3)}" if known else ""
    return f"no target is {' or '.join(kinds[each] for each in names)}{advice}"


def _build_axis(surface: Surface) -> Axis | None:
    limits = surface.limits
    if limits.choices:
        return Axis(surface_id=surface.id, kind="choice", choices=limits.choices)
    if limits.kind == "boolean":
        return Axis(surface_id=surface.id, kind="choice", choices=(False, True))
    if surface.type == "model" or limits.minimum is None or limits.maximum is None:
        return None
    return Axis(
        surface_id=surface.id,
        kind="integer" if limits.kind == "integer" else "number",
        minimum=limits.minimum,
        maximum=limits.maximum,
        is_log=limits.scale == "log",
    )


def _is_fixed(axis: Axis) -> bool:
    """Whether an axis has a single value."""
    return len(axis.choices) == 1 if axis.kind == "choice" else axis.minimum == axis.maximum
