"""applied.json: what applying a run replaced, byte for byte, so that it can be reverted at any time.

It is written into the folder of the run before the first file is changed. It says what the files held before and after,
not whether they were changed: that is what they hold now.
"""

from __future__ import annotations

import base64
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import orjson

from promptiter.errors import EditedSourceError, SetupError
from promptiter.runs.apply_plan import ApplyPlan, PlannedCallback, PlannedFile, read_callback
from promptiter.sources import FileSource, Source
from promptiter.wording import path_from_here, shorten
from traces import digest

FILE_NAME = "applied.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedFile:
    """A file: its content before, and the hash of its content after the change, which `created` parts of its path."""

    path: Path
    surface_ids: tuple[str, ...]
    before: bytes = field(repr=False)
    after_digest: str
    encoding: str | None = None
    created: int = 0

    @property
    def is_applied(self) -> bool:
        """Whether the file has the content that was applied."""
        current = self.read()
        return current is not None and digest(current) == self.after_digest

    def read(self) -> bytes | None:
        """The content of the file now; None if it is missing or cannot be read."""
        try:
            return self.path.read_bytes()
        except OSError:
            return None


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedCallback:
    """A value behind a callback, before and after."""

    surface_id: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedRun:
    """What applying a run replaced."""

    files: tuple[AppliedFile, ...] = ()
    callbacks: tuple[AppliedCallback, ...] = ()

    def merge(self, plan: ApplyPlan) -> AppliedRun:
        """Add what a plan replaces. A file that was changed before keeps its first content."""
        known = {each.path: each for each in self.files}
        for file in plan.files:
            new = AppliedFile(
                path=file.path,
                surface_ids=file.surface_ids,
                before=file.before,
                after_digest=digest(file.after),
                encoding=file.encoding,
                created=file.created,
            )
            old = known.get(file.path)
            if old is not None and old.after_digest == digest(file.before):
                ids = tuple(dict.fromkeys((*old.surface_ids, *new.surface_ids)))
                new = replace(new, before=old.before, surface_ids=ids, created=old.created)
            known[file.path] = new
        called = {each.surface_id: each for each in self.callbacks}
        for each in plan.callbacks:
            called[each.surface_id] = AppliedCallback(surface_id=each.surface_id, before=each.before, after=each.after)
        return AppliedRun(files=tuple(known.values()), callbacks=tuple(called.values()))


def read_applied(folder: Path) -> AppliedRun | None:
    """What applying the run in a folder replaced; None if it never was applied."""
    path = folder / FILE_NAME
    try:
        document = orjson.loads(path.read_bytes())
        files = tuple(
            AppliedFile(
                path=Path(os.path.normpath(folder.resolve() / each["path"])),
                surface_ids=tuple(each["surface_ids"]),
                before=base64.b64decode(each["before"], validate=True),
                after_digest=each["after_digest"],
                encoding=each["encoding"],
                created=each.get("created", 0),
            )
            for each in document["files"]
        )
        return AppliedRun(files=files, callbacks=tuple(AppliedCallback(**each) for each in document["callbacks"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SetupError(f"{str(path)!r} cannot be read: {error}; restore it from a copy, or delete it") from error


def write_applied(folder: Path, applied: AppliedRun) -> None:
    """Write applied.json, on disk when this returns."""
    document = {
        "schema_version": 1,
        "files": [
            {
                "path": os.path.relpath(each.path, folder.resolve()),
                "surface_ids": each.surface_ids,
                "before": base64.b64encode(each.before).decode(),
                "after_digest": each.after_digest,
                "encoding": each.encoding,
                "created": each.created,
            }
            for each in applied.files
        ],
        "callbacks": [
            {"surface_id": each.surface_id, "before": each.before, "after": each.after} for each in applied.callbacks
        ],
    }
    target = FileSource(folder / FILE_NAME)
    target.sweep()
    target.write_bytes(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def plan_revert(applied: AppliedRun, sources: Mapping[str, Source], folder: Path) -> ApplyPlan:
    """Plan how to restore everything. SetupError if something was edited since; its old content is then saved."""
    files: list[PlannedFile] = []
    callbacks: list[PlannedCallback] = []
    unchanged: list[str] = []
    problems: list[str] = []
    names = Counter(file.path.name for file in applied.files)
    for number, file in enumerate(applied.files, start=1):
        current = file.read()
        if current is not None and digest(current) == file.after_digest:
            files.append(
                PlannedFile(
                    path=file.path,
                    surface_ids=file.surface_ids,
                    before=current,
                    after=file.before,
                    encoding=file.encoding,
                    removed=file.created,
                )
            )
        elif current == file.before or (file.created and not file.path.exists()):
            unchanged += file.surface_ids
        else:
            prefix = f"{number}-" if names[file.path.name] > 1 else ""
            copy = FileSource(folder / f"{prefix}{file.path.name}.before")
            copy.write_bytes(file.before)
            what = "edited" if file.path.exists() else "removed"
            problems.append(
                f"{path_from_here(file.path)} was {what} since: what it held before is in {path_from_here(copy.file)}"
            )
    for each in applied.callbacks:
        source = sources.get(each.surface_id)
        if source is None:
            problems.append(f"{each.surface_id} is behind a callback: name it under `sources` in promptiter.yaml")
            continue
        try:
            current_text = read_callback(source)
        except SetupError as error:
            problems.append(f"{each.surface_id}: {error}")
            continue
        if current_text == each.after:
            callbacks.append(
                PlannedCallback(surface_id=each.surface_id, source=source, before=each.after, after=each.before)
            )
        elif current_text == each.before:
            unchanged.append(each.surface_id)
        else:
            problems.append(f"{each.surface_id} was edited in its source since; it was {shorten(each.before)}")
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise EditedSourceError(f"nothing was reverted:{listed}")
    return ApplyPlan(files=tuple(files), callbacks=tuple(callbacks), unchanged=tuple(unchanged))
