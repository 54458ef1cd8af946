"""The edges of a graph agent: plain, conditional, joins and fan-outs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeGuard

from promptiter.agents.argument_checks import check_context_function, check_items, check_named
from promptiter.agents.node_context import NodeContext
from traces.model import Json


@dataclass(frozen=True, slots=True)
class Edge:
    """After the source has run, the target runs."""

    source: str
    target: str


@dataclass(frozen=True, slots=True)
class Choice:
    """After the source has run, `route` returns a key of `branches`, and that node runs; None ends this path."""

    source: str
    route: Callable[[NodeContext], str | None]
    branches: Mapping[str, str]

    def __post_init__(self) -> None:
        place = f"the choice after {self.source!r}:"
        wanted = "a function of the context that returns a key of branches"
        check_context_function(f"{place} route", self.route, wanted=wanted)
        check_named(f"{place} branches", self.branches, str, wanted="names of nodes by key, such as {'yes': 'answer'}")


@dataclass(frozen=True, slots=True)
class Join:
    """After all sources have run, the target runs once and sees the outputs of all."""

    sources: tuple[str, ...]
    target: str

    def __post_init__(self) -> None:
        check_items(f"the join before {self.target!r}: sources", self.sources, str, wanted="names of nodes")


def _get_incoming(context: NodeContext) -> Any:
    return context.incoming


@dataclass(frozen=True, slots=True)
class FanOut:
    """After the source has run, the target runs once per item, in parallel; its own edges follow when all are done.

    The items are the output of the source, which must be a list then, or what `items` returns.
    """

    source: str
    target: str
    items: Callable[[NodeContext], Sequence[Json]] = _get_incoming

    def __post_init__(self) -> None:
        place = f"the fan-out after {self.source!r}: items"
        check_context_function(place, self.items, wanted="a function of the context that returns a list")


AnyEdge: TypeAlias = Edge | Choice | Join | FanOut


def group_by_source(edges: Iterable[AnyEdge]) -> dict[str, list[tuple[int, AnyEdge]]]:
    """The edges that leave each node, in their order, with their numbers."""
    found: dict[str, list[tuple[int, AnyEdge]]] = {}
    for number, edge in enumerate(edges):
        for source in dict.fromkeys(edge.sources if isinstance(edge, Join) else (edge.source,)):
            found.setdefault(source, []).append((number, edge))
    return found


def is_over_output(edge: AnyEdge) -> TypeGuard[FanOut]:
    """Whether an edge is a fan-out over the output of its source."""
    return isinstance(edge, FanOut) and edge.items is _get_incoming


def list_arrows(edge: AnyEdge) -> list[tuple[str, str, str | None]]:
    """Every source and target that an edge connects, with the key of a choice."""
    match edge:
        case Choice():
            return [(edge.source, target, key) for key, target in edge.branches.items()]
        case Join():
            return [(source, edge.target, None) for source in edge.sources]
        case _:
            return [(edge.source, edge.target, None)]
