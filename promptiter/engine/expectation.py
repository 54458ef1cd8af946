"""What one run of a case takes, node by node: as earlier runs recorded it, or by rules of thumb.

A forecast is drawn from these. A rule of thumb knows the texts of a node and of the cases, and nothing of what models
answer; so it comes with a wide spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from promptiter.evaluation.data.case import EvalCase
from promptiter.llm.messages import Role
from promptiter.structure import Node, StructureSnapshot
from traces.model import Json

if TYPE_CHECKING:
    import networkx as nx

CHARACTERS_PER_TOKEN = 4
ANSWER_TOKENS = 120
"""What an answer has, if nobody knows better."""

CALL_S, SIMULATED_S = 2.0, 0.005
"""How long a call takes, if nobody knows better."""

OWN_S, MOST_OWN_S = 0.004, 0.05
"""What promptiter itself takes for a call, to write it down: on a machine of its own, and on a very busy one."""

THUMBED_CASES = 64
"""So many case runs are made up where none was recorded."""

SCENARIO_TURNS = (2, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeUse:
    """What one node took in one run of a case; `seconds` as if its calls came one after the other."""

    calls: float = 0.0
    input_tokens: float = 0.0
    output_tokens: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseUse:
    """What one run of a case took. `path_s` is the time of the calls on its longest way."""

    nodes: Mapping[str, NodeUse]
    path_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CallUse:
    """What one call of a role takes."""

    input_tokens: float
    output_tokens: float
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What earlier runs of an agent took; empty if there are none.

    `passed` and `failed` count runs of cases under the very profile that the next run starts with. `models` are those
    that nodes asked, `usd_per_token` what those cost on average where that was recorded. `noise` is the share of cases
    that came out differently when they were run again under the same profile, under the one where most did; None: no
    case was run twice. `patched` is how many surfaces a candidate changed, `own_s` what promptiter itself took for a
    call, on that machine.
    """

    runs: int = 0
    cases: tuple[CaseUse, ...] = ()
    calls: Mapping[Role, CallUse] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
    usd_per_token: Mapping[str, float] = field(default_factory=dict)
    passed: int = 0
    failed: int = 0
    noise: float | None = None
    patched: float | None = None
    own_s: float | None = None

    @property
    def source(self) -> str:
        """Where figures come from, in words."""
        if not self.cases:
            return "no traces yet: rules of thumb"
        runs = f"{self.runs} earlier run{'s' * (self.runs != 1)}"
        return f"from {len(self.cases)} trace{'s' * (len(self.cases) != 1)} of {runs}"


NOTHING_RECORDED = Recorded()

Values: TypeAlias = Mapping[str, Json]
"""The values of surfaces by their id."""


def asking_nodes(snapshot: StructureSnapshot) -> tuple[Node, ...]:
    """The nodes that seem to ask models: those that say so, and those with an instruction and nothing inside."""
    parents = {node.id.rpartition("/")[0] for node in snapshot.nodes}
    return tuple(
        node
        for node in snapshot.nodes
        if node.kind == "llm"
        or (node.id not in parents and any(each.type == "instruction" for each in snapshot.surfaces_of(node.id)))
    )


def cases_by_thumb(
    snapshot: StructureSnapshot, cases: Sequence[EvalCase], values: Values, *, rng: Random
) -> list[CaseUse]:
    """Runs of cases as they might be: every node once, behind a condition maybe, in a loop up to three times."""
    import networkx as nx

    graph = snapshot.digraph()
    conditional = {edge.target for edge in snapshot.edges if edge.condition is not None}
    looping = {name for part in nx.strongly_connected_components(graph) if len(part) > 1 for name in part}
    asking = asking_nodes(snapshot)
    depth = _depth(graph, {node.id for node in asking})
    return [
        _thumbed(snapshot, rng.choice(cases), values, asking, depth, conditional - looping, looping, rng)
        for _ in range(THUMBED_CASES)
    ]


def stage_call_by_thumb(role: Role, *, surface_tokens: float, case_tokens: float, is_simulated: bool) -> CallUse:
    """One call of a stage, a judge, a teacher or a simulated user: its rules, and what it is shown."""
    rules, shown, written = _STAGE_TOKENS[role]
    seconds = SIMULATED_S if is_simulated else 2 * CALL_S
    answer = written + (surface_tokens if role == "optimizer" else 0.0)
    return CallUse(
        input_tokens=rules + shown * (case_tokens + ANSWER_TOKENS) + surface_tokens,
        output_tokens=answer,
        seconds=seconds,
    )


_STAGE_TOKENS: Mapping[Role, tuple[float, float, float]] = {
    "agent": (0, 1, ANSWER_TOKENS),
    "teacher": (0, 1, ANSWER_TOKENS),
    "user": (200, 3, 60),
    "judge": (500, 2, 120),
    "backwarder": (600, 2, 150),
    "aggregator": (500, 4, 150),
    "optimizer": (900, 5, 150),
}
"""Of each role: the tokens of its rules, how many inputs and answers it is shown, and what it writes."""


def text_tokens(text: str) -> float:
    return len(text) / CHARACTERS_PER_TOKEN


def case_tokens(case: EvalCase) -> float:
    """The tokens of what a user says in one turn of a case."""
    if case.scenario is not None:
        return text_tokens(case.scenario.starting_prompt)
    said = [turn.user for turn in case.turns] or [""]
    return text_tokens("".join(said)) / len(said)


def _thumbed(
    snapshot: StructureSnapshot,
    case: EvalCase,
    values: Values,
    asking: Sequence[Node],
    depth: float,
    conditional: set[str],
    looping: set[str],
    rng: Random,
) -> CaseUse:
    turns = rng.randint(*SCENARIO_TURNS) if case.scenario is not None else max(1, len(case.turns))
    loops = rng.choice((1, 1, 2, 3))
    nodes: dict[str, NodeUse] = {}
    for node in asking:
        visits = turns * (loops if node.id in looping else 1) * (rng.random() < 0.5 if node.id in conditional else 1)
        tools = sum(surface.type == "tool" for surface in snapshot.surfaces_of(node.id))
        calls = visits * (rng.choice((1, 2, 2, 3)) if tools else 1)
        texts = sum(len(str(values[each.id])) for each in snapshot.surfaces_of(node.id)) / CHARACTERS_PER_TOKEN
        before = sum(edge.target == node.id for edge in snapshot.edges)
        given = case_tokens(case) if before == 0 else ANSWER_TOKENS * before
        second_s = SIMULATED_S if values.get(f"{node.id}#model") == "simulated" else CALL_S
        nodes[node.id] = NodeUse(
            calls=calls,
            input_tokens=calls * (texts + given),
            output_tokens=calls * ANSWER_TOKENS,
            seconds=calls * second_s,
        )
    total_s = sum(use.seconds for use in nodes.values())
    return CaseUse(nodes=nodes, path_s=total_s * depth)


def _depth(graph: nx.DiGraph[str], asking: set[str]) -> float:
    """The share of the asking nodes that stand one behind another on the longest way; what loops counts as one."""
    import networkx as nx

    condensed = nx.condensation(graph)
    longest: dict[int, int] = {}
    for part in nx.topological_sort(condensed):
        own = len(asking & condensed.nodes[part]["members"])
        longest[part] = own + max((longest[each] for each in condensed.predecessors(part)), default=0)
    return max(longest.values(), default=0) / max(1, len(asking))
