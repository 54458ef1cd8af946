"""What was tried or refused so far, as optimizers hear of it: the latest of each surface, and every veto."""

from __future__ import annotations

from collections.abc import Iterable

from promptiter.stages.contracts import Rejection

MOST_KEPT = 100
"""So many rejections of a surface are kept, the latest: they hold whole texts. A prompt shows three of them."""


class Rejections:
    """The rejections since the last acceptance. `count` counts all of them, also those that are no longer kept."""

    def __init__(self) -> None:
        self.count = 0
        self._kept: dict[str, list[Rejection]] = {}

    def of(self, surface_id: str) -> tuple[Rejection, ...]:
        """Those of one surface, the latest last."""
        return tuple(self._kept.get(surface_id, ()))

    def add(self, new: Iterable[Rejection]) -> None:
        for rejection in new:
            self.count += 1
            kept = self._kept.setdefault(rejection.surface_id, [])
            kept.append(rejection)
            passing = [place for place, each in enumerate(kept) if each.kind != "vetoed"]
            if len(passing) > MOST_KEPT:
                del kept[passing[0]]

    def forget_all_but_vetoes(self) -> None:
        """What was tried on top of another profile may be tried again; what a person refused may not."""
        vetoed = [each for kept in self._kept.values() for each in kept if each.kind == "vetoed"]
        self.count, self._kept = 0, {}
        self.add(vetoed)
