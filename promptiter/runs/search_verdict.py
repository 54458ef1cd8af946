"""The verdict of a comparison in words: which search is better, in what, and by how much.

A search beats another if it is shown to be better in the score or in a cost, and not worse in the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from promptiter.evaluation.stats.search_differences import ComparedFigure, FigureDifference, SearchDifference
from promptiter.runs.search_comparison import SearchComparison
from promptiter.wording import join_names, plural

NOUNS: Mapping[ComparedFigure, str] = {
    "score": "score",
    "calls": "model calls",
    "case_runs": "case runs",
    "usd": "cost",
}
_VERBS: Mapping[ComparedFigure, tuple[str, str]] = {
    "score": ("scores higher", "scores lower"),
    "calls": ("takes fewer model calls", "takes more model calls"),
    "case_runs": ("takes fewer case runs", "takes more case runs"),
    "usd": ("costs less", "costs more"),
}
"""What is said of a search that is better in a figure, and of one that is worse."""


def write_verdict(found: SearchComparison) -> str:
    """A few sentences about all searches."""
    if not found.differences:
        return "There is only one search, so there is nothing to compare."
    if found.runs_left:
        return _explain_runs_left(found)
    tested = [each for each in found.differences if not each.untested]
    if tested and not found.can_claim:
        sentences = [_explain_few_seeds(found, tested), _explain_results(found)]
    else:
        sentences = [_compare_all(found), _explain_results(found)] if tested else []
    return " ".join(each for each in (*sentences, _explain_failures(found)) if each)


def _compare_all(found: SearchComparison) -> str:
    """What the differences say that may be claimed."""
    if len(found.differences) == 1:
        return describe_difference(found.differences[0])
    beaten = {loser for each in found.differences for loser in _find_losers(each)}
    best = [each.name for each in found.searches if each.name not in beaten and not each.failed]
    if not beaten:
        is_trade = any(figure.is_shown for each in found.differences for figure in each.figures)
        trade = " Those that score higher take more; the differences say how much." if is_trade else ""
        return f"No search is shown to beat another in {plural(len(found.seeds), 'seed')}.{trade}"
    if len(best) == 1 and all(_beats(found, best[0], name) for name in beaten):
        others = "all others" if len(beaten) + 1 == len(found.searches) else " and ".join(sorted(beaten))
        return f"{best[0]} beats {others}."
    return f"Beaten by another search: {', '.join(sorted(beaten))}. Not beaten: {', '.join(best)}."


def describe_difference(each: SearchDifference) -> str:
    """What is shown about two searches, in one sentence or two."""
    if each.untested:
        known = "".join(f"; {describe_figure(figure)}" for figure in _list_figures(each))
        return f"{each.first} and {each.second}: nothing is claimed, because {each.untested}{known}."
    if not each.has_enough_seeds:
        return (
            f"{each.first} and {each.second}: nothing can be shown with {plural(each.seeds, 'common seed')}; "
            f"{each.needed_seeds} are needed."
        )
    shown = [figure for figure in _list_figures(each) if figure.is_shown]
    if not shown:
        figures = "; ".join(describe_figure(figure) for figure in _list_figures(each))
        seeds = plural(each.seeds, "seed")
        return f"No difference between {each.first} and {each.second} is shown in {seeds}: {figures}."
    claims = [_claim(each, figure) for figure in shown]
    open_ones = [NOUNS[figure.figure] for figure in _list_figures(each) if not figure.is_shown]
    rest = f" No difference in {' or '.join(open_ones)} is shown." if open_ones else ""
    winners = {figure.is_better for figure in shown}
    trade = " Which one pays depends on what the score is worth to you." if len(winners) > 1 else ""
    return f"{'; '.join(claims)}.{rest}{trade}"


def describe_figure(figure: FigureDifference) -> str:
    """`score +0.120 (95% interval +0.050 to +0.190, p = 0.004)`, or `0.52 times the model calls (…)`."""
    if figure.figure == "score":
        amount, ends = f"score {figure.difference:+.3f}", [f"{end:+.3f}" for end in _list_ends(figure)]
    else:
        amount = f"{figure.difference:.2f} times the {NOUNS[figure.figure]}"
        ends = [f"{end:.2f}" for end in _list_ends(figure)]
    details = [f"95% interval {ends[0]} to {ends[1]}"] if ends else []
    if figure.p_value is not None:
        details.append(f"p = {figure.p_value:.2g}")
    return f"{amount} ({', '.join(details)})" if details else amount


def _claim(each: SearchDifference, figure: FigureDifference) -> str:
    """`backprop scores higher than gepa: score +0.120 (…)`."""
    better, worse = _VERBS[figure.figure]
    return f"{each.first} {better if figure.is_better else worse} than {each.second}: {describe_figure(figure)}"


def _explain_runs_left(found: SearchComparison) -> str:
    runs = len(found.searches) * len(found.seeds)
    return (
        f"{runs - found.runs_left} of {plural(runs, 'run')} have ended. Nothing is claimed before all have, because "
        "each look raises the chance of a false claim; give the same command to continue."
    )


def _explain_few_seeds(found: SearchComparison, tested: Sequence[SearchDifference]) -> str:
    fewest = max(each.needed_seeds for each in tested)
    seeds = max(each.seeds for each in tested)
    smallest = min(1.0, 2 * len(found.differences) * (len(found.earlier) + 1) / 2**seeds)
    among = "" if len(found.differences) == 1 else f" among {plural(len(found.searches), 'search', 'searches')}"
    return (
        f"Nothing can be shown with {plural(seeds, 'common seed')}: even if one search won every time, p would be "
        f"{smallest:.2g}. Run at least {fewest} seeds to compare{among}; 10 find most differences that matter."
    )


def _explain_failures(found: SearchComparison) -> str:
    """Whose runs failed, if any did, and what to do."""
    failed = [each for each in found.searches if each.failed]
    if not failed:
        return ""
    runs = join_names([f"{len(each.failed)} of {len(each.runs)} of {each.name}" for each in failed])
    names = " and ".join(each.name for each in failed)
    why = "; its other seeds may be the easier ones" if len(failed) == 1 and failed[0].complete else ""
    return f"Runs failed: {runs}. Nothing is claimed about {names}{why}. Give the same command to run them again."


def _explain_results(found: SearchComparison) -> str:
    """That results were seen before this one, if so."""
    if not found.earlier:
        return ""
    seeds = " and ".join(map(str, found.earlier))
    seen = f"A result for {seeds} seeds was" if len(found.earlier) == 1 else f"Results for {seeds} seeds were"
    return f"{seen} shown before, so p-values are multiplied by {len(found.earlier) + 1}."


def _find_losers(each: SearchDifference) -> Iterable[str]:
    """The search that is shown to be worse in something and better in nothing, if there is one."""
    better = any(figure.is_better for figure in each.figures)
    worse = any(figure.is_worse for figure in each.figures)
    if better != worse and each.can_claim:
        yield each.second if better else each.first


def _beats(found: SearchComparison, winner: str, loser: str) -> bool:
    pairs = (each for each in found.differences if {each.first, each.second} == {winner, loser})
    return any(loser in _find_losers(each) for each in pairs)


def _list_figures(each: SearchDifference) -> list[FigureDifference]:
    """The figures to speak of: of dollars and calls, which go together, the first that is shown."""
    costs = [figure for figure in each.figures if figure.figure != "score"]
    chosen = next((figure for figure in costs if figure.is_shown), costs[0] if costs else None)
    return [figure for figure in each.figures if figure.figure == "score" or figure is chosen]


def _list_ends(figure: FigureDifference) -> tuple[float, ...]:
    return () if figure.low is None or figure.high is None else (figure.low, figure.high)
