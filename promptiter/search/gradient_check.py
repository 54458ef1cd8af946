"""GradientCheck: tests blame by experiment. It corrects the outputs of a sample of blamed steps and replays the rest.

Failed runs are checked one by one. All blamed nodes of a run are corrected in turn, each visit in the run that the
earlier corrections led to; then the correction of each node is left out. Blame is supported if the score is lower
without it. Otherwise it is unsupported: the correction changes nothing, or the node could not do better with its input.
Blame of a tool or a route is not checked: another output would not show what another action would have led to.
Everything before a corrected step comes from the cache. Surfaces that many other runs blame are corrected as well,
because they would be patched as well: only then does a fault show that is hidden behind theirs.

The last step needs no special rule: a corrector may give it the expected answer only if all parts of that answer had
reached it, and once an earlier correction makes the run pass, the last step has nothing left to be blamed for.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from promptiter.agents.base import Agent, Substitute, SubstitutingAgent
from promptiter.backprop.corrections import Correction, CorrectionRequest, Corrector
from promptiter.backprop.loss import extract_losses
from promptiter.backprop.record import GradientsChecked
from promptiter.backprop.stage_calls import call_stage
from promptiter.concurrency import run_together
from promptiter.errors import FATAL_ERRORS, SetupError
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import RUN_LIMITS
from promptiter.grouping import ById, group_by
from promptiter.profile import Profile
from promptiter.registry import OFFLINE_STAGES
from promptiter.search.blame_sample import find_most_blamed, run_of, sample_runs
from promptiter.stages.contracts import BlameCheck, BlameVerdict, SurfaceGradient
from promptiter.stages.losses import CaseLoss
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, Step

MOST_CHECKED = 12
"""Maximum number of checks per round; one check is one blamed surface in one failed run."""

MOST_REFERENCES = 40
"""Maximum number of expected answers of other cases that a corrector is shown."""

MOST_VISITS = 8
"""Maximum number of visits of a node that are corrected in one run. Each may need a replay of the whole run."""

BEYOND_OUTPUTS = ("wrong_tool", "wrong_arguments", "route")
"""Categories about what a step did, not about its output. Replacing the output cannot correct them."""


def is_about_output(gradient: SurfaceGradient, snapshot: StructureSnapshot) -> bool:
    """Whether another output of the step could show that the blame is right; not if it is about tools or routes."""
    return gradient.category not in BEYOND_OUTPUTS and snapshot.surface(gradient.surface_id).type != "tool"


class GradientCheck:
    """Checks blame by replay. Correctors are asked in turn until one knows; the default one needs no model."""

    def __init__(self, *correctors: Corrector, most: int = MOST_CHECKED) -> None:
        if most < 1:
            raise SetupError(
                f"a gradient check needs at least one check, got most={most}; leave it out to check nothing"
            )
        self.correctors: tuple[Corrector, ...] = correctors or (OFFLINE_STAGES.get("corrector")(),)
        self.most = most

    async def check(
        self, gradients: Iterable[SurfaceGradient], runs: ReplayContext, *, rng: Random
    ) -> GradientsChecked:
        """Check a sample that is spread over surfaces and cases. Budget and setup errors are raised."""
        if not isinstance(runs.agent, SubstitutingAgent):
            return GradientsChecked()
        blame = sorted(gradients, key=lambda each: (*run_of(each), each.surface_id, each.step_id, each.text))
        snapshot = runs.agent.describe()
        checkable = [each for each in blame if is_about_output(each, snapshot)]
        open_runs = {run_of(each) for each in blame if not is_about_output(each, snapshot)}
        common = find_most_blamed(checkable)
        run_checks = [
            await _RunCheck.begin(runs, self.correctors, each, common, is_open=run_of(each[0]) in open_runs)
            for each in sample_runs(checkable, rng, most=self.most)
        ]
        found = await run_together(each.run() for each in run_checks)
        checks = tuple(check for each in found for check in each)
        return GradientsChecked(checks=checks, replays=sum(each.replays for each in run_checks))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayContext:
    """What a replay needs: an evaluation with the agent, evaluator, cases and profile that it came from."""

    agent: Agent
    evaluator: Evaluator
    eval_set: EvalSet
    evaluation: Evaluation
    profile: Profile


@dataclass(frozen=True, slots=True)
class _CorrectedRun:
    """A run with some steps corrected. `unknown` are the nodes that no corrector could correct."""

    row: CaseRow
    substitutes: tuple[Substitute, ...] = ()
    corrected: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


class _RunCheck:
    """The check of one failed run."""

    def __init__(
        self,
        runs: ReplayContext,
        correctors: Sequence[Corrector],
        blamed: Sequence[SurfaceGradient],
        common: Mapping[str, SurfaceGradient],
        *,
        row: CaseRow,
        trace: ExecutionTrace,
        is_open: bool,
    ) -> None:
        self.runs = runs
        self.correctors = correctors
        self.blamed = blamed
        first = blamed[0]
        self.turn = first.turn
        self.case: EvalCase = next(each for each in runs.eval_set.cases if each.id == first.case_id)
        self.row = row
        self.limits = frozenset(
            score.metric for score in self.row.scores if any(each.predicate in RUN_LIMITS for each in score.findings)
        )
        self.is_open = is_open
        self.replays = 0
        self._agent = runs.agent if isinstance(runs.agent, SubstitutingAgent) else None
        self._snapshot = runs.agent.describe()
        others = (turn.expected for case in runs.eval_set.cases if case.id != self.case.id for turn in case.turns)
        self._references = tuple(each for each in others if each is not None)[:MOST_REFERENCES]
        self._traces: dict[str, ExecutionTrace] = {row.trace_digests[self.turn]: trace}
        self._steps: dict[str, dict[str, Step]] = {}
        self._losses: dict[ById[CaseRow], CaseLoss | None] = {}
        self._rows: dict[str, CaseRow] = {}
        self._reasons: dict[str, str] = {}
        steps = trace.steps
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
        runs: ReplayContext,
        correctors: Sequence[Corrector],
        blamed: Sequence[SurfaceGradient],
        common: Mapping[str, SurfaceGradient],
        *,
        is_open: bool,
    ) -> _RunCheck:
        """Load what the check of a failed run starts from. It `is_open` if it also has blame that is not checked."""
        first = blamed[0]
        row = next(
            each for each in runs.evaluation.rows if (each.case_id, each.repeat) == (first.case_id, first.repeat)
        )
        trace = await runs.evaluator.trace_store.get(row.trace_digests[first.turn])
        return cls(runs, correctors, blamed, common, row=row, trace=trace, is_open=is_open)

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
                case_id=self.row.case_id,
                repeat=self.row.repeat,
                turn=self.turn,
                step_ids=tuple(sorted({each.step_id for each in steps[surface_id]})),
                verdict=best,
                reason=self._reasons.get(first, ""),
            )
            found.append(check)
        return found

    async def _judge_nodes(self, nodes: Sequence[str]) -> dict[str, BlameVerdict]:
        before = _CorrectedRun(self.row)
        full = await self._correct_nodes(nodes)
        if full is None:
            return dict.fromkeys(nodes, "unknown")
        if not self._is_better(full.row, before.row):
            is_open = self.is_open or bool(full.unknown)  # a fault there may hide the effect of the others
            self._add_reason(nodes, "no correction improves the score")
            return dict.fromkeys(nodes, "unknown" if is_open else "unsupported")
        verdicts: dict[str, BlameVerdict] = {}
        for node in nodes:
            if node in full.corrected:
                without = await self._correct_nodes([each for each in nodes if each != node])
                is_needed = without is None or self._is_better(full.row, without.row)
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
                if alone is not None and self._is_better(alone.row, before.row):
                    verdicts[node] = "supported"
                    self._add_reason([node], f"this one alone is enough: {_describe_scores(alone.row)}")
        return verdicts

    def _add_reason(self, nodes: Iterable[str], reason: str) -> None:
        for node in nodes:
            earlier = self._reasons.get(node, "").partition("; ")[0]
            self._reasons[node] = f"{earlier}; {reason}" if earlier else reason

    async def _correct_nodes(self, nodes: Sequence[str]) -> _CorrectedRun | None:
        """Correct these nodes and the common ones in turn; None if the run could not be replayed or scored."""
        state, left_out = _CorrectedRun(self.row), self.nodes.keys() - set(nodes)
        for step_id, node_id in self.steps.items():
            if node_id in left_out or state.row.passed:
                continue
            step = await self._find_step(step_id, state.row)
            if step is None:  # an earlier correction led to another path
                continue
            correction = await self._correct_step(step, state)
            self._reasons.setdefault(node_id, correction.reason)
            if correction.kind == "unknown":
                state = replace(state, unknown=state.unknown | {node_id})
            if correction.kind != "corrected":
                continue
            given = Substitute(step_id=step_id, output=correction.output, turn=self.turn)
            row = await self._replay((*state.substitutes, given))
            if row.outage is not None or (row.error is None and not row.is_scored):
                return None
            if row.error is None and self._compute_score(row) >= self._compute_score(state.row):
                state = _CorrectedRun(row, (*state.substitutes, given), state.corrected | {node_id}, state.unknown)
        return state

    async def _correct_step(self, step: Step, state: _CorrectedRun) -> Correction:
        mine = tuple(self.gradients[step.node_id])
        if self._agent is None or not self._agent.can_substitute(step.node_id):
            return Correction(kind="unknown", reason="the agent cannot replace the output of this step")
        loss = await self._find_loss(state.row)
        if loss is None:
            return Correction(kind="unknown", reason="the run has no losses to correct")
        request = CorrectionRequest(
            case_loss=loss,
            trace=await self._load_trace(state.row),
            step=step,
            gradients=mine,
            surfaces=tuple(
                self.runs.profile.surface(each, self._snapshot) for each in sorted({each.surface_id for each in mine})
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

    async def _find_loss(self, row: CaseRow) -> CaseLoss | None:
        """The loss of this turn of a run, which all its steps share; None if there is none."""
        if ById(row) not in self._losses:
            only = replace(self.runs.eval_set, cases=(self.case,))
            evaluation = self.runs.evaluator.build_evaluation([row], only, self.runs.profile)
            losses = await extract_losses(evaluation, only, self._load)
            self._losses[ById(row)] = next((each for each in losses if each.turn == self.turn), None)
        return self._losses[ById(row)]

    async def _find_step(self, step_id: str, row: CaseRow) -> Step | None:
        digest = row.trace_digests[self.turn]
        if digest not in self._steps:
            self._steps[digest] = {step.id: step for step in (await self._load(digest)).steps}
        return self._steps[digest].get(step_id)

    async def _replay(self, substitutes: tuple[Substitute, ...]) -> CaseRow:
        key = repr(substitutes)
        if key not in self._rows:
            self.replays += 1
            runs = self.runs
            self._rows[key] = await runs.evaluator.replay(
                runs.agent, self.case, runs.profile, repeat=self.row.repeat, substitutes=substitutes
            )
        return self._rows[key]

    async def _load_trace(self, row: CaseRow) -> ExecutionTrace:
        return await self._load(row.trace_digests[self.turn])

    async def _load(self, digest: str) -> ExecutionTrace:
        """Load a trace once."""
        if digest not in self._traces:
            self._traces[digest] = await self.runs.evaluator.trace_store.get(digest)
        return self._traces[digest]

    def _is_better(self, row: CaseRow, other: CaseRow) -> bool:
        """Whether the score rose; at equal scores, whether there are fewer findings: another fault may keep it down."""
        score, before = self._compute_score(row), self._compute_score(other)
        return score > before or (score == before and _count_findings(row) < _count_findings(other))

    def _compute_score(self, row: CaseRow) -> float:
        """The mean over the metrics, without limits on cost and time, which mean nothing for a replay."""
        if row.error is not None:
            return -math.inf
        values = [score.value for score in row.scores if score.metric not in self.limits and score.value is not None]
        return math.fsum(values) / len(values) if values else 0.0


_ORDER: tuple[BlameVerdict, ...] = ("supported", "unknown", "unsupported", "unchecked")


async def _ask_corrector(corrector: Corrector, request: CorrectionRequest) -> Correction:
    try:
        return await call_stage(corrector.correct, request, returns=Correction)
    except FATAL_ERRORS:
        raise
    except Exception as error:  # noqa: BLE001 - a corrector may be the user's own; a failed correction is not checked
        return Correction(kind="unknown", reason=f"{type(error).__name__}: {error}")


def _count_findings(row: CaseRow) -> int:
    return sum(len(score.findings) for score in row.scores)


def _describe_scores(row: CaseRow) -> str:
    scores = ", ".join(f"{score.metric} {score.value:g}" for score in row.scores if score.value is not None)
    return f"with corrections the run scores {scores}"
