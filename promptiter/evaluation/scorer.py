"""Scorer: scores a whole profile without cases, for example by a build, a test suite or a file task.

    async def build(profile):
        return Score(metric="tests", value=0.75, reason="3 of 4 tests pass")

    RunRequest(scorer=build)

A run treats it as one case: `ScoredAgent` calls it in place of the agent, and one metric per name reads its scores. So
its results are rows like any others: recorded, repeated, resumed, compared and tested.

A hold-out is a second function, which the search never sees. Its cases are the test set of the run:

    Scorer(build, holdout=score_hidden_tests, holdout_cases=("parser", "printer"))
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, SupportsFloat, TypeAlias

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.concurrency import call_any
from promptiter.errors import SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet, Turn
from promptiter.evaluation.metrics.metric import describe_failure, leave_unscored
from promptiter.evaluation.result import NO_FIGURES, Figures
from promptiter.evaluation.score import Score
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from promptiter.wording import join_names, shorten
from traces import ExecutionTrace, Usage

SCORER_SET = EvalSet(id="scorer", cases=(EvalCase(id="scorer", turns=(Turn(user=""),)),))
"""The one case of a run with a scorer."""

HOLDOUT = "holdout"
"""The id of the eval set of a hold-out, and of its only case if it names none."""

ScorerFunction: TypeAlias = Callable[..., Any]
"""`(profile)` or `(profile, context)`; returns a number, a Score, several scores, or a ScoredProfile.

That of a hold-out may have a third parameter, or one called `case`: the name of the case.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredProfile:
    """What a scorer found: scores with their reasons, and, for searches that need them, traces of what it ran.

    A finding of a score names the trace that it is about by its number (`turn`); otherwise it is about the last one.
    `figures` are what it measured in its own units, for policies such as FigureGain: `{"runtime_s": 41.2}`. True and
    false count as 1 and 0.
    """

    scores: tuple[Score, ...]
    output: str = ""
    traces: tuple[ExecutionTrace, ...] = ()
    usage: Usage = field(default_factory=Usage)
    figures: Figures = field(default_factory=lambda: NO_FIGURES)


@dataclass(frozen=True, slots=True)
class Scorer:
    """A function that scores profiles, with the names and thresholds of its scores.

    The function may be async, or sync (run in a thread). It gets the profile and, if it has a second parameter, the
    RunContext: `context.repeat` numbers the repetitions. Model calls that it makes through the active gateway count
    for the budget of the run; give them the context, so that each repeat has answers of its own.

    `holdout` is a function of the same kind that is only called in the final test, once for each of the
    `holdout_cases` and each repeat. Its scores have the same names. From 8 cases on, a gain on them is one for new
    cases; with fewer, they can only show that a gain is specific to what the search measured.
    """

    function: ScorerFunction = field(repr=False)  # it may hold secrets
    thresholds: Mapping[str, float] = field(default_factory=lambda: {"score": 1.0})
    holdout: ScorerFunction | None = field(default=None, repr=False)
    holdout_cases: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise SetupError(
                f"a scorer is {shorten(self.function)}; give a function of a profile that returns its scores"
            )
        if self.holdout is not None and not callable(self.holdout):
            raise SetupError(f"the hold-out of a scorer is {shorten(self.holdout)}; give a function of a profile")
        object.__setattr__(self, "holdout_cases", _check_holdout_cases(self.holdout_cases, self.holdout))
        if not self.thresholds:
            raise SetupError("a scorer needs thresholds: the names of its scores, and the value at which each passes")

    @property
    def name(self) -> str:
        """The function as `module:name`."""
        function = self.function.func if isinstance(self.function, partial) else self.function
        named = function if hasattr(function, "__qualname__") else type(function)
        return f"{named.__module__}:{named.__qualname__}"

    @property
    def metrics(self) -> tuple[ScorerMetric, ...]:
        return tuple(ScorerMetric(name, threshold) for name, threshold in self.thresholds.items())

    @property
    def holdout_set(self) -> EvalSet | None:
        """The cases of the hold-out; None if there is none."""
        if self.holdout is None:
            return None
        return EvalSet(id=HOLDOUT, cases=tuple(EvalCase(id=name, turns=(Turn(user=name),)) for name in self._cases))

    @property
    def _cases(self) -> tuple[str, ...]:
        return self.holdout_cases or (HOLDOUT,)

    async def score(self, profile: Profile, context: RunContext) -> ScoredProfile:
        """Call the function, and read what it returns. Raises SetupError if that is not a score.

        For a case of the hold-out, the function of the hold-out is called.
        """
        if self.holdout is not None and context.case_id in self._cases:
            arguments, named = _select_arguments(self.holdout, profile, context, case=context.case_id)
            answer = await call_any(self.holdout, *arguments, **named)
        else:
            arguments = (profile, context)[: _count_parameters(self.function)]
            answer = await call_any(self.function, *arguments)
        if isinstance(answer, ScoredProfile):
            figures = self._check_figures(answer.figures)
            return replace(answer, scores=self._check_scale(self._read_scores(answer.scores)), figures=figures)
        several = isinstance(answer, list | tuple) and all(isinstance(each, Score) for each in answer)
        return ScoredProfile(scores=self._check_scale(self._read_scores(answer if several else [answer])))

    def _read_scores(self, answers: Iterable[object]) -> tuple[Score, ...]:
        answers = list(answers)
        if len(self.thresholds) == 1 and len(answers) == 1:
            [(name, threshold)] = self.thresholds.items()
            return (self._read_only_score(answers[0], name, threshold),)
        scores = [each for each in answers if isinstance(each, Score)]
        unknown = [score for score in scores if score.metric not in self.thresholds]
        if unknown or len(scores) < len(answers) or len({score.metric for score in scores}) < len(scores):
            wanted = {score.metric: score.threshold for score in scores} or {"tests": 1.0, "size": 0.5}
            raise SetupError(
                f"the scorer {self.name} returned {shorten(answers)}, and its scores are "
                f"{join_names([repr(each) for each in self.thresholds], limit=5)}; return one Score for each, or name "
                f"others with Scorer(function, {wanted})"
            )
        return tuple(replace(score, threshold=self.thresholds[score.metric]) for score in scores)

    def _read_only_score(self, answer: object, name: str, threshold: float) -> Score:
        if isinstance(answer, Score):
            return replace(answer, metric=name, threshold=threshold)
        if not isinstance(answer, SupportsFloat):
            raise SetupError(
                f"the scorer {self.name} returned {shorten(answer)}; return a number from 0 to 1, or a Score"
            )
        return Score(metric=name, value=float(answer), threshold=threshold)

    def _check_figures(self, figures: Figures) -> Figures:
        """Return the figures as numbers.

        SetupError if one is something else. An infinite figure or NaN, as after a division by 0, makes this run fail:
        JSON cannot hold it, and it cannot be compared.
        """
        for name, value in figures.items():
            wrong = f"the scorer {self.name} returned {shorten(value)} as the figure {name!r}; return a finite number"
            if not isinstance(value, int | float):
                raise SetupError(wrong)
            if not math.isfinite(value):
                raise ValueError(wrong)
        return {str(name): float(value) for name, value in figures.items()}

    def _check_scale(self, scores: tuple[Score, ...]) -> tuple[Score, ...]:
        """Return the scores, if all are from 0 to 1: runs end at 1, and noise is measured on that scale."""
        for score in scores:
            if score.value is not None and not 0 <= score.value <= 1:
                raise SetupError(
                    f"the scorer {self.name} returned {score.value:g} as {score.metric!r}; return a number from 0 to 1"
                )
        return scores


