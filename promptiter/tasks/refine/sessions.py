"""Sessions: what one refinement did, in one JSON file that exists from the start and is complete in every case.

    refinement_sessions/refine_20260419T182438Z.json            of a run
    refinements/session_20260419T182438Z.json, session.json     of a task in an experiment; the latter is the latest

Files of other releases may lack fields, or have others.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError

from promptiter.errors import SetupError
from traces.errors import UnwritableTraceError
from traces.files import write_file

TIME = "%Y%m%dT%H%M%SZ"


class IterationEntry(BaseModel):
    """One iteration. `tier` and the models are missing in files of older releases."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    k: int
    run_id: str
    loss: float
    status: str
    tier: str | None = None
    model_manager: str | None = None
    model_worker: str | None = None
    parent_run_id: str | None = None
    run_dir: str | None = None
    wall_time_s: float | None = None
    problem: str | None = None
    """Why the iteration could not do all it should, such as a budget that ended."""


class RefinementSession(BaseModel):
    """One session. `best_iter` 0: the seed still wins. `stop_reason` is None while it runs, or if it was killed."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    session_id: str
    seed_run_id: str
    started_at: str
    completed_at: str | None = None
    stop_reason: str | None = None
    best_iter: int = 0
    iterations: tuple[IterationEntry, ...] = ()
    tier_plan_used: bool | None = None
    seed_loss: float | None = None
    iterations_wanted: int | None = None
    promoted: bool | None = None
    """Whether BEST was replaced. It is not if an earlier session has a lower loss."""
    error: str | None = None

    @property
    def best_loss(self) -> float | None:
        """The lowest loss: that of the best iteration, or of the seed."""
        best = (each.loss for each in self.iterations if each.k == self.best_iter)
        return next(best, self.seed_loss)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionFolder:
    """Where the sessions of a seed are. `latest` is the name of a file with the latest one, if there is one."""

    folder: Path
    prefix: str = "refine_"
    latest: str | None = None

    def begin(self, started: datetime, describe: Callable[[str], RefinementSession]) -> RefinementSession:
        """A new session, described for an id that no other one has. SetupError if it cannot be stored."""
        stamp = started.strftime(TIME)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            for number in range(1, 1000):
                session = describe(f"refine_{stamp}" if number == 1 else f"refine_{stamp}_{number}")
                if self._create(session):
                    self.write(session)
                    return session
        except (OSError, UnwritableTraceError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise SetupError(
                f"a session cannot be stored in {str(self.folder)!r}: {reason}; make it a writable folder, or refine a "
                "copy of the result"
            ) from error
        raise SetupError(f"{str(self.folder)!r} has 999 sessions of this second; try again")

    def _create(self, session: RefinementSession) -> bool:
        """Let the file of a session appear with its content; False if there is one of that name."""
        file = self.find_file(session.session_id)
        part = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}.begin")
        write_file(part, _format(session))
        try:
            os.link(part, file)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: the file is empty for a moment
            try:
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644))
            except FileExistsError:
                return False
        finally:
            part.unlink()
        return True

    def write(self, session: RefinementSession) -> Path:
        """Write a session, atomically, also as the latest one."""
        raw = _format(session)
        file = self.find_file(session.session_id)
        write_file(file, raw)
        if self.latest is not None:
            write_file(self.folder / self.latest, raw)
        return file

    def read_all(self) -> tuple[RefinementSession, ...]:
        """All sessions, oldest first. Files that are not sessions, and those that have just begun, are left out."""
        if not self.folder.is_dir():
            return ()
        files = sorted(self.folder.glob(f"{self.prefix}*.json"))
        found = [session for file in files if (session := _read(file)) is not None]
        return tuple(sorted(found, key=lambda each: (each.started_at, each.session_id)))

    def find_file(self, session_id: str) -> Path:
        """The file of a session."""
        return self.folder / f"{self.prefix}{session_id.removeprefix('refine_')}.json"


def list_chain(session: RefinementSession) -> Sequence[str]:
    """The ids of the runs from the seed to the last iteration, each the parent of the next."""
    return (session.seed_run_id, *(each.run_id for each in session.iterations))


def _format(session: RefinementSession) -> bytes:
    shown = session.model_dump(mode="json", exclude_none=True)
    for required in ("completed_at", "stop_reason"):
        shown.setdefault(required, None)
    return orjson.dumps(shown, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _read(file: Path) -> RefinementSession | None:
    try:
        return RefinementSession.model_validate_json(file.read_bytes()) if file.is_file() else None
    except (OSError, ValidationError):
        return None
