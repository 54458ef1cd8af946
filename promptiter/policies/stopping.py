"""Stopping: whether a run goes on, decided on the baseline and after each round.

    stop = MaxRounds(8) | TargetScore(0.95) | Deadline(minutes=30)

A policy is one method, `decide`, which answers with the reasons that hold. Policies compose with `&` and `|`. These act
between rounds, so each is a limit with a grace: the round in flight is finished, and then what was kept makes its
claim. A hard cap, which cuts a round short, is a Budget. The texts hold no clock and no figure of what was spent: two
equal runs that stop for the same reason say the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from promptiter.errors import SetupError, UnknownNameError
from promptiter.evaluation.result import Evaluation, Objective
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.policies.combine import Combined, as_call, is_number, parts_of
from promptiter.wording import plural

STOP_KINDS = (
    "required_metrics",
    "target_score",
    "user_stop",
    "patience",
    "deadline",
    "max_evaluations",
    "max_calls",
    "max_tokens",
    "max_usd",
    "max_rounds",
)
"""What can stop a run, the most telling first. A kind of the user's own comes after these."""


@dataclass(frozen=True, slots=True)
class StopReason:
    """One condition that holds: its kind, and what holds in words."""

    kind: str
    text: str

    @property
    def place(self) -> tuple[int, str, str]:
        """Where it stands among several."""
        known = STOP_KINDS.index(self.kind) if self.kind in STOP_KINDS else len(STOP_KINDS)
        return (known, self.kind, self.text)


@dataclass(frozen=True, slots=True)
class StopDecision:
    """Whether the run stops, and for which reasons: all that hold, in the order of STOP_KINDS."""

    stop: bool
    reasons: tuple[StopReason, ...] = ()

    def __post_init__(self) -> None:
        if self.stop != bool(self.reasons):
            raise SetupError(f"stop is {self.stop!r} with reasons {self.reasons!r}; give reasons exactly when it stops")
        object.__setattr__(self, "reasons", tuple(sorted(set(self.reasons), key=lambda reason: reason.place)))

    @property
    def reason(self) -> str | None:
        """The kind that counts as the run's stop_reason; None if it goes on."""
        return self.reasons[0].kind if self.reasons else None

    @property
    def text(self) -> str:
        return "; ".join(reason.text for reason in self.reasons)


