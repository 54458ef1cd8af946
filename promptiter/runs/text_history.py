"""TextHistory: a text whose sentences know the edits that they come from, over all patches since the initial text.

It works like `git blame`, by sentences: an unchanged sentence keeps its origins, a new one has those of the edits
behind it and of what it replaces. A removed sentence leaves its origins in the gap between its neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from promptiter.profile import PatchEdit, PatchEvidence, SurfacePatch
from promptiter.text_diff import Hunk, find_hunks, is_same_passage, split_passages

_NO_EVIDENCE = PatchEvidence()


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """One reason for a passage: an edit of a patch, or the patch, if its edits are unknown.

    `change` is the number of the change that the patch is a part of. `is_whole`: the patch has other hunks, too, and
    does not say which of its evidence is for this one.
    """

    change: int
    patch: SurfacePatch
    edit: PatchEdit | None = None
    is_whole: bool = False

    @property
    def evidence(self) -> PatchEvidence:
        return self.patch.evidence if self.edit is None or not _is_explained(self.edit) else self.edit.evidence

    @property
    def reason(self) -> str:
        return (self.edit.reason if self.edit is not None else "") or self.patch.reason

    @property
    def is_reviewed(self) -> bool:
        """Whether a reviewer wrote it."""
        return self.edit is not None and self.edit.is_reviewed


class TextHistory:
    """The text of a surface after some patches."""

    def __init__(self, text: str) -> None:
        self._initial = self._text = text
        # gap, sentence, gap, sentence, ..., gap
        self._origins: list[tuple[Origin, ...]] = [()] * (2 * len(split_passages(text)) + 1)

    def apply(self, patch: SurfacePatch, *, change: int) -> int:
        """Take the new text of a patch; return the number of its hunks."""
        text = str(patch.value)
        hunks = find_hunks(self._text, text)
        for hunk, new in reversed(list(zip(hunks, _explain_hunks(hunks, patch, change), strict=True))):
            place = slice(2 * hunk.old.start, 2 * hunk.old.stop + 1)
            origins = _merge((*self._origins[place], new))
            self._origins[place] = [(), *[origins, ()] * len(hunk.new)] if hunk.new else [origins]
        self._text = text
        return len(hunks)

    def hunks(self) -> Iterator[tuple[Hunk, tuple[Origin, ...]]]:
        """The hunks of all patches together, each with its origins, which are empty if they cannot be traced."""
        for hunk in find_hunks(self._initial, self._text):
            yield hunk, _merge(self._origins[2 * hunk.new.start : 2 * hunk.new.stop + 1])


def _explain_hunks(hunks: Sequence[Hunk], patch: SurfacePatch, change: int) -> list[tuple[Origin, ...]]:
    """The origins of each hunk of one patch."""
    edits: list[list[PatchEdit]] = [[] for _ in hunks]
    for edit in patch.edits:
        for number in _find_places(edit, hunks):
            edits[number].append(edit)
    return [tuple(_list_origins(found, patch, change, is_only=len(hunks) == 1)) for found in edits]


def _list_origins(edits: Sequence[PatchEdit], patch: SurfacePatch, change: int, *, is_only: bool) -> Iterator[Origin]:
    """The edits of a hunk that say what they rest on, or else all; without edits, the patch."""
    explained = [each for each in edits if _is_explained(each)]
    for edit in explained or edits:
        yield Origin(change=change, patch=patch, edit=edit, is_whole=not (is_only or explained))
    if not edits:
        yield Origin(change=change, patch=patch, is_whole=not is_only)


def _is_explained(edit: PatchEdit) -> bool:
    return edit.is_reviewed or edit.evidence != _NO_EVIDENCE


def _find_places(edit: PatchEdit, hunks: Sequence[Hunk]) -> list[int]:
    """The hunks that an edit is in: those with both of its texts, otherwise with the new one, or else the old one."""
    new = {number for number, hunk in enumerate(hunks) if is_same_passage(edit.after, hunk.after)}
    old = {number for number, hunk in enumerate(hunks) if is_same_passage(edit.before, hunk.before)}
    return sorted(new & old or new or old)


def _merge(origins: Iterable[tuple[Origin, ...]]) -> tuple[Origin, ...]:
    """All origins, each once; origins of equal patches of different changes are different."""
    found: list[Origin] = []
    for origin in (each for some in origins for each in some):
        if origin not in found:
            found.append(origin)
    return tuple(found)
