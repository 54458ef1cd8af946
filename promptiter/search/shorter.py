"""PromptShortening: the search for the same quality with fewer tokens. It removes sentences, list items and examples
that do not help.

It tries to remove whole surfaces first, then halves of those that are needed, then smaller parts, so that few runs find
what matters. This screening uses train cases. Everything that they do not need is removed in one candidate and
validated; if that is rejected, its halves are. Validation is therefore paid for once or a few times.

The largest saving is tried first: the tokens of a text times the number of reads per run. Placeholders and locked
passages stay, and a text is never emptied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from statistics import fmean

from promptiter.backprop.lint import Linter, LintRule
from promptiter.engine.outline import SearchOutline
from promptiter.engine.session import Session
from promptiter.evaluation.mean_usage import average_usage
from promptiter.evaluation.result import Evaluation
from promptiter.llm.models import estimate_tokens
from promptiter.policies.goals import SHORTENABLE_TYPES
from promptiter.profile import PatchEdit, PatchEvidence, PatchSet, SurfacePatch
from promptiter.runlog.events import Payload, event_type
from promptiter.runlog.results import RunShape
from promptiter.search.removable_parts import Pieces
from promptiter.search.screening import MOST_CASES, Screening
from promptiter.structure import StructureSnapshot, Surface
from traces import Step

LEAST_SHARE = 0.01
"""The smallest share of a run's tokens that is worth a search."""

SCREENS_PER_SURFACE = 8
"""Expected number of screenings per surface, for the forecast."""

