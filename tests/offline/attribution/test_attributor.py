from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from promptiter.agents.edges import Choice, Edge, Join
from promptiter.agents.graph import GraphAgent
from promptiter.agents.nodes import ModelNode
from promptiter.backprop import backpropagate, extract_losses, judge_traces
from promptiter.evaluation.metrics.json_match import JsonCriterion, compare_json
from promptiter.evaluation.metrics.text_match import find_word_differences
from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.attributor import EvidenceAttributor
from promptiter.stages.contracts import AttributeRequest, BackwardResult
from promptiter.structure import StructureEdge, Surface
from tests.offline.attribution.cases import (
    CARRY,
    EXACT,
    JSON,
    LAZY,
    attribute,
    blamed,
    blamed_in_runs,
    chain,
    gradients,
    model_chain,
    peer,
    request,
    step,
)
from tests.worlds.rules_world import SCENARIOS, RulesScenario, make_rules_world
from traces import Edge as DataEdge
from traces import Failure, Step, ToolCall, Usage

RECORD = "order id: A-17\ndate: 2026-03-02"
NAMES = [f"n{number}" for number in range(1, 11)]


# One value, one way back


async def test_the_step_that_received_a_value_and_drops_it_is_blamed() -> None:
    [gradient] = await gradients(request(chain(RECORD, RECORD, "a refund", "a refund", "a refund"), "A-17"))
    assert gradient.surface_id == "n2#instruction"
    assert gradient.step_id == "n2"
    assert gradient.text == (
        "This step received values that later steps need, and its output lacks them: the order id 'A-17'."
    )
    assert (gradient.severity, gradient.category, gradient.confidence) == ("P0", "response", 0.9)
    assert gradient.case_id == "c1"
    assert [(finding.kind, finding.expected) for finding in gradient.findings] == [("missing", "A-17")]


async def test_results_are_in_the_order_of_the_trace_with_packets() -> None:
    results = await attribute(request(chain(RECORD, RECORD, "a refund", "a refund", "a refund"), "A-17"))
    assert [result.step_id for result in results] == ["n2", "n3", "n4"]
    edges = [(packet.source, packet.target) for result in results for packet in result.packets]
    assert edges == [("n3", "n2"), ("n4", "n3")]
    assert "the order id 'A-17'" in results[-1].packets[0].text


async def test_values_that_were_lost_at_different_steps_blame_both() -> None:
    steps = chain(RECORD, RECORD, "date: 2026-03-02", "date: 2026-03-02", "nothing")
    texts = {gradient.surface_id: gradient.text for gradient in await gradients(request(steps, "A-17, 2026-03-02"))}
    assert set(texts) == {"n2#instruction", "n4#instruction"}
    assert "'A-17'" in texts["n2#instruction"]
    assert "'2026-03-02'" in texts["n4#instruction"]


async def test_of_two_faults_in_a_row_only_the_first_is_blamed() -> None:
    steps = chain(RECORD, "date: 2026-03-02", "a refund", "a refund")
    assert await blamed(request(steps, "A-17")) == ["n1#instruction"]


async def test_a_value_from_a_tool_is_lost_by_the_step_that_called_it() -> None:
    call = ToolCall(name="look_up", arguments={"id": 3}, result={"order": {"id": "A-17"}})
    steps = [
        step("a", "hello", "hello"),
        step("b", "hello", "none", after="a", tool_calls=(call,)),
        step("c", "none", "none", after="b"),
    ]
    assert await blamed(request(steps, "A-17")) == ["b#instruction"]


async def test_a_long_reference_is_split_into_values() -> None:
    steps = chain(
        "order A-17 of 2026-03-02", "order A-17 of 2026-03-02", "order of 2026-03-02", "It was March 2, 2026."
    )
    texts = {
        gradient.surface_id: gradient.text for gradient in await gradients(request(steps, "order A-17, 2026-03-02"))
    }
    assert "'A-17'" in texts["n2#instruction"]
    assert "write '2026-03-02', not 'March 2, 2026'" in texts["n3#instruction"]


async def test_a_json_reference_names_its_fields() -> None:
    findings = [Finding(kind="missing", expected="Berlin", where="$.city", predicate="json")]
    steps = chain("We moved to Berlin", "We moved", '{"order": "A-17"}')
    [gradient] = await gradients(request(steps, '{"city": "Berlin"}', findings=findings))
    assert gradient.surface_id == "n1#instruction"
    assert "the city 'Berlin'" in gradient.text


async def test_text_that_no_step_has_as_a_whole_is_followed_in_its_parts() -> None:
    findings = [Finding(kind="missing", expected="Lovelace, Ada", where="$.name", predicate="json")]
    steps = chain("I am Ada Lovelace", "a customer", "{}")
    [gradient] = await gradients(request(steps, '{"name": "Lovelace, Ada"}', findings=findings))
    assert gradient.surface_id == "n1#instruction"
    assert gradient.confidence == 0.5


async def test_words_count_only_if_no_stronger_value_was_lost() -> None:
    steps = chain(f"broken kettle\n{RECORD}", RECORD, "a refund")
    assert await blamed(request(steps, "kettle A-17")) == ["n2#instruction"]
    assert await blamed(request(steps[:1], "kettle A-17 2026-03-02")) == ["n1#instruction"]


