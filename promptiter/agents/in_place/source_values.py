"""Conversion between surface values and the bytes of their sources."""

from __future__ import annotations

from dataclasses import replace

from promptiter.errors import SetupError
from promptiter.sources import FileSource, Source
from promptiter.structure import SURFACE_TYPES, StructureSnapshot, Surface
from promptiter.value_text import decode_value


def merge_surfaces(snapshot: StructureSnapshot, surfaces: tuple[Surface, ...]) -> StructureSnapshot:
    """The structure with the values of the sources; surfaces that it does not have are added."""
    outside = {surface.id: surface for surface in surfaces}
    known = tuple(
        replace(surface, value=outside.pop(surface.id).value) if surface.id in outside else surface
        for surface in snapshot.surfaces
    )
    return replace(snapshot, surfaces=(*known, *outside.values()))


def decode_surface(surface_id: str, text: str) -> Surface:
    """The surface with the value that its source holds as text."""
    surface = parse_surface_id(surface_id)
    return replace(surface, value=decode_value(surface, text))


def decode_bytes(source: Source, raw: bytes) -> str:
    """The text of a source whose bytes were saved."""
    return source.decode(raw) if isinstance(source, FileSource) else raw.decode()


def parse_surface_id(surface_id: str) -> Surface:
    """The surface with this id, without a value. SetupError if it is not one."""
    node_id, _, name = surface_id.partition("#")
    kind, _, part = name.partition(".")
    if not node_id or kind not in SURFACE_TYPES:
        raise SetupError(
            f"{surface_id!r} is not a surface id: write node#type or node#type.part, "
            f"where type is one of {', '.join(SURFACE_TYPES)}"
        )
    return Surface(node_id=node_id, type=kind, part=part)
