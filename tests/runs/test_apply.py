"""Applying and reverting the result of a run: all or nothing, byte for byte, and never over someone else's edit."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from promptiter.agents.in_place.source_lock import FolderLock
from promptiter.errors import ApplyError, EditedSourceError, SetupError
from promptiter.policies.verdict import Verdict
from promptiter.runlog.results import Status
from promptiter.runs.apply import ApplyReport, NotAdoptedError, apply_result, revert_result
from promptiter.runs.apply_plan import find_problems
from promptiter.runs.place_search import Project
from promptiter.sources import CallbackSource, Source
from promptiter.sources.place import open_place
from promptiter.structure import Surface
from tests.runs.apply_world import AFTER, BEFORE, FILES, PLACES, make_result, read_files, write_project
from traces.model import Json


class World:
    """The project, and commands in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.run = folder / "runs" / "one"
        self.project: Project = write_project(folder)
        self.sources: dict[str, Source] = {name: open_place(each, folder=folder) for name, each in PLACES.items()}

    def apply(self, after: dict[str, Json] | None = None, **options: bool) -> ApplyReport:
        result = make_result(AFTER if after is None else after)
        message = (lambda: "Apply it\n\n# evidence") if options.pop("commit", False) else None
        return apply_result(
            result, self.run, project=self.project, sources=self.sources, commit_message=message, **options
        )

    def revert(self, *, commit: bool = False, dry_run: bool = False) -> ApplyReport:
        return revert_result(
            self.run,
            run_id="one",
            project=self.project,
            sources=self.sources,
            dry_run=dry_run,
            commit_message=(lambda: "Revert it") if commit else None,
        )

    def git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self.folder), "-c", "user.name=n", "-c", "user.email=n@example.org", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


@pytest.fixture
def repository(world: World) -> World:
    world.git("init", "-q")
    world.git("config", "user.name", "n")
    world.git("config", "user.email", "n@example.org")
    (world.folder / "other.txt").write_text("other\n")
    world.git("add", ".")
    world.git("commit", "-qm", "first")
    return world


def test_values_go_to_a_literal_a_file_and_two_fields_and_come_back(world: World) -> None:
    report = world.apply()
    assert report.state == "applied"
    assert {file.path.name: file.surface_ids for file in report.files} == {
        "bot.py": ("planner#instruction",),
        "actor.md": ("actor#instruction",),
        "config.yaml": ("critic#instruction", "critic#parameter.top_k"),
    }
    assert read_files(world.folder) == {
        "bot.py": b'"""The bots."""\n\nPLANNER = "Plan the work in \\"steps\\".\\n"  # plan\nagent = object()\n',
        "prompts/actor.md": b"Do the work.\r\nBe careful.\r\n",
        "config.yaml": b"# settings\ncritic:\n  prompt: 'Find faults, and praise.'  # short\n  top_k: 7\n",
    }
    assert world.apply().state == "unchanged"
    assert world.revert().state == "reverted"
    assert read_files(world.folder) == FILES
    assert world.revert().state == "unchanged"
    assert world.apply().state == "applied"


def test_a_preview_changes_nothing(world: World) -> None:
    report = world.apply(dry_run=True)
    assert report.state == "preview"
    [diff] = [file.diff for file in report.files if file.path.name == "config.yaml"]
    assert "-  top_k: 5\n" in diff
    assert "+  top_k: 7\n" in diff
    assert read_files(world.folder) == FILES
    assert not (world.run / "applied.json").exists()
    assert not (world.folder / ".promptiter").exists()


def test_a_place_that_was_edited_is_not_overwritten_and_nothing_else_is_written(world: World) -> None:
    (world.folder / "config.yaml").write_bytes(FILES["config.yaml"].replace(b"5", b"6"))
    with pytest.raises(SetupError, match=r"critic#parameter.top_k: .*was edited since the run began: it holds 6"):
        world.apply()
    assert (world.folder / "bot.py").read_bytes() == FILES["bot.py"]


def test_an_edit_between_reading_and_writing_is_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    edited = FILES["prompts/actor.md"] + b"Mine.\r\n"

    def edit_first(lock: FolderLock) -> bool:
        (world.folder / "prompts" / "actor.md").write_bytes(edited)
        return acquire(lock)

    acquire = FolderLock.acquire
    monkeypatch.setattr(FolderLock, "acquire", edit_first)
    with pytest.raises(EditedSourceError, match=r"actor.md was edited just now"):
        world.apply()
    assert read_files(world.folder) == {**FILES, "prompts/actor.md": edited}
    assert sorted(each.name for each in (world.folder / ".promptiter").iterdir()) == ["in_place.lock"]