async def test_a_wrong_value_is_blamed_on_the_step_that_introduced_it() -> None:
    findings = [Finding(kind="wrong", expected=72, actual=74, predicate="number")]
    steps = chain("How much is 12 + 60?", "12 + 60", "It is 74.", "The answer is 74.")
    [gradient] = await gradients(request(steps, "72", findings=findings))
    assert gradient.surface_id == "n2#instruction"
    assert "'74' instead of '72'" in gradient.text


async def test_a_word_in_place_of_another_is_followed() -> None:
    steps = chain("Capital of Norway?", "Norway", "It is Bergen.", "The capital is Bergen.")
    assert await blamed(request(steps, "The capital is Oslo.")) == ["n2#instruction"]


# Values that are elsewhere in the answer, or in every reference


@pytest.mark.parametrize(
    "written",
    ["c7 / left={} / right={}", "c7 | left: {} | right: {}", '{{"left": "{}", "right": "{}"}}', "left_{} right_{}"],
)
@pytest.mark.parametrize("with_peers", [False, True])
async def test_a_word_that_a_step_replaced_is_followed_by_its_name(written: str, with_peers: bool) -> None:
    good, bad = written.format("good", "good"), written.format("good", "bad")
    steps = chain("c7, please", good, good, bad, bad)
    peers = [peer(steps, passed=False, expected=good, case_id=f"p{at}") for at in range(4)] if with_peers else []
    assert await blamed(request(steps, good, peers=peers)) == ["n3#instruction"]
    never = chain("c7, please", "hold on", bad, bad)
    assert await blamed(request(never, good, peers=peers)) == ["n2#instruction"]


async def test_of_two_branches_the_one_that_replaced_the_word_is_chosen() -> None:
    both = "left=good / right=good"
    steps = [
        step("intake", "please", both),
        step("left", both, "left=good", after="intake"),
        step("right", both, "right=bad", after="intake"),
        step("join", "left=good\nright=bad", "left=good / right=bad", after="left right"),
    ]
    assert await blamed(request(steps, both)) == ["right#instruction"]


async def test_two_words_that_different_steps_replaced_blame_both() -> None:
    steps = chain("x", "left=bad / right=good", "left=bad / right=good", "left=bad / right=bad")
    assert await blamed(request(steps, "left=good / right=good")) == ["n1#instruction", "n3#instruction"]


async def test_a_shared_end_that_a_lost_word_breaks_is_not_a_matter_of_format() -> None:
    """All references end alike, and no run does, but the last step only passes on what it was given."""
    steps = chain("c7, please", "c7 / all=good", "c7 / all=bad", "c7 / all=bad")
    peers = [peer(steps, passed=False, expected=f"p{at} / all=good", case_id=f"p{at}") for at in range(4)]
    assert await blamed(request(steps, "c7 / all=good", peers=peers)) == ["n2#instruction"]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_the_faulty_node_of_the_rules_world_is_blamed_and_no_other(scenario: RulesScenario) -> None:
    world = make_rules_world(scenario, seed=1)
    evaluator = world.build_evaluator()
    evaluation = await evaluator.evaluate(world.agent, world.train)
    losses = await extract_losses(evaluation, world.train, evaluator.trace_store.get)
    traces = judge_traces(evaluation, world.train, evaluator.trace_store.get, losses=losses)
    found = await backpropagate(traces, structure=world.agent.describe(), backwarder=EvidenceAttributor())
    blamed = {gradient.surface_id for gradient in found.gradients}
    assert blamed
    assert blamed <= world.faulty
    assert blamed == world.faulty or scenario in ("masked", "rare-masked")  # one fault hides the other


async def test_a_value_that_a_function_looked_up_is_not_an_invention() -> None:
    findings = [Finding(kind="wrong", expected=72, actual=74, predicate="number")]
    steps = chain("How much?", "how much", "74", "74")
    asked = request(steps, "72", findings=findings, targets=["n1#instruction", "n3#instruction"])
    [gradient] = await gradients(asked)
    assert (gradient.surface_id, gradient.category) == ("n3#instruction", "knowledge")


def lookup(asked: str, *, found: str = "no such order") -> list[Step]:
    return [
        step("planner", "What does A-17 cost?", asked),
        step("retrieve", asked, found, after="planner", surface_reads={}),
        step("finalize", found, "I do not know.", after="retrieve"),
    ]


async def test_a_step_that_keeps_the_key_from_a_lookup_is_blamed() -> None:
    [gradient] = await gradients(request(lookup("What does it cost?"), "29"))
    assert gradient.surface_id == "planner#instruction"
    assert "'retrieve' got no value to look it up by" in gradient.text
    assert [finding.expected for finding in gradient.findings] == ["A-17"]


async def test_a_lookup_that_had_its_key_is_not_a_reason_for_blame() -> None:
    assert await blamed(request(lookup("What does A-17 cost?"), "29")) == ["finalize#instruction"]


async def test_a_value_that_no_step_had_is_knowledge_with_low_confidence() -> None:
    [gradient] = await gradients(request(chain("Capital of Norway?", "Norway", "I am not sure about it"), "Oslo"))
    assert (gradient.surface_id, gradient.category, gradient.confidence) == ("n2#instruction", "knowledge", 0.2)


async def test_a_missing_value_is_blamed_on_a_step_with_an_unused_tool() -> None:
    tool = Surface(node_id="n1", type="tool", part="search", value="Searches.")
    steps = chain("Capital of Norway?", "Norway", "I am not sure about it")
    [gradient] = await gradients(request(steps, "Oslo", surfaces=[tool]))
    assert (gradient.step_id, gradient.category) == ("n1", "wrong_tool")


