from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from promptiter.evaluation.score import Finding
from promptiter.llm.messages import Message, ModelRequest, ToolSpec
from promptiter.offline.model.simulated import SimulatedModel
from promptiter.offline.rules.optimizer import RuleOptimizer
from promptiter.offline.rules.rule_templates import phrase_rule
from promptiter.stages.contracts import AggregateResult
from promptiter.stages.optimizer import OptimizeRequest, PatchResult, Rejection, StepExample
from promptiter.structure import Limits, Surface, SurfaceType
from traces.model import Json

CITIES = ("Berlin", "Paris", "Rome", "Oslo", "Madrid", "Vienna", "Lisbon", "Dublin", "Athens", "Prague")
WISHES = ("a refund", "help", "a repair", "advice", "a call", "a box", "a desk", "a receipt", "an offer", "a lamp")
CAPITALS = {
    "France": "Paris", "Italy": "Rome", "Spain": "Madrid", "Norway": "Oslo", "Greece": "Athens",
    "Austria": "Vienna", "Ireland": "Dublin", "Poland": "Warsaw", "Japan": "Tokyo", "Egypt": "Cairo",
}  # fmt: skip
KNOWLEDGE = {f"capital of {country.lower()}": city for country, city in CAPITALS.items()}

RECORDS = [
    json.dumps({
        "order_id": f"{letter}-{17 + 3 * n}", "date": f"2026-0{n % 9 + 1}-{11 + n}", "amount": 1234.5 + 1311.25 * n,
        "city": CITIES[n], "request": f"I want {WISHES[n]}.",
    })
    for n, letter in enumerate("ABCDEFGHIJ")
]  # fmt: skip
WIDE = [json.dumps({**json.loads(text), "plan": f"P{n}", "seat": f"S{n}x"}) for n, text in enumerate(RECORDS)]
CAPITAL_OF = [f"What is the capital of {country}?" for country in CAPITALS]
DOCUMENTS = [
    f"[d{n}] The capital of {country} is {city}.\n[e{n}] {country} is a country.\nWhat is the capital of {country}?"
    for n, (country, city) in enumerate(CAPITALS.items())
]
TICKETS = [
    *(f"My invoice {n} is wrong." for n in range(4)),
    *(f"The parcel {n} did not come." for n in range(4)),
    *(f"I forgot the password {n}." for n in range(4)),
]
LOOK_UP = ToolSpec("look_up", "Looks up an order.", {"properties": {"key": {"type": "string"}}, "required": ["key"]})
REFUND = ToolSpec("pay_back", "Pays money back.", {"properties": {}})


@dataclass(frozen=True)
class Scenario:
    """An instruction that lacks a rule, and one in other words that has it: it writes the references."""

    name: str
    lacking: str
    right: str
    inputs: Sequence[str]
    predicate: str = "exact"
    tries: int = 1
    tools: tuple[ToolSpec, ...] = ()
    limits: tuple[int | None, int | None] = (None, None)
    expects: str = ""


