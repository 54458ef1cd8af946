"""Patterns of paths in a workspace: `*` and `?` stay within a folder, `**` does not. Links are never followed."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from promptiter.errors import SetupError

_WILDCARD = re.compile(r"[*?\[]")


def has_wildcard(pattern: str) -> bool:
    """Whether a pattern may match several paths."""
    return _WILDCARD.search(pattern) is not None


def matches(path: str, patterns: Collection[str]) -> bool:
    """Whether a relative path matches one of the patterns. A pattern that names a folder matches what is in it."""
    return any(_compile(pattern).fullmatch(path) is not None for pattern in patterns)


def find_escape(path: str) -> str | None:
    """Why a relative path may lead out of a workspace; None if it cannot, except through a link."""
    parts = path.split("/")
    if not path or path.startswith("/"):
        return "is not relative to the workspace"
    if ".." in parts:
        return "leaves the workspace with '..'"
    return "has an empty or '.' part" if not all(parts) or "." in parts else None


def find_link(root: Path, path: str) -> str | None:
    """The first part of a path below root that is a symbolic link; None if none is."""
    place = root
    for part in path.split("/"):
        place = place / part
        if place.is_symlink():
            return place.relative_to(root).as_posix()
    return None


def list_files(root: Path, patterns: Collection[str], *, without: Collection[str] = ()) -> Iterator[str]:
    """Yield the regular files below root that match a pattern, sorted. Links, and folders in `without`, are skipped."""
    starts = {_find_start(pattern) for pattern in patterns}
    if any(not start for start in starts):
        starts = {""}
    found = {path for start in starts for path in _walk(root, start, without) if matches(path, patterns)}
    yield from sorted(found)


def _find_start(pattern: str) -> str:
    """The folder that all paths of a pattern are in; empty for the root."""
    fixed: list[str] = []
    for part in pattern.split("/"):
        if has_wildcard(part):
            break
        fixed.append(part)
    else:
        return pattern.rstrip("/")
    return "/".join(fixed)


def _walk(root: Path, start: str, without: Collection[str]) -> Iterator[str]:
    top = root / start
    if start and find_link(root, start) is not None:
        return
    if start and top.is_file():
        yield start
        return
    for folder, names, files in os.walk(top):
        below = Path(folder).relative_to(root).as_posix()
        prefix = "" if below == "." else f"{below}/"
        names[:] = [each for each in names if f"{prefix}{each}" not in without and not Path(folder, each).is_symlink()]
        for name in files:
            place = Path(folder, name)
            if f"{prefix}{name}" not in without and not place.is_symlink() and place.is_file():
                yield f"{prefix}{name}"


@cache
def _compile(pattern: str) -> re.Pattern[str]:
    parts = pattern.removeprefix("./").rstrip("/").split("/")
    text = ""
    for at, part in enumerate(parts):
        is_last = at == len(parts) - 1
        if part == "**":
            text += ".*" if is_last else "(?:[^/]+/)*"
        else:
            text += _translate(part) + ("" if is_last else "/")
    inside = "" if parts[-1] == "**" else "(?:/.*)?"
    try:
        return re.compile(text + inside, re.DOTALL)
    except re.error as error:
        raise SetupError(f"the pattern {pattern!r} is invalid: {error.msg}; correct what is in brackets") from error


def _translate(part: str) -> str:
    """One part of a pattern as a regular expression."""
    text, at = "", 0
    while at < len(part):
        character = part[at]
        end = part.find("]", at + 2) if character == "[" else -1
        if character == "*":
            text += "[^/]*"
        elif character == "?":
            text += "[^/]"
        elif end > 0:
            inside = part[at + 1 : end].replace("\\", r"\\")
            text += f"[^/{inside[1:]}]" if inside[0] in "!^" else f"[{inside}]"
            at = end
        else:
            text += re.escape(character)
        at += 1
    return text
