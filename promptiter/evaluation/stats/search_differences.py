"""Searches side by side: which differences in score and cost do runs with the same seeds show?

Each search is run once per seed, on the same task and with the same budget. For two searches, the runs of a seed are a
pair. The score is compared by its difference, costs by their ratio (as the difference of logarithms): a search that
takes half of the calls does so whether a seed is expensive or not.

All figures of a pair are tested together, see `sign_flips`. With more than two searches, every p-value is multiplied by
the number of comparisons. So the chance that anything is claimed although all searches are alike is at most alpha.
Results that were seen earlier count as comparisons, too.

A run that its budget cut short would have taken more. If it is the one that took less, it does not show which search
is cheaper with that seed, and counts as a tie in costs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeAlias

from promptiter.evaluation.stats.sign_flips import adjust_for_flips, count_needed_pairs, estimate_center

ComparedFigure: TypeAlias = Literal["score", "calls", "case_runs", "usd"]
"""What is compared: the score, where more is better, and costs, where less is."""

RunFigures: TypeAlias = Mapping[ComparedFigure, float | None]
"""The figures of one run; None is unknown."""

ALPHA = 0.05

LEAST: Mapping[ComparedFigure, float] = {"calls": 1.0, "case_runs": 1.0, "usd": 0.0001}
"""What a run that took nothing counts as: a ratio to 0 says nothing. Of dollars, the least that is shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureDifference:
    """How the first search differs from the second in one figure, over `pairs` of runs, of which some are `ties`.

    The `difference` of scores is the mean of first minus second; that of costs is the geometric mean of first divided
    by second. Its 95% interval is for this figure alone; the p-value is adjusted for all figures and comparisons, and
    None if nothing may be claimed.
    """

    figure: ComparedFigure
    pairs: int
    ties: int
    difference: float
    low: float | None
    high: float | None
    p_value: float | None
    is_shown: bool

    @property
    def is_better(self) -> bool:
        """Whether the first search is shown to be better in this figure."""
        return self.is_shown and (self.difference > 0 if self.figure == "score" else self.difference < 1)

    @property
    def is_worse(self) -> bool:
        return self.is_shown and not self.is_better


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchDifference:
    """Two searches, by name. `seeds` are those that both have a run of, `needed_seeds` the fewest to show anything.

    `untested` is why nothing may be claimed, if so.
    """

    first: str
    second: str
    seeds: int
    needed_seeds: int
    figures: tuple[FigureDifference, ...]
    untested: str = ""

    @property
    def has_enough_seeds(self) -> bool:
        return self.seeds >= self.needed_seeds

    @property
    def can_claim(self) -> bool:
        """Whether a difference could be shown, if it is large enough."""
        return self.has_enough_seeds and not self.untested

    def withhold(self, reason: str) -> SearchDifference:
        """The same difference, about which nothing is claimed."""
        figures = tuple(replace(each, p_value=None, is_shown=False) for each in self.figures)
        return replace(self, figures=figures, untested=reason)

    def figure(self, name: ComparedFigure) -> FigureDifference | None:
        return next((each for each in self.figures if each.figure == name), None)


def compare_figures(
    runs: Mapping[str, Mapping[int, RunFigures]],
    figures: Sequence[ComparedFigure] = ("score", "calls"),
    *,
    cut: Mapping[str, Collection[int]] | None = None,
    results: int = 1,
    alpha: float = ALPHA,
) -> tuple[SearchDifference, ...]:
    """Compare each search with each later one, given the figures of its runs by seed.

    `cut` are the seeds of each search whose run the budget ended. `results` counts the results of this comparison that
    were seen, with this one.
    """
    both = list(combinations(runs, 2))
    tests = results * len(both)
    return tuple(_compare(runs, pair, figures, cut=cut or {}, comparisons=tests, alpha=alpha) for pair in both)


def _compare(
    runs: Mapping[str, Mapping[int, RunFigures]],
    names: tuple[str, str],
    figures: Sequence[ComparedFigure],
    *,
    cut: Mapping[str, Collection[int]],
    comparisons: int,
    alpha: float,
) -> SearchDifference:
    first, second = (runs[name] for name in names)
    seeds = sorted(first.keys() & second.keys())
    cuts = {seed: [seed in cut.get(name, ()) for name in names] for seed in seeds}
    found = {
        figure: [_subtract(figure, first[seed], second[seed], are_cut=cuts[seed]) for seed in seeds]
        for figure in figures
    }
    known = {figure: each for figure, each in found.items() if any(one is not None for one in each)}
    p_values = adjust_for_flips([[one or 0.0 for one in each] for each in known.values()])
    return SearchDifference(
        first=names[0],
        second=names[1],
        seeds=len(seeds),
        needed_seeds=count_needed_pairs(alpha, comparisons=comparisons),
        figures=tuple(
            _describe(figure, [one for one in each if one is not None], min(1.0, comparisons * p_value), alpha=alpha)
            for (figure, each), p_value in zip(known.items(), p_values, strict=True)
        ),
    )


def _subtract(
    figure: ComparedFigure, first: RunFigures, second: RunFigures, *, are_cut: Sequence[bool]
) -> float | None:
    """The difference of a seed; None if a run lacks the figure. `are_cut`: whether the budget ended the two runs."""
    before, after = second.get(figure), first.get(figure)
    if before is None or after is None:
        return None
    if figure == "score":
        return after - before
    if before == after or are_cut[0 if after < before else 1]:
        return 0.0
    least = LEAST[figure] if min(before, after) <= 0 else 0.0
    return math.log(max(after, least)) - math.log(max(before, least))


def _describe(
    figure: ComparedFigure, differences: Sequence[float], p_value: float, *, alpha: float
) -> FigureDifference:
    center = estimate_center(differences)
    ends = (center.mean, center.low, center.high)
    mean, low, high = ends if figure == "score" else [None if end is None else math.exp(end) for end in ends]
    assert mean is not None, "there is at least one difference"
    return FigureDifference(
        figure=figure,
        pairs=len(differences),
        ties=sum(each == 0 for each in differences),
        difference=mean,
        low=low,
        high=high,
        p_value=p_value,
        is_shown=p_value <= alpha,
    )