SCENARIOS = [
    Scenario("field", "You are a clerk.", "Mention the order number and the town.", RECORDS),
    Scenario("field more", "You are a clerk. Keep the date.", "Mention the date and the order id.", RECORDS,
             expects="Keep the date and the order id."),
    Scenario("all fields", "You are a clerk.", "Hand on each field of the record.", WIDE),
    Scenario("verbatim", "Include the date and the amount.", "Include the date and the amount verbatim.", RECORDS),
    Scenario("json keys", "You are a clerk.", "Produce JSON, with keys order_id and city.", RECORDS, predicate="json"),
    Scenario("json and date", "You are a clerk.",
             "Produce JSON with the keys city and date. Write dates as DD/MM/YYYY.", RECORDS, predicate="json"),
    Scenario("prefix", "You know much.", 'Open your answer with "Reply:".', CAPITAL_OF),
    Scenario("suffix", "You know much.", 'Close your answer with "Kind regards".', CAPITAL_OF),
    Scenario("max characters", "You are a clerk.", "Write no more than 20 characters.", RECORDS, limits=(None, 20)),
    Scenario("min characters", "You are a clerk.", "Write 120 characters at the very least.", RECORDS,
             limits=(120, None)),
    Scenario("date format", "Include the date.", "Include the date in the format DD.MM.YYYY.", RECORDS),
    Scenario("new date format", "Include the date. Use the date format MM/DD/YYYY.", "Include the date in ISO format.",
             RECORDS, expects="Include the date. Use the date format YYYY-MM-DD."),
    Scenario("date and format", "You are a clerk.", "State the date, as DD.MM.YYYY.", RECORDS),
    Scenario("decimals", "Include the amount.", "Include the amount with two decimal places.", RECORDS),
    Scenario("upper case", "You know much.", "Reply in capital letters.", CAPITAL_OF),
    Scenario("language", "You know much. Reply in French.", "Please reply in German.", CAPITAL_OF,
             expects="You know much. Reply in German."),
    Scenario("labels", "You sort tickets.", "Select one of billing, shipping, access. Choose billing if it is about an "
             "invoice. Choose shipping if it is about a parcel. Choose access if it is about a password.", TICKETS),
    Scenario("citation", "Use the documents.", "Use the documents and cite the document id in brackets.", DOCUMENTS),
    Scenario("value only", "You know much.", "Reply with just the answer, nothing else.", CAPITAL_OF),
    Scenario("keyword", "You are a clerk.", 'Mention the word "warranty".', RECORDS),
    Scenario("tool", "You are a clerk.", "You must call look_up before answering.", RECORDS, tools=(LOOK_UP,)),
    Scenario("tool order", "You are a clerk.", "First use the look_up tool. Then use the pay_back tool.", RECORDS,
             tools=(LOOK_UP, REFUND), tries=3),
    Scenario("no tool", "You are a clerk. Use the pay_back tool.", "You are a clerk.", RECORDS, tools=(REFUND,)),
    Scenario("argument", "Call look_up.", "Call look_up. Set key to the order id.", RECORDS, tools=(LOOK_UP,), tries=3),
]  # fmt: skip


class Node:
    """A node that asks the simulated model, which always obeys; what it says to the right instruction is right."""

    def __init__(self, scenario: Scenario, references: Sequence[tuple[str, tuple[Json, ...]]]) -> None:
        self._scenario = scenario
        self._references = references

    @staticmethod
    async def of(scenario: Scenario) -> Node:
        return Node(scenario, [await ask(scenario, scenario.right, text) for text in scenario.inputs])

    async def examples(self, instruction: str) -> list[StepExample]:
        return [
            await self._example(f"case {number}", instruction, text, reference)
            for number, (text, reference) in enumerate(zip(self._scenario.inputs, self._references, strict=True))
        ]

    async def _example(
        self, case_id: str, instruction: str, text: str, reference: tuple[str, tuple[Json, ...]]
    ) -> StepExample:
        output, calls = await ask(self._scenario, instruction, text)
        findings = self._findings(output, reference[0])
        return StepExample(
            case_id=case_id,
            step_id="node",
            input=text,
            output=output,
            passed=not findings and calls == reference[1],
            expected=None if any(self._scenario.limits) else reference[0],
            is_terminal=True,
            tool_calls=calls,
            findings=findings,
            expected_tool_calls=reference[1] if self._scenario.tools else None,
        )

    def _findings(self, output: str, expected: str) -> tuple[Finding, ...]:
        least, most = self._scenario.limits
        if least or most:
            is_short, is_long = len(output) < (least or 0), len(output) > (most or len(output))
            broken = "min_length" if is_short else "max_length"
            finding = Finding(kind="violated", expected=least or most, actual=len(output), predicate=broken)
            return (finding,) if is_short or is_long else ()
        if self._read(output) == self._read(expected):
            return ()
        return (Finding(kind="wrong", expected=expected, actual=output, predicate=self._scenario.predicate),)

    def _read(self, text: str) -> Json:
        bare = text.strip().removeprefix("```json").removesuffix("```").strip()
        return json.loads(bare) if self._scenario.predicate == "json" and bare.startswith("{") else text


