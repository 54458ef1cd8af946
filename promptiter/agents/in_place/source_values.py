"""Conversion between surface values and the bytes of their sources."""

from __future__ import annotations

from dataclasses import replace

import orjson

from promptiter.errors import SetupError
from promptiter.sources import FileSource, Source
from promptiter.structure import SURFACE_TYPES, TEXT_TYPES, StructureSnapshot, Surface
from promptiter.wording import shorten
from traces.model import Json


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


def encode_value(value: Json) -> str:
    """The text of a surface value in its source."""
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def decode_value(surface: Surface, text: str) -> Json:
    """The value that a text stands for: itself, or JSON if the surface does not hold text."""
    if surface.type in TEXT_TYPES:
        return text
    if surface.type == "model":
        return text.strip()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SetupError(f"the source of {surface.id!r} must hold JSON, holds {shorten(text)}: {error}") from error
