"""Layers of a graph that may have loops: every arrow points down, except those that close a loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import networkx as nx

from traces.draw.diagram import Diagram


def assign_layers(diagram: Diagram) -> dict[str, int]:
    """Give each box the length of the longest path from the top to it, ignoring arrows that close a loop.

    An arrow then points to a lower layer, unless it closes a loop: those point to a higher layer or to their own box.
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
    """Search depth first, in the order of the boxes, and yield arrows that point back to a box on the current path."""
    is_done: dict[str, bool] = {}
    for start in followers:
        if start in is_done:
            continue
        is_done[start] = False
        path = [(start, iter(followers[start]))]
        while path:
            box_id, rest = path[-1]
            for follower in rest:
                if follower not in is_done:
                    is_done[follower] = False
                    path.append((follower, iter(followers[follower])))
                    break
                if not is_done[follower]:
                    yield box_id, follower
            else:
                is_done[box_id] = True
                path.pop()