async def test_words_that_a_judge_finds_missing_are_located() -> None:
    findings = [Finding(kind="violated", predicate="rubric:1", expected="names the order", actual="it does not")]
    assert await blamed(request(chain(RECORD, "a refund", "a refund"), "It is A-17", findings=findings)) == [
        "n1#instruction"
    ]
    rouge = find_word_differences("a refund", "kettle broken A-17")
    assert await blamed(request(chain(RECORD, "a refund", "a refund"), "broken A-17", findings=rouge)) == [
        "n1#instruction"
    ]


async def test_without_findings_and_reference_the_step_of_the_loss_has_low_confidence() -> None:
    [gradient] = await gradients(request(chain(RECORD, "a", "b"), None, findings=[]))
    assert (gradient.surface_id, gradient.confidence) == ("n2#instruction", 0.3)


async def test_a_loss_on_an_inner_node_starts_there() -> None:
    steps = chain(RECORD, "a refund", f"found {RECORD}", "a refund")
    assert await blamed(request(steps, "A-17", at="n1")) == ["n1#instruction"]


# FormatRule


@pytest.mark.parametrize(
    "findings",
    [
        [Finding(kind="violated", expected="no JSON", actual="x", predicate="valid_json")],
        [Finding(kind="violated", expected=5, actual=9, predicate="max_length")],
        [Finding(kind="violated", expected=500, actual=9, predicate="min_length")],
        [Finding(kind="violated", expected="^Answer:", actual="x", predicate="regex")],
        [Finding(kind="unexpected", actual="angry", where="$.mood", predicate="json")],
        [Finding(kind="violated", expected={"required": ["a"]}, actual={}, where="$", predicate="json_schema")],
    ],
)
async def test_a_format_is_blamed_on_the_last_step(findings: list[Finding]) -> None:
    [gradient] = await gradients(request(chain("tell me", "it is so", "it is so!"), None, findings=findings))
    assert (gradient.surface_id, gradient.category) == ("n2#instruction", "format")
    assert gradient.findings == tuple(findings)


async def test_an_invalid_pattern_is_still_a_format_rule() -> None:
    findings = [Finding(kind="violated", expected="(", actual="x", predicate="regex")]
    assert await blamed(request(chain("a", "b", "c"), None, findings=findings)) == ["n2#instruction"]


async def test_an_answer_with_extra_fields_breaks_a_format_rule() -> None:
    [gradient] = await gradients(request(chain(RECORD, RECORD, "It is A-17 of 2026-03-02."), "A-17"))
    assert (gradient.surface_id, gradient.category) == ("n2#instruction", "format")
    assert "give only the answer" in gradient.text


async def test_a_format_is_followed_through_steps_that_must_copy() -> None:
    steps = chain(RECORD, RECORD, "It is A-17.", "It is A-17.", "It is A-17.")
    copying = {"n3": "Repeat the input verbatim.", "n4": "Hand it on unchanged."}
    assert await blamed(request(steps, "A-17", instructions=copying)) == ["n2#instruction"]
    assert await blamed(request(steps, "A-17")) == ["n4#instruction"]


async def test_a_date_is_followed_to_the_step_that_rewrote_it_through_steps_that_must_keep_it() -> None:
    steps = chain(
        "due: 2026-03-02", "due: 2026-03-02", "due: March 2, 2026", "due: March 2, 2026", '{"due": "March 2, 2026"}'
    )
    keeping = dict.fromkeys(("n1", "n3", "n4"), "Pass on the date. Leave the values unchanged.")
    findings = [Finding(kind="wrong", expected="2026-03-02", actual="March 2, 2026", where="$.due", predicate="json")]
    asked = request(
        steps, '{"due": "2026-03-02"}', findings=findings, instructions=keeping | {"n2": "Pass on the date."}
    )
    assert await blamed(asked) == ["n2#instruction"]


async def test_a_rewritten_value_is_found_after_the_loss_of_another() -> None:
    steps = chain(RECORD, "date: 2026-03-02", '{"date": "March 2, 2026"}')
    findings = [
        Finding(kind="missing", expected="A-17", where="$.order_id", predicate="json"),
        Finding(kind="wrong", expected="2026-03-02", actual="March 2, 2026", where="$.date", predicate="json"),
    ]
    asked = request(steps, '{"order_id": "A-17", "date": "2026-03-02"}', findings=findings)
    assert await blamed(asked) == ["n1#instruction", "n2#instruction"]


async def test_a_format_is_followed_through_a_step_without_surfaces() -> None:
    steps = chain(RECORD, "It is A-17.", "It is A-17.")
    assert await blamed(request(steps, "A-17", targets=["n1#instruction"])) == ["n1#instruction"]


async def test_a_format_after_a_loss_is_unobserved() -> None:
    steps = chain(RECORD, "a refund", "a refund please")
    findings = [
        Finding(kind="wrong", expected="A-17", actual="a refund please", predicate="exact"),
        Finding(kind="violated", expected=5, actual=15, predicate="max_length"),
    ]
    assert await blamed(request(steps, "A-17", findings=findings)) == ["n1#instruction"]


