"""Runs that change few-shot examples are killed at every event and resumed: the same result, no answer asked twice.

`make long` runs these tests. `make test` resumes a few of such runs in `test_few_shot.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args

import orjson
import pytest

from promptiter.engine.engine import Engine
from promptiter.engine.session import Search
from promptiter.evaluation.data.case import EvalSet
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.runlog.results import RunResult
from promptiter.runs.directory import RunDirectory
from promptiter.search.few_shot import FewShotSearch
from promptiter.search.gepa import GepaSearch
from promptiter.search.rounds import BackpropRounds
from promptiter.testing.store_hooks import Killed
from tests.worlds.convention import build_agent, build_evaluator, build_request, build_sets, build_task_model, find_desk
from tests.worlds.results import read_unmeasured
from tests.worlds.starter import How, kill_runs_at

pytestmark = pytest.mark.long
CHUNKS = 8
TARGETS = ("sorter#instruction", "sorter#examples")
SEARCHES: Mapping[str, Callable[[], Search]] = {
    "few_shot": lambda: FewShotSearch(k=4, trials=4, batch_size=2),
    "teacher": lambda: FewShotSearch(k=4, trials=4, batch_size=2, teacher="strong"),
    "optuna": lambda: FewShotSearch(k=4, trials=4, batch_size=2, strategy="optuna"),
    "backprop": BackpropRounds,
    "gepa": lambda: GepaSearch(reflection_minibatch_size=6),
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


@pytest.fixture(scope="session")
def wholes(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Whole runs, by search."""
    folders: dict[str, Path] = {}

    def find(search: str) -> Path:
        if search not in folders:
            folder = tmp_path_factory.mktemp(search)
            result, _ = run(folder, search)
            patched = {patch.surface_id for each in result.rounds for patch in each.patches}
            assert "sorter#examples" in patched
            folders[search] = folder
        return folders[search]

    return find


def count_events(folder: Path) -> int:
    [path] = folder.glob("*/journal.jsonl")
    return len(path.read_bytes().splitlines())


def count_answers(folder: Path) -> int:
    """The number of recorded answers. A line that was cut off by a kill is none."""
    raw = b"".join(path.read_bytes() for path in folder.glob("*/calls.jsonl"))
    return sum("key" in orjson.loads(line) for line in raw[: raw.rfind(b"\n") + 1].splitlines())


@pytest.mark.parametrize("chunk", range(CHUNKS))
@pytest.mark.parametrize("search", SEARCHES)
def test_a_run_that_changes_examples_resumes_from_every_event(
    search: str, chunk: int, wholes: Callable[[str], Path], tmp_path: Path
) -> None:
    whole = wholes(search)
    for seq in range(chunk, count_events(whole), CHUNKS):
        folder = tmp_path / str(seq)
        with kill_runs_at(seq, get_args(How)[seq % 3]), pytest.raises(Killed):
            run(folder, search)
        known = count_answers(folder)
        _, asked = run(folder, search)
        assert read_unmeasured(folder) == read_unmeasured(whole)
        assert asked == count_answers(whole) - known
