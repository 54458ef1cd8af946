"""Structure: the static graph of an agent and the editable surfaces of its nodes.

A StructureSnapshot is what an agent exports. `structure_id` hashes the shape (nodes, edges, surface ids and types),
`baseline_id` also the values: editing a prompt in the source does not orphan stored profiles. Ids are paths: a segment
writes `~` as `~0` and `/` as `~1`, and a second child of the same name is `name~2`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from promptiter.errors import InvalidStructureError, SurfaceValueError, UnknownSurfaceError
from promptiter.wording import shorten
from traces import digest
from traces.model import Json

if TYPE_CHECKING:
    import networkx as nx
    from pydantic import TypeAdapter

NodeKind: TypeAlias = Literal["agent", "llm", "function", "tool"]
SurfaceType: TypeAlias = Literal[
    "instruction", "global_instruction", "prompt", "examples", "tool", "field", "skill", "model", "parameter", "file"
]
SURFACE_TYPES: tuple[SurfaceType, ...] = get_args(SurfaceType)
TEXT_TYPES = frozenset(("instruction", "global_instruction", "prompt", "tool", "field", "skill", "file"))
EXAMPLE_ROLES = ("user", "assistant")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What a new value must respect. A text has a length, `{placeholders}` and locked parts that must stay.

    A parameter has bounds or choices, examples a maximum number. On a `log` scale, equal steps are equal factors.
    """

    max_chars: int | None = None
    placeholders: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    kind: Literal["number", "integer", "choice", "boolean"] | None = None
    minimum: float | None = None
    maximum: float | None = None
    scale: Literal["linear", "log"] = "linear"
    choices: tuple[Json, ...] = ()
    max_examples: int | None = None

    def complete(self, value: Json) -> Limits:
        """The limits of a parameter with this value: its type says of which kind other values are."""
        if self.kind is not None:
            return self
        if self.choices:
            return replace(self, kind="choice")
        if isinstance(value, bool):
            return replace(self, kind="boolean", choices=(False, True))
        bounds = (value, self.minimum or 0, self.maximum or 0)
        is_whole = isinstance(value, int) and all(float(each).is_integer() for each in bounds)
        return replace(self, kind="integer" if is_whole else "number")


NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True, kw_only=True)
class Surface:
    """One editable slot of a node, with its baseline value. For a tool or an output field this is the description.

    `description` says what it is for: of a tool, the docstring of its function. `arguments` is the JSON schema of the
    arguments of a tool. `is_bound` if `with_profile` gave the agent this value. Every profile of the agent then has it,
    so that the profile means the same for the agent without it.
    """

    node_id: str
    type: SurfaceType
    part: str = ""
    value: Json = ""
    limits: Limits = NO_LIMITS
    description: str = ""
    arguments: Mapping[str, Json] = field(default_factory=dict)
    is_bound: bool = False

    @property
    def id(self) -> str:
        return surface_id(self.node_id, self.type, self.part)

    @property
    def is_setting(self) -> bool:
        """Whether it is a number or a choice that can be tuned. A model without choices has no other value."""
        return self.type == "parameter" or (self.type == "model" and bool(self.limits.choices))

    def allows(self, value: Json) -> bool:
        """Whether a value respects the limits and the rules of the surface's type."""
        return _problem(self, value) is None

    def check(self, value: Json) -> None:
        """Raise SurfaceValueError if the value breaks a limit or a rule of the surface's type."""
        if problem := _problem(self, value):
            raise SurfaceValueError(self.id, problem)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    id: str
    kind: NodeKind = "function"
    description: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StructureEdge:
    """An edge between two nodes. `condition` is the routing word of a conditional edge."""

    source: str
    target: str
    condition: str | None = None


