"""The candidates of a pool as a picture: from parents to children, with validation scores."""

from __future__ import annotations

from collections import Counter

from promptiter.runs.candidate_pool import PoolCandidate, PoolSummary, describe_parents
from promptiter.wording import format_score, join_names, plural
from traces.draw.diagram import Arrow, Box, Diagram, Tone
from traces.text import one_line

MOST_DRAWN = 40
"""Candidates of a picture; the table has all."""


def draw_candidates(pool: PoolSummary) -> Diagram:
    """Draw the pool. If it is large, only the best and the frontier with their ancestors."""
    drawn = pool.choose(MOST_DRAWN)
    boxes = tuple(
        Box(
            str(each.number),
            f"#{each.number}{'' if each.number else ' baseline'}",
            f"{format_score(each.score)} · best on {each.best_on} of {pool.cases}",
            _choose_tone(each),
            hover=one_line(_describe(each)),
        )
        for each in drawn
    )
    arrows = tuple(Arrow(str(parent), str(each.number)) for each in drawn for parent in each.parents)
    shown = f"{len(drawn)} of {plural(len(pool.candidates), 'candidate')}"
    title = shown if len(drawn) < len(pool.candidates) else plural(len(drawn), "candidate")
    return Diagram(f"{title}, with the mean score on validation", boxes, arrows)


def count_widest(tree: Diagram) -> int:
    """The most candidates of one generation, which are drawn side by side."""
    depths: dict[str, int] = {}
    for box in tree.boxes:  # parents come before their children
        depths[box.id] = max((1 + depths[each.source] for each in tree.arrows if each.target == box.id), default=0)
    return max(Counter(depths.values()).values())


def _choose_tone(each: PoolCandidate) -> Tone:
    return "best" if each.is_best else "frontier" if each.is_on_frontier else "candidate"


def _describe(each: PoolCandidate) -> str:
    if not each.parents:
        return "the initial profile"
    made = "merge of" if each.kind == "merge" else "made from"
    return (
        f"round {each.round}: {made} {describe_parents(each.parents)}, changes {join_names(each.components, limit=6)}"
    )
