"""Reviewer: a person, or a program in their place, who approves, edits or vetoes a patch before it is tried."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias, runtime_checkable

from promptiter.profile import SurfacePatch
from promptiter.stages.contracts import AggregateResult
from promptiter.structure import Surface
from traces.model import Json

ReviewAction: TypeAlias = Literal["approve", "edit", "veto"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRequest:
    """One patch to look at. `surface.value` is the current value; `signal` says why it should change.

    `find_problem` says why an edited value would be refused; it is empty if the value can be used.
    """

    surface: Surface
    patch: SurfacePatch
    signal: AggregateResult
    find_problem: Callable[[Json], str] = field(default=lambda _: "", compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """The answer. An edit has its own `value`; the reason of a veto reaches the optimizer."""

    action: ReviewAction = "approve"
    value: Json = None
    reason: str = ""


class Reviewer(Protocol):
    """Looks at patches after lint and before anything is paid for them, one at a time."""

    async def review(self, request: ReviewRequest) -> Review:
        """Approve, edit or veto one patch."""


@runtime_checkable
class BatchReviewer(Reviewer, Protocol):
    """A Reviewer that looks at all patches of a pass at once, such as one for several people."""

    async def review_batch(self, requests: Sequence[ReviewRequest]) -> list[Review]:
        """Approve, edit or veto each patch, in their order."""
