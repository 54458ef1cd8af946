"""NodeContext: what a node of a graph agent sees."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from promptiter.agents.base import CaseInput, copy_value
from promptiter.errors import SetupError
from traces.model import Json

NO_ITEM = object()
"""Marks the absence of an item, since an item may be None."""


class Visit(NamedTuple):
    """The last visit of a node on a path: its number, its output, and the steps that it consists of."""

    number: int
    output: Json
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What a node sees: the case, and by name the outputs of the nodes that ran before it on its path.

    `item` is its item of a fan-out (`NO_ITEM` outside one); `predecessors` names the nodes directly before it, and
    `node_names` all nodes of the graph. Internal: the last visit of each node on this path, and the steps directly
    before it.
    """

    case: CaseInput
    outputs: Mapping[str, Json] = field(default_factory=dict)
    predecessors: tuple[str, ...] = ()
    item: Json = NO_ITEM
    node_names: tuple[str, ...] = ()
    _visits: Mapping[str, Visit] = field(default_factory=dict)
    _triggers: tuple[str, ...] = ()

    def visits(self, name: str) -> int:
        """How often a node has run on this path so far. A route can limit a loop with it.

        lambda context: "finish" if context.visits("rewrite") == 2 else "rewrite"
        """
        if name not in self.node_names:
            raise SetupError(f"visits({name!r}): no node has this name; known are {', '.join(self.node_names)}")
        return self._visits[name].number if name in self._visits else 0

    @property
    def input(self) -> str:
        """The user's message."""
        return self.case.text

    @property
    def incoming(self) -> Json:
        """The node's input: its item, the output of its predecessor (of several, by name), or the user's message."""
        if self.item is not NO_ITEM:
            return self.item
        if not self.predecessors:
            return self.case.text
        if len(self.predecessors) == 1:
            return self.outputs[self.predecessors[0]]
        return {name: self.outputs[name] for name in self.predecessors}

    @property
    def values(self) -> dict[str, Json]:
        """What prompts and parameters refer to by name: `input`, `item`, and the outputs of nodes."""
        return {"input": self.input, "item": None if self.item is NO_ITEM else self.item, **self.outputs}

    def find_sources(self, names: Iterable[str]) -> frozenset[str]:
        """The steps whose results these names hold. A name that is not a node's is that of the node's input."""
        found: set[str] = set()
        for name in names:
            if name != "input":
                found.update(self._visits[name].steps if name in self._visits else self._triggers)
        return frozenset(found)

    def track_reads(self) -> tuple[NodeContext, TrackedOutputs]:
        """A copy of this context for a function of the user, and its outputs, which know what was read of them."""
        outputs = TrackedOutputs(self.outputs)
        return replace(self, outputs=outputs, item=copy_value(self.item)), outputs

    def describe_input(self, received: Mapping[str, Json], names_read: Collection[str]) -> Json:
        """What a function got: its arguments, or the item, and what it read; the user's message if that is nothing."""
        item = {} if received or self.item is NO_ITEM else {"item": self.item}
        got = {**received, **item, **{name: value for name, value in self.outputs.items() if name in names_read}}
        return unwrap_only(got) if got else self.input


def unwrap_only(values: Mapping[str, Json]) -> Json:
    """The only value, several by name, or None."""
    return next(iter(values.values())) if len(values) == 1 else values or None


class TrackedOutputs(dict[str, Json]):
    """Outputs that remember which of them were read: one by its name, all when they are listed.

    The reader gets copies, so that it cannot change what other nodes get.
    """

    def __init__(self, outputs: Mapping[str, Json]) -> None:
        super().__init__(outputs)
        self.names_read: set[str] = set()

    def __getitem__(self, name: str) -> Json:
        output = super().__getitem__(name)
        if name not in self.names_read:
            self.names_read.add(name)
            self[name] = output = copy_value(output)
        return output

    def get(self, name: str, default: Json = None) -> Json:
        if name not in self:
            return default
        return self[name]

    def copy(self) -> dict[str, Json]:
        return self._read_all()

    def __iter__(self) -> Iterator[str]:
        return iter(self._read_all())

    def __repr__(self) -> str:
        return repr(self._read_all())

    def items(self) -> Any:
        return self._read_all().items()

    def values(self) -> Any:
        return self._read_all().values()

    def _read_all(self) -> dict[str, Json]:
        return {name: self[name] for name in tuple(super().keys())}