def test_revert_names_what_was_edited_and_saves_the_old_content(world: World) -> None:
    world.apply()
    applied = read_files(world.folder)
    (world.folder / "bot.py").write_bytes(applied["bot.py"] + b"x = 1\n")
    with pytest.raises(EditedSourceError, match=r"bot.py was edited since: what it held before is in .*bot.py.before"):
        world.revert()
    assert (world.run / "bot.py.before").read_bytes() == FILES["bot.py"]
    assert (world.folder / "config.yaml").read_bytes() == applied["config.yaml"]


def test_edited_files_of_the_same_name_are_saved_under_different_names(world: World) -> None:
    (world.folder / "more").mkdir()
    (world.folder / "more" / "bot.py").write_text("CRITIC = 'Find faults.'\n")
    world.sources["critic#instruction"] = open_place("more/bot.py:CRITIC", folder=world.folder)
    world.apply()
    for name in ("bot.py", "more/bot.py"):
        (world.folder / name).write_text("# edited\n")
    with pytest.raises(EditedSourceError) as refused:
        world.revert()
    saved = {path.read_bytes() for path in world.run.glob("*bot.py.before")}
    assert saved == {FILES["bot.py"], b"CRITIC = 'Find faults.'\n"}
    assert all(path.name in str(refused.value) for path in world.run.glob("*bot.py.before"))


def test_a_file_that_cannot_be_read_is_a_problem_of_the_revert(world: World) -> None:
    world.apply()
    (world.folder / "bot.py").unlink()
    (world.folder / "bot.py").mkdir()
    with pytest.raises(EditedSourceError, match=r"bot\.py was edited since: what it held before is in"):
        world.revert()
    assert (world.run / "bot.py.before").read_bytes() == FILES["bot.py"]


def test_surfaces_that_swap_their_texts_need_places(world: World) -> None:
    swap: dict[str, Json] = {"planner#instruction": "Find faults.", "critic#instruction": "Plan the work."}
    with pytest.raises(SetupError, match="critic#instruction has or gets the same value"):
        world.apply(swap)
    assert read_files(world.folder) == FILES
    for name, place in (("planner#instruction", "bot.py:PLANNER"), ("critic#instruction", "config.yaml:critic.prompt")):
        world.sources[name] = open_place(place, folder=world.folder)
    assert world.apply(swap).state == "applied"
    assert world.apply(swap).state == "unchanged"


def test_a_callback_that_cannot_be_read_is_a_problem_of_the_revert(world: World) -> None:
    store = Store("Find faults.")
    world.sources["critic#instruction"] = store.source
    world.apply()
    applied = read_files(world.folder)
    world.sources["critic#instruction"] = CallbackSource(lambda: str(1 / 0), store.write)
    with pytest.raises(SetupError, match="critic#instruction: the source cannot be read: ZeroDivisionError"):
        world.revert()
    assert read_files(world.folder) == applied


def test_nothing_to_revert(world: World) -> None:
    with pytest.raises(SetupError, match="the run one was never applied"):
        world.revert()


@pytest.mark.parametrize(
    ("verdict", "status", "unseen", "outcome"),
    [
        ("no_evidence", "succeeded", False, "no_evidence"),
        ("underpowered", "succeeded", False, "underpowered"),
        ("improved", "failed", False, "failed"),
        ("improved_on_validation", "succeeded", True, "improved_on_validation"),
    ],
)
def test_only_an_improvement_is_applied_unless_forced(
    world: World, verdict: Verdict, status: Status, unseen: bool, outcome: str
) -> None:
    result = make_result(verdict=verdict, status=status)
    with pytest.raises(NotAdoptedError, match="--force applies the best profile") as refused:
        apply_result(result, world.run, project=world.project, sources=world.sources, require_unseen=unseen)
    assert refused.value.outcome == outcome
    assert read_files(world.folder) == FILES
    apply_result(result, world.run, project=world.project, sources=world.sources, force=True, require_unseen=unseen)
    assert b"praise" in (world.folder / "config.yaml").read_bytes()