def as_scorer(given: Scorer | ScorerFunction) -> Scorer:
    """A Scorer as it is; a plain function as a Scorer with one score."""
    return given if isinstance(given, Scorer) else Scorer(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerRun(AgentRun):
    """A call of a scorer as a run, with the scores and figures it returned."""

    scores: tuple[Score, ...] = ()
    figures: Figures = field(default_factory=lambda: NO_FIGURES)


@dataclass(frozen=True, slots=True)
class ScoredAgent:
    """The agent of a run with a scorer: its structure, and the scorer in place of its runs."""

    agent: Agent
    scorer: Scorer

    def describe(self) -> StructureSnapshot:
        return self.agent.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002 - protocol
        found = await self.scorer.score(profile, context)
        return ScorerRun(
            output=found.output,
            trace=found.traces[-1] if found.traces else None,
            usage=found.usage,
            turns=tuple(AgentRun(trace=each) for each in found.traces),
            scores=found.scores,
            figures=found.figures,
        )


@dataclass(frozen=True, slots=True)
class ScorerMetric:
    """Reads one score of a scorer."""

    name: str
    threshold: float = 1.0
    needs_reference: bool = False

    async def __call__(self, case: EvalCase, run: AgentRun) -> Score:  # noqa: ARG002 - protocol
        if problem := describe_failure(run):
            return leave_unscored(self, problem)
        scores = run.scores if isinstance(run, ScorerRun) else ()
        found = next((score for score in scores if score.metric == self.name), None)
        return leave_unscored(self, f"the scorer returned no score {self.name!r}") if found is None else found


NO_AGENT = "a structure cannot be run on cases; give the engine an agent, or the request a scorer"


@dataclass(frozen=True, slots=True)
class DescribedAgent:
    """The agent of a structure that only a scorer runs."""

    structure: StructureSnapshot

    def describe(self) -> StructureSnapshot:
        return self.structure

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:  # noqa: ARG002 - protocol
        raise SetupError(NO_AGENT)


def _count_parameters(function: ScorerFunction) -> int:
    """How many of profile and context a function takes; only the profile if it does not say."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    wanted = [each for each in signature.parameters.values() if each.kind in kinds]
    required = [each for each in wanted if each.default is inspect.Parameter.empty]
    return 2 if len(required) > 1 or "context" in signature.parameters else 1


def _select_arguments(
    function: ScorerFunction, profile: Profile, context: RunContext, *, case: str
) -> tuple[tuple[object, ...], dict[str, str]]:
    """The arguments of the function of a hold-out: the name of the case by its parameter `case`, or as the third."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:  # a builtin
        return (profile,), {}
    if "case" in parameters:
        others = [name for name in parameters if name != "case"]
        is_last = list(parameters)[-1] == "case"
        wants_context = "context" in parameters or (is_last and len(others) == 2)
        return (profile, context)[: 1 + wants_context], {"case": case}
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    required = [each for each in parameters.values() if each.kind in kinds and each.default is each.empty]
    if len(required) > 2:
        return (profile, context, case), {}
    return (profile, context)[: _count_parameters(function)], {}


def _check_holdout_cases(names: object, holdout: object) -> tuple[str, ...]:
    if isinstance(names, str) or not isinstance(names, Iterable) or not all(isinstance(each, str) for each in names):
        raise SetupError(f"the cases of a hold-out are {shorten(names)}; give a tuple of names")
    cases = tuple(names)
    if cases and holdout is None:
        raise SetupError("a scorer has `holdout_cases`, and no hold-out; give its function as `holdout`")
    if "" in cases or "scorer" in cases or len(set(cases)) < len(cases):
        raise SetupError(f"the cases of a hold-out are {cases!r}; give each its own name, other than 'scorer'")
    return cases
