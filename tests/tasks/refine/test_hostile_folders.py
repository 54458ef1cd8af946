"""Seeds that come from others: what cannot be read, leads elsewhere, or is used by someone else."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from promptiter.errors import SetupError
from promptiter.tasks.refine.best import BestManifest, read_manifest, write_best
from promptiter.tasks.refine.deliverables import copy_tree, find_deliverable, list_files
from promptiter.tasks.refine.gradient import RefinementGradient
from promptiter.tasks.refine.prefix import quote_deliverable, read_texts, render_prefix
from promptiter.tasks.refine.run_folder import read_run
from promptiter.tasks.refine.seeds import find_target_sessions, open_rubric_folder, open_run_folder, open_target
from tests.tasks.refine.foreign_runs import RUN_ID, write_completion, write_run


def test_pipes_among_the_files_of_a_run_are_left_out(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path / "run")
    for name in ("iterations/2/critique.json", "BEST/manifest.json", "refinement_sessions/refine_x.json"):
        (run_dir / name).parent.mkdir(parents=True)
        os.mkfifo(run_dir / name)
    assert [each.description for each in read_run(run_dir).defects] == ["no sources"]
    assert open_run_folder(run_dir).sessions.read_all() == ()
    assert read_manifest(run_dir) is None


@pytest.mark.parametrize("name", ["FINAL", f"output/{RUN_ID}", "output"])
def test_a_deliverable_that_is_a_link_is_none(tmp_path: Path, name: str) -> None:
    secret = tmp_path / "secret"
    (secret / RUN_ID).mkdir(parents=True)
    (secret / RUN_ID / "key").write_text("SECRET")
    (secret / "key").write_text("SECRET")
    run_dir = tmp_path / "run"
    write_completion(run_dir)
    (run_dir / name).parent.mkdir(exist_ok=True)
    (run_dir / name).symlink_to(secret)
    assert find_deliverable(run_dir, RUN_ID) is None


def test_names_that_are_not_utf_8_are_shown_as_far_as_they_can_be(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/na\xffme.md")).write_text("text")
    names = list_files(tmp_path)
    deliverable = quote_deliverable(read_texts(tmp_path, names))
    gradient = RefinementGradient(run_id="seed")
    shown = render_prefix(gradient, names, number=1, of=1, deliverable=deliverable)
    assert shown.encode().count("na\N{REPLACEMENT CHARACTER}me.md".encode()) == 2


def test_a_deliverable_that_is_nested_too_deep_is_an_error(tmp_path: Path) -> None:
    deep = tmp_path / "FINAL"
    (deep / "/".join(["a"] * 101)).mkdir(parents=True)
    with pytest.raises(SetupError, match="more than 100 deep"):
        list_files(deep)


def test_two_refinements_of_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    (tmp_path / "rubric.md").write_text("- It is good.\n")
    (tmp_path / "essay.md").write_text("one")
    first = open_rubric_folder(tmp_path)
    (tmp_path / "essay.md").write_text("two")
    second = open_rubric_folder(tmp_path)
    assert (first.deliverable / "essay.md").read_text() == "one"
    assert (second.deliverable / "essay.md").read_text() == "two"
    assert open_rubric_folder(tmp_path).deliverable == second.deliverable


def test_an_output_is_promoted_once_by_many_at_a_time(tmp_path: Path) -> None:
    write_completion(tmp_path)
    for number in range(50):
        (tmp_path / "output" / RUN_ID / str(number)).mkdir(parents=True)
        (tmp_path / "output" / RUN_ID / str(number) / "file").write_text("text")
    found: list[int] = []

    def promote() -> None:
        final = find_deliverable(tmp_path, RUN_ID)
        assert final is not None
        found.append(len(list_files(final)))

    threads = [threading.Thread(target=promote) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [50] * 8
    assert sorted(each.name for each in tmp_path.iterdir()) == ["FINAL", "output", "run_completion.json"]


def test_hidden_files_are_not_part_of_a_folder_with_a_rubric(tmp_path: Path) -> None:
    for name in ("rubric.md", "essay.md", ".env", ".git/config", "part/.cache/x", "BEST.before_refine_x/old.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("- text")
    assert list_files(open_rubric_folder(tmp_path).deliverable) == ["essay.md"]


def test_a_best_that_no_refinement_wrote_is_kept(tmp_path: Path) -> None:
    (tmp_path / "BEST").mkdir()
    (tmp_path / "BEST" / "precious.txt").write_text("mine")
    copy_tree(tmp_path / "BEST", tmp_path / "new")
    manifest = BestManifest(best_run_id="run", best_loss=0.1, seed_loss=0.5, session_id="refine_x", best_iter=1)
    assert write_best(tmp_path, tmp_path / "new", manifest)
    assert (tmp_path / "BEST.before_refine_x" / "precious.txt").read_text() == "mine"
    assert read_manifest(tmp_path) == manifest


def test_sessions_of_a_target_are_listed_without_touching_it(tmp_path: Path) -> None:
    home = tmp_path / "study" / "tasks" / "intro"
    run_dir = home / "runs" / RUN_ID
    write_completion(run_dir)
    (run_dir / "output").mkdir()
    (run_dir / "output" / "report.md").write_text("draft")
    (home / "BEST").mkdir()
    (home / "BEST" / "manifest.json").write_text(json.dumps({"best_run_id": RUN_ID}))
    target = f"{tmp_path}/study:intro"
    found, sessions = find_target_sessions(target)
    assert (found, sessions.read_all()) == (home, ())
    assert not (run_dir / "FINAL").exists()
    assert open_target(target).sessions == sessions
