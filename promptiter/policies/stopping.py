"""Stopping: whether a run ends, decided on the baseline and after each round.

    stop = MaxRounds(8) | TargetScore(0.95) | Deadline(minutes=30)

A policy is one method, `decide`, which returns the reasons to stop. Policies compose with `&` and `|`. They act between
rounds: the current round is finished, and the final test follows. A Budget is a hard cap, which ends a round at once.
The reasons contain no times and no amounts spent, so that equal runs give equal reasons.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from promptiter.errors import SetupError, UnknownNameError
from promptiter.evaluation.result import Evaluation, Objective, get_best_value, get_worst_value
from promptiter.llm.ledger import NOTHING, Spending
from promptiter.numbers import is_number
from promptiter.policies.combine import CombinedPolicy, describe_policy, format_call, iter_policies
from promptiter.policies.stop_decision import CONTINUE, StopDecision, stop_if
from promptiter.wording import plural, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress of a run. `round` counts finished rounds; at 0 only the baseline is validated.

    `best` is the validation of the accepted profile. `evaluations` counts evaluated cases; repeats of a case count
    once. `crashes` counts the candidates that crashed: more of their runs failed with an error than a reliable
    evaluation may have. `user_stop` is how the user asked to stop (`Ctrl-C`), if at all. `test_now` asks to end the
    search with the final test.
    """

    round: int = 0
    rounds_without_acceptance: int = 0
    best: Evaluation | None = None
    objective: Objective = "mean_score"
    elapsed_s: float = 0.0
    evaluations: int = 0
    crashes: int = 0
    spent: Spending = NOTHING
    user_stop: str | None = None
    test_now: bool = False

    @property
    def is_baseline(self) -> bool:
        return self.round == 0


class StopPolicy(Protocol):
    """Decides whether a run stops. Called on the baseline and after each round; must not block."""

    def decide(self, progress: Progress) -> StopDecision:
        """Return the reasons to stop, if any."""


def decide_stop(policy: StopPolicy, progress: Progress) -> StopDecision:
    """Return the decision of a policy. SetupError if it returns something else."""
    decision = policy.decide(progress)
    if not isinstance(decision, StopDecision):
        raise SetupError(f"{describe_policy(policy)} answered {shorten(decision)}; return a StopDecision")
    return decision


class ComposableStop:
    """A base class that gives a stop policy `&`, `|`, and a repr that reads like the code that creates it."""

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
        return format_call(self)


class ScorelessStop(ComposableStop):
    """A base class for stop policies that do not look at the validation of the accepted profile (`Progress.best`).

    Every other policy is taken to look at it. That is one more answer that validation gives, see `reads_score`.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, repr=False)
class RequiredMetrics(ComposableStop):
    """Stops when the mean of every named metric reaches its threshold; `"all"` means every metric of the run.

    A run in which the agent failed counts as 0. Checked on the baseline too, but not on an evaluation with too many
    failures.
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
            return CONTINUE
        check_metrics(self, progress.best.thresholds)
        thresholds = progress.best.thresholds
        means = {name: _count_failures(mean, progress.best) for name, mean in progress.best.metric_means.items()}
        names = sorted(thresholds) if self.names == "all" else self.names
        if not names or not all(_reaches(means[name], thresholds[name]) for name in names):
            return CONTINUE
        figures = ", ".join(f"{name} {means[name]:.3f} of {thresholds[name]:g}" for name in names)
        text = f"required metrics reach thresholds: {figures}"
        return stop_if(progress.best.is_reliable, "required_metrics", text)


@dataclass(frozen=True, slots=True, repr=False)
class TargetScore(ComposableStop):
    """Stops when the accepted profile's objective reaches `score`; a weighted loss, when it is at most `score`.

    A run in which the agent failed counts with the worst value, as it does when candidates are compared. Otherwise a
    prompt with which the agent crashes in some cases could be perfect. Checked on the baseline too, but not on an
    evaluation with too many failures.
    """

    score: float

    def __post_init__(self) -> None:
        if not is_number(self.score):
            raise SetupError(f"the target score is {self.score!r}; give a finite number, such as 0.95")

    def decide(self, progress: Progress) -> StopDecision:
        best, objective = progress.best, progress.objective
        figure = None if best is None else _count_failures(best.objective(objective), best, objective)
        if best is None or figure is None or not best.is_reliable:
            return CONTINUE
        if progress.objective == "weighted_loss":
            text = f"weighted_loss {-figure:.3f} is at most {self.score:g}"
            return stop_if(_reaches(figure, -self.score), "target_score", text)
        text = f"{progress.objective} {figure:.3f} reaches {self.score:g}"
        return stop_if(_reaches(figure, self.score), "target_score", text)


@dataclass(frozen=True, slots=True, repr=False)
class UserStop(ScorelessStop):
    """Stops when the user asks for it, on the baseline too."""

    def decide(self, progress: Progress) -> StopDecision:
        if progress.test_now:
            return stop_if(True, "test_now", "the user asked for the final test now")
        return stop_if(progress.user_stop is not None, "user_stop", f"stopped on request: {progress.user_stop}")


@dataclass(frozen=True, slots=True, repr=False)
class StopFile(ScorelessStop):
    """Stops when this file exists, on the baseline too: `touch` it to end a run after its current round."""

    path: str | Path

    def __post_init__(self) -> None:
        if not str(self.path):
            raise SetupError("the stop file has no path; give one, such as 'stop'")
        object.__setattr__(self, "path", str(self.path))

    def decide(self, progress: Progress) -> StopDecision:  # noqa: ARG002
        return stop_if(Path(self.path).exists(), "user_stop", f"the stop file {self.path!r} exists")


