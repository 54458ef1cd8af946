"""Costs: one line, or the whole account beside the forecast. Calls are counted by kind: models, tools, functions."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import print_heading, print_indented
from promptiter.cli.views.forecast import describe_difference, print_stages
from promptiter.forecast.forecast import read_forecast
from promptiter.forecast.stage_costs import spent_by_stage
from promptiter.llm.ledger import Spending
from promptiter.runs.summary import CostSummary, RunSummary
from promptiter.wording import count_unknown_costs, dollars, plural


def print_costs(screen: Console, summary: RunSummary) -> None:
    """Print what was spent, by role and by stage, beside the forecast."""
    costs, folder = summary.costs, summary.folder
    print_heading(screen, "Cost")
    print_indented(screen, Text(cost_line(costs)))
    if costs.case_runs:
        cached = f", {costs.cached_case_runs:,} of them cached" if costs.cached_case_runs else ""
        print_indented(screen, Text(f"{plural(costs.case_runs, 'case run')}{cached}"))
    for role, spent in costs.by_role.items():
        cached = f", {spent.cache_hits:,} cached" if spent.cache_hits else ""
        text = f"{role}: {plural(spent.calls, 'call')}{cached}, {_format_usage(spent)}"
        print_indented(screen, Text(text, "dim"))
    for name, spent in (("tools", costs.tools), ("functions as judge or teacher", costs.functions)):
        if spent.calls or spent.cache_hits:
            cached = f", {spent.cache_hits:,} cached" if spent.cache_hits else ""
            print_indented(screen, Text(f"{name}: {plural(spent.calls, 'call')}{cached}", "dim"))
    forecast = None if folder is None else read_forecast(folder)
    if folder is None or forecast is None:
        return
    print_heading(screen, "Compared with the forecast")
    print_indented(screen, Text(describe_difference(forecast, costs.models, seconds=costs.duration_s)))
    screen.print()
    print_stages(screen, forecast, spent_by_stage(folder))


def cost_line(costs: CostSummary) -> str:
    """`$0.0312, 1,085 model calls, 48.0 s`: cost, model calls, other calls if there were any, and time."""
    parts = [_format_cost(costs), plural(costs.models.calls, "model call"), *_count_others(costs)]
    return ", ".join((*parts, f"{costs.duration_s:.1f} s"))


def spending_line(costs: CostSummary) -> str:
    """`72 model calls, 12 cached, 5,200 tokens, cost $0.0312`."""
    parts = [plural(costs.models.calls, "model call"), f"{costs.models.cache_hits:,} cached", *_count_others(costs)]
    return ", ".join((*parts, _format_tokens(costs.models), f"cost {_format_cost(costs)}"))


def describe_uncertain_costs(costs: CostSummary) -> list[str]:
    """One line each for calls without an answer, calls whose usage is unknown, and answers that are too long."""
    models, others = costs.models, costs.tools.lost_calls + costs.functions.lost_calls
    lines = []
    uncertain = [f"{models.lost_calls:,} without an answer"] if models.lost_calls else []
    uncertain += [f"{models.uncounted_calls:,} of unknown usage"] if models.uncounted_calls else []
    if uncertain:
        usd = f", {dollars(models.possible_usd)}" if models.possible_usd else ""
        most = f"they may have taken up to {models.possible_tokens:,} tokens{usd}"
        lines.append(f"model calls: {' and '.join(uncertain)}; {most}")
    if others:
        lines.append(f"{plural(others, 'other call')} in flight when the run was killed, and made again")
    if models.overlong_answers:
        answers = plural(models.overlong_answers, "answer")
        lines.append(f"{answers} longer than max_tokens allows, by {models.excess_tokens:,} tokens")
    return lines


def _count_others(costs: CostSummary) -> list[str]:
    """The calls that are not of models, if there were any."""
    counts = {"tool call": costs.tools.calls, "function call": costs.functions.calls}
    return [plural(count, name) for name, count in counts.items() if count]


def _format_cost(costs: CostSummary) -> str:
    return f"{price(costs.models)}{' (offline model)' if costs.is_simulated else ''}"


def _format_usage(spent: Spending) -> str:
    """`5,200 tokens, $0.0312`, `5,200 tokens, cost unknown`, or that both are unknown."""
    if spent.cost_usd is not None:
        return f"{_format_tokens(spent)}, {price(spent)}"
    is_known = spent.uncounted_calls < max(1, spent.calls)
    return f"{_format_tokens(spent)}, cost unknown" if is_known else "tokens and cost unknown"


def _format_tokens(spent: Spending) -> str:
    """`5,200 tokens + 3 calls of unknown usage`, as far as they are known."""
    if not spent.uncounted_calls:
        return f"{spent.tokens:,} tokens"
    if spent.uncounted_calls == spent.calls:
        return "tokens unknown"
    return f"{spent.tokens:,} tokens + {plural(spent.uncounted_calls, 'call')} of unknown usage"


def price(spent: Spending) -> str:
    """The cost, as far as it is known."""
    if spent.cost_usd is None:
        return "unknown"
    unknown = count_unknown_costs(unpriced=spent.unpriced_calls, uncounted=spent.uncounted_calls)
    return f"{dollars(spent.cost_usd)}{unknown}"
