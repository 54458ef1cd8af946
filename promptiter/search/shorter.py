"""PromptShortening: the same quality for fewer tokens. Sentences, list items and examples that do not help are left
out.

Whole surfaces first, then halves of what is missed, then smaller parts: what matters is found with few runs. This is
done on train cases, some of them at first and the others only if those did not suffer. What they do not miss is
validated in one piece; if that is rejected, in halves. So validation is paid once or a few times.

What saves most comes first: the tokens of a text times how often it is read in a run. Placeholders and locked parts
stay, and a text is never emptied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from promptiter.backprop.lint import LintRule, lint
from promptiter.engine.expectation import text_tokens
from promptiter.engine.plan import SearchOutline
from promptiter.engine.session import Session
from promptiter.evaluation.mean_usage import average_usage
from promptiter.evaluation.result import Evaluation
from promptiter.policies.goals import SHORTENED
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.runlog.results import PassResult
from promptiter.search.removable_parts import Pieces
from promptiter.search.screening import FIRST_CASES, MOST_CASES, Screening
from promptiter.structure import Surface
from traces import Step

LEAST_SHARE = 0.01
"""What saves less of a run's tokens than this is not worth looking for."""

SCREENS_PER_SURFACE = 8
_NO_SUSPECTS: tuple[str, ...] = ()
_KEPT_RULES: tuple[LintRule, ...] = ("limits", "placeholder", "empty")


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One piece of a surface, and the tokens that a run takes for it."""

    surface_id: str
    number: int
    tokens: float


class PromptShortening:
    """The Search of the goal `fewer_tokens`."""

    def __init__(self, *, most_cases: int = MOST_CASES, first_cases: int = FIRST_CASES) -> None:
        self.most_cases = most_cases
        self.first_cases = first_cases

    async def search(self, session: Session) -> None:
        if await session.should_stop():
            return
        await session.begin_round()
        text = _Text.of(session)
        found = await self._not_missed(session, text)
        gone: tuple[Piece, ...] = ()
        waiting = deque([found] if found else [])
        is_first = True
        while waiting:
            if not is_first:
                if await session.should_stop():
                    return
                await session.begin_round()
            group, is_first = waiting.popleft(), False
            patches = await _patches(session, text, (*gone, *group))
            decision = await session.validate(session.candidate(patches))
            await session.complete_round()
            if decision.accepted:
                gone += group
            elif len(group) > 1:
                waiting.extend(_halves(group))
        if is_first:
            await session.pass_over("every sentence and example that was left out was missed")
            await session.complete_round()

    def outline(self) -> SearchOutline:
        """What the search asks for, so that a run can be forecast."""
        return SearchOutline(screened=self.most_cases, screens=SCREENS_PER_SURFACE)

    async def _not_missed(self, session: Session, text: _Text) -> tuple[Piece, ...]:
        """The pieces that train cases do as well without, all of them together."""
        screening = await Screening.of(session, most=self.most_cases, first=self.first_cases)
        least = LEAST_SHARE * (average_usage(screening.before).tokens or 0.0)
        groups = deque((group, _NO_SUSPECTS) for group in await _groups(session, text, screening))
        gone: tuple[Piece, ...] = ()
        while groups:
            group, suspects = groups.popleft()
            if _tokens(group) < least:
                continue
            lost: tuple[str, ...] | None = suspects
            if text.is_allowed((*gone, *group)):
                lost = await screening.losses(session.candidate(text.patches((*gone, *group))), suspects)
            if lost is None:
                gone += group
            elif len(group) > 1:
                groups.extendleft((half, lost) for half in reversed(_halves(group)))
        return gone


@dataclass(frozen=True, slots=True)
class _Text:
    """The surfaces that may lose pieces, as they were when the search began."""

    surfaces: Mapping[str, Surface]
    pieces: Mapping[str, Pieces]

    @staticmethod
    def of(session: Session) -> _Text:
        profile, snapshot = session.accepted.profile, session.snapshot
        found = [snapshot.surface(target) for target in sorted(session.targets)]
        surfaces = {each.id: profile.surface(each.id, snapshot) for each in found if each.type in SHORTENED}
        return _Text(surfaces, {name: Pieces.of(surface) for name, surface in surfaces.items()})

    def patches(self, gone: Iterable[Piece]) -> PatchSet:
        """The surfaces without these pieces."""
        by_surface: dict[str, set[int]] = {}
        for piece in gone:
            by_surface.setdefault(piece.surface_id, set()).add(piece.number)
        return PatchSet(
            tuple(
                SurfacePatch(
                    surface_id=name,
                    value=self.pieces[name].without(numbers),
                    reason=f"{len(numbers)} of {len(self.pieces[name])} pieces do not help",
                )
                for name, numbers in sorted(by_surface.items())
            )
        )

    def is_allowed(self, gone: Iterable[Piece]) -> bool:
        """Whether limits, placeholders and locked parts let them go."""
        found = (lint(patch, surface=self.surfaces[patch.surface_id]) for patch in self.patches(gone))
        return not any(problem.rule in _KEPT_RULES for problems in found for problem in problems)


async def _groups(session: Session, text: _Text, screening: Screening) -> list[tuple[Piece, ...]]:
    """The pieces of each surface that may go, the surface that saves most first."""

    async def work() -> dict[str, float]:
        before = screening.before
        await session.restore_traces(before, screening.cases, session.accepted.profile)
        return _reads(session, text, before)

    reads: dict[str, float] = await session.record("work", dict[str, float], work, phase="train")
    groups = []
    for name, pieces in text.pieces.items():
        found = (
            Piece(surface_id=name, number=number, tokens=reads[name] * text_tokens(pieces.text(number)))
            for number in range(len(pieces))
        )
        groups.append(tuple(piece for piece in found if piece.tokens > 0 and text.is_allowed([piece])))
    return sorted((group for group in groups if group), key=_tokens, reverse=True)


def _reads(session: Session, text: _Text, before: Evaluation) -> dict[str, float]:
    """How often each surface is read in a run; once, where no trace says it."""
    runs = [[step for name in row.trace_digests for step in session.trace(name).steps] for row in before.rows]
    if not any(runs):
        return dict.fromkeys(text.surfaces, 1.0)
    return {
        name: fmean(sum(_may_read(step, surface) for step in steps) for steps in runs)
        for name, surface in text.surfaces.items()
    }


def _may_read(step: Step, surface: Surface) -> bool:
    return step.node_id == surface.node_id if step.surface_reads is None else surface.id in step.surface_reads


def _tokens(group: Iterable[Piece]) -> float:
    return sum(piece.tokens for piece in group)


def _halves(group: tuple[Piece, ...]) -> list[tuple[Piece, ...]]:
    """Two parts with as many pieces each, the one that saves more first."""
    middle = len(group) // 2
    return sorted((group[:middle], group[middle:]), key=_tokens, reverse=True)


async def _patches(session: Session, text: _Text, gone: Sequence[Piece]) -> PatchSet:
    async def work() -> PassResult:
        return PassResult(patches=text.patches(gone))

    asked = [[piece.surface_id, piece.number] for piece in gone]
    result: PassResult = await session.record("patches", PassResult, work, request=asked)
    return result.patches