GO_ON = StopDecision(False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Where a run stands. `round` counts finished rounds: 0 is the baseline, validated and nothing else.

    `best` is the validation of the accepted profile. `evaluations` counts cases under candidates, the repeats of a case
    together. `user_stop` says how the user asked to stop (`Ctrl-C`), None if nobody did; `test_now` is a wish to end
    the search with the claim.
    """

    round: int = 0
    rounds_without_acceptance: int = 0
    best: Evaluation | None = None
    objective: Objective = "mean_score"
    elapsed_s: float = 0.0
    evaluations: int = 0
    spent: Spending = NOTHING
    user_stop: str | None = None
    test_now: bool = False

    @property
    def is_baseline(self) -> bool:
        return self.round == 0


class StopPolicy(Protocol):
    """Decides whether a run goes on. Called on the baseline and after each round; must not block."""

    def decide(self, progress: Progress) -> StopDecision:
        """The reasons to stop, if any."""


class Stopper:
    """Gives a stop policy `&` and `|`, and a repr that reads like the code that made it."""

    __slots__ = ()

    def __and__(self: StopPolicy, other: StopPolicy) -> StopOnAll:
        return StopOnAll(self, other)

    def __rand__(self: StopPolicy, other: StopPolicy) -> StopOnAll:
        return StopOnAll(other, self)

    def __or__(self: StopPolicy, other: StopPolicy) -> StopOnAny:
        return StopOnAny(self, other)

    def __ror__(self: StopPolicy, other: StopPolicy) -> StopOnAny:
        return StopOnAny(other, self)

    def __repr__(self) -> str:
        return as_call(self)


@dataclass(frozen=True, slots=True, repr=False)
class RequiredMetrics(Stopper):
    """Stops when the mean of every named metric reaches its threshold; `"all"` means all metrics there are.

    Checked on the baseline too, and never on an evaluation that failed too often to be judged.
    """

    names: str | tuple[str, ...] = "all"

    def __post_init__(self) -> None:
        if not self.names:
            raise SetupError(f'required metrics are {self.names!r}; give names or "all", or leave the policy out')
        if self.names != "all":
            names = [self.names] if isinstance(self.names, str) else self.names
            object.__setattr__(self, "names", tuple(dict.fromkeys(names)))

    def decide(self, progress: Progress) -> StopDecision:
        if progress.best is None:
            return GO_ON
        check_metrics(self, progress.best.thresholds)
        means, thresholds = progress.best.metric_means, progress.best.thresholds
        names = sorted(thresholds) if self.names == "all" else self.names
        if not names or not all(_reaches(means[name], thresholds[name]) for name in names):
            return GO_ON
        told = ", ".join(f"{name} {means[name]:.3f} of {thresholds[name]:g}" for name in names)
        return _when(progress.best.is_reliable, "required_metrics", text=f"required metrics reach thresholds: {told}")


@dataclass(frozen=True, slots=True, repr=False)
class TargetScore(Stopper):
    """Stops when the accepted profile's objective reaches `score`; a weighted loss when it is at most that.

    Checked on the baseline too, and never on an evaluation that failed too often to be judged.
    """

    score: float

    def __post_init__(self) -> None:
        if not is_number(self.score):
            raise SetupError(f"the target score is {self.score!r}; give a finite number, such as 0.95")

    def decide(self, progress: Progress) -> StopDecision:
        figure = progress.best.objective(progress.objective) if progress.best is not None else None
        if progress.best is None or figure is None or not progress.best.is_reliable:
            return GO_ON
        if progress.objective == "weighted_loss":
            text = f"weighted_loss {-figure:.3f} is at most {self.score:g}"
            return _when(_reaches(figure, -self.score), "target_score", text=text)
        text = f"{progress.objective} {figure:.3f} reaches {self.score:g}"
        return _when(_reaches(figure, self.score), "target_score", text=text)


@dataclass(frozen=True, slots=True, repr=False)
class UserStop(Stopper):
    """Stops when the user asked for it, on the baseline too."""

    def decide(self, progress: Progress) -> StopDecision:
        if progress.test_now:
            return _when(True, "test_now", text="the user asked for the claim on what was kept")
        return _when(progress.user_stop is not None, "user_stop", text=f"the user asked to stop: {progress.user_stop}")


@dataclass(frozen=True, slots=True, repr=False)
class StopFile(Stopper):
    """Stops when this file exists, on the baseline too: `touch` it to end a run after its current round."""

    path: str | Path

    def __post_init__(self) -> None:
        if not str(self.path):
            raise SetupError("the stop file has no path; give one, such as 'stop'")
        object.__setattr__(self, "path", str(self.path))

    def decide(self, progress: Progress) -> StopDecision:  # noqa: ARG002
        return _when(Path(self.path).exists(), "user_stop", text=f"the stop file {self.path!r} exists")


@dataclass(frozen=True, slots=True, repr=False)
class Patience(Stopper):
    """Stops after so many rounds in a row in which nothing was accepted."""

    rounds: int

    def __post_init__(self) -> None:
        _check_count(self.rounds, "the patience")

    def decide(self, progress: Progress) -> StopDecision:
        text = f"nothing was accepted in {progress.rounds_without_acceptance} rounds, the patience is {self.rounds}"
        return _when(progress.rounds_without_acceptance >= self.rounds, "patience", text=text)


@dataclass(frozen=True, slots=True, repr=False, kw_only=True)
class Deadline(Stopper):
    """Stops after the round in which so much time has passed since the start; minutes and seconds add up."""

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
        text = f"the deadline of {self.limit_s:g} s has passed"
        return _between_rounds(progress, progress.elapsed_s >= self.limit_s, kind="deadline", text=text)


@dataclass(frozen=True, slots=True, repr=False)
class MaxEvaluations(Stopper):
    """Stops after the round in which so many cases were evaluated; the repeats of a case count once."""

    evaluations: int

    def __post_init__(self) -> None:
        _check_count(self.evaluations, "the number of evaluations")

    def decide(self, progress: Progress) -> StopDecision:
        holds, text = progress.evaluations >= self.evaluations, f"{self.evaluations} evaluations were made"
        return _between_rounds(progress, holds, kind="max_evaluations", text=text)


@dataclass(frozen=True, slots=True, repr=False)
class MaxCalls(Stopper):
    """Stops after the round in which so many calls were made."""

    calls: int

    def __post_init__(self) -> None:
        _check_count(self.calls, "the number of calls")

    def decide(self, progress: Progress) -> StopDecision:
        holds, text = progress.spent.calls >= self.calls, f"{self.calls} calls were made"
        return _between_rounds(progress, holds, kind="max_calls", text=text)


@dataclass(frozen=True, slots=True, repr=False)
class MaxTokens(Stopper):
    """Stops after the round in which so many tokens were used, of input and output together, as far as known."""

    tokens: int

    def __post_init__(self) -> None:
        _check_count(self.tokens, "the number of tokens")

    def decide(self, progress: Progress) -> StopDecision:
        holds, text = progress.spent.tokens >= self.tokens, f"{self.tokens} tokens were used"
        return _between_rounds(progress, holds, kind="max_tokens", text=text)


@dataclass(frozen=True, slots=True, repr=False)
class MaxUsd(Stopper):
    """Stops after the round in which so many dollars were spent, as far as prices are known."""

    usd: float

    def __post_init__(self) -> None:
        if not (is_number(self.usd) and self.usd > 0):
            raise SetupError(f"the most to spend is {self.usd!r} dollars; give a number above 0")

    def decide(self, progress: Progress) -> StopDecision:
        known = progress.spent.cost_usd
        holds, text = known is not None and known >= self.usd, f"${self.usd:g} was spent"
        return _between_rounds(progress, holds, kind="max_usd", text=text)


@dataclass(frozen=True, slots=True, repr=False)
class MaxRounds(Stopper):
    """Stops after so many rounds."""

    rounds: int

    def __post_init__(self) -> None:
        _check_count(self.rounds, "the number of rounds")

    def decide(self, progress: Progress) -> StopDecision:
        text = f"{plural(progress.round, 'round')} finished, of at most {self.rounds}"
        return _when(progress.round >= self.rounds, "max_rounds", text=text)


class StopOnAny(Combined[StopPolicy], Stopper):
    """Stops when one holds, and lists all that hold."""

    __slots__ = ()
    sign = "|"

    def decide(self, progress: Progress) -> StopDecision:
        reasons = [reason for policy in self.policies for reason in policy.decide(progress).reasons]
        return StopDecision(bool(reasons), tuple(reasons))


class StopOnAll(Combined[StopPolicy], Stopper):
    """Stops when all hold."""

    __slots__ = ()
    sign = "&"

    def decide(self, progress: Progress) -> StopDecision:
        decisions = [policy.decide(progress) for policy in self.policies]
        if not all(decision.stop for decision in decisions):
            return GO_ON
        return StopDecision(True, tuple(reason for decision in decisions for reason in decision.reasons))


def check_metrics(policy: StopPolicy, known: Iterable[str]) -> None:
    """UnknownNameError with all metrics that a policy requires by name and that do not exist."""
    known = sorted(known)
    required = [part.names for part in parts_of(policy) if isinstance(part, RequiredMetrics) and part.names != "all"]
    if unknown := sorted({name for names in required for name in names}.difference(known)):
        raise UnknownNameError("required metric", unknown, known=known)


def _when(holds: bool, kind: str, *, text: str) -> StopDecision:
    return StopDecision(True, (StopReason(kind, text),)) if holds else GO_ON


def _between_rounds(progress: Progress, holds: bool, *, kind: str, text: str) -> StopDecision:
    """A limit on what is spent. The baseline alone never ends a run: it would have measured and not searched."""
    return _when(holds and not progress.is_baseline, kind, text=text)


def _reaches(figure: float | None, limit: float) -> bool:
    """With 12 digits, so that the mean of three scores of 0.7 reaches 0.7."""
    return figure is not None and round(figure, 12) >= limit


def _check_count(count: object, what: str) -> None:
    if not (isinstance(count, int) and is_number(count, least=1)):
        raise SetupError(f"{what} is {count!r}; give a whole number of at least 1")