_NO_SUSPECTS: tuple[str, ...] = ()
_NO_EVIDENCE = PatchEvidence()
_KEPT_RULES: tuple[LintRule, ...] = ("limits", "placeholder", "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a surface, and the tokens that a run spends on it."""

    surface_id: str
    number: int
    tokens: float


@event_type("reads_counted")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReadsCounted(Payload):
    """The mean number of reads of each surface per run."""

    reads: Mapping[str, float]


class PromptShortening:
    """The search for the goal `fewer_tokens`."""

    async def search(self, session: Session) -> None:
        if await session.should_stop():
            return
        await session.begin_round()
        text = _PromptTexts.of(session)
        screening = await Screening.of(session)
        found = await self._find_removable(session, text, screening)
        evidence = PatchEvidence(cases=tuple(case.id for case in screening.cases.cases))
        gone: tuple[Piece, ...] = ()
        waiting = deque([found] if found else [])
        is_first = True
        while waiting:
            if not is_first:
                if await session.should_stop():
                    return
                await session.begin_round()
            group, is_first = waiting.popleft(), False
            decision = await session.validate(text.build_patches((*gone, *group), evidence))
            await session.complete_round()
            if decision.accepted:
                gone += group
            elif len(group) > 1:
                waiting.extend(_split_in_half(group))
        if is_first:
            await session.skip_round("no sentence or example could be removed without a loss on the train cases")
            await session.complete_round()

    def outline(self) -> SearchOutline:
        """What the search may call, for the forecast."""
        return SearchOutline(screened_cases=MOST_CASES, screenings=SCREENS_PER_SURFACE)

    def find_kept_targets(
        self,
        snapshot: StructureSnapshot,
        targets: Collection[str],
        *,
        shape: RunShape,  # noqa: ARG002
    ) -> set[str]:
        """The targets that cannot lose sentences or examples."""
        return {each for each in targets if snapshot.surface(each).type not in SHORTENABLE_TYPES}

    async def _find_removable(self, session: Session, text: _PromptTexts, screening: Screening) -> tuple[Piece, ...]:
        """The pieces that can be removed together without a loss on the train cases."""
        least = LEAST_SHARE * (average_usage(screening.before).tokens or 0.0)
        groups = deque((group, _NO_SUSPECTS) for group in await _group_pieces(session, text, screening))
        gone: tuple[Piece, ...] = ()
        while groups:
            group, suspects = groups.popleft()
            if _sum_tokens(group) < least:
                continue
            lost: tuple[str, ...] | None = suspects
            if text.is_allowed((*gone, *group)):
                lost = await screening.find_losses(session.candidate(text.build_patches((*gone, *group))), suspects)
            if lost is None:
                gone += group
            elif len(group) > 1:
                groups.extendleft((half, lost) for half in reversed(_split_in_half(group)))
        return gone


@dataclass(frozen=True, slots=True)
class _PromptTexts:
    """The surfaces that may lose pieces, as they were at the start of the search."""

    surfaces: Mapping[str, Surface]
    pieces: Mapping[str, Pieces]

    @staticmethod
    def of(session: Session) -> _PromptTexts:
        profile, snapshot = session.accepted.profile, session.snapshot
        found = [snapshot.surface(target) for target in sorted(session.targets)]
        surfaces = {each.id: profile.surface(each.id, snapshot) for each in found if each.type in SHORTENABLE_TYPES}
        return _PromptTexts(surfaces, {name: Pieces.of(surface) for name, surface in surfaces.items()})

    def build_patches(self, gone: Iterable[Piece], evidence: PatchEvidence = _NO_EVIDENCE) -> PatchSet:
        """Patches that remove these pieces. `evidence` has the cases that did as well without them."""
        by_surface: dict[str, set[int]] = {}
        for piece in gone:
            by_surface.setdefault(piece.surface_id, set()).add(piece.number)
        return PatchSet(
            tuple(
                SurfacePatch(
                    surface_id=name,
                    value=self.pieces[name].drop(numbers),
                    reason=f"{len(numbers)} of {len(self.pieces[name])} pieces do not help",
                    evidence=evidence,
                    edits=tuple(
                        PatchEdit(before=self.pieces[name].text(number), after="", reason="it does not help")
                        for number in sorted(numbers)
                    ),
                )
                for name, numbers in sorted(by_surface.items())
            )
        )

    def is_allowed(self, gone: Iterable[Piece]) -> bool:
        """Whether limits, placeholders and locked passages allow their removal."""
        linter = Linter()
        return not any(
            problem.rule in _KEPT_RULES
            for patch in self.build_patches(gone)
            for problem in linter.find_problems(patch, surface=self.surfaces[patch.surface_id])
        )


async def _group_pieces(session: Session, text: _PromptTexts, screening: Screening) -> list[tuple[Piece, ...]]:
    """The removable pieces of each surface, the surface with the largest saving first."""

    async def count() -> ReadsCounted:
        before = screening.before
        await session.restore_traces(before, screening.cases, session.accepted.profile)
        return ReadsCounted(reads=await _count_reads(session, text, before))

    reads = (await session.record(ReadsCounted, count, phase="train")).reads
    groups = []
    for name, pieces in text.pieces.items():
        found = (
            Piece(surface_id=name, number=number, tokens=reads[name] * estimate_tokens(pieces.text(number)))
            for number in range(len(pieces))
        )
        groups.append(tuple(piece for piece in found if piece.tokens > 0 and text.is_allowed([piece])))
    return sorted((group for group in groups if group), key=_sum_tokens, reverse=True)


async def _count_reads(session: Session, text: _PromptTexts, before: Evaluation) -> dict[str, float]:
    """The mean number of reads of each surface per run; 1 if there are no traces."""
    runs = [[step for name in row.trace_digests for step in (await session.trace(name)).steps] for row in before.rows]
    if not any(runs):
        return dict.fromkeys(text.surfaces, 1.0)
    return {
        name: fmean(sum(_may_read(step, surface) for step in steps) for steps in runs)
        for name, surface in text.surfaces.items()
    }


def _may_read(step: Step, surface: Surface) -> bool:
    return step.node_id == surface.node_id if step.surface_reads is None else surface.id in step.surface_reads


def _sum_tokens(group: Iterable[Piece]) -> float:
    return sum(piece.tokens for piece in group)


def _split_in_half(group: tuple[Piece, ...]) -> list[tuple[Piece, ...]]:
    """Split into two parts with about as many pieces each, the one that saves more first."""
    middle = len(group) // 2
    return sorted((group[:middle], group[middle:]), key=_sum_tokens, reverse=True)
