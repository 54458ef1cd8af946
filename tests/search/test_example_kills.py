"""Runs that change few-shot examples are killed and resumed: the same result, no answer asked twice.

A run of `few_shot` is killed at every event. Those of the other searches are killed at the first and the last event of
each type in each phase, and at some others. `make long` runs these tests. `make test` resumes a few of such runs in
`test_few_shot.py` and `test_example_teacher.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import get_args

import orjson
import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.session import Search
from promptiter.evaluation.data.case import EvalSet
from promptiter.grouping import group_by
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.search.descent.search import CoordinateDescent
from promptiter.search.few_shot import FewShotSearch
from promptiter.search.gepa import GepaSearch
from promptiter.search.rounds import BackpropRounds
from promptiter.testing.store_hooks import Killed
from tests.worlds.convention import build_agent, build_evaluator, build_request, build_sets, build_task_model, find_desk
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import How, kill_runs_at
from traces.model import Json

pytestmark = pytest.mark.long
CHUNKS = 4
SAMPLED = 4
"""Number of events at which a run is killed, besides the first and the last of each type."""

TARGETS = ("sorter#instruction", "sorter#examples")
SEARCHES: Mapping[str, Callable[[], Search]] = {
    "few_shot": lambda: FewShotSearch(k=4, trials=4, batch_size=2, teacher="strong"),
    "optuna": lambda: FewShotSearch(k=4, trials=4, batch_size=2, strategy="optuna"),
    "backprop": lambda: BackpropRounds(teacher="strong"),
    "gepa": lambda: GepaSearch(reflection_minibatch_size=6, module_selector="all", teacher="strong"),
    "coordinate_descent": lambda: CoordinateDescent(phases=("examples", "textual"), teacher="strong"),
}


def answer_rightly(request: ModelRequest) -> ModelReply:
    return ModelReply(text=find_desk(request.messages[-1].content))


def run(folder: Path, search: str) -> tuple[RunResult, int]:
    """Start a run below a folder, or resume the existing one: the result, and how many calls were made."""
    task, strong = build_task_model(3), ScriptedModel(answer_rightly)
    evaluator = build_evaluator(3, task=task)
    evaluator.gateway.add_model("strong", strong)
    train, validation, _ = build_sets(3)
    request = build_request(
        3,
        targets=TARGETS,
        train=EvalSet(id="train", cases=train.cases[:12]),
        validation=EvalSet(id="validation", cases=validation.cases[:6]),
        test=None,
        max_rounds=2,
        stop=None,
    )
    engine = Engine(build_agent(), evaluator, search=SEARCHES[search]())
    there = sorted(folder.glob("*/run.json"))
    directory = (
        RunDirectory.resume(there[0].parent, engine, request) if there else RunDirectory.begin(folder, engine, request)
    )
    result = directory.run_sync()
    return result, task.spent.calls + len(strong.requests)


@pytest.fixture(scope="module")
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A whole run of the search that the parameter names: the name, and the folder."""
    search: str = request.param
    folder = tmp_path_factory.mktemp(search)
    result, _ = run(folder, search)
    patched = {patch.surface_id for each in result.rounds for patch in each.patches}
    assert "sorter#examples" in patched
    assert search == "optuna" or any(event["phase"] == "teacher" for event in read_events(folder))
    return search, folder


def read_events(folder: Path) -> list[Json]:
    [path] = folder.glob("*/journal.jsonl")
    return [orjson.loads(line)["event"] for line in path.read_bytes().splitlines()]


def sample_events(events: list[Json]) -> list[int]:
    """The first and the last event of each type in each phase, and some others."""
    groups = group_by(events, lambda event: (event["type"], event["phase"])).values()
    ends = {event["seq"] for group in groups for event in (group[0], group[-1])}
    others = [event["seq"] for event in events if event["seq"] not in ends]
    return sorted(ends.union(Random(0).sample(others, min(SAMPLED, len(others)))))


def count_answers(folder: Path) -> int:
    """The number of recorded answers. A line that was cut off by a kill is none."""
    raw = b"".join(path.read_bytes() for path in folder.glob("*/calls.jsonl"))
    return sum("key" in orjson.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines())


def check_kill(search: str, seq: int, folder: Path, *, whole: Path) -> None:
    """Kill a run at an event, resume it, and compare it with a whole one."""
    with kill_runs_at(seq, get_args(How)[seq % 3]), pytest.raises(Killed):
        run(folder, search)
    known = count_answers(folder)
    _, asked = run(folder, search)
    assert read_unmeasured(folder) == read_unmeasured(whole)
    assert asked == count_answers(whole) - known


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("whole", ["few_shot"], indirect=True)
def test_a_run_that_changes_examples_resumes_from_every_event(
    chunk: int, whole: tuple[str, Path], tmp_path: Path
) -> None:
    search, folder = whole
    for seq in range(chunk, len(read_events(folder)), CHUNKS):
        check_kill(search, seq, tmp_path / str(seq), whole=folder)


@pytest.mark.parametrize("whole", [each for each in SEARCHES if each != "few_shot"], indirect=True)
def test_a_run_of_any_search_that_changes_examples_resumes_from_every_type_of_event(
    whole: tuple[str, Path], tmp_path: Path
) -> None:
    search, folder = whole
    for seq in sample_events(read_events(folder)):
        check_kill(search, seq, tmp_path / str(seq), whole=folder)