async def test_a_format_that_needs_no_content_is_observed_after_a_loss() -> None:
    steps = chain(RECORD, "date: 2026-03-02", "on 2026-03-02")
    expected = '{"order_id": "A-17", "date": "2026-03-02"}'
    assert await blamed(request(steps, expected)) == ["n1#instruction", "n2#instruction"]
    keeps = peer(chain("x", "y", '{"order_id": null}'), passed=False)
    assert await blamed(request(steps, expected, peers=[keeps])) == ["n1#instruction"]


async def test_a_format_is_blamed_on_the_node_that_introduces_it_in_passing_runs() -> None:
    steps = chain("x", "x", "prose", "prose ")
    passing = [peer(chain("y", "y", '{"a": 1}', '{"a": 1}'), case_id=f"p{number}") for number in range(3)]
    findings = [Finding(kind="violated", expected="", actual="prose ", predicate="valid_json")]
    assert await blamed(request(steps, None, findings=findings)) == ["n3#instruction"]
    assert await blamed(request(steps, None, findings=findings, peers=passing)) == ["n2#instruction"]


async def test_what_all_references_share_is_format_and_not_searched_for() -> None:
    steps = chain("The answer to A-17", "A-17", "A-17")
    peers = [peer(chain("x", "y", "z"), passed=False, expected=f"Answer: B-{at}", case_id=f"p{at}") for at in range(4)]
    assert await blamed(request(steps, "Answer: A-17")) == ["n1#instruction"]
    assert await blamed(request(steps, "Answer: A-17", peers=peers)) == ["n2#instruction"]


# Several edges


def branches(
    *, facts: str = "order id: A-17", mood: str = "angry", facts2: str = "none", end: str = "angry"
) -> list[Step]:
    both = f"{RECORD}\nmood: angry"
    return [
        step("intake", both, both),
        step("facts", both, facts, after="intake"),
        step("facts2", facts, facts2, after="facts"),
        step("tone", both, mood, after="intake"),
        step("tone2", mood, mood, after="tone"),
        step("join", f"{facts2}\n{mood}", end, after="facts2 tone2"),
    ]


async def test_of_two_losing_branches_the_later_step_is_chosen() -> None:
    assert await blamed(request(branches(), "A-17")) == ["facts2#instruction"]


async def test_the_branch_whose_instructions_name_the_field_is_chosen() -> None:
    steps = branches(facts="none")
    asked = request(steps, "A-17", instructions={"facts2": "Keep the order id.", "tone2": "Tell the mood."})
    assert await blamed(asked) == ["facts#instruction"]
    longer = [
        *branches(facts="none", mood="angry about A-17")[:4],
        step("tone2", "angry about A-17", "angry", after="tone"),
        step("join", "none\nangry", "angry", after="facts2 tone2"),
    ]
    asked = request(longer, "A-17", instructions={"facts2": "Keep the order id.", "tone2": "Tell the mood."})
    assert await blamed(asked) == ["facts#instruction"]


async def test_a_branch_that_passes_on_something_else_that_is_needed_is_not_chosen() -> None:
    steps = branches(facts="none", end="angry")
    assert await blamed(request(steps, "A-17 angry")) == ["facts#instruction"]


async def test_a_node_that_shows_such_values_in_passing_runs_is_chosen() -> None:
    steps = branches(facts="none", facts2="none")
    passing = peer(branches(facts="order id: B-04", facts2="B-04", end="B-04"))
    asked = request(steps, "A-17", peers=[passing], instructions={"tone2": "Never tell the order id."})
    assert await blamed(asked) == ["facts#instruction"]


async def test_of_branches_that_are_equally_likely_one_is_blamed() -> None:
    found = await gradients(request(branches(facts="none"), "A-17"))
    assert [(each.surface_id, each.confidence) for each in found] == [("facts#instruction", 0.9)]


async def test_a_branch_without_editable_surfaces_is_not_chosen() -> None:
    asked = request(branches(facts="none"), "A-17", targets=["facts#instruction", "join#instruction"])
    assert await blamed(asked) == ["facts#instruction"]


async def test_in_a_loop_the_visit_whose_loss_reaches_the_end_is_blamed() -> None:
    steps = [
        step("planner", RECORD, RECORD),
        step("writer", RECORD, "a refund", after="planner"),
        step("planner~2", f"a refund\n{RECORD}", RECORD, after="writer"),
        step("writer~2", RECORD, "a refund", after="planner~2"),
        step("end", "a refund", "a refund", after="writer~2"),
    ]
    results = await attribute(request(steps, "A-17"))
    assert [result.step_id for result in results] == ["writer~2", "end"]
    assert results[0].gradients[0].surface_id == "writer#instruction"


async def test_in_a_loop_blame_follows_the_value_through_all_visits() -> None:
    steps = [
        step("planner", RECORD, "a refund"),
        step("writer", "a refund", "a refund", after="planner"),
        step("planner~2", "a refund", "a refund", after="writer"),
        step("writer~2", "a refund", "a refund", after="planner~2"),
    ]
    [gradient] = await gradients(request(steps, "A-17"))
    assert gradient.step_id == "planner"


async def test_a_step_that_also_sees_the_request_lost_the_value_itself() -> None:
    steps = [step("a", RECORD, "a refund"), step("b", f"a refund\nrequest: {RECORD}", "a refund", after="a")]
    assert await blamed(request(steps, "A-17")) == ["b#instruction"]


