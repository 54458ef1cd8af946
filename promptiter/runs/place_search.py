"""Finds where the text of a surface is stored if `sources` does not name a place.

The text must be in exactly one place of the folders of the agent's modules: a Python literal, a YAML or JSON field, a
Markdown section or a whole file.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from promptiter.errors import SetupError
from promptiter.runs.event_file import FILE_NAME as JOURNAL
from promptiter.sources import FileSource, json_field, markdown_section, python_literal, yaml_field
from promptiter.sources.place import MARKDOWN
from promptiter.sources.whitespace import find_readers
from promptiter.wording import join_names, path_from_here, shorten
from traces.model import Json

MAX_FILES = 2_000
MAX_BYTES = 1_000_000
MAX_PLACES = 4
"""Maximum number of places that an error lists."""

_SKIPPED = frozenset(("__pycache__", "node_modules", "site-packages", "venv", "env", "build", "dist"))
_TEXT = (".txt", ".prompt", ".j2", ".jinja", ".jinja2", ".tmpl")
_LISTS = {
    ".py": (":", python_literal.list_strings),
    ".yaml": (":", yaml_field.list_strings),
    ".yml": (":", yaml_field.list_strings),
    ".json": (":", json_field.list_strings),
    **dict.fromkeys(MARKDOWN, ("#", markdown_section.list_sections)),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """Where a run comes from: the folder of its configuration, and the files and folders to search for its texts."""

    folder: Path
    roots: tuple[Path, ...] = ()
    excluded: tuple[Path, ...] = ()

    def relate(self, path: Path) -> str:
        """A path as it is written in the configuration."""
        return os.path.relpath(path, self.folder)


class PlaceIndex:
    """All texts of a project, with their places. Reads the files once."""

    def __init__(self, project: Project) -> None:
        self._project = project
        self._texts: list[tuple[str, str]] | None = None

    def find(self, surface_id: str, value: Json, *, new: Json) -> str:
        """The only place with this value, or else with the new one: it was applied before.

        SetupError says what to write in the configuration if there is not one.
        """
        if not self._project.roots:
            raise self._error(surface_id, "the module of the agent is unknown")
        if not isinstance(value, str) or not value.strip():
            raise self._error(surface_id, f"only texts are found by themselves, and its value is {shorten(value)}")
        if self._texts is None:
            self._texts = list(_list_texts(self._project))
        found = self._list_places(value) or (self._list_places(new) if isinstance(new, str) else [])
        if not found:
            where = join_names([str(path_from_here(root)) for root in self._project.roots])
            raise self._error(
                surface_id,
                f"its text is not found in {where}: it was edited, or code puts it together, as in an f-string",
            )
        if len(found) > 1:
            raise self._error(
                surface_id, f"its text is in {len(found)} places: {join_names(found, limit=MAX_PLACES)}", found[0]
            )
        return found[0]

    def _list_places(self, value: str) -> list[str]:
        return [place for place, text in self._texts or () if _is_stored(value, text)]

    def _error(self, surface_id: str, problem: str, example: str = "prompts/bot.md") -> SetupError:
        return SetupError(
            f"{surface_id}: {problem}. Say where it is under `sources` in promptiter.yaml, such as "
            f"`{surface_id}: {example}`, or with --source '{surface_id}={example}'"
        )


def refuse_shared(surface_id: str, value: Json, others: Iterable[str]) -> None:
    """Raise SetupError if other surfaces, which keep or get the value, may be stored in the same place."""
    names = sorted(others)
    if names:
        raise SetupError(
            f"{surface_id}: {join_names(names, limit=MAX_PLACES)} has or gets the same value "
            f"{shorten(value, limit=40)}, and perhaps the same place. Say where each of them is under `sources` in "
            "promptiter.yaml"
        )


def find_files(project: Project, values: Sequence[str]) -> list[Path]:
    """The files of a project, other than code, that hold one of these values."""
    return [
        file
        for file in _list_files(project)
        if file.suffix.lower() != ".py"
        and any(_is_stored(value, text) for _, text in _read_texts(project, file) for value in values)
    ]


def _is_stored(value: str, text: str) -> bool:
    return text == value or bool(find_readers(text, value))


def _list_texts(project: Project) -> Iterator[tuple[str, str]]:
    for file in _list_files(project):
        yield from _read_texts(project, file)


def _read_texts(project: Project, file: Path) -> Iterator[tuple[str, str]]:
    """The texts of a file, with their places."""
    try:
        text = FileSource(file).decode(file.read_bytes())
    except (OSError, SetupError):
        return
    name, suffix = project.relate(file), file.suffix.lower()
    if suffix in _LISTS:
        mark, list_values = _LISTS[suffix]
        yield from ((f"{name}{mark}{field}", value) for field, value in list_values(text))
    if suffix in (*MARKDOWN, *_TEXT):
        yield name, text


def _list_files(project: Project) -> Sequence[Path]:
    found: dict[Path, None] = {}
    excluded = {path.resolve() for path in project.excluded}
    for root in project.roots:
        for folder, names, files in os.walk(root):
            if JOURNAL in files:  # a run, which has copies of all texts
                names.clear()
                continue
            names[:] = sorted(
                name
                for name in names
                if name not in _SKIPPED and not name.startswith(".") and (Path(folder) / name).resolve() not in excluded
            )
            for name in sorted(files):
                file = (Path(folder) / name).resolve()
                if file.suffix.lower() in (*_LISTS, *_TEXT) and file not in excluded and _is_small(file):
                    found[file] = None
            if len(found) > MAX_FILES:
                raise SetupError(
                    f"{str(root)!r} has more than {MAX_FILES:,} files to search; say where each surface is under "
                    "`sources` in promptiter.yaml"
                )
    return list(found)


def _is_small(file: Path) -> bool:
    try:
        return file.is_file() and file.stat().st_size <= MAX_BYTES
    except OSError:
        return False
