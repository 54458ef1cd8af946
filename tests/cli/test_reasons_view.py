"""Why a surface changed, on the screen: one line per point, and for each edit the points and cases behind it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import StringIO

import pytest
from rich.console import Console

from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop.llm.optimizer import LLMOptimizer
from promptiter.cli.views.run import print_end
from promptiter.cli.views.show import print_changes
from promptiter.engine.engine import Engine
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import ModelReply, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.runs.summary import RunSummary, summarize
from promptiter.search.rounds import BackpropRounds
from promptiter.stages.contracts import AggregateRequest, AggregateResult, SignalPoint
from tests.worlds import desk
from tests.worlds.desk_stages import Blames

POINTS = ("It must be careful.", "It must be calm, with " + "very " * 40 + "few words.", "It asks for the wrong thing.")


class MergesToPoints:
    """An aggregator with one numbered point for each case."""

    async def aggregate(self, request: AggregateRequest) -> AggregateResult:
        points = tuple(
            SignalPoint(text=text, case_ids=(each.case_id,), gradient_ids=(each.id,))
            for text, each in zip(POINTS, request.gradients, strict=True)
        )
        text = "\n".join(f"{number}. {each.text} (1 case)" for number, each in enumerate(points, 1))
        return AggregateResult(surface_id=request.surface.id, text=text, points=points)


def write(_: ModelRequest) -> ModelReply:
    changes = [{"text": "Be careful.", "points": [1]}, {"text": "Be calm.", "points": [2, 3]}]
    value = "Be careful. Answer. Be calm. Be kind."
    return ModelReply(text=json.dumps({"reason": "More care.", "value": value, "changes": changes}))


@pytest.fixture(scope="module")
def summary() -> RunSummary:
    agent = GraphAgent(name="desk", nodes=(ModelNode(name="draft", instruction="Answer.", model="scripted"),))
    gateway = Gateway(models={"scripted": desk.model(), "writer": ScriptedModel(write)})
    search = BackpropRounds(Blames(), MergesToPoints(), LLMOptimizer("writer"), check=None)
    return summarize(Engine(agent, desk.evaluator(gateway), search=search).run_sync(desk.request(max_rounds=1)))


def show(view: Callable[[Console, RunSummary], None], summary: RunSummary) -> list[str]:
    file = StringIO()
    view(Console(file=file, width=120), summary)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_the_diff_traces_each_edit_to_the_points_and_cases_behind_it(summary: RunSummary) -> None:
    lines = show(print_changes, summary)
    first = lines.index("    why (round 1):")
    assert lines[first + 1] == "      1. It must be careful. (1 case)"
    assert lines[first + 2].startswith("      2. It must be calm, with very")
    assert lines[first + 3].startswith("         very"), "wrapped below the text of the point"
    cases = summary.changes[0].reasons[0].case_ids
    assert lines[lines.index("    the optimizer: More care.") + 1 :] == [
        f'    edit "Be careful.": answers point 1 (cases: {cases[0]})',
        f'    edit "Be calm. Be kind.": answers points 2, 3 (cases: {cases[1]}, {cases[2]})',
    ]
    assert not any("edit" in line for line in show(partial(print_changes, is_short=True), summary))


def test_an_edit_without_points_gives_its_reason_and_long_lists_of_cases_are_cut(summary: RunSummary) -> None:
    [change] = summary.changes
    [reason] = change.reasons
    edit = replace(reason.edits[0], points=(), reason="care", case_ids=tuple("abcdefgh"))
    removed = replace(edit, before="Be loud.", after="", reason="", case_ids=())
    found = replace(summary, changes=(replace(change, reasons=(replace(reason, edits=(edit, removed)),)),))
    assert show(print_changes, found)[-2:] == [
        '    edit "Be careful.": care (cases: a, b, c, d, e, f and 2 more)',
        '    edit "Be loud." removed: the optimizer names no point',
    ]


def test_the_end_of_a_run_has_one_line_per_point_cut_after_a_word(summary: RunSummary) -> None:
    lines = show(print_end, summary)
    first = lines.index("    why:")
    assert lines[first + 1] == "      1. It must be careful. (1 case)"
    assert lines[first + 3].endswith("very …")
    assert lines[first + 4] == "      3. It asks for the wrong thing. (1 case)"


def test_reasons_that_end_a_sentence_are_joined_without_a_semicolon(summary: RunSummary) -> None:
    assert summary.changes[0].reasons[0].edits[1].reason == f"{POINTS[1]} {POINTS[2]}"