async def ask(scenario: Scenario, instruction: str, text: str) -> tuple[str, tuple[Json, ...]]:
    """The answer of the simulated model and the tools it called; a tool says that it is done."""
    model = SimulatedModel(compliance=1.0, knowledge=KNOWLEDGE)
    messages = (Message("system", instruction), Message("user", text))
    request = ModelRequest(model="simulated", messages=messages, tools=scenario.tools)
    calls: list[Json] = []
    for _ in range(4):
        reply = await model(request)
        if not reply.tool_requests:
            return reply.text, tuple(calls)
        calls += [{"name": wish.name, "arguments": wish.arguments} for wish in reply.tool_requests]
        results = [Message("tool", "done", tool_request_id=wish.id) for wish in reply.tool_requests]
        asked = Message("assistant", "", tool_requests=reply.tool_requests)
        request = replace(request, messages=(*request.messages, asked, *results))
    raise AssertionError(f"the model calls tools without end: {calls}")


def request_for(
    value: Json, examples: Sequence[StepExample], *, rejected: Sequence[Json] = (), surface: Surface | None = None
) -> OptimizeRequest:
    surface = surface or Surface(node_id="node", type="instruction", value=value)
    tools = [Surface(node_id="node", type="tool", part=each.name, value=each.description) for each in (LOOK_UP, REFUND)]
    return OptimizeRequest(
        surface=surface,
        signal=AggregateResult(surface_id=surface.id, text="it fails"),
        siblings=tuple(each for each in tools if each.id != surface.id),
        failing=tuple(each for each in examples if not each.passed),
        passing=tuple(each for each in examples if each.passed),
        rejected=tuple(Rejection(surface_id=surface.id, value=each, reason="no gain") for each in rejected),
    )


async def texts_until_it_passes(node: Node, lacking: str, *, most: int) -> tuple[list[str], bool]:
    """What the optimizer wrote, each text rejected but the last; and whether that one fits nine inputs in ten."""
    examples = await node.examples(lacking)
    tried: list[str] = []
    while len(tried) < most:
        result = await RuleOptimizer().optimize(request_for(lacking, examples, rejected=tried))
        if result.patch is None:
            return tried, False
        tried.append(result.patch.value)
        now = await node.examples(result.patch.value)
        if sum(each.passed for each in now) >= 0.9 * len(now):
            return tried, True
    return tried, False


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[scenario.name for scenario in SCENARIOS])
async def test_the_simulated_model_does_what_the_patch_asks(scenario: Scenario) -> None:
    node = await Node.of(scenario)
    before = await node.examples(scenario.lacking)
    assert sum(each.passed for each in before) <= 0.6 * len(before)
    tried, is_fine = await texts_until_it_passes(node, scenario.lacking, most=scenario.tries)
    assert is_fine, tried
    assert tried[-1].endswith(scenario.expects)


CHAIN = ("Keep the order id and the city.", "Pass on all fields.", "Return only the order id.")


async def chain_examples(instruction: str, *, place: int) -> list[StepExample]:
    """Executions of one node of a chain of three, under an instruction in place of its own."""
    scenario = Scenario("chain", "", "", RECORDS)
    examples = []
    for number, text in enumerate(RECORDS):
        order = json.loads(text)["order_id"]
        steps, value = [], text
        for node, own in enumerate(CHAIN):
            output, _ = await ask(scenario, instruction if node == place else own, value)
            steps.append((value, output))
            value = output
        lost = Finding(kind="missing", expected=order, predicate="contains")
        examples.append(
            StepExample(
                case_id=f"case {number}",
                step_id="node",
                input=steps[place][0],
                output=steps[place][1],
                passed=value == order,
                expected=order,
                is_terminal=place == len(CHAIN) - 1,
                findings=() if value == order else (lost,),
            )
        )
    return examples


