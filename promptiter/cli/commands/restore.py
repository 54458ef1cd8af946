"""`promptiter restore`: restore the baseline after an in-place agent or `promptiter apply` was killed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from promptiter.cli.output import echo
from promptiter.errors import SetupError

_LABELS = {
    "restored": "restored",
    "unchanged": "already the baseline",
    "edited": "not restored",
    "unreachable": "not restored",
    "failed": "not restored",
}


def restore(
    folder: Annotated[
        Path | None, typer.Argument(metavar="FOLDER", help="The agent's state folder; by default .promptiter.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Overwrite files that were edited while a candidate was in place.")
    ] = False,
    agent: Annotated[
        str | None,
        typer.Option(metavar="MODULE:ATTR", help="The in-place agent, if a source is a callback of its program."),
    ] = None,
) -> None:
    """Restore files after an in-place agent or `apply` was killed.

    After `promptiter apply` was killed, all files get their old content, or all keep the new one.

    A file that was edited in the meantime is not touched, and the baseline is saved beside it. Exits 1 if a source
    could not be restored.
    """
    from promptiter.agents.in_place.agent import InPlaceAgent
    from promptiter.agents.in_place.saved_baseline import STATE_FOLDER
    from promptiter.agents.in_place.saved_baseline import restore as restore_folder
    from promptiter.config.loading import load_agent

    subject = load_agent(agent) if agent is not None else None
    if subject is not None and not isinstance(subject, InPlaceAgent):
        raise SetupError(
            f"{agent!r} is a {type(subject).__name__}, not an in-place agent, so it has nothing to restore"
        )
    if folder is not None and not folder.is_dir():
        raise SetupError(
            f"there is no folder {str(folder)!r}; name the state folder of the agent, .promptiter by default"
        )
    folder = folder or (subject.state_folder if subject else Path(STATE_FOLDER))
    done = restore_folder(folder, sources=subject.sources if subject else None, force=force)
    if not done:
        echo(f"nothing to do: no candidate was left in place by an agent with the state folder {folder}")
    for each in done:
        note = f": {each.note}" if each.note else ""
        echo(f"{each.surface_id}  {each.place}  {_LABELS[each.outcome]}{note}", err=not each.is_settled)
    if not all(each.is_settled for each in done):
        raise typer.Exit(1)
