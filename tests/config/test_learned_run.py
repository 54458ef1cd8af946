"""The run that validates learned patches."""

from __future__ import annotations

from pathlib import Path

from promptiter.config.file import FILE_NAME, read_document
from promptiter.config.learned_run import read_learned_run
from promptiter.profile import PatchSet, SurfacePatch
from promptiter.tasks.learned_patches import read_patches, write_patches
from promptiter.tasks.lesson_files import PATCHES


def make_patches(value: str) -> PatchSet:
    return PatchSet((SurfacePatch(surface_id="desk#instruction", value=value, reason="because"),))


def test_a_run_keeps_its_patches_when_something_else_is_learned(tmp_path: Path) -> None:
    write_patches(tmp_path / PATCHES, make_patches("first"))
    run = read_learned_run(read_document({}, file=tmp_path / FILE_NAME), tmp_path)
    write_patches(tmp_path / PATCHES, make_patches("second"))
    assert run.config.search is not None
    assert read_patches(str(run.config.search.options["patches"])) == make_patches("first")
