"""Limits on what a run may spend: time, evaluations, calls, tokens, dollars, and candidates that crash.

They are checked between rounds, so the current round and the final test may exceed them. A Budget is a hard cap. The
baseline alone never ends a run: it would have measured without searching.
"""

from __future__ import annotations

from dataclasses import dataclass

from promptiter.errors import SetupError
from promptiter.numbers import is_number
from promptiter.policies.stop_decision import StopDecision, stop_if
from promptiter.policies.stopping import Progress, ScorelessStop, check_count
from promptiter.wording import plural


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Deadline(ScorelessStop):
    """Stops after the round in which the time since the start of the run exceeds `minutes` plus `seconds`."""

    minutes: float = 0
    seconds: float = 0

    def __post_init__(self) -> None:
        if not (is_number(self.minutes, least=0) and is_number(self.seconds, least=0) and self.limit_s > 0):
            raise SetupError(f"the deadline is {self!r}; give a time above 0, such as Deadline(minutes=30)")

    @property
    def limit_s(self) -> float:
        return 60 * self.minutes + self.seconds

    def __repr__(self) -> str:
        given = (("minutes", self.minutes), ("seconds", self.seconds))
        return f"Deadline({', '.join(f'{unit}={figure!r}' for unit, figure in given if figure)})"

    def decide(self, progress: Progress) -> StopDecision:
        is_reached = progress.elapsed_s >= self.limit_s
        return _stop_after_round(progress, "deadline", is_reached, f"the deadline of {self.limit_s:g} s has passed")


@dataclass(frozen=True, slots=True, repr=False)
class MaxEvaluations(ScorelessStop):
    """Stops after the round that reaches this number of evaluated cases. Repeats of a case count once."""

    evaluations: int

    def __post_init__(self) -> None:
        check_count(self.evaluations, "the number of evaluations")

    def decide(self, progress: Progress) -> StopDecision:
        is_reached = progress.evaluations >= self.evaluations
        return _stop_after_round(progress, "max_evaluations", is_reached, f"{self.evaluations} evaluations were made")


@dataclass(frozen=True, slots=True, repr=False)
class MaxCalls(ScorelessStop):
    """Stops after the round that reaches this number of calls."""

    calls: int

    def __post_init__(self) -> None:
        check_count(self.calls, "the number of calls")

    def decide(self, progress: Progress) -> StopDecision:
        is_reached = progress.spent.calls >= self.calls
        return _stop_after_round(progress, "max_calls", is_reached, f"{self.calls} calls were made")


@dataclass(frozen=True, slots=True, repr=False)
class MaxTokens(ScorelessStop):
    """Stops after the round that reaches this number of tokens, input and output together, as far as known."""

    tokens: int

    def __post_init__(self) -> None:
        check_count(self.tokens, "the number of tokens")

    def decide(self, progress: Progress) -> StopDecision:
        is_reached = progress.spent.tokens >= self.tokens
        return _stop_after_round(progress, "max_tokens", is_reached, f"{self.tokens} tokens were used")


@dataclass(frozen=True, slots=True, repr=False)
class MaxUsd(ScorelessStop):
    """Stops after the round in which the cost reaches this number of dollars, as far as prices are known."""

    usd: float

    def __post_init__(self) -> None:
        if not (is_number(self.usd) and self.usd > 0):
            raise SetupError(f"the most to spend is {self.usd!r} dollars; give a number above 0")

    def decide(self, progress: Progress) -> StopDecision:
        cost = progress.spent.cost_usd
        is_reached = cost is not None and cost >= self.usd
        return _stop_after_round(progress, "max_usd", is_reached, f"${self.usd:g} was spent")


@dataclass(frozen=True, slots=True, repr=False)
class MaxFailures(ScorelessStop):
    """Stops after the round in which this number of candidates have crashed, in the whole run.

    A candidate crashes if more of its runs fail with an error than a reliable evaluation may have. Outages do not
    count.
    """

    failures: int

    def __post_init__(self) -> None:
        check_count(self.failures, "the number of failures")

    def decide(self, progress: Progress) -> StopDecision:
        text = f"{plural(progress.crashes, 'candidate')} crashed, the limit is {self.failures}"
        return _stop_after_round(progress, "max_failures", progress.crashes >= self.failures, text)


def _stop_after_round(progress: Progress, kind: str, is_reached: bool, text: str) -> StopDecision:
    return stop_if(is_reached and not progress.is_baseline, kind, text)
