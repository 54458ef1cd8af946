"""Rejections: the values that were tried or refused so far, so that optimizers do not repeat them."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.stages.contracts import Rejection

MOST_KEPT = 100
"""Maximum number of rejections kept per surface, the latest, because they hold whole texts. Vetoes are always kept."""


class Rejections:
    """The rejections since the last acceptance. `count` includes those that are no longer kept."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: dict[str, list[Rejection]] = {}

    def for_surface(self, surface_id: str) -> tuple[Rejection, ...]:
        """The rejections of one surface, the latest last."""
        return tuple(self._kept.get(surface_id, ()))

    def add(self, new: Iterable[Rejection]) -> None:
        for rejection in new:
            self.count += 1
            kept = self._kept.setdefault(rejection.surface_id, [])
            kept.append(rejection)
            removable = [place for place, each in enumerate(kept) if each.kind != "vetoed"]
            if len(removable) > MOST_KEPT:
                del kept[removable[0]]

    def forget_all_but_vetoes(self) -> None:
        """Forget what was tried on top of another profile; it may be tried again. What a person vetoed may not."""
        vetoed = [each for kept in self._kept.values() for each in kept if each.kind == "vetoed"]
        self.count, self._kept = 0, {}
        self.add(vetoed)