@pytest.mark.parametrize(("place", "lacking"), [(0, "Keep the city."), (1, "You are a planner.")])
async def test_a_faulty_node_of_a_chain_is_fixed_in_one_patch(place: int, lacking: str) -> None:
    examples = await chain_examples(lacking, place=place)
    assert not any(each.passed for each in examples)
    patch = (await RuleOptimizer().optimize(request_for(lacking, examples))).patch
    assert patch is not None
    assert "order id" in patch.value
    assert all(order not in patch.value for order in (each.expected for each in examples) if order)
    after = await chain_examples(patch.value, place=place)
    assert all((each.expected or "") in each.output for each in after)


def orders(count: int, *, passed: int = 0) -> list[StepExample]:
    """Failing outputs that lack the order id of their input, and passing ones that have it."""
    return [
        StepExample(
            case_id=f"case {number:02}",
            step_id="node",
            input=f"order id: A-{number}7\ncity: {CITIES[number % 10]}",
            output=f"Order A-{number}7 is on its way." if number < passed else "It is on its way.",
            passed=number < passed,
            expected=f"Order A-{number}7 is on its way.",
            is_terminal=True,
        )
        for number in range(count)
    ]


def optimize(request: OptimizeRequest, *, seed: int = 0) -> PatchResult:
    return asyncio.run(RuleOptimizer(seed=seed).optimize(request))


def read_value(request: OptimizeRequest, *, seed: int = 0) -> Json:
    patch = optimize(request, seed=seed).patch
    assert patch is not None
    return patch.value


def test_a_patch_says_why_in_counts_and_names_cases() -> None:
    patch = optimize(request_for("You are a clerk.", orders(20, passed=6))).patch
    assert patch is not None
    assert patch.surface_id == "node#instruction"
    assert patch.value == "You are a clerk. Always include the order id from the input in your output."
    assert patch.reason == ("14 of 14 failing outputs lack the order id of their input; 6 passing outputs have it")
    assert patch.evidence.cases == tuple(f"case {number:02}" for number in range(6, 20))
    [edit] = patch.edits
    assert (edit.before, edit.after) == ("", "Always include the order id from the input in your output.")
    assert (edit.reason, edit.evidence) == (patch.reason, patch.evidence)


def test_after_rejections_come_the_next_phrasing_then_the_next_predicate_then_nothing() -> None:
    tried: list[Json] = []
    reason = ""
    while True:
        result = optimize(request_for("You are a clerk.", orders(12), rejected=tried))
        if result.patch is None:
            reason = result.reason
            break
        assert result.patch.value not in tried
        tried.append(result.patch.value)
    expected = [f"You are a clerk. {sentence}" for sentence in phrase_rule("field_carried", ("order id",))]
    assert tried[: len(expected)] == expected
    assert len(tried) > len(expected)
    assert all("order id" not in value for value in tried[len(expected) :])
    assert "were rejected before" in reason


def test_after_rejections_a_rule_is_dropped_before_it_is_worded_differently() -> None:
    examples = [
        replace(each, expected=f"{each.expected} {each.input.rpartition(' ')[2]}", passed=False) for each in orders(12)
    ]
    tried: list[Json] = []
    for _ in range(4):
        tried.append(read_value(request_for("Go.", examples, rejected=tried)))
    asked = [phrase_rule("field_carried", fields)[0] for fields in (("order id", "city"), ("order id",), ("city",))]
    assert tried == [
        *(f"Go. {sentence}" for sentence in asked),
        f"Go. {phrase_rule('field_carried', ('order id', 'city'))[1]}",
    ]


def test_a_rule_that_the_prompt_has_is_left_alone_while_there_are_others() -> None:
    examples = [
        replace(each, expected=str(each.expected).replace("Order", "Note:"), passed=False) for each in orders(12)
    ]
    both = read_value(request_for("Go.", examples))
    kept = phrase_rule("field_carried", ("order id",))[0]
    assert both.startswith(f"Go. {kept} ")
    assert read_value(request_for(f"Go. {kept}", examples)) == both


