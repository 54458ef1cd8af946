from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path

import orjson
import pytest

from promptiter.errors import SetupError
from promptiter.tasks.refine.sessions import (
    IterationEntry,
    RefinementSession,
    SessionFolder,
    list_chain,
)
from tests.tasks.refine.foreign_runs import write_json

STARTED = datetime(2026, 4, 19, 18, 24, 38, tzinfo=UTC)
LEGACY = {
    "session_id": "refine_20260419T182438Z",
    "seed_run_id": "2026-04-19_16-05-53_cbf28fd0",
    "started_at": "2026-04-19T18:24:38Z",
    "completed_at": "2026-04-19T18:26:50Z",
    "stop_reason": "no_prior_deliverable",
    "best_iter": 1,
    "iterations": [{"k": 1, "run_id": "2026-04-19_18-24-38_1ba2c7ed", "loss": 0.35, "status": "partial"}],
}


def test_a_session_without_tiers_is_still_read(tmp_path: Path) -> None:
    write_json(tmp_path / "refine_20260419T182438Z.json", LEGACY)
    [session] = SessionFolder(folder=tmp_path).read_all()
    assert (session.tier_plan_used, session.iterations[0].tier, session.best_loss) == (None, None, 0.35)
    assert list_chain(session) == ("2026-04-19_16-05-53_cbf28fd0", "2026-04-19_18-24-38_1ba2c7ed")


def test_keys_of_other_releases_are_ignored(tmp_path: Path) -> None:
    newer = {**LEGACY, "mood": "good", "iterations": [{**LEGACY["iterations"][0], "colour": 1}]}  # type: ignore[index]
    write_json(tmp_path / "refine_a.json", newer)
    [session] = SessionFolder(folder=tmp_path).read_all()
    assert session.best_iter == 1


def describe(session_id: str) -> RefinementSession:
    return RefinementSession(session_id=session_id, seed_run_id="r", started_at="2026-04-19T18:24:38Z")


@pytest.mark.parametrize("has_links", [True, False])
def test_two_sessions_of_one_second_have_two_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_links: bool
) -> None:
    if not has_links:
        monkeypatch.setattr(os, "link", refuse)
    folder = SessionFolder(folder=tmp_path / "refinement_sessions")
    begun = [folder.begin(STARTED, describe) for _ in range(2)]
    assert [each.session_id for each in begun] == ["refine_20260419T182438Z", "refine_20260419T182438Z_2"]
    assert folder.read_all() == tuple(begun)
    assert len(list(folder.folder.iterdir())) == 2


def refuse(source: Path, target: Path) -> None:
    raise PermissionError(1, "Operation not permitted", str(target))


def test_a_session_appears_with_its_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: SessionFolder, session: RefinementSession) -> Path:
        raise KeyboardInterrupt  # a process that is killed right after the file exists

    monkeypatch.setattr(SessionFolder, "write", die)
    folder = SessionFolder(folder=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        folder.begin(STARTED, describe)
    assert [each.session_id for each in folder.read_all()] == ["refine_20260419T182438Z"]


def test_a_folder_that_cannot_hold_sessions_is_a_setup_error(tmp_path: Path) -> None:
    (tmp_path / "refinement_sessions").touch()
    with pytest.raises(SetupError, match=r"stored in .*refinement_sessions': File exists; make it a writable"):
        SessionFolder(folder=tmp_path / "refinement_sessions").begin(STARTED, describe)


def test_a_session_of_a_target_is_also_the_latest(tmp_path: Path) -> None:
    folder = SessionFolder(folder=tmp_path, prefix="session_", latest="session.json")
    session = RefinementSession(
        session_id=folder.begin(STARTED, describe).session_id,
        seed_run_id="r",
        started_at="2026-04-19T18:24:38Z",
        iterations=(IterationEntry(k=1, run_id="a", loss=0.2, status="completed", tier="high", model_manager="m"),),
        tier_plan_used=True,
    )
    file = folder.write(session)
    assert file.name == "session_20260419T182438Z.json"
    assert (tmp_path / "session.json").read_bytes() == file.read_bytes()
    stored = orjson.loads(file.read_bytes())
    assert stored["iterations"][0] | {"tier": "high", "model_manager": "m"} == stored["iterations"][0]
    assert (stored["stop_reason"], stored["completed_at"]) == (None, None)
    assert folder.read_all() == (session,)


def test_another_file_is_not_a_session(tmp_path: Path) -> None:
    write_json(tmp_path / "refine_x.json", {"session_id": "x"})
    assert SessionFolder(folder=tmp_path).read_all() == ()
    assert SessionFolder(folder=tmp_path / "missing").read_all() == ()
