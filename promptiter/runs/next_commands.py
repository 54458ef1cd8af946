"""The likely next commands after a run, ready to paste."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

from promptiter.runlog.results import RunResult
from promptiter.runs.outcome import Outcome
from promptiter.wording import path_from_here

RESUMING = ("resume", "final test")
"""The purposes of commands that continue a run."""

Place: TypeAlias = Literal["folder", "database", "server"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command to paste, and its purpose."""

    purpose: str
    command: str


@dataclass(frozen=True, slots=True)
class RunAddress:
    """Where a run is: the arguments that name it on the command line. One that is not in a folder is exported first."""

    arguments: str
    run_id: str
    place: Place

    @staticmethod
    def of_folder(folder: Path) -> RunAddress:
        """The address of a run in a folder."""
        return RunAddress(shlex.quote(str(path_from_here(folder))), folder.name, "folder")

    @staticmethod
    def of_server(run_id: str, *, url: str, app: str) -> RunAddress:
        """The address of a run at a server."""
        return RunAddress(shlex.join([run_id, "--server", url, "--app", app]), run_id, "server")

    @staticmethod
    def of_database(run_id: str, *, url: str, app: str | None) -> RunAddress:
        """The address of a run in a database. The URL has no password."""
        words = [run_id, "--runs", url, *([] if app is None else ["--app", app])]
        return RunAddress(shlex.join(words), run_id, "database")

    def show_traces(self, case_id: str) -> str:
        """The command that shows the traces of a case."""
        if self.place == "folder":
            return f"promptiter trace show {self.arguments} --case {shlex.quote(case_id)}"
        run = shlex.quote(self.run_id)
        return f"promptiter export {self.arguments} && promptiter trace show {run} --case {shlex.quote(case_id)}"


def suggest_commands(result: RunResult, outcome: Outcome, address: RunAddress) -> tuple[Command, ...]:
    """The commands that a user may want next."""
    run = address.arguments
    commands = [Command(purpose="details", command=f"promptiter show {run}")]
    if len(result.initial_profile.changes(result.working_profile, result.structure)) > 1:
        commands.append(Command(purpose="all diffs", command=f"promptiter show {run} --diff"))
    if outcome in ("improved", "improved_on_validation"):
        if address.place == "folder":
            commands.append(Command(purpose="apply", command=f"promptiter apply {run}"))
        else:
            apply = f"promptiter export {run} && promptiter apply {shlex.quote(address.run_id)}"
            commands.append(Command(purpose="apply", command=apply))
    if outcome == "running" or result.is_final or address.place == "database":
        return tuple(commands)
    commands.append(Command(purpose=RESUMING[0], command=f"promptiter resume {run}"))
    if result.changes and address.place == "folder":
        commands.append(Command(purpose=RESUMING[1], command=f"promptiter resume {run} --final-test"))
    return tuple(commands)
