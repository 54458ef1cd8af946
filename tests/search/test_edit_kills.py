"""Runs of `edits` are killed at every event and resumed: the same result, and nothing is asked or measured twice."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import orjson
import pytest

from promptiter.engine.engine import Engine
from promptiter.evaluation.evaluator import EvaluationOptions, Evaluator
from promptiter.evaluation.scorer import Scorer
from promptiter.llm.gateway import current_gateway
from promptiter.llm.messages import CallSite
from promptiter.profile import Profile
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.search.command_mutator import CommandMutator
from promptiter.search.edit_workspace import EditWorkspace
from promptiter.search.edits import EditSearch
from promptiter.search.mutation import MutationRequest
from promptiter.testing.store_hooks import Killed
from tests.search.test_edits import Adds
from tests.worlds.guide_files import FILES, STEPS, STRUCTURE, Planned, Scoring, build_request, read
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import How, kill_runs_at
from traces.model import Json

pytestmark = pytest.mark.slow
CHUNKS = 8


class Counted:
    """How often anything was asked or measured, across the processes of one test."""

    def __init__(self) -> None:
        self.asked = 0

    def mutator(self, *guides: Any) -> Callable[[Any], Any]:
        planned = Planned(*guides)

        def mutate(request: Any) -> Any:
            self.asked += 1
            return planned(request)

        return mutate


def score_through_gateway(counted: Counted) -> Callable[..., Any]:
    """The scorer of a task: its measurements are stored, as those of a tool."""
    scoring = Scoring()

    async def score(profile: Profile, context: Any) -> Any:
        async def measure(guide: Json) -> Json:
            counted.asked += 1
            return "CRASH" in read(profile)

        site = CallSite(role="agent", case_id=context.case_id, repeat=context.repeat)
        await current_gateway().call_tool("task:measure", {"guide": read(profile)}, measure, site)
        return scoring(profile)

    return score


@dataclass(frozen=True, kw_only=True)
class CountedCommand(CommandMutator):
    """A program as the mutator, and how often it was run."""

    counted: Counted

    async def _run(self, request: MutationRequest) -> dict[str, Json]:
        self.counted.asked += 1
        return await super()._run(request)


AGENT = """
import json, os, pathlib
request = json.loads((pathlib.Path(os.environ["PROMPTITER_FOLDER"]) / "request.json").read_text())
steps = ["greet BAD", "CRASH", None, "greet ask answer thank", "greet ask answer thank you"]
if request["round"] == 3:
    pathlib.Path("other.md").write_text("not allowed")
elif request["round"] <= 5:
    pathlib.Path("guide.md").write_text(steps[request["round"] - 1])
"""


def build_command(counted: Counted, folder: Path) -> EditSearch:
    root = folder / "workspace"
    root.mkdir(parents=True, exist_ok=True)
    for path, text in FILES.items():
        (root / path).write_text(text)
    workspace = EditWorkspace(root=root, artifacts=tuple(FILES))
    command = (sys.executable, "-c", AGENT)
    return EditSearch(mutator=CountedCommand(command=command, workspace=workspace, counted=counted))


SEARCHES: Mapping[str, Callable[[Counted, Path], EditSearch]] = {
    "command": build_command,
    "function": lambda counted, _: EditSearch(function=counted.mutator(*STEPS)),
    "parallel": lambda counted, _: EditSearch(
        function=counted.mutator(*STEPS), parallel=3, objectives={"words": "maximize", "length": "minimize"}
    ),
    "stages": lambda _counted, _: EditSearch(optimizer=Adds()),
}


def run(folder: Path, search: str, *, concurrency: int = 4) -> tuple[RunResult, int]:
    """Start a run below a folder, or resume the existing one; also how often something was asked or measured."""
    counted = Counted()
    scorer = Scorer(score_through_gateway(counted), holdout=lambda _: 0.5, holdout_cases=("a", "b"))
    evaluator = Evaluator(options=EvaluationOptions(concurrency=concurrency))
    engine = Engine(STRUCTURE, evaluator, search=SEARCHES[search](counted, folder))
    request = build_request(scorer, run_id="")
    there = sorted(folder.glob("*/run.json"))
    directory = (
        RunDirectory.resume(there[0].parent, engine, request) if there else RunDirectory.begin(folder, engine, request)
    )
    return directory.run_sync(), counted.asked


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A whole run of the search that the parameter names: the name, and the folder."""
    search: str = request.param
    folder = tmp_path_factory.mktemp(search)
    result, _ = run(folder, search)
    assert result.verdict == "improved_on_validation"
    assert read(result.accepted_profile).endswith("greet ask answer thank")
    kinds = {event["type"] for event in read_events(folder)}
    assert kinds >= ({"patches"} if search == "stages" else {"mutations"})
    assert search != "parallel" or "front" in kinds
    return search, folder


def read_events(folder: Path) -> list[dict[str, Any]]:
    [path] = folder.glob("*/journal.jsonl")
    return [orjson.loads(line)["event"] for line in path.read_bytes().splitlines()]


def count_answers(folder: Path) -> int:
    """The number of recorded answers. A line that was cut off by a kill is none."""
    raw = b"".join(path.read_bytes() for path in folder.glob("*/calls.jsonl"))
    return sum("key" in orjson.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines())


@pytest.mark.long
@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("whole", SEARCHES, indirect=True)
def test_a_run_of_edits_resumes_from_every_event(chunk: int, whole: tuple[str, Path], tmp_path: Path) -> None:
    search, complete = whole
    every = 3 if search == "command" else 1  # each of its rounds opens a private copy
    for seq in range(chunk * every, len(read_events(complete)), CHUNKS * every):
        check_kill(search, seq, tmp_path / str(seq), whole=complete)


@pytest.mark.parametrize("whole", SEARCHES, indirect=True)
def test_a_run_of_edits_resumes_from_some_events(whole: tuple[str, Path], tmp_path: Path) -> None:
    search, complete = whole
    events = len(read_events(complete))
    for seq in range(5, events, max(1, events // 3)):
        check_kill(search, seq, tmp_path / str(seq), whole=complete)


def check_kill(search: str, seq: int, folder: Path, *, whole: Path) -> None:
    """Kill a run at an event, resume it, and compare it with a whole one."""
    with kill_runs_at(seq, get_args(How)[seq % 3]), pytest.raises(Killed):
        run(folder, search, concurrency=1 + 5 * (seq % 2))
    known = count_answers(folder)
    _, asked = run(folder, search)
    assert read_unmeasured(folder) == read_unmeasured(whole)
    assert asked == count_answers(whole) - known