def test_a_text_in_two_places_is_refused_with_what_to_write(world: World) -> None:
    (world.folder / "copy.txt").write_text("Find faults.\n")
    with pytest.raises(SetupError) as refused:
        world.apply()
    assert "critic#instruction: its text is in 2 places: config.yaml:critic.prompt, copy.txt" in str(refused.value)
    assert "`critic#instruction: config.yaml:critic.prompt`" in str(refused.value)
    world.sources["critic#instruction"] = open_place("config.yaml:critic.prompt", folder=world.folder)
    assert world.apply().state == "applied"
    assert (world.folder / "copy.txt").read_text() == "Find faults.\n"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('PLANNER = f"Plan the {1}."\n', "its text is not found in"),
        ('PLANNER = "Plan " + "the work."\n', "a concatenation or another operation, not a literal"),
        ('PLANNER = f"Plan the work."\n', "the value is an f-string; write it as a plain string"),
    ],
)
def test_what_is_not_a_literal_is_refused_with_what_to_do(world: World, text: str, problem: str) -> None:
    (world.folder / "bot.py").write_text(text)
    with pytest.raises(SetupError, match="nothing was applied") as refused:
        world.apply()
    assert problem in str(refused.value)
    assert (world.folder / "config.yaml").read_bytes() == FILES["config.yaml"]


def test_a_surface_with_the_value_of_another_needs_a_place(world: World) -> None:
    problems = find_problems(tuple(BEFORE), structure=make_result().structure, sources={}, project=world.project)
    assert [each.split(":")[0] for each in problems] == ["critic#parameter.top_k"]
    assert "only texts are found by themselves" in problems[0]


def test_several_surfaces_in_one_place_are_refused(world: World) -> None:
    world.sources["critic#instruction"] = open_place("bot.py:PLANNER", folder=world.folder)
    with pytest.raises(SetupError, match=r"critic#instruction: .*bot.py:PLANNER was edited since the run began"):
        world.apply()


class Store:
    """A remote store with one key, which may be down."""

    def __init__(self, value: str) -> None:
        self.value = value
        self.is_down = False

    def write(self, value: str) -> None:
        if self.is_down:
            raise ConnectionError("no route")
        self.value = value

    @property
    def source(self) -> CallbackSource:
        return CallbackSource(lambda: self.value, self.write)


def test_callbacks_come_last_and_are_reverted_too(world: World) -> None:
    store = Store("Find faults.")
    world.sources["critic#instruction"] = store.source
    assert world.apply().callbacks == ("critic#instruction",)
    assert store.value == "Find faults, and praise."
    world.revert()
    assert store.value == "Find faults."
    assert read_files(world.folder) == FILES


def test_a_failing_callback_rolls_the_files_back_and_the_error_lists_the_other_callbacks(world: World) -> None:
    first, second = Store("Do the work.\nBe quick."), Store("Find faults.")
    second.is_down = True
    world.sources |= {"actor#instruction": first.source, "critic#instruction": second.source}
    with pytest.raises(ApplyError) as failed:
        world.apply()
    assert "critic#instruction: its source failed: ConnectionError: no route; the files are as they were" in str(
        failed.value
    )
    assert "callbacks are not rolled back, so check actor#instruction, critic#instruction" in str(failed.value)
    assert read_files(world.folder) == FILES
    assert first.value == "Do the work.\nBe careful."
    second.is_down = False
    assert world.apply().state == "applied"


def test_whitespace_that_the_program_strips_is_kept(world: World) -> None:
    with pytest.raises(SetupError, match="is read without the whitespace around it"):
        world.apply({"actor#instruction": " Do the work.\n"})
    world.apply({"actor#instruction": "Work."})
    assert (world.folder / "prompts" / "actor.md").read_bytes() == b"Work.\r\n"


def test_a_commit_has_the_applied_files_only(repository: World) -> None:
    (repository.folder / "other.txt").write_text("staged\n")
    repository.git("add", "other.txt")
    report = repository.apply(commit=True)
    assert report.commit == repository.git("rev-parse", "HEAD").strip()
    changed = repository.git("show", "--name-only", "--format=%B", "HEAD").split("\n")
    assert [line for line in changed if line] == ["Apply it", "# evidence", "bot.py", "config.yaml", "prompts/actor.md"]
    assert repository.git("diff", "--cached", "--name-only") == "other.txt\n"
    repository.revert(commit=True)
    assert repository.git("diff", "HEAD~2", "--name-only", "HEAD") == ""


