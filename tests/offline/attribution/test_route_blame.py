from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from promptiter.evaluation.data.case import ExpectedToolCall
from promptiter.evaluation.metrics.trajectory import TrajectoryCriterion, compare_tool_calls
from promptiter.evaluation.score import Finding
from promptiter.stages.contracts import AttributeRequest, Peer
from promptiter.structure import StructureEdge, Surface
from tests.offline.attribution.cases import blamed, gradients, peer, request, step
from traces import Edge as DataEdge
from traces import Step, ToolCall

ROUTES = (
    StructureEdge(source="triage", target="booking", condition="booking"),
    StructureEdge(source="triage", target="pharmacy", condition="pharmacy"),
)
INSTRUCTIONS = {"triage": "Sort.", "booking": "Include the pet and the day.", "pharmacy": "Answer."}
STOCK = Surface(node_id="pharmacy", type="tool", part="stock", value="Counts.")
TRIGGERED = (DataEdge(source="triage", kind="control"),)
MEDICINE = "Do you still have it? (medicine: {})"
VISIT = "May I come? (pet: {}; day: Monday)"


def run_of(said: str, to: str, *calls: str, word: str = "", output: str = "Well.") -> list[Step]:
    """The router answers with a word, by default the name of the branch; the branch sees only the request."""
    made = tuple(ToolCall(name=name, arguments={"medicine": "x"}, result="12") for name in calls)
    return [
        step("triage", said, word or to),
        step(to, said, output, after="triage", edges=TRIGGERED, tool_calls=made),
    ]


def failed(
    steps: Sequence[Step],
    *expected: str,
    answer: str | None = None,
    findings: Sequence[Finding] = (),
    instructions: dict[str, str] | None = None,
    **more: Any,
) -> AttributeRequest:
    """A run that failed because of its tool calls and of other findings."""
    wanted = [ExpectedToolCall(name=name, arguments={"medicine": "amoxil"}) for name in expected]
    made = [call for each in steps for call in each.tool_calls]
    found = (*compare_tool_calls(made, wanted, TrajectoryCriterion()), *findings)
    settings: dict[str, Any] = {"edges": ROUTES, "surfaces": [STOCK], **more}
    return request(steps, answer, findings=found, instructions=INSTRUCTIONS | (instructions or {}), **settings)


def passing(to: str, text: str, *values: str, calls: Sequence[str] = (), word: str = "") -> list[Peer]:
    return [peer(run_of(text.format(value), to, *calls, word=word), case_id=value) for value in values]


def lacking(value: str) -> list[Finding]:
    return [Finding(kind="missing", expected=value, actual="Well.", predicate="contains")]


async def test_a_missing_call_of_another_branch_is_blamed_on_the_step_that_chose_the_branch() -> None:
    [gradient] = await gradients(failed(run_of(MEDICINE.format("amoxil"), "booking"), "stock"))
    assert (gradient.surface_id, gradient.category, gradient.confidence) == ("triage#instruction", "route", 0.9)
    assert "'pharmacy' instead of 'booking'" in gradient.text
    [finding] = gradient.findings
    assert (finding.predicate, finding.expected, finding.actual) == ("route", "pharmacy", "booking")


async def test_a_branch_that_read_the_router_is_not_blamed_for_the_tool_of_another_either() -> None:
    steps = [step("triage", MEDICINE.format("amoxil"), "booking"), step("booking", "booking", "Well.", after="triage")]
    assert await blamed(failed(steps, "stock")) == ["triage#instruction"]


async def test_a_missing_call_is_blamed_on_the_branch_that_has_the_tool_if_it_ran() -> None:
    assert await blamed(failed(run_of(MEDICINE.format("amoxil"), "pharmacy"), "stock")) == ["pharmacy#instruction"]


async def test_a_call_in_the_wrong_branch_is_not_blamed_on_that_branch() -> None:
    tools = [STOCK, Surface(node_id="booking", type="tool", part="calendar")]
    steps = run_of(MEDICINE.format("amoxil"), "booking", "calendar")
    assert await blamed(failed(steps, "stock", surfaces=tools)) == ["triage#instruction"]


async def test_the_owner_of_a_tool_that_is_not_a_surface_is_known_from_passing_runs() -> None:
    peers = passing("pharmacy", MEDICINE, "bravecto", calls=["stock"])
    steps = run_of(MEDICINE.format("amoxil"), "booking")
    assert await blamed(failed(steps, "stock", surfaces=[], peers=peers)) == ["triage#instruction"]


async def test_a_router_that_never_got_the_argument_is_not_blamed() -> None:
    said = MEDICINE.format("amoxil")
    steps = [
        step("intake", said, "a question"),
        step("triage", "a question", "booking", after="intake"),
        step("booking", said, "Well.", after="triage", edges=TRIGGERED),
    ]
    assert await blamed(failed(steps, "stock", said=said)) == ["intake#instruction"]


async def test_a_router_without_surfaces_passes_its_blame_with_the_answer_that_leads_to_the_branch() -> None:
    said = MEDICINE.format("amoxil")

    def sort(label: str, word: str, text: str) -> list[Step]:
        return [
            step("sort", text, label),
            step("triage", label, word, after="sort", surface_reads={}),
            step(word, text, "Well.", after="triage", edges=TRIGGERED),
        ]

    peers = [peer(sort("drugs", "pharmacy", MEDICINE.format(each)), case_id=each, passed=False) for each in "ab"]
    [gradient] = await gradients(failed(sort("visits", "booking", said), "stock", peers=peers))
    assert gradient.surface_id == "sort#instruction"
    assert [finding.expected for finding in gradient.findings] == ["drugs"]