async def test_such_a_step_is_not_blamed_if_its_predecessor_has_the_value_in_passing_runs() -> None:
    steps = [step("a", RECORD, "a refund"), step("b", f"a refund\nrequest: {RECORD}", "a refund", after="a")]
    passing = peer([step("a", "B-04", "B-04"), step("b", "B-04\nrequest: B-04", "B-04", after="a")])
    assert await blamed(request(steps, "A-17", peers=[passing])) == ["a#instruction"]
    describe_value = {"a": "Extract the order id.", "b": "Be polite."}
    assert await blamed(request(steps, "A-17", instructions=describe_value)) == ["a#instruction"]


# Data and control


def gated(note: str, gate: str, answer: str, *, said: str = RECORD, is_read: bool = False) -> list[Step]:
    """A note, a gate that reads the request, and an answer that runs after the gate and reads the note."""
    kinds = (DataEdge(source="gate", kind="data" if is_read else "control"), DataEdge(source="note", kind="data"))
    return [
        step("note", said, note),
        step("gate", said, gate, after="note", edges=(DataEdge(source="note", kind="control"),)),
        step("answer", note, answer, after="gate note", edges=kinds),
    ]


async def test_a_value_is_lost_by_a_step_that_was_read_not_by_one_that_only_ran_before() -> None:
    results = await attribute(request(gated("a refund", "yes", "a refund"), "A-17"))
    assert [(result.step_id, len(result.gradients)) for result in results] == [("note", 1), ("answer", 0)]
    assert [packet.target for result in results for packet in result.packets] == ["note"]
    both = {"note": "Be brief.", "gate": "Extract the order id."}
    assert await blamed(request(gated("a refund", "yes", "a refund", is_read=True), "A-17", instructions=both)) == [
        "gate#instruction"
    ]


async def test_a_wrong_value_is_introduced_by_a_step_that_was_read() -> None:
    wrong = [Finding(kind="wrong", expected=72, actual=74, predicate="number")]
    steps = gated("12 + 60", "74", "It is 74.", said="How much is 12 + 60?")
    assert await blamed(request(steps, "72", findings=wrong)) == ["answer#instruction"]
    steps = gated("74", "74", "It is 74.", said="How much is 12 + 60?")
    assert await blamed(request(steps, "72", findings=wrong)) == ["note#instruction"]


async def test_a_format_is_copied_from_a_step_that_was_read() -> None:
    findings = [Finding(kind="violated", expected=3, actual=12, predicate="max_length")]
    copying = {"answer": "Copy the input unchanged."}
    steps = gated("far too long", "far too long", "far too long", said="hi")
    assert await blamed(request(steps, None, findings=findings, instructions=copying)) == ["note#instruction"]


async def test_a_step_without_surfaces_passes_its_blame_to_a_step_that_it_read() -> None:
    failed = request(gated("a", "b", ""), None, findings=[], category="error")
    assert await blamed(replace(failed, targets=frozenset({"note#instruction", "gate#instruction"}))) == [
        "note#instruction"
    ]
    assert await blamed(replace(failed, targets=frozenset({"gate#instruction"}))) == []


async def test_a_wrong_value_that_chose_the_route_is_blamed_on_the_step_that_introduced_it() -> None:
    findings = [Finding(kind="wrong", expected="refund", actual="repair")]
    triggers = (DataEdge(source="router", kind="control"),)
    steps = [
        step("router", "money back", "repair"),
        step("fix", "money back", "repair: ok", after="router", edges=triggers),
    ]
    assert await blamed(request(steps, "refund", findings=findings)) == ["fix#instruction"]
    routes = [StructureEdge(source="router", target="fix", condition="repair")]
    assert await blamed(request(steps, "refund", findings=findings, edges=routes)) == ["router#instruction"]


async def test_a_step_that_reads_nothing_passes_its_blame_to_the_one_that_chose_its_route() -> None:
    triggers = (DataEdge(source="router", kind="control"),)
    steps = [step("router", "hi", "x"), step("fixed", "", "Bye.", after="router", edges=triggers, surface_reads={})]
    routes = [StructureEdge(source="router", target="fixed", condition="x")]
    assert await blamed(request(steps, "Welcome!", edges=routes)) == ["router#instruction"]
    assert await blamed(request(steps, "Welcome!")) == []


# Other runs


async def test_a_value_that_no_step_had_is_blamed_on_the_node_that_introduces_it_in_passing_runs() -> None:
    steps = chain("my kettle", "kettle", "no such order", "sorry")
    passing = [
        peer(chain("my lamp", "lamp", f"order B-{number}", f"It is B-{number}"), case_id=f"p{number}")
        for number in range(10, 13)
    ]
    [gradient] = await gradients(request(steps, "It is A-17", peers=passing))
    assert gradient.surface_id == "n2#instruction"
    assert "In passing runs" in gradient.text


async def test_an_unusual_route_is_blamed_on_the_step_before_it() -> None:
    def routed(to: str, text: str) -> list[Step]:
        return [step("router", "help", to), step(to, "help", text, after="router")]

    passing = [peer(routed("billing", "all is paid"))]
    [gradient] = await gradients(request(routed("sales", "buy it"), "everything paid", peers=passing))
    assert (gradient.step_id, gradient.category) == ("router", "route")
    assert "'sales' instead of 'billing'" in gradient.text


async def test_a_format_rule_is_stronger_evidence_than_the_route() -> None:
    here = [step("a", "x", "far too long"), step("b", "x", "far too long", after="a")]
    findings = [Finding(kind="violated", expected=3, actual=12, predicate="max_length")]
    passing = peer([step("a", "x", "no"), step("c", "x", "no", after="a")])
    assert {each.category for each in await gradients(request(here, None, findings=findings, peers=[passing]))} == {
        "format"
    }