@dataclass(frozen=True, kw_only=True)
class StructureSnapshot:
    """The static graph of an agent, which may have cycles, and its surfaces. Checked when it is built."""

    nodes: tuple[Node, ...]
    edges: tuple[StructureEdge, ...] = ()
    surfaces: tuple[Surface, ...] = ()
    entry: str = ""
    name: str = ""

    def __post_init__(self) -> None:
        _check_structure(self)

    @cached_property
    def structure_id(self) -> str:
        shape = {
            "nodes": sorted([node.id, node.kind] for node in self.nodes),
            "edges": sorted([edge.source, edge.target, edge.condition or ""] for edge in self.edges),
            "surfaces": sorted([surface.id, surface.type] for surface in self.surfaces),
        }
        return digest(shape)

    @cached_property
    def baseline_id(self) -> str:
        return digest([self.structure_id, sorted([surface.id, digest(surface.value)] for surface in self.surfaces)])

    @cached_property
    def surface_ids(self) -> tuple[str, ...]:
        return tuple(self._by_id)

    @cached_property
    def _by_id(self) -> dict[str, Surface]:
        return {surface.id: surface for surface in self.surfaces}

    def surface(self, wanted: str) -> Surface:
        """Return the surface with this id, or raise UnknownSurfaceError with the nearest known one."""
        if wanted not in self._by_id:
            raise UnknownSurfaceError(wanted, known=self._by_id)
        return self._by_id[wanted]

    @cached_property
    def _by_node(self) -> dict[str, tuple[Surface, ...]]:
        found: dict[str, list[Surface]] = {}
        for surface in self.surfaces:
            found.setdefault(surface.node_id, []).append(surface)
        return {node_id: tuple(surfaces) for node_id, surfaces in found.items()}

    def surfaces_of(self, node_id: str) -> tuple[Surface, ...]:
        return self._by_node.get(node_id, ())

    def digraph(self) -> nx.DiGraph[str]:
        """Return the nodes and edges as a networkx graph, with `node` and `surfaces` as attributes."""
        import networkx as nx

        graph: nx.DiGraph[str] = nx.DiGraph()
        for node in self.nodes:
            graph.add_node(node.id, node=node, surfaces=self.surfaces_of(node.id))
        for edge in self.edges:
            graph.add_edge(edge.source, edge.target, condition=edge.condition)
        return graph

    def find_reachable_nodes(self) -> frozenset[str]:
        """The nodes that a run may visit: those that some route leads to from the entry, and the nodes inside of them.

        Without an entry, these are all nodes.
        """
        known = {node.id for node in self.nodes}
        found: set[str] = set()
        new = {self.entry} if self.entry else known
        while new:
            found |= new
            targets = {edge.target for edge in self.edges if edge.source in new}
            inside = {each for each in known if any(each.startswith(f"{outer}/") for outer in new)}
            new = (targets | inside) - found
        return frozenset(found)

    def to_json(self) -> dict[str, Json]:
        """Return plain data, as stored in files."""
        plain: dict[str, Json] = _adapter().dump_python(self, mode="json", exclude_defaults=True)
        return {"schema_version": 1, "structure_id": self.structure_id, "baseline_id": self.baseline_id, **plain}

    @staticmethod
    def from_json(data: Mapping[str, Json]) -> StructureSnapshot:
        """Return the snapshot of such plain data."""
        from pydantic import ValidationError

        fields = {key: value for key, value in data.items() if key not in _HEADER}
        try:
            return _adapter().validate_python(fields)
        except ValidationError as error:
            raise InvalidStructureError(f"this is not a structure: {error}") from error


_HEADER = frozenset(("schema_version", "structure_id", "baseline_id"))


@cache
def _adapter() -> TypeAdapter[StructureSnapshot]:
    """Built once: it takes milliseconds, and every run writes and reads a structure."""
    from pydantic import TypeAdapter

    return TypeAdapter(StructureSnapshot)


def surface_id(node_id: str, surface_type: SurfaceType, part: str = "") -> str:
    """Return `planner#instruction`, `agent#tool.search`."""
    return f"{node_id}#{surface_type}.{part}" if part else f"{node_id}#{surface_type}"


def escape_segment(name: str) -> str:
    """Escape a name as one segment of a path."""
    return name.replace("~", "~0").replace("/", "~1")


def child_ids(names: Iterable[str], *, parent: str = "") -> list[str]:
    """Return the node ids of a node's children: escaped, below its path, repeated names numbered from 2."""
    return list(_build_child_ids(tuple(names), parent))


@lru_cache(maxsize=256)  # every run of an agent asks for the same
def _build_child_ids(names: tuple[str, ...], parent: str) -> tuple[str, ...]:
    seen: dict[str, int] = {}
    ids = []
    for name in names:
        seen[name] = seen.get(name, 0) + 1
        segment = escape_segment(name) + (f"~{seen[name]}" if seen[name] > 1 else "")
        ids.append(f"{parent}/{segment}" if parent else segment)
    return tuple(ids)


