"""How caps limit a run: what fits, how many rounds that is, and what is reserved for the final test."""

from __future__ import annotations

from promptiter.engine.final_test import MAX_RESERVED_SHARE, count_test_runs
from promptiter.evaluation.stats.final_test import count_repeats, plan_final_test
from promptiter.forecast.estimate import Costs, Estimate
from promptiter.llm.budget import Budget, Budgets
from promptiter.runs.cost_ranges import NO_COST, ZERO, Figure, Range
from promptiter.wording import plural

MAX_ROUNDS = 50
"""Rounds that a cap allows are counted up to here."""


def read_caps(budget: Budget | Budgets | None) -> dict[Figure, float]:
    """The caps of a budget by the figure that each limits."""
    if budget is None:
        return {}
    caps = budget.caps
    known: dict[Figure, float | None] = {"calls": caps.max_calls, "tokens": caps.max_tokens, "usd": caps.max_usd}
    return {figure: cap for figure, cap in known.items() if cap is not None}


def fit_into_cap(costs: Costs, estimate: Estimate, figure: Figure, cap: float) -> Costs:
    """The costs of a run, with all that follows the baseline scaled down to the cap.

    If a search is cut before it keeps a candidate, there is no final test, so `low` is without what is reserved.
    """
    baseline = sum(estimate.search(ZERO).values(), NO_COST).figure(figure)
    rest = sum(costs.values(), NO_COST).figure(figure) + baseline * -1
    left = Range(cap - _estimate_reserve(estimate, figure, cap), cap, cap) + baseline * -1
    share = left.combine(rest, lambda most, wanted: max(0.0, most) / wanted if wanted > most else 1.0)
    return {place: cost if place[0] == "baseline" else cost.times(share) for place, cost in costs.items()}


def describe_cap(estimate: Estimate, figure: Figure, cap: float) -> str:
    """How many rounds a cap allows, and what it reserves for the final test."""
    reserved, rounds = _estimate_reserve(estimate, figure, cap), min(estimate.workload.request.round_limit, MAX_ROUNDS)
    searches = [estimate.search(Range.exactly(number)).values() for number in range(rounds + 1)]
    needed = [sum(search, NO_COST).figure(figure) for search in searches]
    needed[1:] = [each + Range.exactly(reserved) for each in needed[1:]]
    most, least = sum(each.typical <= cap for each in needed) - 1, sum(each.high <= cap for each in needed) - 1
    sentence = f"max_{figure} {_amount(figure, cap)}"
    if most < 0:
        return f"{sentence} does not even allow the baseline"
    counts = str(most) if most == least else f"{max(0, least)} to {most}"
    sentence += f" allows {counts} of {plural(rounds, 'round')}" if most else " allows only the baseline"
    return f"{sentence}; {_amount(figure, reserved)} is reserved for the final test" if reserved else sentence


def count_allowed_rounds(estimate: Estimate) -> Range | None:
    """How many rounds `max_metric_calls` allows besides the final test: fewest if each takes most. None without it."""
    workload = estimate.workload
    cap, rounds = workload.request.max_metric_calls, min(workload.request.round_limit, MAX_ROUNDS)
    if cap is None:
        return None
    left = cap - workload.reserved_metric_calls
    needed = [estimate.count_metric_calls(Range.exactly(number)) for number in range(1, rounds + 1)]
    return Range(
        sum(each.high <= left for each in needed),
        sum(each.typical <= left for each in needed),
        sum(each.low <= left for each in needed),
    )


def describe_metric_calls(estimate: Estimate, allowed: Range) -> str:
    """`max_metric_calls 60 allows 3 to 12 rounds; 8 are reserved for the final test`."""
    workload = estimate.workload
    counts = f"{allowed.low:.0f}" if allowed.low == allowed.high else f"{allowed.low:.0f} to {allowed.high:.0f}"
    word = "round" if counts == "1" else "rounds"
    reserved = workload.reserved_metric_calls
    rest = f"; {reserved:,} are reserved for the final test" if reserved else ""
    return f"max_metric_calls {workload.request.max_metric_calls:,} allows {counts} {word}{rest}"


def _estimate_reserve(estimate: Estimate, figure: Figure, cap: float) -> float:
    """What a run reserves for the final test: what all its blocks need, at most half of what is left."""
    workload, rule = estimate.workload, estimate.workload.request.final_test
    if rule is None or not workload.request.round_limit:
        return 0.0
    baseline = sum(estimate.search(ZERO).values(), NO_COST).figure(figure).typical
    case_runs = 2 * (
        count_repeats(plan_final_test(workload.request.alpha, repeats=rule.repeats)) * workload.validation
        + count_test_runs(workload.test, shape=workload.shape)
    )
    needed = baseline * case_runs / (workload.validation * workload.repeats)
    if figure == "usd":
        needed += estimate.dearest_extra_usd * case_runs / 2
    return min(needed, max(0.0, MAX_RESERVED_SHARE * (cap - baseline)))


def _amount(figure: Figure, amount: float) -> str:
    return f"${amount:.4g}" if figure == "usd" else f"{amount:,.0f}"
