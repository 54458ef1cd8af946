"""What an acceptance policy asks for, in words: for those who write candidates, who cannot run it."""

from __future__ import annotations

from collections.abc import Iterator

from promptiter.evaluation.metrics.metric import summarize_findings
from promptiter.evaluation.result import Evaluation, Figures
from promptiter.policies.combine import describe_policy, iter_policies
from promptiter.policies.figure_gain import Bound, FigureGain, format_figure
from promptiter.policies.figures import average_figures
from traces.text import cut

MOST_REASON = 2_000
"""Maximum number of characters that say why a score is low."""


def read_known_figures(evaluation: Evaluation) -> dict[str, float]:
    """What a scorer recorded, and the means of the metrics of which it recorded nothing."""
    means = {name: mean for name, mean in evaluation.metric_means.items() if mean is not None}
    return {**means, **average_figures(evaluation.rows)}


def list_aims(policy: object, figures: Figures) -> tuple[str, ...]:
    """What a candidate must show, the bounds first, each with the current figure."""
    return (*_list_bounds(policy, figures), *_list_gains(policy, figures))


def find_broken_bounds(policy: object, figures: Figures) -> tuple[str, ...]:
    """The bounds that the current figures do not meet."""
    broken = [each for each in _find_bounds(policy) if not each.is_met(figures.get(each.figure))]
    return tuple(f"{each.figure} must be {each.op} {each.value}{_show(each.figure, figures)}" for each in broken)


def ask_for_more(policy: object, figures: Figures) -> str:
    """What to improve if nothing fails: a bound that is broken, the first tie-breaker, or the primary figure."""
    if broken := find_broken_bounds(policy, figures):
        return f"{'; '.join(broken)}. Change the text so that this holds, and keep everything that works."
    for gain in _find_gains(policy):
        sides = gain.tie_breakers or ((("higher" if gain.direction == "maximize" else "lower"), gain.figure),)
        side, figure = sides[0]
        keep = f", and keep {gain.figure} as it is or better" if gain.tie_breakers else ""
        return f"Make {figure} {side}{_show(figure, figures)}{keep}."
    return ""


def list_failures(evaluation: Evaluation) -> tuple[str, ...]:
    """What an evaluation complains of, each thing once: errors, and scores that do not pass with their reasons."""
    found: dict[str, None] = {}
    for row in evaluation.rows:
        if row.error is not None:
            found[f"the run failed: {cut(str(row.error), MOST_REASON)}"] = None
            continue
        for score in row.scores:
            if score.passed:
                continue
            value = "could not be scored" if score.value is None else f"is {score.value:.4g}"
            why = score.error or score.reason or summarize_findings(score.findings)
            found[f"{score.metric} {value}, and passes from {score.threshold:g}: {cut(why, MOST_REASON)}"] = None
    return tuple(found)


def _list_bounds(policy: object, figures: Figures) -> Iterator[str]:
    for each in _find_bounds(policy):
        state = "" if each.is_met(figures.get(each.figure)) else " and does not hold now"
        yield f"{each.figure} must be {each.op} {each.value}{_show(each.figure, figures)}{state}; this comes first"


def _list_gains(policy: object, figures: Figures) -> Iterator[str]:
    for part in iter_policies(policy):
        if isinstance(part, Bound):
            continue
        if not isinstance(part, FigureGain):
            yield f"a candidate is kept if this policy accepts it: {describe_policy(part)}"
            continue
        side = "higher" if part.direction == "maximize" else "lower"
        by = f" by more than {part.min_gain:g}" if part.min_gain else ""
        yield f"{part.figure} should be {side}{by}{_show(part.figure, figures)}"
        for better, figure in part.tie_breakers:
            yield f"if that is equal or close, {figure} should be {better}{_show(figure, figures)}"


def _find_bounds(policy: object) -> list[Bound]:
    return [part for part in iter_policies(policy) if isinstance(part, Bound)]


def _find_gains(policy: object) -> list[FigureGain]:
    return [part for part in iter_policies(policy) if isinstance(part, FigureGain)]


def _show(figure: str, figures: Figures) -> str:
    return f" (it is {format_figure(figures[figure])})" if figure in figures else " (it is unknown)"
