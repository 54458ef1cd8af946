"""What a refinement checks before anything runs: its settings, its folder, and that the agent is that of the run."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from promptiter.agents.base import Agent
from promptiter.config.refinement_settings import RefinementSettings
from promptiter.errors import SetupError, StructureMismatchError
from promptiter.runlog.results import RunResult
from promptiter.tasks.refine.seeds import WORK, Seed
from promptiter.wording import join_names

SHOWN_SURFACES = 4


def check_case_settings(folder: Path, settings: RefinementSettings) -> None:
    """SetupError for settings that a run of ours has itself."""
    names = ("agent", "rubric", "task", "judge", "config")
    check_settings(folder, settings, names, why="has its own agent, cases and metrics")


def check_settings(folder: Path, settings: RefinementSettings, names: Iterable[str], *, why: str) -> None:
    """SetupError for settings that this run has no use for."""
    for name in names:
        if getattr(settings, name):
            raise SetupError(f"--{name} is for other results: the run {folder.name!r} {why}. Leave it out")


def check_agent_unchanged(agent: Agent, result: RunResult, folder: Path) -> None:
    """SetupError if the profile of a run is not one of the agent any more."""
    structure = agent.describe()
    try:
        result.accepted_profile.check(structure)
    except StructureMismatchError as error:
        changed = sorted({*structure.surface_ids} ^ {*result.structure.surface_ids})
        names = f" ({join_names(changed, limit=SHOWN_SURFACES)})" if changed else ""
        raise SetupError(
            f"the agent has changed since the run {folder.name!r}{names}; start a new run, and refine that one"
        ) from error


def create_work_folder(folder: Path, seed: Seed) -> None:
    """Create the folder of the iterations. SetupError if it cannot be one."""
    is_collected = bool(seed.rubric) and seed.deliverable.is_relative_to(seed.home / WORK)  # the files of the folder
    files = seed.home if is_collected else seed.deliverable
    if folder.resolve().is_relative_to(files.resolve()):
        raise SetupError(f"--work-dir {str(folder)!r} is among the files that are refined; name a folder elsewhere")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetupError(f"--work-dir {str(folder)!r} cannot be created: {error.strerror}") from error
