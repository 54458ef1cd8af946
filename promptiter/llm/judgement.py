"""Judgement: which repeat of a case is being scored, so that its judges are asked for answers of their own.

A judge samples its answers as an agent does. If one answer counted for all repeats of a case, its luck would look like
a fact. So, while a run is scored, the gateway adds the place of the judgement to the repeat of each call.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, replace

from promptiter.context import ContextValue
from promptiter.llm.messages import CallSite

MAX_SAMPLES = 1_000
"""A judgement asks for fewer samples of one answer than this."""

MAX_JUDGEMENTS = 1_000
"""A run is judged fewer times than this."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One judgement of one run of a case: the repeat of the case, and which judgement of that run."""

    repeat: int = 0
    number: int = 0

    @property
    def first_sample(self) -> int:
        """The repeat of its first call in the cache. Judgement 0 of repeat 0 has that of a call outside of scoring."""
        return (self.repeat * MAX_JUDGEMENTS + self.number) * MAX_SAMPLES


_NO_JUDGEMENT = Judgement()
_active: ContextVar[Judgement] = ContextVar("promptiter_judgement", default=_NO_JUDGEMENT)


def judge_repeat(repeat: int) -> ContextValue[Judgement]:
    """Score a run of this repeat in the block, including its tasks and threads."""
    return ContextValue(_active, Judgement(repeat))


def judge_again(number: int) -> ContextValue[Judgement]:
    """Score the same run in the block, as its judgement with this number."""
    return ContextValue(_active, replace(_active.get(), number=number))


def keep_repeats() -> ContextValue[Judgement]:
    """Leave the repeats of the calls in the block as they are, because they already have their place."""
    return ContextValue(_active, _NO_JUDGEMENT)


def place_repeat(repeat: int) -> int:
    """The repeat of a call in the cache: within the judgement that makes it, or the given one outside of scoring."""
    return _active.get().first_sample + repeat


def place_call(site: CallSite) -> CallSite:
    """The place of a call in the cache."""
    first_sample = _active.get().first_sample
    return replace(site, repeat=first_sample + site.repeat) if first_sample else site
