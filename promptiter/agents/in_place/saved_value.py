"""SavedValue: what one source held, byte for byte, and what we wrote there since; FileChange: what a file will hold."""

from __future__ import annotations

import base64
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from promptiter.errors import EditedSourceError
from promptiter.sources import FileSource, Source
from traces import digest
from traces.model import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedValue:
    """The baseline of one source, and the digests of what we may have written there since."""

    surface_id: str
    path: str | None
    baseline: bytes
    mode: int | None = None
    ours: tuple[str, ...] = ()

    @staticmethod
    def of(surface_id: str, source: Source) -> SavedValue:
        """The current value of a source."""
        path, baseline = find_path(source), read_bytes(source)
        mode = stat.S_IMODE(Path(path).stat().st_mode) if path else None
        return SavedValue(surface_id=surface_id, path=path, baseline=baseline, mode=mode)

    @property
    def place(self) -> str:
        return self.path or f"the callback of {self.surface_id}"

    def knows(self, raw: bytes) -> bool:
        """Whether these bytes are the baseline or were written by us."""
        return raw == self.baseline or digest(raw) in self.ours


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    """The old and the new content of one file. `name` says what is in it: the ids of its surfaces."""

    name: str
    source: FileSource
    before: bytes
    after: bytes

    def save(self) -> SavedValue:
        """What to restore if the change fails; EditedSourceError if the file no longer has its old content."""
        value = SavedValue.of(self.name, FileSource(self.source.path))
        if value.baseline != self.before:
            raise EditedSourceError(f"{value.place} was edited just now; the edit was kept")
        return replace(value, ours=(digest(self.after),))

    def write(self) -> bool:
        """Replace the file, unless it was edited or removed."""
        if not self.source.file.exists():
            return False
        return self.source.exchange_bytes(self.after, is_known=lambda old: old == self.before)


def read_bytes(source: Source) -> bytes:
    """The value of a source, byte for byte."""
    return source.read_bytes() if isinstance(source, FileSource) else source.read().encode()


def find_path(source: Source) -> str | None:
    return str(source.file) if isinstance(source, FileSource) else None


def to_json(value: SavedValue) -> dict[str, Json]:
    return {
        "surface_id": value.surface_id,
        "path": value.path,
        "baseline": base64.b64encode(value.baseline).decode(),
        "mode": value.mode,
        "ours": list(value.ours),
    }


def from_json(data: Mapping[str, Json]) -> SavedValue:
    return SavedValue(
        surface_id=data["surface_id"],
        path=data["path"],
        baseline=base64.b64decode(data["baseline"], validate=True),
        mode=data["mode"],
        ours=tuple(data["ours"]),
    )
