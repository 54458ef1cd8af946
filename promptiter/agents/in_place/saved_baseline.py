"""The saved baseline of an in-place agent: what its targets held before the first candidate, safe on disk.

One file in the state folder holds the baseline byte for byte, and the digests of what we put or are about to put into
each target. It is written before any target is, and removed after all of them hold the baseline again. So at every
moment a target holds the baseline, or `restore` can turn it back; and a text that is neither the baseline nor ours is
somebody else's, which is never overwritten.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeAlias
from urllib.parse import quote

import orjson

from promptiter.agents.in_place.target_lock import FolderLock, claim, claimant, unclaim
from promptiter.errors import EditedSourceError, SetupError
from promptiter.sources import FileSource, Source, sync_folder
from traces import digest
from traces.model import Json

STATE_FOLDER = ".promptiter"

Outcome: TypeAlias = Literal["restored", "unchanged", "edited", "unreachable", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What became of one target. Edited, unreachable and failed ones stay as they are; `note` says what to do."""

    surface_id: str
    place: str
    outcome: Outcome
    note: str = ""

    @property
    def is_settled(self) -> bool:
        """Whether the target holds the baseline."""
        return self.outcome in ("restored", "unchanged")


def restore(
    state_folder: str | os.PathLike[str] = STATE_FOLDER,
    *,
    targets: Mapping[str, Source] | None = None,
    force: bool = False,
) -> list[Restored]:
    """Put the baseline back where an in-place agent was killed; empty if there is nothing to do.

    Files are found by themselves, callbacks only in `targets`. A target that somebody else edited meanwhile stays as it
    is, and the baseline is saved beside it; `force` overwrites it. SetupError while a process is running there.
    """
    saved = SavedBaseline(Path(state_folder))
    if not saved.is_left:
        return []
    with FolderLock(saved.folder).held():
        return saved.restore(targets or {}, force=force)


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedValue:
    """The baseline of one target, and the digests of what we may have put there since."""

    surface_id: str
    path: str | None
    baseline: bytes
    mode: int | None = None
    ours: tuple[str, ...] = ()

    @staticmethod
    def of(surface_id: str, target: Source) -> SavedValue:
        """The value that a target holds now."""
        path, baseline = _path(target), _held(target)
        mode = stat.S_IMODE(Path(path).stat().st_mode) if path else None
        return SavedValue(surface_id=surface_id, path=path, baseline=baseline, mode=mode)

    @property
    def place(self) -> str:
        return self.path or f"the callback of {self.surface_id}"

    def knows(self, raw: bytes) -> bool:
        """Whether these bytes are the baseline or ours."""
        return raw == self.baseline or digest(raw) in self.ours


