from __future__ import annotations

from collections.abc import Sequence

import pytest

from promptiter.agents.base import AgentRun
from promptiter.agents.edges import Choice
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.engine.engine import Engine
from promptiter.engine.request import RunRequest
from promptiter.evaluation.data.case import EvalCase
from promptiter.evaluation.evaluator import Evaluator
from promptiter.evaluation.mean_usage import average_usage
from promptiter.evaluation.metrics.builtin import FunctionMetric
from promptiter.llm.gateway import Gateway
from promptiter.llm.messages import Message, ModelRequest
from promptiter.llm.models import ScriptedModel
from promptiter.policies.goals import Goal
from promptiter.policies.non_inferiority import NonInferior
from promptiter.runlog.journal import MemoryJournal
from promptiter.runlog.payloads import CaseFinished
from promptiter.search.shorter import PromptShortening
from promptiter.structure import Limits
from tests.worlds import shop
from tests.worlds.desk import Watcher


def request(**changes: object) -> RunRequest:
    values: dict[str, object] = {
        "train": shop.eval_set("train", 20),
        "validation": shop.eval_set("validation", 20),
        "goal": Goal(kind="fewer_tokens"),
        "acceptance": NonInferior(0.05),
        "final_test": None,
        "max_rounds": 9,
        "run_id": "r",
    }
    return RunRequest(**(values | changes))  # type: ignore[arg-type]


@pytest.mark.slow
async def test_a_verbose_instruction_loses_its_useless_sentences_and_keeps_those_that_matter() -> None:
    watcher = Watcher()
    result = await shop.engine(PromptShortening(), shop.agent()).run(request(), observers=[watcher])
    [change] = result.changes
    assert change.after == f"{shop.MATTERS[0]}\n\n- {shop.MATTERS[1]}\n{shop.MATTERS[2]}"
    assert (result.verdict, result.stop_reason, result.accepted_score) == ("no_evidence", "exhausted", 1.0)
    assert result.baseline is not None
    assert result.accepted is not None
    before, after = average_usage(result.baseline), average_usage(result.accepted)
    assert before.input_tokens == 104.0
    assert after.input_tokens == 39.0
    validated = [e for e in watcher.events if e.type == "evaluation_started" and e.phase == "validation"]
    assert len(validated) == 1
    screened = [e for e in watcher.events if e.type == "evaluation_started" and e.phase == "rerun"]
    assert len(screened) < 2 * 11  # fewer than one whole pass for each sentence
    assert result.rounds[0].patches.patches[0].reason == "5 of 8 pieces do not help"


@pytest.mark.slow
async def test_noise_costs_no_sentence_that_matters() -> None:
    result = await shop.engine(PromptShortening(), shop.agent(), large=0.97).run(request())
    [change] = result.changes
    assert all(sentence in str(change.after) for sentence in shop.MATTERS)
    assert len(str(change.after)) < len(shop.VERBOSE) / 2


@pytest.mark.slow
async def test_examples_that_do_not_help_are_left_out() -> None:
    examples = tuple(
        Message(role, f"{role} says something of no importance, number {at}")
        for at in range(3)
        for role in ("user", "assistant")
    )
    built = shop.agent(instruction=" ".join(shop.MATTERS), examples=examples)
    result = await shop.engine(PromptShortening(), built).run(request())
    assert [(change.surface_id, change.after) for change in result.changes] == [("clerk#examples", [])]


@pytest.mark.slow
async def test_placeholders_and_locked_parts_stay() -> None:
    useless = "The shop is old. The house {house} is blue. We sell tea. The garden is large."
    limits = Limits(locked=("old. The house {house}",))
    built = shop.agent(instruction=f"{useless} {' '.join(shop.MATTERS)}", limits=limits)
    result = await shop.engine(PromptShortening(), built).run(request())
    [change] = result.changes
    assert change.after == f"The shop is old. The house {{house}} is blue. {' '.join(shop.MATTERS)}"


@pytest.mark.slow
async def test_a_placeholder_that_occurs_twice_stays_once() -> None:
    instruction = f"The house {{house}} is blue. {' '.join(shop.MATTERS)} We live in {{house}}."
    result = await shop.engine(PromptShortening(), shop.agent(instruction=instruction)).run(request())
    [change] = result.changes
    assert str(change.after).count("{house}") == 1


@pytest.mark.slow
async def test_if_every_sentence_matters_nothing_changes_and_nothing_is_validated() -> None:
    watcher = Watcher()
    built = shop.agent(instruction=" ".join(shop.MATTERS))
    result = await shop.engine(PromptShortening(), built).run(request(), observers=[watcher])
    assert (result.verdict, result.changes) == ("no_evidence", ())
    assert (
        str(result.rounds[0].decision).count(
            "no sentence or example could be removed without a loss on the train cases"
        )
        == 1
    )
    assert not [e for e in watcher.events if e.type == "evaluation_started" and e.phase == "validation"]


