"""The saved baseline of an in-place agent: what its sources held before the first candidate.

One file in the state folder holds the baseline byte for byte, and the digests of the values that we wrote or are about
to write into each source. It is written before any source, and removed after all of them hold the baseline again. So
at any moment a source holds the baseline or `restore` can bring it back. A value that is neither the baseline nor ours
was edited by someone else, and is never overwritten.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

import orjson

from promptiter.agents.in_place.exit_hooks import is_ending
from promptiter.agents.in_place.saved_value import FileChange, SavedValue, find_path, from_json, read_bytes, to_json
from promptiter.agents.in_place.source_lock import FolderLock, find_lock_owner, lock_source, unlock_source
from promptiter.errors import EditedSourceError, SetupError
from promptiter.sources import FileSource, Source, sync_folder
from promptiter.wording import shorten
from traces import digest

STATE_FOLDER = ".promptiter"

RestoreOutcome: TypeAlias = Literal["restored", "unchanged", "edited", "unreachable", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreResult:
    """The result for one source. Edited, unreachable and failed sources stay as they are; `note` says what to do."""

    surface_id: str
    place: str
    outcome: RestoreOutcome
    note: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether the source holds the baseline."""
        return self.outcome in ("restored", "unchanged")


def restore(
    state_folder: str | os.PathLike[str] = STATE_FOLDER,
    *,
    sources: Mapping[str, Source] | None = None,
    force: bool = False,
) -> list[RestoreResult]:
    """Restore the baseline after an in-place agent was killed; empty if there is nothing to do.

    Files are found by their recorded path, callbacks only in `sources`. A source that was edited meanwhile stays as it
    is, and the baseline is saved beside it; `force` overwrites it. SetupError while a process is running there.
    """
    saved = SavedBaseline(Path(state_folder))
    if not saved.has_leftovers:
        return []
    with FolderLock(saved.folder).hold():
        return saved.restore(sources or {}, force=force)


