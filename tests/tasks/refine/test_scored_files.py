"""Refinements of runs with a scorer: a file task is the seed, and its own commands measure each iteration."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from promptiter.api import load_refinement, load_run
from promptiter.config.refinement_settings import RefinementSettings
from promptiter.errors import SetupError
from promptiter.tasks.refine.best import BEST
from promptiter.tasks.refine.gradient import FILE_NAME as GRADIENT
from promptiter.tasks.refine.sessions import RefinementSession
from tests.worlds.file_task import SECTIONS, make_skill_folder

pytestmark = pytest.mark.slow

SKILL = Path("skills/writing/SKILL.md")
ADD = """
import json, os, pathlib
skill = pathlib.Path("input/skills/writing/SKILL.md").read_text()
missing = [each for each in {sections!r} if f"## {{each}}" not in skill]
out = pathlib.Path(os.environ["PROMPTITER_REFINE_OUTPUT"], "skills/writing/SKILL.md")
out.parent.mkdir(parents=True)
out.write_text(skill + {text})
{more}
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a task's run that has added one section."""
    folder = make_skill_folder(tmp_path_factory.mktemp("task"))
    built = load_run(folder / "task.yaml", settings={"max_rounds": 1})
    try:
        built.begin().run_sync()
    finally:
        built.gateway.cache.close()
    [header] = folder.glob("runs/*/run.json")
    return header.parent


def refine(
    run: Path, folder: Path, text: str, *, more: str = "", iterations: int = 3
) -> tuple[RefinementSession, Path]:
    """Refine a run with a program that adds a text to the skill, and does more."""
    program = folder / "step.py"
    program.write_text(ADD.format(sections=SECTIONS, text=text, more=more))
    settings = RefinementSettings(command=(sys.executable, str(program)), iterations=iterations, work=folder / "work")
    configured = load_refinement(run, settings)
    return asyncio.run(configured.refine()), configured.seed.home


def test_the_scorer_of_a_task_measures_each_iteration(finished: Path, tmp_path: Path) -> None:
    session, home = refine(finished, tmp_path, '"".join(f"\\n## {each}\\n" for each in missing[:2])')
    assert session.seed_loss == pytest.approx(0.7, abs=0.15)
    assert (session.stop_reason, session.best_iter, session.best_loss) == ("empty_gradient_midloop", 2, 0.0)
    assert all(f"## {each}" in (home / BEST / SKILL).read_text() for each in SECTIONS)
    gradient = (tmp_path / "work" / session.session_id / "iter_1" / GRADIENT).read_text()
    assert "case Examples" in gradient


def test_a_bound_that_does_not_hold_and_a_foreign_file_are_gate_rejections(finished: Path, tmp_path: Path) -> None:
    session, _ = refine(finished, tmp_path, '"TODO"', more='(out.parent / "notes.md").write_text("x")', iterations=2)
    gradient = (tmp_path / "work" / session.session_id / "iter_2" / GRADIENT).read_text()
    assert "violation_count must be <= 0 (it is 1)" in gradient
    assert "skills/writing/notes.md is not a file of this run, and is not used" in gradient
    assert session.best_iter == 0


def test_files_that_cannot_be_measured_have_the_worst_loss(finished: Path, tmp_path: Path) -> None:
    session, _ = refine(finished, tmp_path, '"CRASH"', iterations=2)
    assert [each.loss for each in session.iterations] == [1.0, 1.0]
    gradient = (tmp_path / "work" / session.session_id / "iter_2" / GRADIENT).read_text()
    assert "it cannot be measured: the runner" in gradient


def test_a_file_that_is_left_out_is_that_of_the_seed(finished: Path, tmp_path: Path) -> None:
    session, home = refine(finished, tmp_path, '""', more='out.rename(out.with_name("other.md"))', iterations=1)
    [only] = session.iterations
    assert only.loss == pytest.approx((session.seed_loss or 0) + 0.05)  # the gate that refuses other.md
    delivered = home / (only.run_dir or "") / "FINAL" / SKILL
    assert delivered.read_text() == (home / "FINAL" / SKILL).read_text()


def test_the_files_of_a_seed_are_written_once(finished: Path) -> None:
    file = load_refinement(finished, RefinementSettings(command=("true",))).seed.deliverable / SKILL
    before = file.stat()
    load_refinement(finished, RefinementSettings(command=("true",)))
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    file.write_text("cut sh")
    load_refinement(finished, RefinementSettings(command=("true",)))
    assert file.read_text() != "cut sh"


def test_what_writes_the_files_must_be_named(finished: Path) -> None:
    with pytest.raises(SetupError, match=r"--agent module:attr, or give a --command"):
        load_refinement(finished)
    with pytest.raises(SetupError, match=r"has a scorer instead of cases. Leave it out"):
        load_refinement(finished, RefinementSettings(command=("true",)), case_id="scorer")
    with pytest.raises(SetupError, match=r"--rubric is for other results: .* has its own scorer and task"):
        load_refinement(finished, RefinementSettings(command=("true",), rubric=Path("rubric.md")))
