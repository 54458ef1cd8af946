"""How blame flowed back along a failing trace: a picture of the agent's nodes, and which trace to show."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from promptiter.backprop.record import TraceBlame, get_passes
from promptiter.grouping import group_by
from promptiter.runlog.results import RoundResult
from promptiter.stages.contracts import SurfaceGradient
from promptiter.stages.losses import CaseLoss
from promptiter.structure import StructureSnapshot
from promptiter.wording import plural
from traces import ExecutionTrace
from traces.draw.diagram import Arrow, Box, Diagram
from traces.text import cut, one_line, preview

MOST_TRACES = 3
MAX_VALUE = 400
"""Characters of an input or output that a tooltip shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlamedTrace:
    """A blamed trace and the loss behind it, which may be of a later turn, in the round in which it was blamed."""

    round: int
    loss: CaseLoss
    blame: TraceBlame
    trace_digest: str

    @property
    def surface_ids(self) -> tuple[str, ...]:
        """The surfaces that are blamed, each once."""
        return tuple(dict.fromkeys(gradient.surface_id for gradient in self.blame.gradients))


class BlamedTraces:
    """Chooses the traces to show: for each of some surfaces one that blames it, and most others of them, too."""

    def __init__(self, surface_ids: Collection[str]) -> None:
        self._wanted = frozenset(surface_ids)
        self._by_surface: dict[str, tuple[tuple[int, int], BlamedTrace]] = {}

    def add(self, each: RoundResult) -> None:
        for one in get_passes(each):
            losses = group_by(one.losses, lambda loss: (loss.case_id, loss.repeat))
            for blame in one.blames:
                loss = find_loss(losses.get((blame.case_id, blame.repeat), ()), blame.turn)
                if loss is not None:
                    digest = _find_trace(each, loss, blame.turn)
                    self._offer(BlamedTrace(round=each.round, loss=loss, blame=blame, trace_digest=digest))

    def _offer(self, found: BlamedTrace) -> None:
        hits = self._wanted.intersection(found.surface_ids)
        steps = sum(bool(result.packets) for result in found.blame.results)
        for surface_id in hits:
            rank = (len(hits), steps)
            if surface_id not in self._by_surface or rank > self._by_surface[surface_id][0]:
                self._by_surface[surface_id] = rank, found

    def choose(self) -> list[BlamedTrace]:
        """The chosen traces, that of the most surfaces first."""
        ranked = sorted(self._by_surface.values(), key=lambda each: each[0], reverse=True)
        chosen: list[BlamedTrace] = []
        for _, found in ranked:
            if not any(set(found.surface_ids) <= set(other.surface_ids) for other in chosen):
                chosen.append(found)
        return chosen[:MOST_TRACES]


def find_loss(losses: Iterable[CaseLoss], turn: int) -> CaseLoss | None:
    """The loss behind the blame of a turn: its own, or else that of the next turn that failed. All are of one run."""
    return min((loss for loss in losses if loss.turn >= turn), key=lambda loss: loss.turn, default=None)


def _find_trace(each: RoundResult, loss: CaseLoss, turn: int) -> str:
    """The digest of the trace of a turn in the run that a loss was found in; empty if the round does not have it."""
    if loss.turn == turn:
        return loss.trace_digest
    runs = (row.trace_digests for one in each.all_evaluations for row in one.rows if row.case_id == loss.case_id)
    found = next((digests for digests in runs if loss.trace_digest in digests), ())
    return "".join(found[turn : turn + 1])


def draw_blame(found: BlamedTrace, structure: StructureSnapshot, trace: ExecutionTrace | None) -> Diagram:
    """Draw the nodes of the agent and those of the trace. Arrows that carried blame back are marked.

    Without the trace, which may not have been kept, only the steps that were blamed are known.
    """
    node_of = {step.id: step.node_id for step in trace.steps} if trace is not None else {}
    flows = {
        (node_of.get(packet.target, packet.target), node_of.get(packet.source, packet.source))
        for result in found.blame.results
        for packet in result.packets
        if packet.source
    }
    kinds = {node.id: node.kind for node in structure.nodes}
    edges = {(edge.source, edge.target): edge.condition or "" for edge in structure.edges}
    if trace is not None:
        kinds |= {step.node_id: step.kind for step in trace.steps if step.node_id not in kinds}
        for step in trace.steps:
            for source in step.predecessors:
                edges.setdefault((node_of[source], step.node_id), "")
    edges |= {ends: "" for ends in flows if ends not in edges and set(ends) <= set(kinds)}
    hovers = _describe_steps(trace)
    blamed = group_by(found.blame.gradients, lambda gradient: gradient.surface_id.rpartition("#")[0])
    touched = {node_id for ends in flows for node_id in ends} | blamed.keys()
    boxes = tuple(
        Box(
            node_id,
            one_line(node_id),
            _summarize(node_id, blamed, hovers, is_passing=node_id in touched, is_known=trace is not None),
            "blamed" if node_id in blamed else kind,
            hover="\n".join([*hovers.get(node_id, [node_id]), *_quote_blame(blamed.get(node_id, ()))]),
            is_marked=node_id in touched,
        )
        for node_id, kind in kinds.items()
    )
    arrows = tuple(Arrow(*ends, is_marked=ends in flows, label=one_line(label)) for ends, label in edges.items())
    surfaces = ", ".join(found.surface_ids)
    turn = f", turn {found.blame.turn + 1}" if found.loss.turn else ""
    title = f"case {found.loss.case_id}{turn}, round {found.round}: blame reaches {surfaces}"
    return Diagram(cut(one_line(title), 110), boxes, arrows, marked="carried blame back")


def _describe_steps(trace: ExecutionTrace | None) -> Mapping[str, list[str]]:
    """What the tooltip of each node says: input, output and error of its steps."""
    found: dict[str, list[str]] = {}
    for step in () if trace is None else trace.steps:
        lines = found.setdefault(step.node_id, [])
        lines += [
            one_line(f"{step.id} ({step.kind})"),
            one_line(f"input: {preview(step.input, MAX_VALUE)}"),
            one_line(f"output: {preview(step.output, MAX_VALUE)}"),
        ]
        if step.error:
            lines.append(one_line(f"error: {cut(str(step.error), MAX_VALUE)}"))
    return found


def _summarize(
    node_id: str,
    blamed: Mapping[str, Sequence[SurfaceGradient]],
    ran: Collection[str],
    *,
    is_passing: bool,
    is_known: bool,
) -> str:
    if node_id in blamed:
        return f"blamed: {plural(len(blamed[node_id]), 'gradient')}"
    if is_passing:
        return "passed blame on"
    return "" if node_id in ran or not is_known else "did not run"


def _quote_blame(gradients: Sequence[SurfaceGradient]) -> list[str]:
    return [one_line(f"blame: {cut(each.text, MAX_VALUE)}") for each in gradients]