async def test_a_step_that_wraps_others_passes_its_blame_to_them() -> None:
    steps = [
        step("inner", RECORD, RECORD),
        step("inner2", RECORD, "a refund", after="inner"),
        step("agent", RECORD, "a refund", after="inner2"),
        step("end", "a refund", "a refund", after="agent"),
    ]
    targets = ["inner#instruction", "inner2#instruction", "end#instruction"]
    assert await blamed(request(steps, "A-17", targets=targets)) == ["inner2#instruction"]


async def test_of_many_words_the_step_that_lost_most_is_blamed() -> None:
    said = "the kettle leaks water since monday"
    steps = chain(said, "the kettle leaks water", "something is broken", "something is broken")
    findings = [Finding(kind="wrong", expected="kettle leaks water since monday", actual="something is broken")]
    assert await blamed(request(steps, "kettle leaks water since monday", findings=findings)) == ["n2#instruction"]


# What may be blamed


async def test_a_step_without_surfaces_passes_its_blame_to_the_nearest_before_it() -> None:
    steps = chain(RECORD, RECORD, "a refund", "a refund")
    [gradient] = await gradients(request(steps, "A-17", targets=["n1#instruction", "n3#instruction"]))
    assert (gradient.surface_id, gradient.confidence) == ("n1#instruction", 0.45)
    assert "step 'n2'" in gradient.text


async def test_nothing_is_blamed_if_nothing_may_change() -> None:
    results = await attribute(request(chain(RECORD, RECORD, "a refund"), "A-17", targets=[]))
    assert [result.step_id for result in results] == ["n2"]
    assert not any(result.gradients for result in results)


async def test_only_surfaces_that_the_step_read_are_blamed() -> None:
    skill = Surface(node_id="n1", type="skill", part="orders", value="")
    model = Surface(node_id="n1", type="model", value="big")
    steps = [step("n1", RECORD, "a refund", surface_reads={"n1#skill.orders": "x", "n1#model": "y"})]
    assert await blamed(request(steps, "A-17", surfaces=[skill, model])) == ["n1#skill.orders"]
    assert await blamed(request(steps, "A-17", surfaces=[skill, model], targets=["n1#model"])) == ["n1#model"]
    assert await blamed(request(steps, "A-17", surfaces=[skill, model], targets=["n1#instruction"])) == []


async def test_a_failed_step_is_blamed_for_its_error() -> None:
    steps = [step("a", "x", "y"), step("b", "y", "", after="a", error=Failure("ValueError", "no JSON"))]
    [gradient] = await gradients(request(steps, "A-17", findings=[], category="error"))
    assert (gradient.surface_id, gradient.category) == ("b#instruction", "error")
    assert "no JSON" in gradient.text


async def test_the_costliest_step_is_blamed_for_a_run_that_cost_too_much() -> None:
    steps = [
        step("a", "x", "y", usage=Usage(cost_usd=0.5), start_ns=1, end_ns=2),
        step("b", "y", "z", after="a", usage=Usage(cost_usd=0.1), start_ns=2, end_ns=9),
    ]
    cost = Finding(kind="violated", expected=0.2, actual=0.6, predicate="max_cost_usd")
    time_ = Finding(kind="violated", expected=0.2, actual=0.6, predicate="max_duration_s")
    assert await blamed(request(steps, None, findings=[cost])) == ["a#instruction"]
    assert await blamed(request(steps, None, findings=[time_])) == ["b#instruction"]


# Whole agents of ten model nodes, simulated


@pytest.mark.parametrize("fault", ["n1", "n4", "n9", "n10"])
async def test_one_fault_in_a_chain_of_ten_models(fault: str) -> None:
    good = dict.fromkeys(NAMES[:-1], CARRY) | {"n10": "Return JSON with the keys order_id and city."}
    counts = await blamed_in_runs(model_chain(good), model_chain(good | {fault: LAZY}), JSON)
    assert counts == {f"{fault}#instruction": 5}


async def test_two_visible_faults_in_a_chain_are_both_blamed_at_once() -> None:
    good = dict.fromkeys(NAMES[:-1], CARRY) | {"n10": "Return JSON with the keys order_id and city."}
    bad = good | {"n3": "Include the city.", "n8": "Include the order id."}
    counts = await blamed_in_runs(model_chain(good), model_chain(bad), JSON)
    assert counts == {"n3#instruction": 5, "n8#instruction": 5}


async def test_a_lost_field_and_a_wrong_format_are_both_blamed_at_once() -> None:
    good = dict.fromkeys(NAMES[:-1], CARRY) | {"n10": "Begin with 'Answer:'. Include the city and the order id."}
    bad = good | {"n3": "Include the city.", "n10": "Include the city and the order id."}
    counts = await blamed_in_runs(model_chain(good), model_chain(bad), EXACT)
    assert counts == {"n3#instruction": 5, "n10#instruction": 5}


