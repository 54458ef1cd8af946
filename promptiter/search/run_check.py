"""RunCheck: the gradient check of one failed run. It corrects the blamed nodes in turn, then leaves out each of them.

Each visit of a node is corrected in the run that the earlier corrections led to. Surfaces that many other runs blame
are corrected as well.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from promptiter.agents.base import Substitute, SubstitutingAgent
from promptiter.backprop.corrections import Correction, CorrectionRequest, Corrector
from promptiter.backprop.stage_calls import call_stage
from promptiter.errors import FATAL_ERRORS
from promptiter.evaluation.result import CaseRow
from promptiter.grouping import group_by
from promptiter.search.blame_sample import run_of
from promptiter.search.replays import CaseReplays, ReplayContext
from promptiter.stages.contracts import BlameCheck, BlameVerdict, SurfaceGradient
from traces import Step

MOST_REFERENCES = 40
"""Maximum number of expected answers of other cases that a corrector is shown."""

MOST_VISITS = 8
"""Maximum number of visits of a node that are corrected in one run. Each may need a replay of the whole run."""


@dataclass(frozen=True, slots=True)
class CorrectedRun:
    """A run with some steps corrected. `unknown` are the nodes that no corrector could correct."""

    row: CaseRow
    substitutes: tuple[Substitute, ...] = ()
    corrected: frozenset[str] = frozenset()
    unknown: set[str] = field(default_factory=set)


class RunCheck:
    """The check of one failed run."""

    def __init__(
        self,
        replays: CaseReplays,
        correctors: Sequence[Corrector],
        blamed: Sequence[SurfaceGradient],
        common: Mapping[str, SurfaceGradient],
        *,
        steps: Sequence[Step],
        is_open: bool,
    ) -> None:
        self.replays = replays
        self.correctors = correctors
        self.blamed = blamed
        self.is_open = is_open
        context = replays.context
        self._agent = context.agent if isinstance(context.agent, SubstitutingAgent) else None
        self._snapshot = context.agent.describe()
        others = (turn.expected for case in context.eval_set.cases if case.id != replays.case.id for turn in case.turns)
        self._references = tuple(each for each in others if each is not None)[:MOST_REFERENCES]
        self._reasons: dict[str, str] = {}
        node_of = {step.id: step.node_id for step in steps}
        self.nodes_of_surface: defaultdict[str, set[str]] = defaultdict(set)
        self.gradients: defaultdict[str, list[SurfaceGradient]] = defaultdict(list)
        for gradient in blamed:
            node_id = node_of[gradient.step_id]
            self.nodes_of_surface[gradient.surface_id].add(node_id)
            self.gradients[node_id].append(gradient)
        self.nodes = {node_id: number for number, node_id in enumerate(self.gradients)}
        common_gradients = {
            step.node_id: gradient
            for step in steps
            for surface_id, gradient in common.items()
            if surface_id in (step.surface_reads or ()) and step.node_id not in self.nodes
        }
        for node_id, gradient in common_gradients.items():
            self.gradients[node_id].append(gradient)
        self.steps = self._choose_steps(steps)

    def _choose_steps(self, steps: Sequence[Step]) -> dict[str, str]:
        """The visits to correct and their nodes, in the order of the run; of many visits, those that are blamed."""
        blamed = {each.step_id for each in self.blamed}
        of_node = group_by((step for step in steps if step.node_id in self.gradients), lambda step: step.node_id)
        chosen = {
            step.id
            for visits in of_node.values()
            for step in sorted(visits, key=lambda step: step.id not in blamed)[:MOST_VISITS]
        }
        return {step.id: step.node_id for step in steps if step.id in chosen}

    @classmethod
    async def begin(
        cls,
        context: ReplayContext,
        correctors: Sequence[Corrector],
        blamed: Sequence[SurfaceGradient],
        common: Mapping[str, SurfaceGradient],
        *,
        is_open: bool,
    ) -> RunCheck:
        """Load what the check of a failed run starts from. It `is_open` if it also has blame that is not checked."""
        replays = CaseReplays(context, run_of(blamed[0]))
        trace = await replays.load_trace(replays.row)
        return cls(replays, correctors, blamed, common, steps=trace.steps, is_open=is_open)

    async def run(self) -> list[BlameCheck]:
        """Check each blamed surface of the run."""
        verdicts = await self._judge_nodes(list(self.nodes))
        steps = group_by(self.blamed, lambda gradient: gradient.surface_id)
        found = []
        for surface_id, nodes in sorted(self.nodes_of_surface.items()):
            best: BlameVerdict = min((verdicts[node] for node in nodes), key=_ORDER.index)
            first = min((node for node in nodes if verdicts[node] == best), key=self.nodes.__getitem__)
            check = BlameCheck(
                surface_id=surface_id,
                case_id=self.replays.row.case_id,
                repeat=self.replays.row.repeat,
                turn=self.replays.turn,
                step_ids=tuple(sorted({each.step_id for each in steps[surface_id]})),
                verdict=best,
                reason=self._reasons.get(first, ""),
            )
            found.append(check)
        return found

    async def _judge_nodes(self, nodes: Sequence[str]) -> dict[str, BlameVerdict]:
        before, replays = self.replays.row, self.replays
        full = await self._correct_nodes(nodes)
        if full is None:
            return dict.fromkeys(nodes, "unknown")
        if not replays.is_better(full.row, before):
            is_open = self.is_open or bool(full.unknown)  # a fault there may hide the effect of the others
            self._add_reason(nodes, "no correction improves the score")
            return dict.fromkeys(nodes, "unknown" if is_open else "unsupported")
        verdicts: dict[str, BlameVerdict] = {}
        for node in nodes:
            if node in full.corrected:
                without = await self._correct_nodes([each for each in nodes if each != node])
                is_needed = without is None or replays.is_better(full.row, without.row)
                verdicts[node] = "supported" if is_needed else "unsupported"
                self._add_reason(
                    [node], _describe_scores(full.row) if is_needed else "the score is the same without its correction"
                )
            else:
                is_open = node in full.unknown and not full.row.passed
                verdicts[node] = "unknown" if is_open else "unsupported"
                self._reasons.setdefault(node, "the run passes without its correction")
        if "supported" not in verdicts.values():
            for node in full.corrected:  # any one of several corrections is enough
                alone = await self._correct_nodes([node])
                if alone is not None and replays.is_better(alone.row, before):
                    verdicts[node] = "supported"
                    self._add_reason([node], f"this one alone is enough: {_describe_scores(alone.row)}")
        return verdicts

    def _add_reason(self, nodes: Iterable[str], reason: str) -> None:
        for node in nodes:
            earlier = self._reasons.get(node, "").partition("; ")[0]
            self._reasons[node] = f"{earlier}; {reason}" if earlier else reason

    async def _correct_nodes(self, nodes: Sequence[str]) -> CorrectedRun | None:
        """Correct these nodes and the common ones in turn; None if the run could not be replayed or scored."""
        replays = self.replays
        state, left_out = CorrectedRun(replays.row), self.nodes.keys() - set(nodes)
        for step_id, node_id in self.steps.items():
            if node_id in left_out or state.row.passed:
                continue
            step = await replays.find_step(step_id, state.row)
            if step is None:  # an earlier correction led to another path
                continue
            correction = await self._correct_step(step, state)
            self._reasons.setdefault(node_id, correction.reason)
            if correction.kind == "unknown":
                state.unknown.add(node_id)
            if correction.kind != "corrected":
                continue
            given = Substitute(step_id=step_id, output=correction.output, turn=replays.turn)
            row = await replays.replay((*state.substitutes, given))
            if row.outage is not None or (row.error is None and not row.is_scored):
                return None
            if row.error is None and replays.compute_score(row) >= replays.compute_score(state.row):
                state = CorrectedRun(row, (*state.substitutes, given), state.corrected | {node_id}, state.unknown)
        return state

    async def _correct_step(self, step: Step, state: CorrectedRun) -> Correction:
        mine = tuple(self.gradients[step.node_id])
        if self._agent is None or not self._agent.can_substitute(step.node_id):
            return Correction(kind="unknown", reason="the agent cannot replace the output of this step")
        loss = await self.replays.find_loss(state.row)
        if loss is None:
            return Correction(kind="unknown", reason="the run has no losses to correct")
        profile = self.replays.context.profile
        request = CorrectionRequest(
            case_loss=loss,
            trace=await self.replays.load_trace(state.row),
            step=step,
            gradients=mine,
            surfaces=tuple(
                [profile.surface(each, self._snapshot) for each in sorted({each.surface_id for each in mine})]
            ),
            references=self._references,
        )
        found = Correction(kind="unknown", reason="no corrector knows a better output")
        for corrector in self.correctors:
            found = await _ask_corrector(corrector, request)
            if found.kind != "unknown":
                break
        if found.kind == "corrected" and found.output == (
            step.output.text if step.output.text is not None else step.output.data
        ):
            return Correction(kind="no_better", reason="the output was already correct")
        return found


_ORDER: tuple[BlameVerdict, ...] = ("supported", "unknown", "unsupported", "unchecked")


async def _ask_corrector(corrector: Corrector, request: CorrectionRequest) -> Correction:
    try:
        return await call_stage(corrector.correct, request, returns=Correction)
    except FATAL_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - a corrector may be the user's own; a failed correction is not checked
        return Correction(kind="unknown", reason=f"{type(error).__name__}: {error}")


def _describe_scores(row: CaseRow) -> str:
    scores = ", ".join(f"{score.metric} {score.value:g}" for score in row.scores if score.value is not None)
    return f"with corrections the run scores {scores}"
