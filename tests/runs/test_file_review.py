"""A review in files: what is written, which answers count, and that waiting survives a stop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from promptiter.engine.interrupts import Interrupt
from promptiter.engine.review import BatchReviewer, Review, ReviewRequest
from promptiter.errors import StopRequestedError
from promptiter.llm.redaction import Redactor
from promptiter.profile import PatchEdit, PatchEvidence, SurfacePatch
from promptiter.runs.directory import RunDirectory
from promptiter.runs.file_review import FileReviewer
from promptiter.runs.hunk_evidence import read_hunks
from promptiter.stages.contracts import AggregateResult
from promptiter.structure import Limits, Surface
from tests.worlds import desk, desk_stages
from traces.model import Json

TEXT = Surface(node_id="desk", type="instruction", value="Be kind. Be brief.", limits=Limits(max_chars=60))
SHOTS = Surface(node_id="desk", type="examples", value=[])


def make_request(value: Json = "Be kind. Keep dates: always.", surface: Surface = TEXT) -> ReviewRequest:
    evidence = PatchEvidence(cases=("a", "b"), steps=("a/desk", "b/desk"), gradients=("1/a~0~0/desk/0",))
    edits = (PatchEdit(before="Be brief.", after="Keep dates: always.", reason="dates", evidence=evidence),)
    return ReviewRequest(
        surface=surface,
        patch=SurfacePatch(surface_id=surface.id, value=value, reason="dates", evidence=evidence, edits=edits),
        signal=AggregateResult(surface_id=surface.id, text="1. Dates are lost.\n2. Be calm.", case_ids=("a", "b")),
    )


REQUEST = make_request()


class Team:
    """A reviewer with a folder, and what people do each time that it has looked at the files: one step per look."""

    def __init__(self, folder: Path, *steps: Callable[[Path], object], redactor: Redactor | None = None) -> None:
        self.folder = folder
        self.steps = list(steps)
        self.said: list[str] = []
        self.reviewer = FileReviewer(
            folder, notify=self.said.append, find_stop_request=self.act, redactor=redactor, poll_s=0
        )

    def act(self) -> str | None:
        """Called between two looks; without anything left to do, people lose patience."""
        if self.steps:
            self.steps.pop(0)(self.folder)
            self.looks = 0
            return None
        self.looks += 1
        return "nobody answers" if self.looks > 3 else None

    looks = 0


def list_files(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


def answer(*, number: int = 1, **changes: Json) -> Callable[[Path], object]:
    """Fill in one of the files, as a program does that reads and writes YAML."""

    def fill_in(folder: Path) -> None:
        [file] = folder.glob(f"{number:04}_*.yaml")
        file.write_text(yaml.safe_dump({**yaml.safe_load(file.read_text()), **changes}))

    return fill_in


def type_in(before: str, after: str) -> Callable[[Path], object]:
    """Edit the first file as a text."""

    def edit(folder: Path) -> None:
        file = min(folder.glob("*.yaml"))
        assert before in file.read_text()
        file.write_text(file.read_text().replace(before, after, 1))

    return edit


async def test_a_file_says_what_changes_and_why(tmp_path: Path) -> None:
    team = Team(tmp_path / "review", type_in("decision:\n", "decision: approve\n"))
    assert await team.reviewer.review(REQUEST) == Review(action="approve")
    [file] = (tmp_path / "review").iterdir()
    assert file.name.startswith("0001_desk-instruction_")
    found = yaml.safe_load(file.read_text())
    assert found["diff"] == "- Be brief.\n+ Keep dates: always."
    assert (found["surface"], found["value"], found["current_value"]) == (
        "desk#instruction",
        "Be kind. Keep dates: always.",
        "Be kind. Be brief.",
    )
    assert (found["blame"], found["patch"], found["cases"]) == ("1. Dates are lost.\n2. Be calm.", "dates", ["a", "b"])
    assert (found["steps"], found["gradients"]) == (["a/desk", "b/desk"], ["1/a~0~0/desk/0"])
    assert len(team.said) == 1
    assert team.said[0].startswith("waiting for 1 review: ")
    assert team.said[0].endswith(file.name)


async def test_a_veto_has_a_reason_and_an_edit_its_value(tmp_path: Path) -> None:
    vetoed = await Team(tmp_path / "a", answer(decision="Veto", reason="too\nvague")).reviewer.review(REQUEST)
    assert vetoed == Review(action="veto", reason="too vague")
    edited = await Team(tmp_path / "b", answer(decision="edit", value="Keep dates.\n")).reviewer.review(REQUEST)
    assert edited == Review(action="edit", value="Keep dates.")
    typed = Team(
        tmp_path / "c", type_in("Keep dates: always.", "Keep #1: dates."), type_in("decision:", "decision: edit")
    )
    assert await typed.reviewer.review(REQUEST) == Review(action="edit", value="Be kind. Keep #1: dates.")


@pytest.mark.parametrize("end", ["\n", "\n\n", "\n\n...\n\n"])
async def test_a_text_that_ends_with_empty_lines_gives_a_file_that_can_be_answered(tmp_path: Path, end: str) -> None:
    request = make_request(f"Keep dates: always.{end}")
    approved = await Team(tmp_path / "a", type_in("decision:", "decision: approve")).reviewer.review(request)
    assert approved == Review(action="approve")
    typed = Team(tmp_path / "b", type_in("always.", "never."), type_in("decision:", "decision: edit"))
    assert await typed.reviewer.review(request) == Review(action="edit", value=f"Keep dates: never.{end}")


async def test_values_that_are_not_texts_are_edited_as_yaml(tmp_path: Path) -> None:
    shots = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    team = Team(tmp_path, answer(decision="edit", value=[*shots, *shots]))
    assert await team.reviewer.review(make_request(shots, SHOTS)) == Review(action="edit", value=[*shots, *shots])


async def test_answers_that_cannot_be_used_are_reported_once_and_waited_for(tmp_path: Path) -> None:
    def truncate(folder: Path) -> None:
        min(folder.glob("*.yaml")).write_text("decision: 'veto\nreason: half")

    def empty(folder: Path) -> None:
        min(folder.glob("*.yaml")).write_text("")

    def remove(folder: Path) -> None:
        min(folder.glob("*.yaml")).unlink()

    def wait(_: Path) -> None:
        pass

    team = Team(
        tmp_path,
        *(answer(decision="aprove"), wait, wait, truncate, wait, empty, wait, remove, wait),
        *(answer(decision="edit"), wait, answer(decision="approve", value="Be rude."), wait),
        *(answer(decision="edit", value="x" * 100), wait, answer(decision="edit", value=7), wait),
        lambda folder: min(folder.glob("*.yaml")).write_text("- decision: approve"),
        *(wait, lambda folder: min(folder.glob("*.yaml")).write_text("descision: veto\n")),
        *(wait, lambda folder: min(folder.glob("*.yaml")).write_text("decision: veto\n")),
    )
    assert await team.reviewer.review(REQUEST) == Review(action="veto")
    problems = [each.partition(".yaml: ")[2] for each in team.said[1:]]
    assert [each.removesuffix("; still waiting") for each in problems] == [
        "decision is 'aprove' (did you mean 'approve'?); write approve, edit or veto",
        "this is not valid YAML in line 2: found unexpected end of stream",
        "decision is edit, but value was not changed",
        "decision is approve, but value was changed; write edit to use it",
        "value cannot be used: it has 100 characters, at most 60 are allowed",
        "value cannot be used: it must be text, got 7",
        "it must have the keys decision, reason and value",
        "it has no decision; write decision: approve, edit or veto",
    ]


async def test_an_edit_that_would_be_refused_is_reported_to_the_reviewer(tmp_path: Path) -> None:
    request = replace(REQUEST, find_problem=lambda value: "the placeholder {name} is missing" if value == "Hi." else "")
    team = Team(tmp_path, answer(decision="edit", value="Hi."), lambda _: None, answer(decision="edit", value="Hi!"))
    assert (await team.reviewer.review(request)).value == "Hi!"
    assert "value cannot be used: the placeholder {name} is missing; still waiting" in team.said[1]


@pytest.mark.parametrize("word", ["no", "off", "2026-01-01", "1e3", "null hypothesis"])
async def test_a_reason_is_the_words_that_were_written(tmp_path: Path, word: str) -> None:
    team = Team(tmp_path, lambda folder: min(folder.glob("*.yaml")).write_text(f"decision: veto\nreason: {word}\n"))
    assert (await team.reviewer.review(REQUEST)).reason == word


async def test_a_file_that_an_editor_replaces_is_not_written_again(tmp_path: Path) -> None:
    """Some editors move the old file away before they write the new one."""

    names: list[str] = []

    def move_away(folder: Path) -> None:
        file = min(folder.glob("*.yaml"))
        names.append(file.name)
        file.rename(folder / "old")

    def write(folder: Path) -> None:
        assert not list(folder.glob("*.yaml")), "nothing was written in between"
        (folder / "old").rename(folder / names[0])
        answer(decision="approve")(folder)

    assert await Team(tmp_path, move_away, write).reviewer.review(REQUEST) == Review()


async def test_an_answer_counts_only_once_the_file_is_complete(tmp_path: Path) -> None:
    """An editor that writes in pieces: the first ones are valid, too."""
    pieces = ["decision: veto", "decision: veto\nreason: too", "decision: veto\nreason: too vague\n"]
    steps = [lambda folder, text=text: min(folder.glob("*.yaml")).write_text(text) for text in pieces]
    assert await Team(tmp_path, *steps).reviewer.review(REQUEST) == Review(action="veto", reason="too vague")


async def test_all_patches_of_a_round_wait_at_the_same_time(tmp_path: Path) -> None:
    other = make_request(["a"], replace(SHOTS, node_id="other", type="parameter"))
    team = Team(tmp_path, answer(number=2, decision="veto"), answer(decision="approve"))
    assert isinstance(team.reviewer, BatchReviewer)
    assert [each.action for each in await team.reviewer.review_batch([REQUEST, other])] == ["approve", "veto"]
    assert team.said[0].startswith("waiting for 2 reviews: ")


async def test_a_stop_ends_the_wait_and_the_same_file_is_found_again(tmp_path: Path) -> None:
    team = Team(tmp_path)
    with pytest.raises(StopRequestedError, match="nobody answers"):
        await team.reviewer.review(REQUEST)
    answer(decision="approve")(tmp_path)
    again = Team(tmp_path)
    assert await again.reviewer.review(REQUEST) == Review(action="approve")
    assert again.said == [], "it is not asked again"
    assert len(list_files(tmp_path)) == 1


async def test_secrets_are_redacted_and_an_approved_patch_keeps_them(tmp_path: Path) -> None:
    secret = "tok-123456789"
    request = make_request(f"Be kind. Use {secret}.")
    team = Team(
        tmp_path,
        answer(decision="edit", value="Use *** kindly."),
        lambda _: None,
        type_in("decision: edit", "decision: approve"),
        type_in("Use *** kindly.", "Be kind. Use ***."),
        redactor=Redactor([secret]),
    )
    assert await team.reviewer.review(request) == Review(action="approve")
    assert secret not in list_files(tmp_path)[0].read_text()
    assert "value contains ***, which stands for a secret; write the text without it" in team.said[1]


def test_a_stopped_run_is_resumed_and_continues_with_the_answers(tmp_path: Path) -> None:
    interrupt = Interrupt()
    run = RunDirectory.begin(tmp_path, desk_stages.engine(), desk.request(max_rounds=1))
    waiting: list[str] = []

    def stop(text: str) -> None:
        waiting.append(text)
        interrupt.stop("a test")

    reviewer = FileReviewer(run.path / "review", notify=stop, find_stop_request=lambda: interrupt.reason, poll_s=0)
    stopped = run.run_sync(reviewer=reviewer, interrupt=interrupt)
    assert (stopped.stop_reason, stopped.is_final) == ("user_stop", False)
    assert waiting[0].startswith("waiting for 2 reviews: "), "of both surfaces"
    first, second = sorted((run.path / "review").iterdir())
    first.write_text(first.read_text().replace("decision:", "decision: approve", 1))
    second.write_text(
        second.read_text().replace("decision:", "decision: edit", 1).replace("Be careful.", "Be careful!", 1)
    )
    again = RunDirectory.resume(run.path, desk_stages.engine(), desk.request(max_rounds=1))
    result = again.run_sync(reviewer=FileReviewer(run.path / "review", notify=pytest.fail, poll_s=0))
    assert {each.surface_id: each.after for each in result.changes} == {
        "draft#instruction": "Draft. Be careful.",
        "polish#instruction": "Polish. Be careful!",
    }
    assert [hunk.is_reviewed for found in read_hunks(result).values() for hunk in found] == [False, True]


async def test_waiting_can_be_cancelled(tmp_path: Path) -> None:
    task = asyncio.create_task(FileReviewer(tmp_path, poll_s=60).review(REQUEST))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
