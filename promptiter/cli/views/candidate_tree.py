"""The candidates of a pool as a tree of lines: from parents to children, with validation scores."""

from __future__ import annotations

from rich.console import Console
from rich.padding import Padding
from rich.text import Text
from rich.tree import Tree

from promptiter.cli.output import print_heading
from promptiter.runs.candidate_pool import PoolCandidate, PoolSummary, describe_parents
from promptiter.runs.summary import RunSummary
from promptiter.wording import format_score, join_names, plural
from traces.text import one_line

MOST_SHOWN = 20
MAX_NAMES = 3


def print_candidates(screen: Console, summary: RunSummary) -> None:
    """Print the tree of a pool; nothing if the search has none. Of a large one, the best and the frontier."""
    pool = summary.pool
    if not pool.candidates:
        return
    print_heading(screen, "Candidates")
    shown = pool.choose(MOST_SHOWN)
    first, *others = shown
    if not others:
        screen.print("  none was kept; --rounds shows each iteration", style="dim")
        return
    root = Tree(_describe(first, pool), guide_style="dim")
    branches = {first.number: root}
    for each in others:  # a merge is below the first of its parents
        branches[each.number] = branches[each.parents[0]].add(_describe(each, pool))
    screen.print(Padding(root, (0, 0, 0, 2), expand=False))
    rest = f"{len(shown)} of {plural(len(pool.candidates), 'candidate')}; " if len(shown) < len(pool.candidates) else ""
    screen.print(f"  {rest}--rounds shows each iteration", style="dim")


def _describe(each: PoolCandidate, pool: PoolSummary) -> Text:
    """`#1 0.750 best on 3 of 6 cases, round 1: draft#instruction`."""
    style = "bold green" if each.is_best else "bold"
    words = [f"best on {each.best_on} of {plural(pool.cases, 'case')}"]
    words += ["on the frontier"] if each.is_on_frontier else []
    words += ["the best"] if each.is_best else []
    made = f"merge of {describe_parents(each.parents)}" if each.kind == "merge" else ""
    made = made or one_line(join_names(each.components, limit=MAX_NAMES))
    origin = f"round {each.round}: {made}" if each.parents else "baseline"
    return Text.assemble(
        (f"#{each.number}", style), f"  {format_score(each.score)}  {', '.join(words)}", (f"  {origin}", "dim")
    )
