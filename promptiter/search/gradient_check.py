"""GradientCheck: is blame right? A sample of blamed steps is given corrected outputs, and what follows is replayed.

Failed runs are looked at one by one. All nodes that a run is blamed on are corrected in turn, each visit in the run
that the corrections before it led to; then each node's correction is left out. Blame is supported if the score is lower
without it, and unsupported if it is not: the correction changes nothing, or with its input the node could do no better.
Everything before a corrected step comes from the cache. What many other runs are blamed on is corrected along, because
it would be patched along: a fault behind another shows only then.

The last step needs no special rule: correctors may give it the expected answer only if all that this is made of had
reached it, and once a correction further up makes the run pass, nothing is left that it could be blamed for.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from random import Random

from promptiter.agents.base import Agent, Substitute, SubstitutingAgent
from promptiter.backprop.corrections import Correction, CorrectionRequest, Corrector
from promptiter.backprop.loss import extract_losses
from promptiter.errors import BudgetEndedError, SetupError, UnexpectedCallError
from promptiter.evaluation.data.case import EvalCase, EvalSet
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.result import CaseRow, Evaluation
from promptiter.evaluation.score import RUN_LIMITS
from promptiter.profile import Profile
from promptiter.registry import OFFLINE_STAGES
from promptiter.search.blame_sample import most_blamed, run_of, sample
from promptiter.stages.contracts import BlameCheck, BlameChecks, BlameVerdict, SurfaceGradient
from promptiter.structure import StructureSnapshot
from traces import ExecutionTrace, Step

MOST_CHECKED = 12
"""So much blame of a round is checked: surfaces of single failed runs."""

BEYOND_OUTPUTS = ("wrong_tool", "wrong_arguments", "route")
"""What a step did, not what it gave: no output stands for that."""


class GradientCheck:
    """Checks blame. The correctors are asked one after the other until one can tell; by default what needs no model."""

    def __init__(self, *correctors: Corrector, most: int = MOST_CHECKED) -> None:
        if most < 1:
            raise SetupError(
                f"a gradient check needs at least one check, got most={most}; leave it out to check nothing"
            )
        self.correctors: tuple[Corrector, ...] = correctors or (OFFLINE_STAGES.get("corrector")(),)
        self.most = most

    async def check(self, gradients: Iterable[SurfaceGradient], runs: Replays, *, rng: Random) -> BlameChecks:
        """Check a sample, spread over surfaces and cases. A spent budget and a wrong set-up end it all."""
        if not isinstance(runs.agent, SubstitutingAgent):
            return BlameChecks()
        blame = sorted(gradients, key=lambda each: (*run_of(each), each.surface_id, each.step_id, each.text))
        common = most_blamed(blame)
        asking = [_RunCheck(runs, self.correctors, each, common) for each in sample(blame, rng, most=self.most)]
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each.checks()) for each in asking]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        found = tuple(check for task in tasks for check in task.result())
        return BlameChecks(checks=found, replays=sum(each.replays for each in asking))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replays:
    """Where failed runs can be run again: an evaluation, and all that made it."""

    agent: Agent
    evaluator: Evaluator
    eval_set: EvalSet
    evaluation: Evaluation
    profile: Profile


@dataclass(frozen=True, slots=True)
class _State:
    """A run with some steps corrected. `unknown` are nodes that nobody could correct."""

    row: CaseRow
    substitutes: tuple[Substitute, ...] = ()
    corrected: frozenset[str] = frozenset()
    unknown: frozenset[str] = frozenset()


class _RunCheck:
    """The check of one failed run."""

    def __init__(
        self,
        runs: Replays,
        correctors: Sequence[Corrector],
        blamed: Sequence[SurfaceGradient],
        common: Mapping[str, SurfaceGradient],
    ) -> None:
        self.runs = runs
        self.correctors = correctors
        self.blamed = blamed
        first = blamed[0]
        self.turn = first.turn
        self.case: EvalCase = next(each for each in runs.eval_set.cases if each.id == first.case_id)
        self.row = next(
            each for each in runs.evaluation.rows if (each.case_id, each.repeat) == (first.case_id, first.repeat)
        )
        self.limits = frozenset(
            score.metric for score in self.row.scores if any(each.predicate in RUN_LIMITS for each in score.findings)
        )
        self.replays = 0
        self._rows: dict[str, CaseRow] = {}
        self._reasons: dict[str, str] = {}
        steps = self._trace(self.row).steps
        node_of = {step.id: step.node_id for step in steps}
        self.suspects = {
            each.surface_id: {node_of[other.step_id] for other in blamed if other.surface_id == each.surface_id}
            for each in blamed
        }
        self.nodes = list(dict.fromkeys(node_of[each.step_id] for each in blamed))
        along = {
            step.node_id: gradient
            for step in steps
            for surface_id, gradient in common.items()
            if surface_id in (step.surface_reads or ()) and step.node_id not in self.nodes
        }
        self.along = list(along)
        self.gradients: defaultdict[str, list[SurfaceGradient]] = defaultdict(list)
        for gradient in blamed:
            self.gradients[node_of[gradient.step_id]].append(gradient)
        for node_id, gradient in along.items():
            self.gradients[node_id].append(gradient)
        self.steps = {step.id: step.node_id for step in steps if step.node_id in self.gradients}

    async def checks(self) -> list[BlameCheck]:
        """What can be said of each surface that the run is blamed on."""
        verdicts = await self._verdicts(self.nodes)
        found = []
        for surface_id, told in sorted(self.suspects.items()):
            best: BlameVerdict = min((verdicts[node] for node in told), key=_ORDER.index)
            reason = next(self._reasons.get(node, "") for node in self.nodes if node in told and verdicts[node] == best)
            check = BlameCheck(
                surface_id=surface_id,
                case_id=self.row.case_id,
                repeat=self.row.repeat,
                turn=self.turn,
                step_ids=tuple(sorted({each.step_id for each in self.blamed if each.surface_id == surface_id})),
                verdict=best,
                reason=reason,
            )
            found.append(check)
        return found

    async def _verdicts(self, nodes: Sequence[str]) -> dict[str, BlameVerdict]:
        before = _State(self.row)
        full = await self._corrected(nodes)
        if full is None:
            return dict.fromkeys(nodes, "unknown")
        if not self._is_better(full.row, before.row):
            is_open = bool(full.unknown)  # the fault may be there, and hide what the others would do
            self._tell(nodes, "the score stays as it was, whatever is corrected")
            return dict.fromkeys(nodes, "unknown" if is_open else "unsupported")
        verdicts: dict[str, BlameVerdict] = {}
        for node in nodes:
            if node in full.corrected:
                without = await self._corrected([each for each in nodes if each != node])
                is_needed = without is None or self._is_better(full.row, without.row)
                verdicts[node] = "supported" if is_needed else "unsupported"
                self._tell([node], _told(full.row) if is_needed else "the score is the same without its correction")
            else:
                is_open = node in full.unknown and not _passed(full.row)
                verdicts[node] = "unknown" if is_open else "unsupported"
                self._reasons.setdefault(node, "the run passes without its correction")
        if "supported" not in verdicts.values():
            for node in full.corrected:  # several corrections, each of which is enough
                alone = await self._corrected([node])
                if alone is not None and self._is_better(alone.row, before.row):
                    verdicts[node] = "supported"
                    self._tell([node], f"alone, {_told(alone.row)}")
        return verdicts

    def _tell(self, nodes: Iterable[str], reason: str) -> None:
        for node in nodes:
            said = self._reasons.get(node, "").partition("; ")[0]
            self._reasons[node] = f"{said}; {reason}" if said else reason

    async def _corrected(self, nodes: Sequence[str]) -> _State | None:
        """The run with these nodes and those along corrected in turn; None if it could not be run or scored."""
        state = _State(self.row)
        for step_id, node_id in self.steps.items():
            if (node_id not in nodes and node_id not in self.along) or _passed(state.row):
                continue
            step = next((each for each in self._trace(state.row).steps if each.id == step_id), None)
            if step is None:  # a correction before it led another way
                continue
            correction = await self._correction(step, state)
            self._reasons.setdefault(node_id, correction.reason)
            if correction.kind == "unknown":
                state = replace(state, unknown=state.unknown | {node_id})
            if correction.kind != "corrected":
                continue
            given = Substitute(step_id=step_id, output=correction.output, turn=self.turn)
            row = await self._replayed((*state.substitutes, given))
            if row.outage is not None or (row.error is None and not row.is_scored):
                return None
            if row.error is None and not self._is_worse(row, state.row):
                state = _State(row, (*state.substitutes, given), state.corrected | {node_id}, state.unknown)
        return state

    async def _correction(self, step: Step, state: _State) -> Correction:
        agent, snapshot = self.runs.agent, self.runs.agent.describe()
        mine = tuple(self.gradients[step.node_id])
        if all(each.category in BEYOND_OUTPUTS for each in mine):
            return Correction(kind="unknown", reason="it is blamed for what it did, not for what it gave")
        if not isinstance(agent, SubstitutingAgent) or not agent.can_substitute(step.node_id):
            return Correction(kind="unknown", reason="the agent cannot give this step another output")
        request = self._request(step, state, mine, snapshot)
        if request is None:
            return Correction(kind="unknown", reason="the run has no losses that a correction could start from")
        found = Correction(kind="unknown", reason="nobody could correct it")
        for corrector in self.correctors:
            found = await _asked(corrector, request)
            if found.kind != "unknown":
                break
        if found.kind == "corrected" and found.output == (
            step.output.text if step.output.text is not None else step.output.data
        ):
            return Correction(kind="no_better", reason="its output was as it should be")
        return found

    def _request(
        self, step: Step, state: _State, mine: tuple[SurfaceGradient, ...], snapshot: StructureSnapshot
    ) -> CorrectionRequest | None:
        runs = self.runs
        only = replace(runs.eval_set, cases=(self.case,))
        evaluation = runs.evaluator.build_evaluation([state.row], only, runs.profile)
        losses = extract_losses(evaluation, only, runs.evaluator.trace_store.get)
        loss = next((each for each in losses if each.turn == self.turn), None)
        if loss is None:
            return None
        read = sorted({each.surface_id for each in mine})
        others = (turn.expected for case in runs.eval_set.cases if case.id != self.case.id for turn in case.turns)
        return CorrectionRequest(
            case_loss=loss,
            trace=self._trace(state.row),
            step=step,
            gradients=mine,
            surfaces=tuple(runs.profile.surface(each, snapshot) for each in read),
            references=tuple(each for each in others if each is not None)[:40],
        )

    async def _replayed(self, substitutes: tuple[Substitute, ...]) -> CaseRow:
        key = repr(substitutes)
        if key not in self._rows:
            self.replays += 1
            runs = self.runs
            self._rows[key] = await runs.evaluator.replay(
                runs.agent, self.case, runs.profile, repeat=self.row.repeat, substitutes=substitutes
            )
        return self._rows[key]

    def _trace(self, row: CaseRow) -> ExecutionTrace:
        return self.runs.evaluator.trace_store.get(row.trace_digests[self.turn])

    def _is_better(self, row: CaseRow, other: CaseRow) -> bool:
        """Whether a score rose; at the same score, whether less is wrong: another fault may keep the score down."""
        score, before = self._score(row), self._score(other)
        return score > before or (score == before and _findings(row) < _findings(other))

    def _is_worse(self, row: CaseRow, other: CaseRow) -> bool:
        return self._score(row) < self._score(other)

    def _score(self, row: CaseRow) -> float:
        """The mean over the metrics; what a run costs and how long it takes says nothing about a replay."""
        if row.error is not None:
            return -math.inf
        values = [score.value for score in row.scores if score.metric not in self.limits and score.value is not None]
        return math.fsum(values) / len(values) if values else 0.0


_ORDER: tuple[BlameVerdict, ...] = ("supported", "unknown", "unsupported", "unchecked")


async def _asked(corrector: Corrector, request: CorrectionRequest) -> Correction:
    try:
        return await corrector.correct(request)
    except (BudgetEndedError, UnexpectedCallError, SetupError):
        raise
    except Exception as error:  # noqa: BLE001 - a corrector may be the user's own; what it fails on is not checked
        return Correction(kind="unknown", reason=f"{type(error).__name__}: {error}")


def _passed(row: CaseRow) -> bool:
    return row.error is None and bool(row.scores) and all(score.passed for score in row.scores)


def _findings(row: CaseRow) -> int:
    return sum(len(score.findings) for score in row.scores)


def _told(row: CaseRow) -> str:
    scores = ", ".join(f"{score.metric} {score.value:g}" for score in row.scores if score.value is not None)
    return f"corrected, the run has {scores}"