def _check_structure(snapshot: StructureSnapshot) -> None:
    node_ids = [node.id for node in snapshot.nodes]
    known = set(node_ids)
    if not node_ids:
        raise InvalidStructureError("a structure needs at least one node")
    for what, ids in (("node", node_ids), ("surface", [surface.id for surface in snapshot.surfaces])):
        if repeated := sorted(each for each, count in Counter(ids).items() if count > 1):
            raise InvalidStructureError(f"{what} ids must be unique: {', '.join(repeated)} occur more than once")
    for node_id in node_ids:
        if not node_id or "#" in node_id:
            raise InvalidStructureError(f"node id {node_id!r} must not be empty or contain a '#'")
    for edge in snapshot.edges:
        for end in (edge.source, edge.target):
            if end not in known:
                raise InvalidStructureError(f"edge {edge.source} → {edge.target} leads to {end!r}, which is not a node")
    if snapshot.entry and snapshot.entry not in known:
        raise InvalidStructureError(f"the entry {snapshot.entry!r} is not a node")
    for surface in snapshot.surfaces:
        if surface.node_id not in known:
            raise InvalidStructureError(f"surface {surface.id!r} belongs to {surface.node_id!r}, which is not a node")
        if surface.type not in SURFACE_TYPES:
            raise InvalidStructureError(f"surface {surface.id!r}: type must be one of {', '.join(SURFACE_TYPES)}")
        surface.check(surface.value)


def _problem(surface: Surface, value: Json) -> str | None:
    if surface.type in TEXT_TYPES:
        return _text_problem(surface, value)
    match surface.type:
        case "model":
            return _choice_problem(surface.limits, value) if isinstance(value, str) and value else _not("a name", value)
        case "parameter":
            return _parameter_problem(surface.limits, value)
        case _:
            return _examples_problem(surface.limits, value)


def _text_problem(surface: Surface, value: Json) -> str | None:
    limits = surface.limits
    if not isinstance(value, str):
        return _not("text", value)
    if limits.max_chars is not None and len(value) > limits.max_chars:
        return f"it has {len(value):,} characters, at most {limits.max_chars:,} are allowed"
    for placeholder in limits.placeholders:
        if f"{{{placeholder}}}" not in value:
            return f"the placeholder {{{placeholder}}} is missing"
    for locked in limits.locked:
        if locked not in value:
            return f"the locked part {locked[:60]!r} is missing or changed"
    return None


def _parameter_problem(limits: Limits, value: Json) -> str | None:
    if limits.kind == "boolean":
        return None if isinstance(value, bool) else _not("true or false", value)
    if limits.kind == "choice" or limits.choices:
        return _choice_problem(limits, value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _not("a number", value)
    if limits.kind == "integer" and not isinstance(value, int):
        return _not("a whole number", value)
    if not (limits.minimum is None or value >= limits.minimum) or not (
        limits.maximum is None or value <= limits.maximum
    ):
        return f"{value} is not between {limits.minimum} and {limits.maximum}"
    return None


def _choice_problem(limits: Limits, value: Json) -> str | None:
    is_bool = isinstance(value, bool)  # True == 1
    if limits.choices and not any(value == each and isinstance(each, bool) == is_bool for each in limits.choices):
        return f"{value!r} is not one of {', '.join(map(repr, limits.choices))}"
    return None


def _examples_problem(limits: Limits, value: Json) -> str | None:
    """Few-shot examples: a list of messages, `{"role": "user" | "assistant", "content": text}`."""
    if not isinstance(value, list):
        return _not("a list of messages", value)
    for number, message in enumerate(value):
        if not isinstance(message, dict) or set(message) != {"role", "content"}:
            return f"message {number} must have exactly the keys role and content"
        if message["role"] not in EXAMPLE_ROLES or not isinstance(message["content"], str):
            return f"message {number} must be text by one of {', '.join(EXAMPLE_ROLES)}"
    if limits.max_examples is not None and len(value) > limits.max_examples:
        return f"it has {len(value)} messages, at most {limits.max_examples} are allowed"
    return None


def _not(wanted: str, value: Json) -> str:
    return f"it must be {wanted}, got {shorten(value)}"
