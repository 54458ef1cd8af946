from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console

from promptiter.cli.review import TerminalReviewer
from promptiter.engine.review import Review, ReviewRequest
from promptiter.profile import SurfacePatch
from promptiter.stages.contracts import AggregateResult
from promptiter.structure import Limits, Surface
from traces.model import Json


class Person:
    """Types the scripted lines, and checks that the progress is paused meanwhile."""

    def __init__(self, *lines: str, editor: str = "") -> None:
        self.lines = list(lines)
        self.file = io.StringIO()
        self.is_paused = False
        self.reviewer = TerminalReviewer(
            Console(file=self.file, width=80),
            pause=self.pause,
            read=self.read,
            environ={"EDITOR": editor} if editor else {},
        )

    @contextmanager
    def pause(self) -> Iterator[None]:
        self.is_paused = True
        yield
        self.is_paused = False

    async def read(self) -> str:
        assert self.is_paused
        return self.lines.pop(0)

    async def review(self, request: ReviewRequest) -> Review:
        answer = await self.reviewer.review(request)
        assert self.lines == []
        return answer

    @property
    def shown(self) -> str:
        return self.file.getvalue()


def request(value: Json, *, surface: Surface) -> ReviewRequest:
    return ReviewRequest(
        surface=surface,
        patch=SurfacePatch(surface_id=surface.id, value=value, reason="the date is missing"),
        signal=AggregateResult(surface_id=surface.id, text="Dates are\ndropped.", case_ids=("a", "b"), support=2.0),
    )


TEXT = Surface(node_id="desk", type="instruction", value="Be kind. Be brief.", limits=Limits(max_chars=40))
PATCH = request("Be kind. Keep dates.", surface=TEXT)
EXAMPLES = Surface(node_id="desk", type="examples", value=[])
SHOTS = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


async def test_a_patch_is_shown_with_its_blame_its_reason_and_its_diff() -> None:
    person = Person("a\n")
    assert await person.review(PATCH) == Review(action="approve")
    lines = [line.rstrip() for line in person.shown.splitlines()]
    assert lines[0].startswith("desk#instruction ─")
    assert lines[1:7] == [
        "blamed by 2 cases  Dates are dropped.",
        "patch  the date is missing",
        "",
        "    Be kind.",
        "  - Be brief.",
        "  + Keep dates.",
    ]


async def test_a_veto_has_a_reason() -> None:
    assert await Person("V\n", " not now \n").review(PATCH) == Review(action="veto", reason="not now")


async def test_no_answer_is_a_veto() -> None:
    assert await Person("").review(PATCH) == Review(action="veto", reason="no answer")


async def test_a_new_text_is_typed_until_a_dot() -> None:
    answer = await Person("e\n", "Be kind.\n", "\n", "Keep all dates.\n", ".\n").review(PATCH)
    assert answer == Review(action="edit", value="Be kind.\n\nKeep all dates.", reason="by hand")


async def test_an_unchanged_or_invalid_text_is_asked_for_again() -> None:
    person = Person("e\n", ".\n", "e\n", "Be kind. Keep dates.\n", ".\n", "e\n", f"{'x' * 41}\n", ".\n", "a\n")
    assert (await person.review(PATCH)).action == "approve"
    assert person.shown.count("no changes") == 2
    assert "this cannot be used: " in person.shown


async def test_examples_are_edited_as_json() -> None:
    person = Person("e\n", "[oops\n", ".\n", "e\n", "[]\n", ".\n")
    answer = await person.review(request(SHOTS, surface=EXAMPLES))
    assert answer == Review(action="edit", value=[], reason="by hand")
    assert "this is not valid JSON" in person.shown


@pytest.mark.parametrize(
    ("script", "message"),
    [("exit 3", "ended with exit code 3"), (None, "cannot be started"), ("true", "no changes")],
)
async def test_a_failing_editor_changes_nothing(tmp_path: Path, script: str | None, message: str) -> None:
    editor = tmp_path / "editor"
    if script is not None:
        editor.write_text(f"#!/bin/sh\n{script}\n")
        editor.chmod(0o700)
    person = Person("e\n", "a\n", editor=str(editor))
    assert (await person.review(PATCH)).action == "approve"
    assert message in " ".join(person.shown.split())
