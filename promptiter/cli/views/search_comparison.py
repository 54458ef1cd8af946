"""`promptiter compare`: the forecast of all runs, a line for each that ended, and the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import comb

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import new_table, print_heading, print_indented, print_rows
from promptiter.cli.views.forecast import describe_low_caps
from promptiter.config.comparison_plan import ComparisonPlan
from promptiter.config.comparison_runs import PlannedRun
from promptiter.evaluation.stats.search_differences import ALPHA
from promptiter.evaluation.stats.sign_flips import count_needed_pairs
from promptiter.runs.comparison_wording import BASES, FigureWording, describe_budget, list_counts
from promptiter.runs.cost_ranges import NO_COST, Cost, Range
from promptiter.runs.cost_wording import FIGURES, format_calls, format_cost, format_range, format_time
from promptiter.runs.search_comparison import SearchComparison
from promptiter.runs.search_runs import SearchRun
from promptiter.runs.search_verdict import NOUNS, describe_difference, write_verdict
from promptiter.wording import path_from_here, plural
from traces.text import one_line


def print_plan(
    screen: Console, plan: ComparisonPlan, left: Mapping[str, int], *, parallel: int, problems: Sequence[str] = ()
) -> None:
    """Print what the runs that are left are expected to take, and what is missing to start them."""
    table = new_table("search", ">runs", ">calls of a run", ">cost of a run", ">calls", ">cost", ">time")
    whole = NO_COST
    for each in plan.searches:
        one, all_runs = each.forecast.total, each.forecast.total.times(Range.exactly(left[each.name]), at_once=parallel)
        whole += all_runs
        name = each.name if each.search == each.name else f"{each.name} ({each.search})"
        table.add_row(
            one_line(name), str(left[each.name]), format_calls(one), format_cost(one), *_list_totals(all_runs)
        )
    table.add_row("all", str(sum(left.values())), "", "", *_list_totals(whole), style="bold")
    screen.print(Text.assemble(("Forecast", "bold"), "  figures are for typical runs (short to long runs)"))
    screen.print(table)
    screen.print(f"Budget of each run: {describe_budget(plan.budget)}", markup=False)
    for warning in (*problems, *_list_warnings(plan)):
        screen.print(Text(f"warning: {warning}", "yellow"))


def _list_warnings(plan: ComparisonPlan) -> Iterator[str]:
    """Why the runs would show nothing: too few seeds, or a budget that is too low."""
    count = len(plan.searches)
    needed = count_needed_pairs(ALPHA, comparisons=comb(count, 2))
    if (seeds := len(plan.seeds)) < needed:
        yield f"{plural(seeds, 'seed')} can show no difference; {count} searches need at least --seeds {needed}"
    caps = {figure: cap for figure in FIGURES if (cap := plan.budget.get(f"max_{figure}")) is not None}
    for each in plan.searches:
        yield from (f"{each.name}: {line}" for line in describe_low_caps(each.forecast, caps))


def _list_totals(cost: Cost) -> tuple[str, str, str]:
    return format_calls(cost), format_cost(cost), format_range(cost.seconds, format_time)


def describe_run(planned: PlannedRun, run: SearchRun, plan: ComparisonPlan) -> str:
    """`7 of 20  backprop, seed 3: improved, mean score 0.417 → 1.000, 312 calls`."""
    wording = FigureWording(plan.objective)
    scores = (
        "" if run.after is None else f", {wording.score_name} {wording.score(run.before)} → {wording.score(run.after)}"
    )
    took = plural(run.calls, "call") if run.calls else plural(run.case_runs, "case run")
    why = f" ({one_line(run.reason)})" if not run.is_complete and run.reason else ""
    of_all = f"{planned.number} of {len(plan.seeds) * len(plan.searches)}"
    name = one_line(planned.search.name)
    return f"{of_all}  {name}, seed {run.seed}: {run.outcome.replace('_', ' ')}{why}{scores}, {took}"


def print_result(screen: Console, found: SearchComparison, plan: ComparisonPlan) -> None:
    """Print the verdict, the figures of each search, the differences, and where the report is."""
    screen.print(Text(write_verdict(found), "bold"))
    print_heading(screen, f"{plural(len(found.seeds), 'seed')}, mean and 95% interval")
    wording = FigureWording(found.objective)
    costs = [f">{NOUNS[cost]}" for cost in found.costs]
    counts = list_counts(found)
    extra = [f">{text}" for text in counts.values()]
    table = new_table("search", ">adopted", *extra, f">{wording.score_name}", ">gain", *costs, ">time", gap=3)
    for each in found.searches:
        figures = found.figures[each.name]
        table.add_row(
            one_line(each.name),
            f"{figures.adopted} of {figures.runs}",
            *(str(getattr(figures, name)) for name in counts),
            wording.scores(figures.score),
            wording.gain(figures.gain).partition(" (")[0],
            *(wording.cost(figures, cost) for cost in found.costs),
            wording.time(figures.minutes),
        )
    screen.print(table)
    if found.baseline is not None:
        scores = f"Scores: {BASES[found.basis]}; the baseline has {wording.score(found.baseline)}."
        print_indented(screen, Text(scores, "dim"))
    if len(found.differences) > 1:
        print_heading(screen, "Differences")
        for difference in found.differences:
            print_indented(screen, Text(one_line(describe_difference(difference))))
    screen.print()
    rows = [("Note", note) for note in found.notes]
    print_rows(screen, [*rows, ("Report", str(path_from_here(plan.folder) / "comparison.html"))])