@pytest.mark.slow
async def test_a_rejected_candidate_is_tried_in_halves() -> None:
    """Train forgives everything, so only validation shows which sentence matters."""

    def forgiving(case: EvalCase, run: AgentRun) -> float:
        return 1.0 if case.id.startswith("train") or "warranty" in run.output else 0.0

    built = shop.agent(instruction=f"The shop is old. We sell tea. {' '.join(shop.MATTERS)} It is here.")
    result = await shop.engine(PromptShortening(), built, scored=forgiving).run(request())
    [change] = result.changes
    assert change.after == f"{shop.MATTERS[2]} It is here."  # for train, something had to stay
    kept = [each.decision.accepted for each in result.rounds if each.decision is not None]
    assert not kept[0]
    assert len(kept) <= 7
    assert result.accepted_score == 1.0


async def test_a_text_is_never_emptied() -> None:
    watcher = Watcher()
    result = await shop.engine(PromptShortening(), shop.agent(instruction="The shop is old.")).run(
        request(), observers=[watcher]
    )
    assert result.verdict == "no_evidence"
    assert not [e for e in watcher.events if e.type == "evaluation_started" and e.phase == "rerun"]


async def test_a_surface_that_no_run_reads_costs_nothing_and_is_unchanged() -> None:
    [clerk] = shop.agent(instruction=" ".join(shop.MATTERS[:1])).nodes
    spare = ModelNode(name="spare", instruction="One thing. Another thing.", model="large")
    nowhere = Choice("clerk", lambda _view: None, {"there": "spare"})
    built = GraphAgent(name="shop", nodes=(clerk, spare), edges=(nowhere,), entry="clerk", output="clerk")
    watcher = Watcher()
    result = await shop.engine(PromptShortening(), built).run(request(), observers=[watcher])
    assert result.changes == ()
    assert not [e for e in watcher.events if e.type == "evaluation_started" and e.phase == "rerun"]


@pytest.mark.long
@pytest.mark.parametrize("large", [1.0, 0.9])
async def test_a_resumed_run_ends_like_an_uninterrupted_one(large: float) -> None:
    asked = request(train=shop.eval_set("train", 4), validation=shop.eval_set("validation", 4))
    built = shop.agent(instruction=f"The shop is old. {' '.join(shop.MATTERS)} We sell tea.")
    whole = MemoryJournal()
    expected = await shop.engine(PromptShortening(), built, large=large).run(asked, journal=whole)
    assert expected.rounds
    events = list(whole.events)
    for count in range(1, len(events), 3):
        journal = MemoryJournal()
        for event in events[:count]:
            await journal.append(event)
        assert await shop.engine(PromptShortening(), built, large=large).run(asked, journal=journal) == expected


def many_rules(count: int, needed: Sequence[int]) -> tuple[Engine, Watcher]:
    """An agent with a rule a line, where each case needs one of the rules that matter, and a model without noise."""
    text = "\n".join(f"- Rule {number} says to do something." for number in range(count))
    agent = GraphAgent(name="rules", nodes=(ModelNode(name="clerk", instruction=text, model="scripted"),))

    def answer(request: ModelRequest) -> str:
        return " ".join(str(number) for number in needed if f"Rule {number} " in request.messages[0].content)

    def right(case: EvalCase, run: AgentRun) -> float:
        wanted = needed[int(case.id.rpartition("-")[2]) % len(needed)]
        return float(str(wanted) in run.output.split())

    gateway = Gateway(models={"scripted": ScriptedModel(answer)})
    evaluator = Evaluator([FunctionMetric(name="right", function=right)], gateway=gateway)
    return Engine(agent, evaluator, search=PromptShortening()), Watcher()


@pytest.mark.slow
async def test_the_search_takes_fewer_runs_than_one_trial_per_sentence() -> None:
    engine, watcher = many_rules(40, needed=[3, 4, 20, 33])
    asked = request(train=shop.eval_set("train", 24), validation=shop.eval_set("validation", 20))
    result = await engine.run(asked, observers=[watcher])
    [change] = result.changes
    assert [line.split()[2] for line in str(change.after).splitlines()] == ["3", "4", "20", "33"]
    runs = sum(event.type == "case" and event.phase == "rerun" for event in watcher.events)
    assert runs < 40 * 24 / 2
    without = [e.data["cases"] for e in watcher.events if e.type == "evaluation_started" and e.phase == "rerun"]
    assert min(without) <= 6  # cases that failed before come first, and were enough


@pytest.mark.slow
async def test_without_noise_only_the_baseline_is_run_twice() -> None:
    engine, watcher = many_rules(8, needed=[1, 2, 3, 4, 5, 6])
    await engine.run(request(train=shop.eval_set("train", 24)), observers=[watcher])
    again = {e.data["profile_digest"] for e in watcher.events if e.type == "evaluation_started" and e.phase == "rerun"}
    rows = [e.payload.row for e in watcher.events if isinstance(e.payload, CaseFinished) and e.phase == "rerun"]
    repeats = [row.repeat for row in rows]
    assert len(again) > 1
    assert sum(repeat == 1 for repeat in repeats) in (0, 24)