def test_a_value_that_differs_in_spaces_or_case_counts_as_rejected() -> None:
    first = read_value(request_for("You are a clerk.", orders(12)))
    again = read_value(request_for("You are a clerk.", orders(12), rejected=[f"  {first.upper()} "]))
    assert again == f"You are a clerk. {phrase_rule('field_carried', ('order id',))[1]}"


def test_equal_requests_get_equal_answers_whatever_the_order_of_the_examples() -> None:
    examples = orders(20, passed=6)
    shuffled = list(examples)
    Random(5).shuffle(shuffled)
    optimizer = RuleOptimizer()
    first = asyncio.run(optimizer.optimize(request_for("You are a clerk.", examples)))
    assert first == asyncio.run(optimizer.optimize(request_for("You are a clerk.", shuffled)))


def test_the_seed_chooses_the_first_phrasing() -> None:
    for seed, sentence in enumerate(phrase_rule("field_carried", ("order id",))):
        assert read_value(request_for("You are a clerk.", orders(12)), seed=seed) == f"You are a clerk. {sentence}"


def test_an_own_phrasing_that_did_not_help_is_replaced_by_the_next() -> None:
    first = read_value(request_for("You are a clerk.", orders(12)))
    assert (
        read_value(request_for(first, orders(12)))
        == f"You are a clerk. {phrase_rule('field_carried', ('order id',))[1]}"
    )


def test_nothing_is_proposed_where_the_evidence_is_inconsistent() -> None:
    examples = [
        replace(each, expected=each.expected if number % 2 else f"No. {number} is gone, {number} times over.")
        for number, each in enumerate(orders(12))
    ]
    result = optimize(request_for("You are a clerk.", examples))
    assert result.patch is None
    assert result.reason == "found no rule that separates the 12 failing from the 0 passing outputs of node#instruction"


def test_a_step_that_recorded_no_input_is_named() -> None:
    examples = [
        replace(each, input="", case_input="", expected=each.expected if number % 2 else f"No. {number} is gone.")
        for number, each in enumerate(orders(12))
    ]
    result = optimize(request_for("You are a clerk.", examples))
    assert result.reason.startswith(f"step {examples[0].step_id!r} recorded no input, so no rule was found; record it")


def test_nothing_is_proposed_where_passing_outputs_are_like_failing_ones() -> None:
    good = [replace(each, case_id=f"{each.case_id} again", passed=True) for each in orders(12)]
    assert optimize(request_for("You are a clerk.", [*orders(12), *good])).patch is None


def test_nothing_is_proposed_without_failing_examples() -> None:
    result = optimize(request_for("You are a clerk.", orders(6, passed=6)))
    assert (result.patch, result.reason) == (None, "there is no failing example for node#instruction")


SHAPES = (
    "Result: {}", "{}", "{} is fine", "So it is {}", '{{"{}": 1}}', '{{"a": "{}"}}', "- {}\n- more", "[{}] it is",
    "it is 12 {}", "{}: 5", "unknown {}", 'they say "{} is very big"', "{}, {}, {}", "yes", "label {}", "{} = 3",
    "The {} id is A-1", "my {} number is 5", "2026-01-01 {}", "€5 {}", "{}@example.org",
)  # fmt: skip


@st.composite
def private_cases(draw: st.DrawFn) -> list[StepExample]:
    """Cases each of which says a word that no other says, anywhere and as often as it likes."""
    examples = []
    for number in range(draw(st.integers(1, 7))):
        word = f"zq{'abcdefg'[number]}xw"
        shapes = [draw(st.sampled_from(SHAPES)).format(word, word, word) for _ in range(3)]
        tool_calls = ({"name": f"do_{word}", "arguments": {word: word}},) if draw(st.booleans()) else ()
        one = StepExample(
            case_id=word,
            step_id="node",
            input=shapes[0],
            output=shapes[1],
            passed=False,
            expected=shapes[2],
            expected_tool_calls=tool_calls,
            findings=(Finding(kind="missing", expected=shapes[2]),),
        )
        sides = draw(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=4))
        examples += [replace(one, passed=passed, is_terminal=is_terminal) for passed, is_terminal in sides]
    return examples


