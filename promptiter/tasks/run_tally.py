"""RunTally: how many runs there were, by outcome and by the texts that they read.

It takes little memory however many runs there are, so figures are exact also where only a sample of the runs is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from promptiter.structure import TEXT_TYPES, StructureSnapshot
from promptiter.tasks.recorded_agent import JudgedRun, RunOutcome
from traces import ExecutionTrace

MOST_VERSIONS = 50
"""A text with more values has no versions: it is another one in every run."""

VARIED = ""
"""In the place of the digest of such a text."""

TextRead: TypeAlias = tuple[str, str]
"""A text that a run read: the id of its surface, and its digest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SurfaceVersion:
    """A value of a surface that runs have read: how many runs, how many of them failed, and when."""

    digest: str
    runs: int
    failed: int
    first_ns: int
    last_ns: int


@dataclass(frozen=True, slots=True)
class _Count:
    runs: int
    first_ns: int
    last_ns: int

    def __add__(self, other: _Count) -> _Count:
        first_ns, last_ns = min(self.first_ns, other.first_ns), max(self.last_ns, other.last_ns)
        return _Count(self.runs + other.runs, first_ns, last_ns)


class RunTally:
    """Counts runs that are added one after the other."""

    def __init__(self, runs: Iterable[JudgedRun] = ()) -> None:
        self._counts: dict[_Key, _Count] = {}
        self._digests: dict[str, set[str]] = {}
        for each in runs:
            self.add(each.trace, each.outcome)

    def add(self, trace: ExecutionTrace, outcome: RunOutcome) -> None:
        reads = {pair for step in trace.steps for pair in (step.surface_reads or {}).items() if _is_text(pair[0])}
        for surface_id, digest in reads:
            known = self._digests.setdefault(surface_id, set())
            if len(known) <= MOST_VERSIONS and digest not in known:
                known.add(digest)
                if len(known) > MOST_VERSIONS:
                    self._counts = self._rename(self._forget_varied)
        started = trace.start_ns or 0
        key = outcome, frozenset(map(self._forget_varied, reads))
        _add(self._counts, key, _Count(1, started, started))

    def count(self, *outcomes: RunOutcome, reading: Container[TextRead] | None = None) -> int:
        """The number of runs with one of these outcomes; if texts are given, of those that read one of them."""
        return sum(
            count.runs
            for (outcome, texts), count in self._counts.items()
            if outcome in outcomes and (reading is None or any(text in reading for text in texts))
        )

    def rename(self, surfaces: Mapping[str, str], digests: Mapping[str, str]) -> RunTally:
        """The same tally with other ids of surfaces, and for some surfaces one digest in the place of all."""
        other = RunTally()
        other._counts = self._rename(lambda text: (surfaces.get(text[0], text[0]), digests.get(*text)))
        return other

    def list_versions(
        self, structure: StructureSnapshot, outcomes: Collection[RunOutcome]
    ) -> dict[str, tuple[SurfaceVersion, ...]]:
        """The versions of each text that runs with these outcomes read, the latest last."""
        texts = {surface.id for surface in structure.surfaces if surface.type in TEXT_TYPES}
        found: dict[TextRead, list[tuple[_Count, bool]]] = {}
        for (outcome, reads), count in self._counts.items():
            for text in reads if outcome in outcomes else ():
                if text[0] in texts:
                    found.setdefault(text, []).append((count, outcome == "failed"))
        versions: dict[str, list[SurfaceVersion]] = {}
        for (surface_id, digest), counts in found.items():
            version = SurfaceVersion(
                digest=digest,
                runs=sum(count.runs for count, _ in counts),
                failed=sum(count.runs for count, has_failed in counts if has_failed),
                first_ns=min(count.first_ns for count, _ in counts),
                last_ns=max(count.last_ns for count, _ in counts),
            )
            versions.setdefault(surface_id, []).append(version)
        return {
            surface_id: tuple(sorted(listed, key=lambda each: (each.first_ns, each.last_ns, each.digest)))
            for surface_id, listed in versions.items()
        }

    def _forget_varied(self, text: TextRead) -> TextRead:
        return (text[0], VARIED) if len(self._digests[text[0]]) > MOST_VERSIONS else text

    def _rename(self, rename: Callable[[TextRead], TextRead]) -> dict[_Key, _Count]:
        counts: dict[_Key, _Count] = {}
        for (outcome, texts), count in self._counts.items():
            _add(counts, (outcome, frozenset(map(rename, texts))), count)
        return counts


def list_given_up(versions: Mapping[str, tuple[SurfaceVersion, ...]]) -> frozenset[TextRead]:
    """The versions that were not read any more since the latest came."""
    return frozenset(
        (surface_id, version.digest)
        for surface_id, listed in versions.items()
        for version in listed
        if version.last_ns < listed[-1].first_ns
    )


def has_read(trace: ExecutionTrace, texts: Container[TextRead]) -> bool:
    """Whether a run read one of these texts."""
    return any(pair in texts for step in trace.steps for pair in (step.surface_reads or {}).items())


_Key: TypeAlias = tuple[RunOutcome, frozenset[TextRead]]


def _add(counts: dict[_Key, _Count], key: _Key, count: _Count) -> None:
    counts[key] = counts[key] + count if key in counts else count


def _is_text(surface_id: str) -> bool:
    return surface_id.rpartition("#")[2].partition(".")[0] in TEXT_TYPES