def test_a_commit_refuses_files_with_changes_of_others(repository: World) -> None:
    path = repository.folder / "bot.py"
    path.write_bytes(FILES["bot.py"] + b"x = 1\n")
    with pytest.raises(SetupError, match=r"bot\.py has uncommitted changes"):
        repository.apply(commit=True)
    assert (repository.folder / "config.yaml").read_bytes() == FILES["config.yaml"]


def test_a_hook_that_refuses_the_commit_undoes_everything(repository: World) -> None:
    hook = repository.folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho prompts are frozen >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(ApplyError, match="prompts are frozen; the files are as they were"):
        repository.apply(commit=True)
    assert read_files(repository.folder) == FILES
    hook.unlink()
    repository.apply()
    assert repository.apply(commit=True).commit, "what an earlier command applied is committed"
    assert repository.apply(commit=True).commit is None


def test_a_hook_that_edits_a_file_and_refuses_the_commit_is_quoted_and_nothing_is_restored(repository: World) -> None:
    hook = repository.folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho '# formatted' >> bot.py\necho files were formatted >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(ApplyError) as failed:
        repository.apply(commit=True)
    assert "files were formatted; all files keep the new values" in str(failed.value)
    assert "bot.py was edited just now" in str(failed.value)
    assert (repository.folder / "bot.py").read_text().endswith("# formatted\n")
    assert (repository.folder / "config.yaml").read_bytes() != FILES["config.yaml"]


def test_edits_from_before_an_earlier_apply_are_not_committed_with_it(repository: World) -> None:
    path = repository.folder / "bot.py"
    path.write_bytes(FILES["bot.py"] + b"x = 1\n")
    repository.apply()
    with pytest.raises(SetupError, match=r"bot\.py had uncommitted changes when it was applied"):
        repository.apply(commit=True)
    assert repository.git("log", "--oneline").count("\n") == 1


def test_a_commit_message_that_fails_changes_nothing(repository: World) -> None:
    with pytest.raises(ZeroDivisionError):
        apply_result(
            make_result(),
            repository.run,
            project=repository.project,
            sources=repository.sources,
            commit_message=lambda: str(1 / 0),
        )
    assert read_files(repository.folder) == FILES


def test_a_commit_needs_a_repository_that_tracks_the_files(world: World) -> None:
    with pytest.raises(SetupError, match="--commit needs a git work tree"):
        world.apply(commit=True)
    world.git("init", "-q")
    with pytest.raises(SetupError, match="git does not track"):
        world.apply(commit=True)
    assert read_files(world.folder) == FILES


def test_a_text_in_a_comparison_is_not_a_place(world: World) -> None:
    compared = "def f(x):\n    match x:\n        case 'Plan the work.':\n            return x == 'Plan the work.'\n"
    (world.folder / "bot.py").write_text(f"{compared}PLANNER = 'Plan the work.'\n")
    world.apply({"planner#instruction": "Plan well."})
    assert (world.folder / "bot.py").read_text() == f"{compared}PLANNER = 'Plan well.'\n"
    (world.folder / "bot.py").write_text(compared)
    with pytest.raises(SetupError, match="its text is not found in"):
        world.apply({"planner#instruction": "Plan well."})


def test_the_folder_that_was_searched_is_named_as_seen_from_here(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    (world.folder / "bot.py").write_text("")
    monkeypatch.chdir(world.folder.parent)
    with pytest.raises(SetupError, match=f"its text is not found in {world.folder.name}: "):
        world.apply({"planner#instruction": "Plan well."})


def test_copies_in_the_folder_of_another_run_are_not_places(world: World) -> None:
    other = world.folder / "old" / "run"
    other.mkdir(parents=True)
    (other / "journal.jsonl").touch()
    (other / "planner.md").write_text("Plan the work.")
    assert world.apply().state == "applied"


def test_a_surface_that_shares_its_text_with_another_one_needs_a_place(world: World) -> None:
    result = make_result()
    twin = Surface(node_id="actor", type="skill", value="Plan the work.")
    structure = replace(result.structure, surfaces=(*result.structure.surfaces, twin))
    [problem] = find_problems(["planner#instruction"], structure=structure, sources={}, project=world.project)
    assert problem.startswith("planner#instruction: actor#skill has or gets the same value 'Plan the work.'")
    assert "under `sources`" in problem
