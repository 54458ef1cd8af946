"""EditLimits: how much a candidate may change. What changes more is rejected before anything runs.

RunRequest(..., edit_limits=EditLimits(max_files=2, max_changed_lines=120))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import SequenceMatcher

from promptiter.numbers import check_count
from promptiter.profile import Profile, SurfaceChange
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_names, plural

EXCESS = "EditLimits"
"""The type of the error of runs that are not made because their candidate exceeds a limit."""

MAX_NAMES = 5
"""Maximum number of surfaces that a reason names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EditLimits:
    """In how many surfaces, such as files, and in how many lines a candidate may differ from what it is made from.

    Lines that are added or removed count, and one that is replaced counts once. A value that is not text counts as one
    line.
    """

    max_files: int | None = None
    max_changed_lines: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_files", "max_changed_lines"):
            if (count := getattr(self, name)) is not None:
                check_count(count, name)

    def find_excess(self, before: Profile, after: Profile, snapshot: StructureSnapshot) -> str | None:
        """Say which limit a candidate exceeds, compared with the profile it is made from; None if it keeps to them."""
        changes = before.changes(after, snapshot)
        if self.max_files is not None and len(changes) > self.max_files:
            names = join_names([change.surface_id for change in changes], limit=MAX_NAMES)
            what = "file" if all("#file" in change.surface_id for change in changes) else "surface"
            return f"it changes {plural(len(changes), what)} ({names}), and at most {self.max_files} may change"
        if self.max_changed_lines is None:
            return None
        lines = count_changed_lines(changes)
        if lines <= self.max_changed_lines:
            return None
        return f"it changes {plural(lines, 'line')}, and at most {self.max_changed_lines} may change"


def count_changed_lines(changes: Iterable[SurfaceChange]) -> int:
    """The lines that changes add, remove or replace."""
    return sum(map(_count_lines, changes))


def _count_lines(change: SurfaceChange) -> int:
    if not isinstance(change.before, str) or not isinstance(change.after, str):
        return 1
    matcher = SequenceMatcher(
        a=change.before.splitlines(keepends=True), b=change.after.splitlines(keepends=True), autojunk=False
    )
    return sum(max(i2 - i1, j2 - j1) for kind, i1, i2, j1, j2 in matcher.get_opcodes() if kind != "equal")
