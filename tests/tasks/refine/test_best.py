from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import orjson
import pytest

from promptiter.tasks.refine import best
from promptiter.tasks.refine.best import BestManifest, read_manifest, write_best
from tests.marks import take_some

ROOT = Path(__file__).parents[3]


def deliverable(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True)
    for name in ("a.md", "b.md", "c.md"):
        (folder / name).write_text(text)
    return folder


def manifest(loss: float, *, number: int = 1) -> BestManifest:
    return BestManifest(
        best_run_id="r", best_loss=loss, seed_loss=0.9, session_id="refine_x", best_iter=number, delta=loss - 0.9
    )


@pytest.fixture(params=["exchange", "link"])
def home(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on a file system that can exchange two names, and on one that cannot."""
    if request.param == "link":
        monkeypatch.setattr(best, "exchange_files", lambda _one, _other: False)
    return tmp_path / "home"


def test_best_is_replaced_only_by_a_strictly_lower_loss(home: Path, tmp_path: Path) -> None:
    first, second = deliverable(tmp_path / "1", "first"), deliverable(tmp_path / "2", "second")
    assert write_best(home, first, manifest(0.5))
    assert not write_best(home, second, manifest(0.5, number=2))
    assert not write_best(home, second, manifest(0.6, number=2))
    assert (home / "BEST" / "a.md").read_text() == "first"
    assert write_best(home, second, manifest(0.4, number=2))
    assert (home / "BEST" / "a.md").read_text() == "second"
    assert read_manifest(home) == manifest(0.4, number=2)
    assert sorted(path.name for path in (home / "BEST").iterdir()) == ["a.md", "b.md", "c.md", "manifest.json"]


def test_best_shares_no_file_with_the_iteration(home: Path, tmp_path: Path) -> None:
    source = deliverable(tmp_path / "1", "first")
    write_best(home, source, manifest(0.5))
    (source / "a.md").write_text("changed later")
    assert (home / "BEST" / "a.md").read_text() == "first"


def test_a_best_that_no_refinement_wrote_is_replaced(home: Path, tmp_path: Path) -> None:
    deliverable(home / "BEST", "of the experiment")
    (home / "BEST" / "manifest.json").write_bytes(orjson.dumps({"best_run_id": "r0"}))
    assert read_manifest(home) is None
    assert write_best(home, deliverable(tmp_path / "1", "first"), manifest(0.5))
    assert (home / "BEST" / "b.md").read_text() == "first"
    assert write_best(home, deliverable(tmp_path / "2", "second"), manifest(0.4, number=2))
    assert (home / "BEST" / "b.md").read_text() == "second"


def test_a_file_named_best_is_kept(home: Path, tmp_path: Path) -> None:
    home.mkdir(exist_ok=True)
    (home / "BEST").write_text("which one was best")
    assert write_best(home, deliverable(tmp_path / "1", "first"), manifest(0.5))
    assert (home / "BEST" / "a.md").read_text() == "first"
    [kept] = home.glob("BEST.before_*")
    assert kept.read_text() == "which one was best"


def test_a_manifest_of_the_deliverable_keeps_its_content(home: Path, tmp_path: Path) -> None:
    source = deliverable(tmp_path / "1", "first")
    (source / "manifest.json").write_text("{}")
    write_best(home, source, manifest(0.5))
    assert read_manifest(home) == manifest(0.5)
    assert (home / "BEST" / "deliverable_manifest.json").read_text() == "{}"


@pytest.mark.slow
@pytest.mark.parametrize("way", take_some(["exchange", "link"], ["exchange"]))
def test_a_writer_that_is_killed_leaves_best_old_or_new(tmp_path: Path, way: str) -> None:
    old, new = deliverable(tmp_path / "old", "old"), deliverable(tmp_path / "new", "new")
    command = [
        sys.executable,
        "-m",
        "tests.tasks.refine.killed_writer",
        str(tmp_path / "home"),
        str(old),
        str(new),
        way,
    ]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    *seen, last = finished.stdout.splitlines()
    assert last == "done"
    assert set(seen) == {"old 0.4", "new 0.3"}
    assert seen == sorted(seen, reverse=True), "once it is new, it stays new"
    assert len(seen) > 15
