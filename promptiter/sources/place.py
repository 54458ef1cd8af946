"""Places: where the value of a surface is stored, as text.

prompts/planner.md                  a whole file
prompts.md#Planner                  a Markdown section
config.yaml:agents.planner.prompt   a YAML or JSON field
support_desk.py:PLANNER             a Python literal
my_store:planner                    a source of your own, as module:attr
"""

from __future__ import annotations

from pathlib import Path

from promptiter.errors import SetupError
from promptiter.references import is_reference, load_reference
from promptiter.sources.callback import Source
from promptiter.sources.field import Field, FieldSource
from promptiter.sources.file import FileSource
from promptiter.sources.json_field import JsonField
from promptiter.sources.markdown_section import MarkdownSection
from promptiter.sources.python_literal import PythonLiteral
from promptiter.sources.yaml_field import YamlField
from promptiter.wording import shorten

FIELDS: dict[str, type[YamlField | JsonField | PythonLiteral]] = {
    ".yaml": YamlField,
    ".yml": YamlField,
    ".json": JsonField,
    ".py": PythonLiteral,
}
"""The formats with fields, by the ending of a file."""
MARKDOWN = (".md", ".markdown", ".mdx")


def open_place(place: str, *, folder: Path, encoding: str | None = None) -> Source:
    """The source that a place names. Paths are relative to the folder. SetupError if it is not a place."""
    file, field = parse_place(place)
    if file is None:
        return _load_source(place)
    path = folder / file
    return FileSource(path, encoding=encoding) if field is None else FieldSource(path, encoding=encoding, inside=field)


def parse_place(place: str) -> tuple[str | None, Field | None]:
    """The file and the field of a place; no file if it is `module:attr`."""
    for mark in (":", "#"):
        at = place.find(mark)
        while at > 0:
            file, rest = place[:at], place[at + 1 :]
            suffix = Path(file).suffix.lower()
            if mark == ":" and suffix in FIELDS and rest:
                return file, FIELDS[suffix](rest)
            if mark == "#" and suffix in MARKDOWN and rest:
                return file, MarkdownSection(rest)
            at = place.find(mark, at + 1)
    if is_reference(place):
        return None, None
    if not place.strip() or place.endswith((":", "#")):
        raise SetupError(
            f"{place!r} is not a place; write a file, prompts.md#Heading, config.yaml:field or module.py:NAME"
        )
    return place, None


def _load_source(reference: str) -> Source:
    source = load_reference(reference, what="source")
    if not hasattr(source, "read") and callable(source):
        source = source()
    if not callable(getattr(source, "read", None)) or not callable(getattr(source, "write", None)):
        raise SetupError(f"{reference!r} is {shorten(source)}, not a source; use CallbackSource(read, write)")
    return source  # type: ignore[no-any-return]
