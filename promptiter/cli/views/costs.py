"""Costs: one line, or the whole account beside the forecast. Calls are counted by kind: models, tools, functions."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import print_heading, print_indented
from promptiter.cli.views.forecast import print_stages
from promptiter.llm.cache.call_log import FILE_NAME as CALLS
from promptiter.runs.cost_wording import cost_line, describe_difference, describe_usage
from promptiter.runs.forecast_file import read_forecast
from promptiter.runs.stage_costs import spent_by_stage
from promptiter.runs.summary import RunSummary
from promptiter.wording import plural


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
        text = f"{role}: {plural(spent.calls, 'call')}{cached}, {describe_usage(spent)}"
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
    if (folder / CALLS).exists():
        screen.print()
        print_stages(screen, forecast, spent_by_stage(folder))
