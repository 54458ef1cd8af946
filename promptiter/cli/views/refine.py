"""What `promptiter refine` shows: progress, the end of a session, and lists of sessions."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from promptiter.cli.output import echo, new_table, print_heading
from promptiter.tasks.refine.best import BEST, read_manifest
from promptiter.tasks.refine.run_seeds import REFINED
from promptiter.tasks.refine.seeds import SESSIONS, Seed, find_sessions, find_target_sessions
from promptiter.tasks.refine.sessions import RefinementSession, list_chain
from promptiter.wording import path_from_here, plural
from traces.model import Json
from traces.text import one_line

STOP_REASONS = {
    "max_iterations": "all iterations were run",
    "regression": "the loss rose twice in a row; try stronger models, or improve the agent with `promptiter run`",
    "plateau": "the loss no longer changes",
    "wall_time_exhausted": "the iterations took twice the time of the seed",
    "empty_gradient": "nothing to refine: no defects, no gate rejections, no metric below its threshold",
    "empty_gradient_midloop": "an iteration left nothing to refine",
    "no_prior_deliverable": "an iteration delivered nothing to continue from",
}
NOT_ENDED = "not finished: its process was killed, or is still running"


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionList:
    """The sessions of one seed, and where its BEST is."""

    home: Path
    sessions: tuple[RefinementSession, ...]


def show_progress(text: str) -> None:
    """Print a progress line to standard error."""
    echo(f"refine: {text}", err=True)


def choose_exit_code(session: RefinementSession) -> int:
    """0: an iteration improved, or there was nothing to refine. 1: the seed still wins. 2: it could not be measured."""
    if session.seed_loss is None:
        return 2
    return 0 if session.best_iter > 0 or session.stop_reason == "empty_gradient" else 1


def describe_stop(session: RefinementSession) -> str:
    """Why a session ended."""
    reason = session.stop_reason
    if reason is None:
        return NOT_ENDED
    if reason.startswith("error:"):
        return "the deliverable could not be measured" if session.seed_loss is None else "an iteration failed"
    described = STOP_REASONS.get(reason, reason)
    problem = session.iterations[-1].problem if session.iterations else None
    return f"{described}: {problem}" if reason == "no_prior_deliverable" and problem else described


def print_session(screen: Console, session: RefinementSession, seed: Seed) -> None:
    """Print how a session ended: the loss of each iteration, where BEST is, and what to do next."""
    if session.iterations:
        _print_iterations(screen, session)
    print_heading(screen, _headline(session))
    _print_row(screen, "stopped", f"{session.stop_reason}: {describe_stop(session)}")
    for line in (session.error or "").splitlines():
        _print_row(screen, "", one_line(line))
    home = path_from_here(seed.home)
    rows = [("session", str(path_from_here(seed.sessions.find_file(session.session_id))))]
    if (manifest := read_manifest(seed.home)) is not None:
        rows.append(("best", f"{home / BEST}, with a loss of {manifest.best_loss:.3f}"))
        if session.best_iter and not session.promoted:
            rows.append(("", f"an earlier session ({manifest.session_id}) is at least as good, so it was kept"))
        rows.append(
            ("next", f"diff -r {shlex.quote(str(path_from_here(seed.deliverable)))} {shlex.quote(str(home / BEST))}")
        )
    for name, text in rows:
        _print_row(screen, name, text)


def _print_row(screen: Console, name: str, text: str) -> None:
    """Print a line that is not wrapped, so that paths and commands can be copied."""
    screen.print(Text.assemble((f"{name:<9}", "bold"), text), soft_wrap=True)


def session_as_json(session: RefinementSession, seed: Seed, *, exit_code: int) -> Json:
    """A session with what a script needs besides."""
    has_best = read_manifest(seed.home) is not None
    return {
        "session": session.model_dump(mode="json"),
        "session_file": str(seed.sessions.find_file(session.session_id)),
        "best": str(seed.home / BEST) if has_best else None,
        "improved": session.best_iter > 0,
        "exit_code": exit_code,
    }


def list_sessions(folder: Path | None, target: str | None) -> tuple[SessionList, ...]:
    """The sessions of a run, of each of its cases if it is ours, or of a target."""
    if target is not None:
        home, sessions = find_target_sessions(target)
        return (SessionList(home=home, sessions=sessions.read_all()),)
    assert folder is not None
    homes = [folder, *sorted(file.parent for file in folder.glob(f"{REFINED}/*/{SESSIONS}"))]
    found = (SessionList(home=home, sessions=find_sessions(home).read_all()) for home in homes)
    return tuple(each for each in found if each.sessions)


def sessions_as_json(found: Sequence[SessionList]) -> Json:
    """Sessions as a list, each with the runs from the seed to its last iteration."""
    return [
        {"home": str(each.home), "chain": list(list_chain(session)), **session.model_dump(mode="json")}
        for each in found
        for session in each.sessions
    ]


def print_sessions(screen: Console, found: Sequence[SessionList]) -> None:
    """Print a table of the sessions of each seed."""
    if not found:
        screen.print("There are no sessions yet.")
    for each in found:
        print_heading(screen, str(path_from_here(each.home)))
        table = new_table("session", ">iterations", ">seed", ">best", "of", "stopped")
        for session in each.sessions:
            table.add_row(
                session.session_id,
                str(len(session.iterations)),
                _format(session.seed_loss),
                _format(session.best_loss),
                f"iteration {session.best_iter}" if session.best_iter else "the seed",
                session.stop_reason or NOT_ENDED,
            )
        screen.print(table)


def _print_iterations(screen: Console, session: RefinementSession) -> None:
    has_models = any(each.model_manager or each.model_worker for each in session.iterations)
    table = new_table(
        "iteration", ">loss", ">change", "status", *(["tier", "models"] if session.tier_plan_used else [])
    )
    before = session.seed_loss
    table.add_row("seed", _format(before), "", "", *(["", ""] if session.tier_plan_used else []))
    for each in session.iterations:
        mark = " (best)" if each.k == session.best_iter else ""
        change = "" if before is None else f"{each.loss - before:+.3f}"
        models = ", ".join(dict.fromkeys(filter(None, (each.model_manager, each.model_worker)))) if has_models else ""
        tier = [each.tier or "", models] if session.tier_plan_used else []
        table.add_row(f"{each.k}{mark}", f"{each.loss:.3f}", change, each.status, *tier)
        before = each.loss
    screen.print(table)


def _headline(session: RefinementSession) -> str:
    if session.best_iter and session.seed_loss is not None and session.best_loss is not None:
        after = f"from {session.seed_loss:.3f} to {session.best_loss:.3f}"
        return f"Refined: iteration {session.best_iter} lowered the loss {after}."
    if session.stop_reason == "empty_gradient":
        return "Nothing to refine."
    if session.seed_loss is None:
        return "Not refined: nothing was run."
    if not session.iterations:
        return "Not refined: no iteration was finished."
    return f"Not refined: the seed still wins, after {plural(len(session.iterations), 'iteration')}."


def _format(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.3f}"
