"""IterationCommand: a command that runs one iteration, in the folder of that iteration.

Its standard input is the prefix and the task. Variables say where the prior deliverable, the gradient and the folder
for output are, and what the budget and the models are. Its model calls go through the gateway, as those of any command.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from promptiter.agents.base import AgentRun, CaseInput, RunContext
from promptiter.agents.black_box.command import INHERITED
from promptiter.agents.black_box.process import (
    ProcessLimits,
    describe_exit,
    find_start_problem,
    run_process,
    select_environment,
)
from promptiter.agents.black_box.run import BlackBoxAnswer, BlackBoxInput, run_black_box
from promptiter.errors import CommandError, SetupError
from promptiter.profile import Profile
from promptiter.structure import Node, StructureSnapshot
from promptiter.tasks.refine.agent_runner import PREFIX_FILE
from promptiter.tasks.refine.gradient import FILE_NAME as GRADIENT
from promptiter.tasks.refine.loop import IterationRequest

PREFIX = "PROMPTITER_REFINE_"
TIMEOUT_S = 3600.0
"""The time limit of a command if the time of the seed is not known."""
_GRACE_S = 30.0
"""The budget of the iteration ends a command before its own time limit does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IterationCommand:
    """An agent whose only run is a command, without a shell."""

    command: tuple[str, ...]
    request: IterationRequest

    def describe(self) -> StructureSnapshot:
        return StructureSnapshot(nodes=(Node(id="command", kind="agent"),), name="command")

    async def run(self, case: CaseInput, profile: Profile, context: RunContext) -> AgentRun:
        return await run_black_box(self.describe(), self._call, case, profile, context)

    async def _call(self, given: BlackBoxInput) -> BlackBoxAnswer:
        seconds = self.request.budget.max_wall_time_s
        finished = await run_process(
            self.command,
            environment={
                **select_environment(INHERITED),
                **given.session.environment,
                **list_variables(self.request),
            },
            cwd=self.request.folders.root,
            stdin=given.case.text.encode(errors="replace"),
            limits=ProcessLimits(timeout_s=TIMEOUT_S if seconds is None else seconds + _GRACE_S),
        )
        if finished.code != 0:
            raise CommandError(describe_exit(self.command, finished))
        return BlackBoxAnswer(text=finished.stdout.decode(errors="replace").rstrip("\r\n"))


def list_variables(request: IterationRequest) -> Mapping[str, str]:
    """The variables of the command of an iteration."""
    folders, models = request.folders, request.models
    given = {
        "input": str(folders.input),
        "output": str(folders.output),
        "gradient": str(folders.root / GRADIENT),
        "prefix": str(folders.root / PREFIX_FILE),
        "run_dir": str(folders.run_dir),
        "run_id": request.run_id,
        "parent_run_id": request.parent_run_id,
        "iteration": str(request.number),
        "iterations": str(request.of),
        "manager_model": models.manager,
        "worker_model": models.worker,
        **{name: str(cap) for name, cap in asdict(request.budget).items() if cap is not None},
    }
    return {f"{PREFIX}{name.upper()}": value for name, value in given.items()}


def prepare_command(command: Sequence[str]) -> tuple[str, ...]:
    """A command to be run elsewhere: names of files in this folder become paths. SetupError if it cannot start."""
    prepared = tuple(map(_find_argument, command))
    if not prepared or not prepared[0]:
        raise SetupError("the command is empty; give its program and arguments")
    if problem := find_start_problem(prepared, environment=select_environment(INHERITED), cwd=None):
        raise SetupError(problem)
    return prepared


def _find_argument(argument: str) -> str:
    path = Path(argument)
    is_here = bool(path.parts) and not path.is_absolute() and path.is_file()
    return str(path.absolute()) if is_here else argument
