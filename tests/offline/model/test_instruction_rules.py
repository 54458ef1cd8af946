from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from promptiter.llm.messages import Message, ModelRequest
from promptiter.offline.model.instruction_rules import Rule, find_rules, resolve_conflicts
from promptiter.offline.model.lexicon import FAMILIES as LEXICON
from promptiter.offline.model.simulated import SimulatedModel

RECORD = json.dumps(
    {
        "order_id": "A-17",
        "date": "2026-03-05",
        "amount": 1234.5,
        "name": "Ada Long",
        "city": "Berlin",
        "request": "I want a refund, for the shoes are broken.",
    }
)
QUESTION = "What is the capital of France?"
EVIDENCE = json.dumps(
    {
        "question": "How tall is the Blue Tower?",
        "documents": [
            {"id": "d1", "text": "The Red Bridge is long."},
            {"id": "d2", "text": "The Blue Tower is 310 metres tall."},
        ],
    }
)
KNOWLEDGE = {"capital of france": "Paris"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A family of rules, three ways to say one of them, and how an answer shows that it was obeyed."""

    name: str
    phrasings: tuple[str, ...]
    task: str
    holds: Callable[[str], bool]
    besides: str = ""
    holds_by_default: bool = False


def as_json(text: str) -> dict[str, object] | None:
    bare = re.sub(r"^```json\n|\n```$", "", text)
    try:
        value = json.loads(bare)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def has_keys(*keys: str) -> Callable[[str], bool]:
    return lambda text: (as_json(text) or {}).keys() == set(keys)


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.search(pattern, text, re.DOTALL) is not None


def lacks(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.search(pattern, text, re.DOTALL) is None


def word_count(text: str) -> int:
    return len(text.split())


def sentence_count(text: str) -> int:
    return len(re.findall(r"[.!?](?=\s|$)", text))


FAMILIES = (
    Family(
        name="include",
        phrasings=(
            "Always include the order id in your answer.",
            "Never omit the order id.",
            "Carry the field order_id over into your answer.",
            "Your answer should contain the order number.",
        ),
        task=RECORD,
        holds=matches("A-17"),
    ),
    Family(
        name="include",
        phrasings=(
            "Keep the customer's name in your output.",
            "Mention the name.",
            "Copy the value of `name` from the input into the output.",
        ),
        task=RECORD,
        holds=matches("Ada Long"),
    ),
    Family(
        name="carry_all",
        phrasings=(
            "Pass on all fields to the next node.",
            "Do not drop any field.",
            "Keep every detail of the input.",
            "Forward the complete input.",
        ),
        task=RECORD,
        holds=matches("A-17.*1234.5.*Ada Long.*Berlin.*shoes are broken"),
    ),
    Family(
        name="json",
        phrasings=(
            "Answer with a JSON object with the keys answer, source.",
            'Respond as JSON: {"answer": "...", "source": "..."}.',
            "Your output must be valid JSON with the keys 'answer' and 'source'.",
        ),
        task=QUESTION,
        holds=has_keys("answer", "source"),
    ),
    Family(
        name="json_only",
        phrasings=("Output only JSON.", "Return nothing but JSON.", "Reply in JSON without any additional text."),
        task=QUESTION,
        holds=lambda text: json.loads(text) == {"answer": "Paris"} if text.startswith("{") else False,
    ),
    Family(
        name="prefix",
        phrasings=(
            "Begin your reply with 'Answer:'.",
            'Your answer must start with "Answer:".',
            "The first words of your reply must be 'Answer:'.",
        ),
        task=QUESTION,
        holds=lambda text: text == "Answer: Paris",
    ),
    Family(
        name="suffix",
        phrasings=("End with 'Over.'", "Finish your answer with the words 'Over.'", "Close it with 'Over.'"),
        task=QUESTION,
        holds=lambda text: text.endswith("Over."),
    ),
    Family(
        name="date_format",
        phrasings=(
            "Write dates as YYYY-MM-DD.",
            "Use the date format yyyy-mm-dd.",
            "Dates must be in ISO 8601 format.",
        ),
        task=RECORD,
        besides="Include the date.",
        holds=matches("2026-03-05"),
    ),
    Family(
        name="date_format",
        phrasings=(
            "Write dates as DD.MM.YYYY.",
            "Convert dates to DD.MM.YYYY.",
            "Use the date format dd.mm.yyyy.",
        ),
        task=RECORD,
        besides="Include the date.",
        holds=matches(r"05\.03\.2026"),
    ),
    Family(
        name="decimals",
        phrasings=(
            "State amounts with two decimals.",
            "Round to 2 decimal places.",
            "Show two digits after the point.",
        ),
        task=RECORD,
        besides="Include the amount.",
        holds=matches(r"1234\.50"),
    ),
    Family(
        name="upper_case",
        phrasings=("Write in upper case.", "Use all caps.", "Your answer should be in capital letters."),
        task=QUESTION,
        holds=str.isupper,
    ),
    Family(
        name="language",
        phrasings=("Reply in German.", "The answer must be in German.", "Translate it into German."),
        task=QUESTION,
        holds=lambda text: text == "Die Antwort ist Paris.",
    ),
    Family(
        name="language",
        phrasings=("Answer in French.", "Write your reply in French.", "Translate the answer into French."),
        task=QUESTION,
        holds=lambda text: text == "La réponse est Paris.",
    ),
    Family(
        name="max_words",
        phrasings=(
            "Use at most 6 words.",
            "Use no more than six words.",
            "Limit your answer to 6 words.",
        ),
        task=RECORD,
        holds=lambda text: word_count(text) <= 6,
    ),
    Family(
        name="min_words",
        phrasings=(
            "Write at least 30 words.",
            "Use no fewer than 30 words.",
            "Your answer must have at least 30 words.",
        ),
        task=RECORD,
        holds=lambda text: word_count(text) >= 30,
    ),
    Family(
        name="exact_words",
        phrasings=("Reply with a single word.", "Answer in one word.", "Use exactly 1 word."),
        task=QUESTION,
        holds=lambda text: word_count(text) == 1,
    ),
    Family(
        name="max_sentences",
        phrasings=("Use at most one sentence.", "Write no more than 1 sentence.", "Limit your answer to one sentence."),
        task=QUESTION,
        besides="Repeat the question first.",
        holds=lambda text: sentence_count(text) == 1,
    ),
    Family(
        name="exact_sentences",
        phrasings=("Answer in three sentences.", "Write exactly 3 sentences.", "Give a three-sentence answer."),
        task=QUESTION,
        holds=lambda text: sentence_count(text) == 3,
    ),
    Family(
        name="max_characters",
        phrasings=("Use at most 12 characters.", "Limit it to 12 characters.", "Your answer has up to 12 characters."),
        task=QUESTION,
        holds=lambda text: len(text) <= 12,
    ),
    Family(
        name="choose",
        phrasings=(
            "Choose exactly one of: refund, exchange, reject.",
            "Classify the request as refund, exchange or reject.",
            "Your answer must be one of refund, exchange, reject.",
            "Answer with one of the following labels:\n- exchange\n- refund\n- reject",
        ),
        task=RECORD,
        holds=lambda text: text == "refund",
    ),
    Family(
        name="label_when",
        phrasings=(
            "Answer 'repair' if the shoes are broken.",
            "When the shoes are broken, choose repair.",
            "Use the label 'repair' when shoes are broken.",
        ),
        task=json.dumps({"request": "My shoes are broken."}),
        besides="Choose one of: praise, return, repair.",
        holds=lambda text: text == "repair",
        holds_by_default=True,  # by chance, without a hint
    ),
    Family(
        name="cite",
        phrasings=("Cite the source id.", "Add a citation such as [doc-7].", "Every answer must cite its source id."),
        task=EVIDENCE,
        holds=matches(r"310 metres tall \[d2\]\."),
    ),
    Family(
        name="no_code_fence",
        phrasings=("Do not use code fences.", "Never wrap it in a code block.", "Answer without markdown."),
        task=QUESTION,
        besides="Answer as JSON.",
        holds=lacks("```"),
        holds_by_default=True,  # mostly
    ),
    Family(
        name="polite",
        phrasings=("Be polite.", "Thank the customer.", "Use a friendly tone."),
        task=RECORD,
        holds=matches("^Thank you"),
    ),
    Family(
        name="value_only",
        phrasings=("Give only the answer.", "Extract just the value.", "Answer without any explanation."),
        task=QUESTION,
        holds=lambda text: text == "Paris",
    ),
    Family(
        name="value_only",
        phrasings=("Extract only the order id.", "Return just the order id.", "Output the order id and nothing else."),
        task=RECORD,
        holds=lambda text: text == "A-17",
    ),
    Family(
        name="verbatim",
        phrasings=("Copy values verbatim.", "Do not alter them.", "Write values exactly as given."),
        task=RECORD,
        besides="Include the date.",
        holds=matches("2026-03-05"),
    ),
    Family(
        name="keyword",
        phrasings=(
            "Include the word 'warranty'.",
            "Your answer must contain the word 'warranty'.",
            'Mention "warranty".',
        ),
        task=QUESTION,
        holds=matches("warranty"),
    ),
    Family(
        name="repeat_request",
        phrasings=("Repeat the question first.", "Restate the request before you answer.", "Echo the question."),
        task=QUESTION,
        holds=lambda text: text.startswith(QUESTION),
    ),
    Family(
        name="concise",
        phrasings=("Be concise.", "Answer briefly.", "Keep the reply short."),
        task=QUESTION,
        holds=lambda text: text == "Paris",
    ),
)
ONLY_UNDERSTOOD = {
    "call_tool": (
        "Call the search tool before you answer.",
        "Before answering, invoke `search`.",
        "Use the search tool first.",
        "Always look it up with the search tool.",
    ),
    "no_tool": ("Do not call any tool.", "Never use the search tool.", "Answer without using tools."),
    "tool_argument": (
        "Fill the argument query with the order id.",
        "Set the query argument to the order id.",
        "Set query to the order id.",
    ),
}


async def answer(instruction: str, task: str, *, repeat: int = 0) -> str:
    model = SimulatedModel(compliance=1.0, knowledge=KNOWLEDGE)
    messages = (Message("system", instruction or "You are an assistant."), Message("user", task))
    return (await model(ModelRequest(model="simulated", messages=messages), repeat=repeat)).text


def families_in(instruction: str) -> list[str]:
    return [rule.family for rule in find_rules(instruction)]


def each_phrasing() -> list[tuple[Family, str]]:
    return [(family, phrasing) for family in FAMILIES for phrasing in family.phrasings]


def test_every_family_of_the_lexicon_has_three_phrasings() -> None:
    phrased = {family.name for family in FAMILIES if len(set(family.phrasings)) >= 3}
    phrased |= {name for name, phrasings in ONLY_UNDERSTOOD.items() if len(set(phrasings)) >= 3}
    lengths = ("min_", "max_", "exact_")
    assert {row.name for row in LEXICON if not row.name.startswith(lengths)} <= phrased <= {row.name for row in LEXICON}


@pytest.mark.parametrize(("family", "phrasing"), each_phrasing(), ids=lambda value: getattr(value, "name", value))
async def test_a_rule_is_understood_and_obeyed(family: Family, phrasing: str) -> None:
    assert family.name in families_in(phrasing)
    for repeat in range(5):
        text = await answer(f"You are a clerk. {family.besides} {phrasing}", family.task, repeat=repeat)
        assert family.holds(text), text


@pytest.mark.parametrize("family", [family for family in FAMILIES if not family.holds_by_default], ids=lambda f: f.name)
async def test_what_no_rule_asks_for_is_not_done(family: Family) -> None:
    for repeat in range(5):
        text = await answer(f"You are a clerk. {family.besides}", family.task, repeat=repeat)
        assert not family.holds(text), text


@pytest.mark.parametrize(
    ("name", "phrasing"), [(name, phrasing) for name, phrasings in ONLY_UNDERSTOOD.items() for phrasing in phrasings]
)
def test_rules_about_tools_are_understood(name: str, phrasing: str) -> None:
    assert name in families_in(phrasing)


@pytest.mark.parametrize(
    "sentence",
    [
        "You are a helpful assistant.",
        "The user gives an order id and a date in JSON.",
        "Customers often write in German.",
        "Answer the question.",
        "Should the answer be in upper case?",
        "",
    ],
)
def test_descriptions_and_questions_are_not_rules(sentence: str) -> None:
    assert find_rules(sentence) == ()


@pytest.mark.parametrize(
    ("instruction", "rules"),
    [
        (
            'Your answer must start with "Answer:" and end with "Done.".',
            [("prefix", ("Answer:",)), ("suffix", ("Done.",))],
        ),
        ("Begin with 'Use JSON. Reply in German.'", [("prefix", ("Use JSON. Reply in German.",))]),
        ("Answer in English, not in German.", [("language", ("en",))]),
        ("Do not answer in French.", []),
        ("Use JSON without code fences.", [("json", ()), ("no_code_fence", ())]),
        ("The answer has no more than 20 words.", [("max_words", ("20",))]),
        ("Mention the date and the amount.", [("include", ("date", "amount"))]),
        ("Choose one of: yes, no, maybe.", [("choose", ("yes", "no", "maybe"))]),
        (
            "# Rules\n1. Reply in German.\n2. Always include the order\n   id.",
            [("language", ("de",)), ("include", ("order id",))],
        ),
        (
            "Pick one of these labels:\n- refund: money back\n- reject",
            [("choose", ("refund", "reject"))],
        ),
        ("Answer 'reject' if the receipt is missing.", [("label_when", ("reject", "the receipt is missing"))]),
        ("Reply in German. Reply in German.", [("language", ("de",))]),
    ],
)
def test_an_instruction_means_exactly_these_rules(instruction: str, rules: list[tuple[str, tuple[str, ...]]]) -> None:
    assert [(rule.family, rule.parameters) for rule in find_rules(instruction)] == rules


def test_a_rule_remembers_its_sentence() -> None:
    (rule,) = find_rules("You are a clerk. Begin your reply with 'Answer:'.")
    assert rule == Rule("prefix", ("Answer:",), "Begin your reply with 'Answer:'.")


def test_a_very_long_sentence_is_data_and_is_not_understood() -> None:
    assert find_rules("use the word include answer one of all " * 1000) == ()


@pytest.mark.parametrize(
    ("instruction", "rivals"),
    [
        ("Copy values verbatim. Write dates as YYYY-MM-DD.", {"verbatim", "date_format"}),
        ("Output only JSON. Begin with 'Answer:'.", {"json_only", "prefix"}),
        ("Call the search tool. Do not use the search tool.", {"call_tool", "no_tool"}),
    ],
)
def test_of_conflicting_families_one_is_kept_at_random(instruction: str, rivals: set[str]) -> None:
    survivors = set()
    for seed in range(40):
        kept = {rule.family for rule in resolve_conflicts(find_rules(instruction), Random(seed))} & rivals
        assert len(kept) == 1
        survivors |= kept
    assert survivors == rivals


@pytest.mark.parametrize(
    "instruction",
    [
        "Reply in German. Reply in French.",
        "Use at most 5 words. Use at most 50 words.",
        "Begin with 'A'. Begin with 'B'.",
    ],
)
def test_of_two_rules_of_one_family_one_is_kept_at_random(instruction: str) -> None:
    rules = find_rules(instruction)
    kept = [resolve_conflicts(rules, Random(seed)) for seed in range(40)]
    assert {len(one) for one in kept} == {1}
    assert {one[0] for one in kept} == set(rules)


def test_rules_that_agree_are_all_kept() -> None:
    rules = find_rules("Reply in German. Use at most 20 words. Include the city. Include the date. Use JSON.")
    assert resolve_conflicts(rules, Random(0)) == rules