@dataclass(frozen=True, slots=True, repr=False)
class Patience(ScorelessStop):
    """Stops after this number of rounds in a row without an accepted candidate."""

    rounds: int

    def __post_init__(self) -> None:
        check_count(self.rounds, "the patience")

    def decide(self, progress: Progress) -> StopDecision:
        text = f"nothing was accepted in {progress.rounds_without_acceptance} rounds, the patience is {self.rounds}"
        return stop_if(progress.rounds_without_acceptance >= self.rounds, "patience", text)


@dataclass(frozen=True, slots=True, repr=False)
class MaxRounds(ScorelessStop):
    """Stops after this number of rounds."""

    rounds: int

    def __post_init__(self) -> None:
        check_count(self.rounds, "the number of rounds")

    def decide(self, progress: Progress) -> StopDecision:
        text = f"{plural(progress.round, 'round')} finished, of at most {self.rounds}"
        return stop_if(progress.round >= self.rounds, "max_rounds", text)


class StopOnAny(CombinedPolicy[StopPolicy], ComposableStop):
    """Stops when one policy does, and gives the reasons of all that do.

    If the user stops the run, no other reason counts: it is resumed, and then decides as if it had not been stopped.
    """

    __slots__ = ()
    sign = "|"

    def decide(self, progress: Progress) -> StopDecision:
        decisions = [decide_stop(policy, progress) for policy in self.policies]
        by_user = [decision for decision in decisions if decision.is_user_stop]
        reasons = [reason for decision in by_user or decisions for reason in decision.reasons]
        return StopDecision(bool(reasons), tuple(reasons))


class StopOnAll(CombinedPolicy[StopPolicy], ComposableStop):
    """Stops when all policies do."""

    __slots__ = ()
    sign = "&"

    def decide(self, progress: Progress) -> StopDecision:
        decisions = [decide_stop(policy, progress) for policy in self.policies]
        if not all(decision.stop for decision in decisions):
            return CONTINUE
        return StopDecision(True, tuple(reason for decision in decisions for reason in decision.reasons))


def reads_score(policy: StopPolicy, progress: Progress, decision: StopDecision) -> bool:
    """Whether a decision tells something about validation: it depends on a part that may look at the score.

    A user who asks for the final test has seen the scores, too.
    """
    if any(reason.kind == "test_now" for reason in decision.reasons):
        return True
    return not (_is_scoreless(policy) or _stops_without_score(policy, progress))


def _is_scoreless(policy: StopPolicy) -> bool:
    return all(isinstance(part, ScorelessStop) for part in iter_policies(policy))


def _stops_without_score(policy: StopPolicy, progress: Progress) -> bool:
    """Whether the run stops whatever its score is, because it was the last round for example."""
    if isinstance(policy, StopOnAny):
        return any(_stops_without_score(each, progress) for each in policy.policies)
    return _is_scoreless(policy) and decide_stop(policy, progress).stop


def complete_stop(stop: StopPolicy | None, *, max_rounds: int, objective: Objective, is_for_score: bool) -> StopPolicy:
    """Return the stop policy of a run: the maximum number of rounds, the user, and `stop`.

    Without a `stop`, a run for a better score ends at a perfect one, or after three rounds without an accepted
    candidate. Searches for other goals end when nothing is left to try.
    """
    if stop is None and is_for_score:
        stop = TargetScore(get_best_value(objective)) | Patience(3)
    always = MaxRounds(max(1, max_rounds)) | UserStop()
    return always if stop is None else always | stop


def check_metrics(policy: StopPolicy, known: Iterable[str]) -> None:
    """Raise UnknownNameError if a policy requires metrics that do not exist."""
    known = sorted(known)
    required = [
        part.names for part in iter_policies(policy) if isinstance(part, RequiredMetrics) and part.names != "all"
    ]
    if unknown := sorted({name for names in required for name in names}.difference(known)):
        raise UnknownNameError("required metric", unknown, known=known)


def check_target(policy: StopPolicy, objective: Objective) -> Iterator[str]:
    """Yield the targets that the objective of a run can never reach, or always reaches."""
    for part in iter_policies(policy):
        if isinstance(part, TargetScore) and not 0 <= part.score <= 1:
            percent = f", such as {part.score / 100:g} for {part.score:g}%" if 1 < part.score <= 100 else ""
            problem = f"target_score is {part.score:g}, but {objective} is from 0 to 1"
            yield f"{problem}; give a number in that range{percent}"


def _count_failures(figure: float | None, best: Evaluation, objective: Objective = "mean_score") -> float | None:
    """The figure, which leaves out failed runs, with the worst value for those in which the agent failed.

    An outage says nothing about a profile, and the pass rate already covers failed runs.
    """
    rows = [row for row in best.rows if row.outage is None]
    failed = sum(row.error is not None for row in rows)
    if figure is None or not failed or objective == "pass_rate":
        return figure
    return figure + (get_worst_value(objective) - figure) * failed / len(rows)


def _reaches(figure: float | None, limit: float) -> bool:
    """Compare with 12 digits, so that the mean of three scores of 0.7 reaches 0.7."""
    return figure is not None and round(figure, 12) >= limit


def check_count(count: object, what: str) -> None:
    """Raise SetupError unless the count is a whole number of at least 1."""
    if not (isinstance(count, int) and is_number(count, least=1)):
        raise SetupError(f"{what} is {count!r}; give a whole number of at least 1")