@pytest.mark.slow
@given(private_cases(), st.sampled_from(("instruction", "tool", "field", "skill", "file", "global_instruction")))
def test_a_word_of_a_single_case_never_enters_a_patch(examples: list[StepExample], kind: SurfaceType) -> None:
    part = {"tool": "look", "field": "a"}.get(kind, "")
    surface = Surface(node_id="node", type=kind, part=part, value="Do it well.")
    tried: list[Json] = []
    while len(tried) < 60:
        patch = optimize(request_for(surface.value, examples, rejected=tried, surface=surface)).patch
        if patch is None:
            return
        assert "zq" not in patch.value
        tried.append(patch.value)


def test_limits_are_kept_by_a_shorter_phrasing() -> None:
    value = "Use {style}. LOCKED"
    limits = Limits(max_chars=len(value) + len(" Keep the order id."), placeholders=("style",), locked=("LOCKED",))
    surface = Surface(node_id="node", type="instruction", value=value, limits=limits)
    assert read_value(request_for(value, orders(12), surface=surface)) == f"{value}\nKeep the order id."
    tight = replace(surface, limits=replace(limits, max_chars=len(value) + 3))
    result = optimize(request_for(value, orders(12), surface=tight))
    assert result.patch is None
    assert "break its limits" in result.reason


def test_a_rule_is_dropped_where_all_of_them_do_not_fit() -> None:
    examples = [
        replace(each, expected=f"{each.expected} {each.input.rpartition(' ')[2]}", passed=False) for each in orders(12)
    ]
    both = read_value(request_for("Go.", examples))
    assert "the order id and the city" in both
    surface = Surface(
        node_id="node", type="instruction", value="Go.", limits=Limits(max_chars=len("Go. Keep the order id."))
    )
    assert read_value(request_for("Go.", examples, surface=surface)) == "Go. Keep the order id."


def test_the_description_of_a_tool_says_when_to_use_it() -> None:
    calls = ({"name": "look_up", "arguments": {}},)
    examples = [replace(each, expected_tool_calls=calls) for each in orders(8)]
    quiet = [
        replace(each, case_id=f"{each.case_id} b", input="Hello.", passed=True, expected_tool_calls=())
        for each in examples
    ]
    surface = Surface(node_id="node", type="tool", part="look_up", value="Looks up an order.")
    assert read_value(request_for("", examples, surface=surface)) == (
        "Looks up an order. Use this tool before you answer any request."
    )
    value = read_value(request_for("", [*examples, *quiet], surface=surface))
    assert value == "Looks up an order. Use this tool when the input gives the order id."


async def test_the_simulated_model_reads_the_description_of_a_tool() -> None:
    surface = Surface(node_id="node", type="tool", part="look_up", value=LOOK_UP.description)
    tool_of = {False: LOOK_UP, True: replace(LOOK_UP, description="Use this tool to look up an order.")}
    scenario = Scenario("tool", "", "", RECORDS)
    examples = [
        StepExample(
            case_id=f"case {number}",
            step_id="node",
            input=text,
            output="",
            passed=False,
            is_terminal=True,
            tool_calls=(await ask(replace(scenario, tools=(tool_of[False],)), "You help.", text))[1],
            expected_tool_calls=(await ask(replace(scenario, tools=(tool_of[True],)), "You help.", text))[1],
        )
        for number, text in enumerate(RECORDS)
    ]
    assert not any(each.tool_calls for each in examples)
    description = (await RuleOptimizer().optimize(request_for("", examples, surface=surface))).patch
    assert description is not None
    new = replace(scenario, tools=(replace(LOOK_UP, description=description.value),))
    assert all([(await ask(new, "You help.", text))[1] for text in RECORDS])