async def test_a_masked_fault_is_not_blamed() -> None:
    good = dict.fromkeys(NAMES[:-1], CARRY) | {"n10": "Extract only the order id."}
    counts = await blamed_in_runs(model_chain(good), model_chain(good | {"n3": LAZY, "n7": LAZY}), EXACT)
    assert counts == {"n3#instruction": 5}


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        ("Extract only the order id.", "Include the order id."),
        ("Include the date. Write dates as YYYY-MM-DD.", "Include the date."),
        ("Include the city. Write everything in upper case.", "Include the city."),
        ("Include the amount. Write amounts with two decimals.", "Include the amount."),
    ],
)
async def test_a_wrong_format_at_the_end_of_a_chain(good: str, bad: str) -> None:
    agents = [model_chain(dict.fromkeys(NAMES[:-1], CARRY) | {"n10": last}) for last in (good, bad)]
    counts = await blamed_in_runs(agents[0], agents[1], EXACT)
    assert set(counts) == {"n10#instruction"}


def joined(instructions: dict[str, str]) -> GraphAgent:
    names = ("intake", "f1", "f2", "f3", "t1", "t2", "t3", "merge", "write", "final")
    chains = (("intake", "f1"), ("f1", "f2"), ("f2", "f3"), ("intake", "t1"), ("t1", "t2"), ("t2", "t3"))
    return GraphAgent(
        name="joined",
        nodes=tuple(ModelNode(name=name, instruction=instructions.get(name, CARRY)) for name in names),
        edges=(
            *(Edge(source, target) for source, target in chains),
            Join(("f3", "t3"), "merge"),
            Edge("merge", "write"),
            Edge("write", "final"),
        ),
    )


@pytest.mark.parametrize("fault", ["f1", "f2", "f3", "t1", "t3", "merge"])
@pytest.mark.parametrize("t1", ["Include the city.", CARRY])
async def test_a_join_with_one_bad_branch(fault: str, t1: str) -> None:
    good = {
        **dict.fromkeys(("f1", "f2", "f3"), "Include the order id."),
        "t1": t1,
        "t2": t1,
        "t3": "Include the city.",
        "final": "Return JSON with the keys order_id and city.",
    }
    counts = await blamed_in_runs(joined(good), joined(good | {fault: LAZY}), JSON)
    assert counts == {f"{fault}#instruction": 5}


def looping(instructions: dict[str, str]) -> GraphAgent:
    """A loop: planner, retrieve and compose, reviewer, rewrite once and do it all again, finalize."""
    names = ("intake", "planner", "retrieve", "check", "compose", "reviewer", "rewrite", "polish", "sign", "finalize")
    return GraphAgent(
        name="looping",
        nodes=tuple(ModelNode(name=name, instruction=instructions.get(name, CARRY)) for name in names),
        edges=(
            Edge("intake", "planner"),
            Edge("planner", "retrieve"),
            Edge("planner", "compose"),
            Edge("retrieve", "check"),
            Join(("check", "compose"), "reviewer"),
            Choice("reviewer", lambda view: "end" if "rewrite" in view.outputs else "again", ROUTES),
            Edge("rewrite", "planner"),
            Edge("polish", "sign"),
            Edge("sign", "finalize"),
        ),
    )


ROUTES = {"again": "rewrite", "end": "polish"}


@pytest.mark.parametrize("fault", ["intake", "planner", "check", "compose", "reviewer", "rewrite", "sign", "finalize"])
async def test_one_fault_in_a_loop(fault: str) -> None:
    good = {
        "retrieve": "Include the city.",
        "check": "Include the city.",
        "compose": "Include the order id.",
        "finalize": "Return JSON with the keys order_id and city.",
    }
    counts = await blamed_in_runs(looping(good), looping(good | {fault: LAZY}), JSON)
    assert counts == {f"{fault}#instruction": 5}


# Any graph, and large ones


@st.composite
def dropped_once(draw: st.DrawFn) -> tuple[list[Step], str]:
    """A DAG whose steps pass on a token, except for one that all paths go through."""
    before, behind = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    dropping = f"s{before}"
    steps: list[Step] = []
    outputs: dict[str, str] = {}
    for at in range(before + behind + 1):
        name = f"s{at}"
        earlier = [f"s{number}" for number in range(before if at > before else 0, at)]
        if at == before:
            followed = {source for each in steps for source in each.predecessors}
            sources = [each.id for each in steps if each.id not in followed]
        else:
            sources = draw(st.lists(st.sampled_from(earlier), unique=True, max_size=3)) if earlier else []
            sources = sources or ([dropping] if at > before else [])
        given = "\n".join(outputs[source] for source in sources) or "Please look after TOKEN-7."
        outputs[name] = f"work of {name}" + (" with TOKEN-7" if "TOKEN-7" in given and name != dropping else "")
        steps.append(step(name, given, outputs[name], after=" ".join(sources)))
    followed = {source for each in steps for source in each.predecessors}
    ends = [each.id for each in steps if each.id not in followed]
    steps.append(step("end", "\n".join(outputs[each] for each in ends), "done", after=" ".join(ends)))
    return steps, dropping


@pytest.mark.slow
@given(dropped_once())
@settings(max_examples=60, deadline=None)
def test_in_any_graph_exactly_the_step_that_drops_a_value_is_blamed(drawn: tuple[list[Step], str]) -> None:
    steps, dropping = drawn
    assert asyncio.run(blamed(request(steps, "TOKEN-7"))) == [f"{dropping}#instruction"]


