"""Layers of a graph that may have loops: every arrow leads down, except those that close a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import networkx as nx

from traces.draw.diagram import Diagram


def assign_layers(diagram: Diagram) -> dict[str, int]:
    """Number each box by its longest way from the top, along arrows that do not close a loop.

    So an arrow leads to a lower layer, or it closes a loop and leads to a higher one (or to its own box).
    """
    followers: dict[str, list[str]] = {box.id: [] for box in diagram.boxes}
    for arrow in diagram.arrows:
        followers[arrow.source].append(arrow.target)
    closing = set(_find_closing_arrows(followers))
    forward: nx.DiGraph[str] = nx.DiGraph()
    forward.add_nodes_from(followers)
    forward.add_edges_from({(arrow.source, arrow.target) for arrow in diagram.arrows} - closing)
    layers: dict[str, int] = {}
    for box_id in nx.topological_sort(forward):
        layers[box_id] = 1 + max((layers[source] for source in forward.predecessors(box_id)), default=-1)
    return layers


def _find_closing_arrows(followers: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Walk depth first, in the order of the boxes, and yield arrows that lead back to a box on the current way."""
    is_done: dict[str, bool] = {}
    for start in followers:
        if start in is_done:
            continue
        is_done[start] = False
        way = [(start, iter(followers[start]))]
        while way:
            box_id, rest = way[-1]
            for follower in rest:
                if follower not in is_done:
                    is_done[follower] = False
                    way.append((follower, iter(followers[follower])))
                    break
                if not is_done[follower]:
                    yield box_id, follower
            else:
                is_done[box_id] = True
                way.pop()