async def test_a_routing_word_in_a_field_of_the_output_blames_the_description_of_the_field() -> None:
    description = Surface(node_id="triage", type="field", part="team", value="Where it goes.")
    word = json.dumps({"team": "booking", "note": "hello"})
    steps = run_of(MEDICINE.format("amoxil"), "booking", word=word)
    [gradient] = await gradients(failed(steps, "stock", surfaces=[STOCK, description]))
    assert gradient.surface_id == "triage#field.team"
    assert [(finding.where, finding.expected) for finding in gradient.findings] == [("$.team", "pharmacy")]


async def test_without_a_target_that_could_change_the_route_nothing_is_blamed() -> None:
    steps = run_of(MEDICINE.format("amoxil"), "booking")
    assert await blamed(failed(steps, "stock", targets=["booking#instruction"])) == []


async def test_a_router_is_not_blamed_for_the_tool_calls_of_the_branch_that_it_rightly_chose() -> None:
    steps = run_of(MEDICINE.format("amoxil"), "pharmacy")
    assert await blamed(failed(steps, "stock", targets=["triage#instruction"])) == []


async def test_an_input_like_those_of_passing_runs_of_another_branch_was_routed_wrongly() -> None:
    peers = [
        *passing("booking", VISIT, "Rex", "Tom"),
        *passing("pharmacy", MEDICINE, "bravecto", "cerenia", calls=["stock"]),
    ]
    steps = run_of(VISIT.format("Luna"), "pharmacy", "stock")
    [gradient] = await gradients(failed(steps, answer="Monday", findings=lacking("Monday"), peers=peers))
    assert (gradient.surface_id, gradient.category) == ("triage#instruction", "route")
    assert [finding.expected for finding in gradient.findings] == ["booking"]


@pytest.mark.parametrize(
    ("calls", "booking"), [((), "Include the pet and the day."), (("stock",), "Answer kindly.")], ids=["field", "call"]
)
async def test_an_input_unlike_those_of_its_branch_belongs_to_the_branch_that_knows_it(
    calls: tuple[str, ...], booking: str
) -> None:
    peers = passing("pharmacy", MEDICINE, "bravecto", "cerenia", calls=["stock"])
    steps = run_of(VISIT.format("Luna"), "pharmacy", *calls)
    asked = failed(steps, answer="Monday", findings=lacking("Monday"), peers=peers, instructions={"booking": booking})
    assert await blamed(asked) == ["triage#instruction"]


async def test_failed_runs_whose_tools_are_in_one_branch_show_which_inputs_it_is_for() -> None:
    wants_stock = (ExpectedToolCall(name="stock"),)
    peers = [
        replace(peer(run_of(MEDICINE.format(each), to), case_id=each, passed=False), expected_tool_calls=wants_stock)
        for each, to in (("bravecto", "pharmacy"), ("cerenia", "booking"))
    ]
    asked = failed(run_of(VISIT.format("Luna"), "pharmacy"), answer="Monday", findings=lacking("Monday"), peers=peers)
    assert await blamed(asked) == ["triage#instruction"]
    unknown = [replace(each, expected_tool_calls=None) for each in peers]
    assert await blamed(replace(asked, peers=tuple(unknown))) == ["pharmacy#instruction"]


async def test_a_loop_that_went_on_is_not_a_wrong_route() -> None:
    said = VISIT.format("Luna")
    peers = [
        *passing("booking", VISIT, "Rex", "Tom"),
        *passing("pharmacy", MEDICINE, "bravecto", "cerenia", calls=["stock"]),
    ]
    again = [
        *run_of(said, "pharmacy"),
        step("triage~2", said, "pharmacy", after="pharmacy"),
        step("pharmacy~2", said, "Well.", after="triage~2", edges=(DataEdge(source="triage~2", kind="control"),)),
    ]
    asked = failed(again, answer="Monday", findings=lacking("Monday"), peers=peers)
    assert await blamed(asked) == ["pharmacy#instruction"]


async def test_a_run_whose_missing_tool_is_in_its_branch_was_routed_rightly() -> None:
    peers = [
        *passing("booking", VISIT, "Rex", "Tom"),
        *passing("pharmacy", MEDICINE, "bravecto", "cerenia", calls=["stock"]),
    ]
    assert await blamed(failed(run_of(VISIT.format("Luna"), "pharmacy"), "stock", peers=peers)) == [
        "pharmacy#instruction"
    ]


async def test_a_branch_is_blamed_for_what_it_loses_from_its_usual_inputs() -> None:
    said = "Do you still have it? (medicine: amoxil; day: Monday)"
    peers = [
        *passing("booking", VISIT, "Rex", "Tom"),
        *passing("pharmacy", MEDICINE, "bravecto", "cerenia", calls=["stock"]),
    ]
    asked = failed(run_of(said, "pharmacy", "stock"), "stock", answer="Monday", findings=lacking("Monday"), peers=peers)
    assert await blamed(asked) == ["pharmacy#instruction"]


async def test_a_branch_that_never_passes_is_blamed_although_another_names_the_field() -> None:
    peers = passing("booking", VISIT, "Rex", "Tom")
    said = "Do you still have it? (medicine: amoxil; day: Monday)"
    asked = failed(run_of(said, "pharmacy"), answer="Monday", findings=lacking("Monday"), peers=peers)
    assert await blamed(asked) == ["pharmacy#instruction"]
