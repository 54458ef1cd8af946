"""ExampleWriter: patches of few-shot examples, selected from a pool. It calls no model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from promptiter.backprop.example_pool import ExamplePool, ExampleSource, Exchange
from promptiter.backprop.example_selection import ExampleSelector, SelectionStrategy
from promptiter.profile import PatchEvidence, SurfacePatch
from promptiter.structure import Surface
from promptiter.wording import plural
from traces.model import Json

MOST_EXAMPLES = 8
"""The number of examples that a node is given, if no other is asked for."""

SOURCES: Mapping[ExampleSource, str] = {
    "passing": "passing steps",
    "teacher": "steps of the teacher",
    "reference": "references",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleWriter:
    """Writes examples of nodes. `without` are cases that must not be shown, `weights` those that matter more."""

    pool: ExamplePool
    most: int = MOST_EXAMPLES
    strategy: SelectionStrategy = "coverage"
    without: Collection[str] = ()
    weights: Mapping[str, float] = field(default_factory=dict)

    def iterate_patches(self, surface: Surface, *, rng: Random) -> Iterator[SurfacePatch]:
        """Patches with distinct examples that the surface can take, the best guess first.

        Examples of the user's own stay, in front; those of earlier patches may be replaced.
        """
        exchanges = self.pool.list_exchanges(surface.node_id, without=self.without)
        inputs = self.pool.list_inputs(surface.node_id)
        own = self.pool.list_foreign(surface)
        selector = ExampleSelector(exchanges, inputs, strategy=self.strategy, weights=self.weights)
        for chosen in selector.iterate(self._find_most(surface, own), rng=rng):
            if (patch := self.build_patch(surface, chosen, own=own)) is not None:
                yield patch

    def write(self, surface: Surface, *, rejected: Iterable[Json] = (), seed: object = 0) -> SurfacePatch | None:
        """The first patch that was not rejected, if there is one."""
        known = list(rejected)
        patches = self.iterate_patches(surface, rng=Random(f"{seed} {surface.id}"))
        return next((each for each in patches if each.value not in known), None)

    def build_patch(
        self, surface: Surface, chosen: Sequence[Exchange], *, own: Sequence[Json] | None = None
    ) -> SurfacePatch | None:
        """The patch with these examples; None if it changes nothing, or the surface cannot take it."""
        kept = self.pool.list_foreign(surface) if own is None else own
        patch = build_examples_patch(surface, chosen, own=kept)
        return patch if chosen and patch.value != surface.value and surface.allows(patch.value) else None

    def _find_most(self, surface: Surface, own: Sequence[Json]) -> int:
        allowed = surface.limits.max_examples
        return self.most if allowed is None else max(0, min(self.most, (allowed - len(own)) // 2))


def build_examples_patch(surface: Surface, chosen: Sequence[Exchange], *, own: Sequence[Json] = ()) -> SurfacePatch:
    """The patch that gives a surface these examples, after those that it keeps. Its evidence are their cases."""
    counts = Counter(each.source for each in chosen)
    sources = [f"{counts[source]} from {words}" for source, words in SOURCES.items() if counts[source]]
    return SurfacePatch(
        surface_id=surface.id,
        value=[*own, *(message for each in chosen for message in each.messages)],
        reason=f"{plural(len(chosen), 'example')} of train cases: {', '.join(sources)}",
        evidence=PatchEvidence(cases=tuple(sorted({each.case_id for each in chosen}))),
    )
