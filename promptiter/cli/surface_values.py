"""Values of surfaces from the command line: `SURFACE=VALUE`, `SURFACE=@FILE`, and texts written in an editor."""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import orjson

from promptiter.errors import SetupError
from promptiter.sources import FileSource
from promptiter.structure import StructureSnapshot, Surface
from traces.model import Json


def parse_settings(given: Iterable[str], snapshot: StructureSnapshot) -> dict[str, Json]:
    """Parse `SURFACE=VALUE` and `SURFACE=@FILE`. Values that are not text are JSON, such as `0.2`."""
    values: dict[str, Json] = {}
    for each in given:
        name, sign, text = each.partition("=")
        if not sign:
            raise SetupError(f"--set {each!r} has no value; write SURFACE=VALUE, or SURFACE=@FILE")
        surface = snapshot.surface(name)
        if name in values:
            raise SetupError(f"--set gives {name!r} two values; give one")
        values[name] = _parse(FileSource(text[1:]).read() if text.startswith("@") else text, surface, surface.value)
    return values


def edit_value(surface: Surface, current: Json, *, environ: Mapping[str, str] | None = None) -> Json:
    """Open the value of a surface in the user's editor, and return what was saved."""
    environ = os.environ if environ is None else environ
    editor = environ.get("VISUAL") or environ.get("EDITOR")
    if not editor:
        raise SetupError("--edit needs an editor; set $VISUAL or $EDITOR, or use --set SURFACE=@FILE")
    text = current if isinstance(current, str) else orjson.dumps(current, option=orjson.OPT_INDENT_2).decode()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / ("value.md" if isinstance(current, str) else "value.json")
        file.write_text(text, encoding="utf-8")
        try:
            done = subprocess.run([*shlex.split(editor), str(file)], check=False)
        except (OSError, ValueError) as error:
            raise SetupError(f"the editor {editor!r} cannot be started: {error}") from error
        if done.returncode:
            raise SetupError(f"the editor {editor!r} ended with exit code {done.returncode}; nothing was tried")
        return _parse(FileSource(file).read(), surface, current)


def _parse(text: str, surface: Surface, current: Json) -> Json:
    """A text as the value of a surface. Editors end a file with a line break, which is dropped unless it had one."""
    if isinstance(current, str):
        return text if current.endswith("\n") else text.removesuffix("\n")
    try:
        value: Json = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise SetupError(f"the value of {surface.id!r} is not valid JSON: {error}") from error
    return value