class SavedBaseline:
    """The baseline in a state folder. `hold` and `restore` are called under the folder's lock.

    They exclude each other in this process too: a signal may restore the baseline while a thread writes a candidate.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.record = FileSource(self.folder / "in_place.json")
        self._changing = threading.RLock()

    @property
    def has_leftovers(self) -> bool:
        """Whether there may be something to restore or to clean up."""
        return any(self.folder.glob("*in_place.json*"))

    def load(self) -> tuple[SavedValue, ...]:
        """Load the saved values; empty if every source holds its baseline."""
        try:
            raw = self.record.file.read_bytes()
        except FileNotFoundError:
            return ()
        try:
            document = orjson.loads(raw)
            values = tuple(map(from_json, document["values"]))
            is_whole = document["checksum"] == digest(document["values"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damage_error(repr(error)) from error
        if not is_whole:
            raise self._damage_error("its checksum is wrong")
        return values

    def read(self, sources: Mapping[str, Source]) -> dict[str, bytes]:
        """Read the baseline of these sources, after restoring what a killed agent left. Acquires the lock itself."""
        lock = FolderLock(self.folder)
        for _ in lock.attempts():
            if lock.acquire():
                try:
                    return self._restore_and_read(sources)
                finally:
                    lock.release()
            if values := self.load():  # another process is running with a candidate in place
                self._check(values, sources)
                return {value.surface_id: value.baseline for value in values}
        raise lock.busy_error()

    def hold(self, sources: Mapping[str, Source], *, baseline: Mapping[str, bytes], wanted: Mapping[str, str]) -> None:
        """Write the wanted values into the sources, and the baseline where none is wanted.

        RuntimeError if the program is ending: the baseline is restored, and no candidate may be written any more.
        """
        with self._changing:
            if is_ending():
                raise RuntimeError("the program is ending, so no candidate is written any more")
            self._hold(sources, baseline=baseline, wanted=wanted)

    def _hold(self, sources: Mapping[str, Source], *, baseline: Mapping[str, bytes], wanted: Mapping[str, str]) -> None:
        saved = self.load()
        values = saved or _read_all(sources)
        self._check(values, sources)
        for value in values:
            if value.baseline != baseline[value.surface_id]:
                raise SetupError(f"{value.place} changed after the agent was described; restart to run with it")
        now = {value.surface_id: read_bytes(sources[value.surface_id]) for value in values}
        if edited := [value for value in values if not value.knows(now[value.surface_id])]:
            raise EditedSourceError("; ".join(f"{value.place}: {self._keep_edit(value).note}" for value in edited))
        then = {value.surface_id: _encode(value, sources, wanted) for value in values}
        if then == now and saved:
            return
        ours = ((digest(now[value.surface_id]), digest(then[value.surface_id])) for value in values)
        values = tuple(replace(value, ours=each) for value, each in zip(values, ours, strict=True))
        self._save(values)
        for value in values:
            if now[value.surface_id] != then[value.surface_id]:
                self._put(value, sources[value.surface_id], then[value.surface_id])

    def replace_all(self, changes: Sequence[FileChange], *, finish: Callable[[], None] = lambda: None) -> None:
        """Replace several files, all or none of them. `finish` is called after the last one, and may still fail.

        The record has the old bytes until all files are written and `finish` has returned, and then the new ones. So
        `restore` rolls back what a kill interrupts, and completes what was only not cleaned up yet.
        """
        with self._changing:
            self._replace_all(sorted(changes, key=lambda each: each.name), finish)

    def _replace_all(self, changes: Sequence[FileChange], finish: Callable[[], None]) -> None:
        self._settle()
        values = tuple(each.save() for each in changes)
        self._check(values, {each.name: each.source for each in changes})
        self._save(values)
        touched: list[SavedValue] = []
        try:
            for value, change in zip(values, changes, strict=True):
                lock_source(str(change.source.file), self.folder)
                touched.append(value)
                if not change.write():
                    touched.pop()
                    raise EditedSourceError(f"{value.place} was edited just now; the edit was kept")  # noqa: TRY301
            finish()
        except BaseException as error:
            self._undo(values, touched, error)
            raise
        after = (each.after for each in changes)
        written = [
            replace(value, baseline=new, ours=(digest(value.baseline),))
            for value, new in zip(values, after, strict=True)
        ]
        self._save(written)
        self._forget(written)

    def _settle(self, sources: Mapping[str, Source] | None = None) -> None:
        """Restore what a killed process left; SetupError if that is not possible."""
        for each in self.restore(sources or {}):
            if not each.is_settled:
                raise (EditedSourceError if each.outcome == "edited" else SetupError)(f"{each.place}: {each.note}")

    def _undo(self, values: Sequence[SavedValue], touched: Sequence[SavedValue], error: BaseException) -> None:
        """Roll back the files that may have been replaced. What cannot be restored is added to the error."""
        if not touched:
            self._forget(values)
            return
        self._save(touched)
        for value in values:
            if value not in touched:
                self._clean_up(value)
        for each in self._restore_all({}, force=False):
            if not each.is_settled:
                error.add_note(f"not restored: {each.place}: {each.note}")

    def _forget(self, values: Sequence[SavedValue]) -> None:
        """Remove the record, and our files beside the sources."""
        for value in values:
            self._clean_up(value)
        self.record.file.unlink(missing_ok=True)
        sync_folder(self.folder)

    def restore(self, sources: Mapping[str, Source], *, force: bool = False) -> list[RestoreResult]:
        """Restore the baseline of every source that can be reached and was not edited by someone else."""
        with self._changing:
            return self._restore_all(sources, force=force)

    def _restore_all(self, sources: Mapping[str, Source], *, force: bool) -> list[RestoreResult]:
        self.record.sweep()
        values = self.load()
        done = [self._restore(value, _find_source(value, sources), force=force) for value in values]
        left = [value for value, each in zip(values, done, strict=True) if not each.is_settled]
        if left:
            self._save(left)
        elif values:
            self.record.file.unlink()
            sync_folder(self.folder)
        return done

    def _damage_error(self, why: str) -> SetupError:
        return SetupError(
            f"the saved baseline {str(self.record.path)!r} is damaged ({why}): fix the sources by hand, then delete it"
        )

    def _restore_and_read(self, sources: Mapping[str, Source]) -> dict[str, bytes]:
        self._settle(sources)
        values = _read_all(sources)
        self._check(values, sources)
        return {value.surface_id: value.baseline for value in values}

    def _check(self, values: Sequence[SavedValue], sources: Mapping[str, Source]) -> None:
        """Raise if these are not the values of the sources, or another agent has locked one of them."""
        ours = [(surface_id, find_path(source)) for surface_id, source in sorted(sources.items())]
        if ours != [(value.surface_id, value.path) for value in values]:
            raise SetupError(
                f"the state folder {str(self.folder)!r} is in use for other sources "
                f"({', '.join(value.place for value in values)}): give each agent its own state_folder, or run "
                f"`promptiter restore {self.folder}` if no process is using it"
            )
        for value in values:
            other = find_lock_owner(value.path) if value.path else None
            if other not in (None, self.folder) and _is_saved(value, other):
                raise SetupError(
                    f"{value.place} may hold a candidate of another agent, whose state folder is {str(other)!r}: wait "
                    f"until it ends, or run `promptiter restore {other}` if it was killed"
                )

    def _save(self, values: Sequence[SavedValue]) -> None:
        document = [to_json(value) for value in values]
        whole = {"schema_version": 1, "checksum": digest(document), "values": document}
        self.record.write_bytes(orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    def _put(self, value: SavedValue, source: Source, raw: bytes) -> None:
        if value.path:
            lock_source(value.path, self.folder)
        if not _write(value, source, raw):
            raise EditedSourceError(f"{value.place}: {self._keep_edit(value).note}")
        if isinstance(source, FileSource):
            return  # if it does not hold these bytes, somebody has edited it since
        if (current := read_bytes(source)) != raw:
            _write(value, source, value.baseline)
            raise SetupError(
                f"{value.place} does not keep what is written to it: {shorten(raw)} became {shorten(current)}"
            )

    def _restore(self, value: SavedValue, source: Source | None, *, force: bool) -> RestoreResult:
        def result(outcome: RestoreOutcome, note: str = "") -> RestoreResult:
            return RestoreResult(surface_id=value.surface_id, place=value.place, outcome=outcome, note=note)

        if source is None:
            return result("unreachable", "only the program with this callback can restore it: start its agent again")
        try:
            current = None if value.path and not Path(value.path).exists() else read_bytes(source)
            if current is not None and not value.knows(current) and not force:
                return self._keep_edit(value)
            if current != value.baseline and not _write(value, source, value.baseline, force=force):
                return self._keep_edit(value)
            self._clean_up(value)
        except Exception as error:  # noqa: BLE001 - a callback may raise anything, and the other sources come next
            return result("failed", f"{type(error).__name__}: {error}")
        return result("unchanged" if current == value.baseline else "restored")

    def _keep_edit(self, value: SavedValue) -> RestoreResult:
        """Leave a source that was edited as it is, and save the baseline beside it."""
        copy = self._baseline_copy(value)
        copy.write_bytes(value.baseline, mode=value.mode)
        note = (
            "it was edited while a candidate was in place. The edit was kept, and the baseline saved as "
            f"{copy.path}; to restore the baseline, run `promptiter restore --force {self.folder}`; to keep the "
            f"edit, delete {self.record.path}"
        )
        return RestoreResult(surface_id=value.surface_id, place=value.place, outcome="edited", note=note)

    def _baseline_copy(self, value: SavedValue) -> FileSource:
        """The copy of the baseline of an edited source: beside its file, or in the state folder."""
        place = value.path or str(self.folder / quote(value.surface_id, safe="#"))
        return FileSource(f"{place}.promptiter-baseline")

    def _clean_up(self, value: SavedValue) -> None:
        """Remove our files beside a source that holds its baseline again."""
        copy = self._baseline_copy(value)
        copy.sweep()
        copy.file.unlink(missing_ok=True)
        if value.path:
            FileSource(value.path).sweep()
            unlock_source(value.path, self.folder)


def _read_all(sources: Mapping[str, Source]) -> tuple[SavedValue, ...]:
    return tuple(SavedValue.of(surface_id, source) for surface_id, source in sorted(sources.items()))


def _encode(value: SavedValue, sources: Mapping[str, Source], wanted: Mapping[str, str]) -> bytes:
    """The bytes of the wanted value, in the encoding of the baseline."""
    if value.surface_id not in wanted:
        return value.baseline
    source, text = sources[value.surface_id], wanted[value.surface_id]
    return source.encode(text, like=value.baseline) if isinstance(source, FileSource) else text.encode()


def _write(value: SavedValue, source: Source, raw: bytes, *, force: bool = False) -> bool:
    """Write a source; False if it is a file that was edited just now. Then it stays as it is, unless `force` is set."""
    if isinstance(source, FileSource):
        return source.exchange_bytes(raw, mode=value.mode, is_known=lambda old: force or value.knows(old))
    source.write(raw.decode())
    return True


def _find_source(value: SavedValue, sources: Mapping[str, Source]) -> Source | None:
    return FileSource(value.path) if value.path else sources.get(value.surface_id)


def _is_saved(value: SavedValue, folder: Path) -> bool:
    """Whether the baseline of a file is saved in another state folder; if not, its lock is a leftover."""
    return any(each.path == value.path for each in SavedBaseline(folder).load())