class SavedBaseline:
    """The baseline in a state folder. `hold` and `restore` are called under the folder's lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self.record = FileSource(self.folder / "in_place.json")

    @property
    def is_left(self) -> bool:
        """Whether something may be left to restore or to tidy up."""
        return any(self.folder.glob("*in_place.json*"))

    def load(self) -> tuple[SavedValue, ...]:
        """The saved values; none if every target holds its baseline."""
        try:
            raw = self.record.file.read_bytes()
        except FileNotFoundError:
            return ()
        try:
            document = orjson.loads(raw)
            values = tuple(map(_from_json, document["values"]))
            is_whole = document["checksum"] == digest(document["values"])
        except (ValueError, KeyError, TypeError) as error:
            raise self._damaged(repr(error)) from error
        if not is_whole:
            raise self._damaged("its checksum is wrong")
        return values

    def read(self, targets: Mapping[str, Source]) -> dict[str, bytes]:
        """The baseline of these targets, put back first where a kill left a candidate. Takes the lock itself."""
        lock = FolderLock(self.folder)
        for _ in lock.tries():
            if lock.acquire():
                try:
                    return self._read(targets)
                finally:
                    lock.release()
            if values := self.load():  # somebody is running with a candidate in place
                self._check(values, targets)
                return {value.surface_id: value.baseline for value in values}
        raise lock.busy()

    def hold(self, targets: Mapping[str, Source], *, baseline: Mapping[str, bytes], wanted: Mapping[str, str]) -> None:
        """Make the targets hold the wanted values, and the baseline where none is wanted."""
        saved = self.load()
        values = saved or _values(targets)
        self._check(values, targets)
        for value in values:
            if value.baseline != baseline[value.surface_id]:
                raise SetupError(f"{value.place} was changed after the agent was described; start again to run with it")
        now = {value.surface_id: _held(targets[value.surface_id]) for value in values}
        if edited := [value for value in values if not value.knows(now[value.surface_id])]:
            raise EditedSourceError("; ".join(f"{value.place}: {self._edited(value).note}" for value in edited))
        then = {value.surface_id: _wanted(value, targets, wanted) for value in values}
        if then == now and saved:
            return
        ours = ((digest(now[value.surface_id]), digest(then[value.surface_id])) for value in values)
        self._save([replace(value, ours=each) for value, each in zip(values, ours, strict=True)])
        for value in values:
            if now[value.surface_id] != then[value.surface_id]:
                self._put(value, targets[value.surface_id], then[value.surface_id])

    def restore(self, targets: Mapping[str, Source], *, force: bool = False) -> list[Restored]:
        """Put the baseline back into every target that can be reached and was not edited by somebody else."""
        self.record.sweep()
        values = self.load()
        done = [self._restore(value, _target(value, targets), force=force) for value in values]
        left = [value for value, each in zip(values, done, strict=True) if not each.is_settled]
        if left:
            self._save(left)
        elif values:
            self.record.file.unlink()
            sync_folder(self.folder)
        return done

    def _damaged(self, why: str) -> SetupError:
        return SetupError(
            f"the saved baseline {str(self.record.path)!r} is damaged ({why}): put the targets right by hand, then "
            "delete it"
        )

    def _read(self, targets: Mapping[str, Source]) -> dict[str, bytes]:
        for each in self.restore(targets):
            if not each.is_settled:
                raise (EditedSourceError if each.outcome == "edited" else SetupError)(f"{each.place}: {each.note}")
        values = _values(targets)
        self._check(values, targets)
        return {value.surface_id: value.baseline for value in values}

    def _check(self, values: Sequence[SavedValue], targets: Mapping[str, Source]) -> None:
        """Raise if the values are not of these targets, or another agent has a claim on one of them."""
        ours = [(surface_id, _path(target)) for surface_id, target in sorted(targets.items())]
        if ours != [(value.surface_id, value.path) for value in values]:
            raise SetupError(
                f"the state folder {str(self.folder)!r} is in use for other targets "
                f"({', '.join(value.place for value in values)}): give each agent a state_folder of its own, or run "
                f"`promptiter restore {self.folder}` if nothing runs there"
            )
        for value in values:
            other = claimant(value.path) if value.path else None
            if other not in (None, self.folder) and _is_saved(value, other):
                raise SetupError(
                    f"{value.place} may hold a candidate of another agent, whose state folder is {str(other)!r}: wait "
                    f"for its end, or run `promptiter restore {other}` if it was killed"
                )

    def _save(self, values: Sequence[SavedValue]) -> None:
        document = [_to_json(value) for value in values]
        whole = {"schema_version": 1, "checksum": digest(document), "values": document}
        self.record.write_bytes(orjson.dumps(whole, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    def _put(self, value: SavedValue, target: Source, raw: bytes) -> None:
        if value.path:
            claim(value.path, self.folder)
        _write(value, target, raw)
        if (found := _held(target)) != raw:
            _write(value, target, value.baseline)
            raise SetupError(f"{value.place} does not keep what is written to it: {raw!r:.60} became {found!r:.60}")

    def _restore(self, value: SavedValue, target: Source | None, *, force: bool) -> Restored:
        def became(outcome: Outcome, note: str = "") -> Restored:
            return Restored(surface_id=value.surface_id, place=value.place, outcome=outcome, note=note)

        if target is None:
            return became("unreachable", "only the program with this callback can restore it: start its agent again")
        try:
            found = None if value.path and not Path(value.path).exists() else _held(target)
            if found is not None and not value.knows(found) and not force:
                return self._edited(value)
            if found != value.baseline:
                _write(value, target, value.baseline)
            self._tidy(value)
        except Exception as error:  # noqa: BLE001 - a callback may raise anything, and the other targets come next
            return became("failed", f"{type(error).__name__}: {error}")
        return became("unchanged" if found == value.baseline else "restored")

    def _edited(self, value: SavedValue) -> Restored:
        beside = self._beside(value)
        beside.write_bytes(value.baseline, mode=value.mode)
        note = (
            "somebody else edited it while a candidate was in place. It is left as it is, and the baseline is saved as "
            f"{beside.path}; to put the baseline back, run `promptiter restore --force {self.folder}`, to keep the "
            f"edit, delete {self.record.path}"
        )
        return Restored(surface_id=value.surface_id, place=value.place, outcome="edited", note=note)

    def _beside(self, value: SavedValue) -> FileSource:
        """Where the baseline goes when the target cannot take it: beside a file, else into the state folder."""
        place = value.path or str(self.folder / quote(value.surface_id, safe="#"))
        return FileSource(f"{place}.promptiter-baseline")

    def _tidy(self, value: SavedValue) -> None:
        """Remove what we put beside a target that holds its baseline again."""
        beside = self._beside(value)
        beside.sweep()
        beside.file.unlink(missing_ok=True)
        if value.path:
            FileSource(value.path).sweep()
            unclaim(value.path, self.folder)


def _values(targets: Mapping[str, Source]) -> tuple[SavedValue, ...]:
    return tuple(SavedValue.of(surface_id, target) for surface_id, target in sorted(targets.items()))


def _held(target: Source) -> bytes:
    """What a target holds, byte for byte."""
    return target.read_bytes() if isinstance(target, FileSource) else target.read().encode()


def _wanted(value: SavedValue, targets: Mapping[str, Source], wanted: Mapping[str, str]) -> bytes:
    """What a target shall hold, in the form of its baseline."""
    if value.surface_id not in wanted:
        return value.baseline
    target, text = targets[value.surface_id], wanted[value.surface_id]
    return target.bytes_of(text, like=value.baseline) if isinstance(target, FileSource) else text.encode()


def _write(value: SavedValue, target: Source, raw: bytes) -> None:
    if isinstance(target, FileSource):
        target.write_bytes(raw, mode=value.mode)
    else:
        target.write(raw.decode())


def _path(target: Source) -> str | None:
    return str(target.file) if isinstance(target, FileSource) else None


def _target(value: SavedValue, targets: Mapping[str, Source]) -> Source | None:
    return FileSource(value.path) if value.path else targets.get(value.surface_id)


def _is_saved(value: SavedValue, folder: Path) -> bool:
    """Whether the baseline of a file is saved in another state folder; if not, the claim is a leftover."""
    return any(each.path == value.path for each in SavedBaseline(folder).load())


def _to_json(value: SavedValue) -> dict[str, Json]:
    return {
        "surface_id": value.surface_id,
        "path": value.path,
        "baseline": base64.b64encode(value.baseline).decode(),
        "mode": value.mode,
        "ours": list(value.ours),
    }


def _from_json(data: Mapping[str, Json]) -> SavedValue:
    return SavedValue(
        surface_id=data["surface_id"],
        path=data["path"],
        baseline=base64.b64decode(data["baseline"], validate=True),
        mode=data["mode"],
        ours=tuple(data["ours"]),
    )