PREDICATES = (
    *("", "exact", "contains", "json", "number", "rouge1", "turn", "valid_json", "json_schema", "max_length"),
    *("tool_call", "tool_name", "tool_arguments", "tool_order", "tool_result", "max_cost_usd", "rubric:x", "their_own"),
)
PLACES = ("", "$", "$.a[2].b", "characters 1-2", "tool call 0", "tool call 7, arguments $.city", "expected tool call 0")
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@pytest.mark.slow
@given(
    st.lists(
        st.builds(
            Finding,
            kind=st.sampled_from(("missing", "wrong", "unexpected", "violated")),
            predicate=st.sampled_from(PREDICATES),
            where=st.sampled_from(PLACES),
            expected=ANYTHING,
            actual=ANYTHING,
        ),
        max_size=4,
    ),
    st.none() | st.text(max_size=20),
    st.lists(st.text(max_size=15), min_size=2, max_size=5),
)
@settings(max_examples=3 * settings().max_examples)
def test_whatever_a_metric_reports_blame_is_on_steps_of_the_trace(
    findings: list[Finding], expected: str | None, texts: list[str]
) -> None:
    steps = chain(*texts)
    call = ToolCall(name="search", arguments={"q": texts[0]}, result=texts[-1])
    steps[0] = replace(steps[0], tool_calls=(call,))
    asked = request(steps, expected, findings=findings, peers=[peer(chain("a", "b", "c"), expected="c")])
    results = asyncio.run(attribute(asked))
    order = [each.id for each in asked.trace.steps]
    positions = [order.index(result.step_id) for result in results]
    assert positions == sorted(set(positions))
    for result in results:
        assert all(gradient.surface_id in asked.targets for gradient in result.gradients)
        assert all(0 < gradient.confidence <= 1 and gradient.text for gradient in result.gradients)
        assert all(packet.source == result.step_id for packet in result.packets)
        assert {packet.target for packet in result.packets} <= set(
            asked.trace.steps[order.index(result.step_id)].predecessors
        )


def long_chain(count: int) -> AttributeRequest:
    """Visits of one node; the one in the middle drops twenty values."""
    values = " ".join(f"X-{number}" for number in random.Random(7).sample(range(1000, 9999), 20))
    steps: list[Step] = []
    for at in range(count):
        output = values if at < count // 2 else "nothing"
        given, after = (values, "") if at == 0 else (steps[-1].output.text or "", steps[-1].id)
        steps.append(step(f"worker~{at}", given, output, after=after))
    return request(steps, values)


@pytest.mark.slow
async def test_a_chain_of_ten_thousand_steps_takes_no_longer_than_seconds() -> None:
    asked = long_chain(10_000)
    started = time.thread_time()
    results = await attribute(asked)
    assert time.thread_time() - started < 10
    assert [result.step_id for result in results if result.gradients] == ["worker~5000"]
    assert len(results) == 5000


async def test_equal_requests_have_equal_results() -> None:
    first: list[BackwardResult] = await attribute(request(branches(facts="none"), "A-17 of 2026-03-02"))
    assert await attribute(request(branches(facts="none"), "A-17 of 2026-03-02")) == first


@pytest.mark.parametrize(
    ("filed", "answer", "expected", "blamed"),
    [
        ({"id": "A-17", "place": "lamp"}, "A-17 to lamp", "A-17 to Lyon", "filing#field.place"),
        ({"id": "A-17", "city": "lamp"}, "A-17 to lamp", "Lyon", "filing#field.city"),  # the id is not expected either
        ({"id": "A-17", "place": "lamp"}, "A-17 to lamp", "Lyon", "filing#instruction"),
        ({"id": "A-17", "place": "lamp"}, "A-17 is sent", "A-17 to Lyon", "filing#instruction"),
    ],
)
async def test_the_field_is_blamed_whose_wrong_value_a_later_step_copied(
    filed: dict[str, str], answer: str, expected: str, blamed: str
) -> None:
    steps = [
        step("filing", "(id: A-17; product: lamp; city: Lyon)", json.dumps(filed)),
        step("label", json.dumps(filed), answer, after="filing"),
    ]
    fields = [Surface(node_id="filing", type="field", part=name, value="It.") for name in filed]
    targets = ["filing#instruction", *(each.id for each in fields)]
    found = await gradients(request(steps, expected, surfaces=fields, targets=targets))
    assert {gradient.surface_id for gradient in found} == {blamed}


@pytest.mark.parametrize(
    ("description", "instruction", "blamed"),
    [
        ("Write dates as March 5, 2026.", "Say when each line was bought.", "filing#field.lines.bought"),
        ("", "Fill in the form.", "filing#field.lines.bought"),
        ("", "Say when each line was bought.", "filing#instruction"),
    ],
)
async def test_a_wrong_field_of_a_structured_output_is_blamed_on_its_description(
    description: str, instruction: str, blamed: str
) -> None:
    said, wanted = ({"lines": [{"bought": date}]} for date in ("March 5, 2026", "2026-03-05"))
    [wrong] = compare_json(said, wanted, JsonCriterion())
    assert wrong.where == "$.lines[0].bought"
    steps = [step("filing", "bought on 2026-03-05", '{"lines": [{"bought": "March 5, 2026"}]}')]
    fields = [
        Surface(node_id="filing", type="field", part="lines.bought", value=description),
        Surface(node_id="filing", type="field", part="lines", value="All lines."),
    ]
    targets = ["filing#instruction", *(each.id for each in fields)]
    instructions = {"filing": instruction}
    failed = request(steps, None, findings=[wrong], instructions=instructions, surfaces=fields, targets=targets)
    assert {gradient.surface_id for gradient in await gradients(failed)} == {blamed}
