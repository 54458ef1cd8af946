"""AgentRunner: an iteration as one run of an agent of ours, or of a command, and its measurement by our metrics.

What the agent leaves in the folder for output is its deliverable; without files there, its answer is.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from promptiter.agents.base import Agent, AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.prompt_matching import PromptMatcher
from promptiter.errors import BudgetEndedError
from promptiter.evaluation.case_runner import GuardedAgent, score_run
from promptiter.evaluation.data.case import EvalCase, Turn
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.user_simulator import converse
from promptiter.llm.budget import Budget, Budgets
from promptiter.llm.gateway import Gateway
from promptiter.profile import Profile
from promptiter.structure import StructureSnapshot
from promptiter.tasks.refine.deliverables import find_deliverable, list_files
from promptiter.tasks.refine.iteration_guard import ITERATION_CAPS, IterationGuard, NodeRoles
from promptiter.tasks.refine.loop import Clock, FinishedIteration, IterationFailedError, IterationRequest
from promptiter.tasks.refine.prefix import quote_deliverable, read_texts, render_prefix
from promptiter.tasks.refine.records import ObservedUse, RunRecord
from promptiter.tasks.refine.run_folder import COMPLETION, read_run, write_run
from promptiter.tasks.refine.scored_files import ScoredFiles
from promptiter.tasks.refine.scores import list_defects, list_metrics
from promptiter.wording import plural
from traces.files import write_file
from traces.model import Json

PREFIX_FILE = "refinement_prefix.txt"
ANSWER_FILE = "answer.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentRunner:
    """Runs the agent that `build_agent` returns for an iteration, under a profile if it is of a run of ours.

    Without an `evaluator`, only what the agent itself records in run_completion.json is measured. `case` is that of a
    seed of ours, and `files` measure a seed that a scorer measured. An agent that can read files need not be shown the
    deliverable.
    """

    build_agent: Callable[[IterationRequest], Agent]
    gateway: Gateway
    evaluator: Evaluator | None = None
    case: EvalCase | None = None
    files: ScoredFiles | None = None
    profile: Profile | None = None
    roles: NodeRoles = field(default_factory=NodeRoles)
    shows_deliverable: bool = True
    clock: Clock = field(default_factory=Clock)

    async def run(self, request: IterationRequest) -> FinishedIteration:
        agent = self.build_agent(request)
        prefix = self._render_prefix(request)
        write_file(request.folders.root / PREFIX_FILE, prefix.encode())
        guard = IterationGuard(
            self.roles,
            prefix=prefix,
            budget=request.budget,
            models=request.models,
            find_node=self._make_matcher(agent, request).find_node,
        )
        before = "" if self.roles.prefix_node is not None else prefix
        started = self.clock.seconds()
        run, status, problem = await self._call(_PrefixedAgent(GuardedAgent(agent), before), guard, request)
        took = self.clock.seconds() - started
        if guard.is_prefix_missed and not problem:
            problem = (
                f"{self.roles.prefix_node!r} made no step, so what was wrong was not shown; set refine.prefix_node"
            )
        if run.error is not None:
            raise IterationFailedError(run.error.type, run.error.message)
        if run.output and not list_files(request.folders.output):
            write_file(request.folders.output / _name_answer(request.files), run.output.encode(errors="replace"))
        run_dir = _find_run_dir(request)
        record = self._describe(request, run_dir, status, guard.use, run, took)
        delivered = find_deliverable(run_dir, record.run_id, request.run_id)
        if self.evaluator is None and delivered is not None and not (run_dir / COMPLETION).exists():
            raise IterationFailedError("NotMeasured", _describe_unmeasured(problem))
        if self.files is not None and delivered is not None:
            self.files.complete(delivered)
        if self.evaluator is not None and delivered is not None:
            record = await self._measure(record, delivered, run, repeat=request.number)
        if not (run_dir / COMPLETION).exists():
            write_run(run_dir, record)
        return FinishedIteration(record=record, run_dir=run_dir, problem=problem)

    async def measure(self, record: RunRecord, deliverable: Path) -> RunRecord:
        if self.evaluator is None:
            return record
        return await self._measure(record, deliverable, AgentRun(), repeat=0)

    async def _call(self, agent: Agent, guard: IterationGuard, request: IterationRequest) -> tuple[AgentRun, str, str]:
        """The agent's run within the budget of the iteration, its status, and the problem if the budget ended.

        What was delivered until then is kept.
        """
        budget = request.budget
        own = Budget(max_tokens=budget.max_total_tokens, allow_unknown_price=True)
        budgets = own if self.gateway.budget is None else Budgets(self.gateway.budget, own)
        gateway = self.gateway.for_configuration(budget=budgets, seed=self.gateway.seed).guarding_agent(guard)
        gateway.bind_to_running_loop()
        case = self._make_case(request)
        context = RunContext(case_id=case.id, repeat=request.number, seed=gateway.seed)
        profile = self._choose_profile(agent)
        simulator = None if self.evaluator is None else self.evaluator.user_simulator
        try:
            with gateway.active():
                async with asyncio.timeout(budget.max_wall_time_s):
                    return await converse(agent, case, profile, context, simulator), "completed", ""
        except TimeoutError:
            return AgentRun(), "timed_out", f"it took longer than {plural(budget.max_wall_time_s or 0, 'second')}"
        except BudgetEndedError as error:
            if error.cap not in ITERATION_CAPS:  # that of the whole session
                raise
            return AgentRun(), "budget_ended", str(error)

    def _choose_profile(self, agent: Agent) -> Profile:
        return self.profile or Profile.baseline(agent.describe())

    def _make_matcher(self, agent: Agent, request: IterationRequest) -> PromptMatcher:
        structure, profile = agent.describe(), self._choose_profile(agent)
        values = {each: profile.value(each, structure) for each in structure.surface_ids}
        return PromptMatcher(structure, values, request.task)

    def _make_case(self, request: IterationRequest) -> EvalCase:
        place = request.folders
        folders: Json = {"input": str(place.input), "output": str(place.output), "iteration": request.number}
        if self.case is None:
            return EvalCase(id="refinement", turns=(Turn(user=request.task),), state={"refine": folders})
        state: Mapping[str, Json] = {"refine": folders, **copy.deepcopy(dict(self.case.state))}
        return replace(self.case, state=state, mode="run")

    def _render_prefix(self, request: IterationRequest) -> str:
        texts = read_texts(request.folders.input, request.files) if self.shows_deliverable else []
        return render_prefix(
            request.gradient,
            request.files,
            number=request.number,
            of=request.of,
            deliverable=quote_deliverable(texts),
        )

    def _describe(
        self,
        request: IterationRequest,
        run_dir: Path,
        status: str,
        counted: ObservedUse,
        run: AgentRun,
        took: float,
    ) -> RunRecord:
        """The record that the agent wrote itself; of any other, what was counted."""
        if (run_dir / COMPLETION).exists():
            return read_run(run_dir)
        return RunRecord(
            run_id=request.run_id,
            parent_run_id=request.parent_run_id,
            task=request.task,
            status=status,
            models=request.models,
            use=replace(
                counted,
                tokens=run.usage.tokens or None,
                wall_time_s=round(took, 3),
                max_depth=request.budget.max_depth,
            ),
        )

    async def _measure(self, record: RunRecord, deliverable: Path, run: AgentRun, *, repeat: int) -> RunRecord:
        """Score a run. What the agent says about its own metrics does not count then."""
        assert self.evaluator is not None
        case = self.case or EvalCase(id="deliverable", turns=(Turn(user=record.task),))
        self.gateway.bind_to_running_loop()
        with self.gateway.active():
            if self.files is not None:
                return await self.files.measure(record, deliverable, repeat=repeat)
            if self.case is None:
                run = replace(run, output=_read_whole(deliverable), turns=())
            scores = await score_run(self.evaluator.metrics, replace(case, mode="run"), run, repeat=repeat)
        return replace(
            record,
            metrics=list_metrics(scores, self.evaluator.weights),
            defects=(*record.defects, *list_defects(scores)),
        )


class _PrefixedAgent:
    """An agent that is asked with a text before its first message."""

    def __init__(self, agent: Agent, prefix: str) -> None:
        self._agent = agent
        self._prefix = prefix

    def describe(self) -> StructureSnapshot:
        return self._agent.describe()

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        if self._prefix and context.turn == 0:
            case = replace(case, text=self._prefix + case.text)
        return await self._agent.run(case, profile, context)


def _find_run_dir(request: IterationRequest) -> Path:
    """The folder of the run: the one that a command filled with a run of its own, or ours."""
    own = request.folders.run_dir
    if (own / COMPLETION).exists():
        return own
    others = sorted(file.parent for file in own.parent.glob(f"*/{COMPLETION}"))
    return others[-1] if others else own


def _describe_unmeasured(problem: str) -> str:
    advice = f"give --rubric FILE, or let the command write a {COMPLETION} into its PROMPTITER_REFINE_RUN_DIR"
    return f"nothing measures what the command delivered{f': {problem}' if problem else ''}; {advice}"


def _name_answer(files: tuple[str, ...]) -> str:
    """The name of an answer: that of the prior deliverable if it is one file."""
    return files[0] if len(files) == 1 else ANSWER_FILE


def _read_whole(deliverable: Path) -> str:
    """The texts of a deliverable as one."""
    texts = read_texts(deliverable, list_files(deliverable))
    if len(texts) == 1:
        return texts[0][1]
    return "\n\n".join(f"## {name}\n\n{text}" for name, text in texts)
