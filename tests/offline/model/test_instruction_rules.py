from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import pytest

from promptiter.llm.messages import Message, ModelRequest
from promptiter.offline.model.content_lexicon import CONTENT_FAMILIES
from promptiter.offline.model.form_lexicon import FORM_FAMILIES
from promptiter.offline.model.instruction_rules import Rule, understood_rules, without_conflicts
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
MYSTERY = "What is the capital of Atlantis?"
SUM = "Tom has 4 apples and buys 7 more. How many apples does he have now?"
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
            "The order id must appear in the output.",
            "Never omit the order id.",
            "Make sure the order id is included in the answer.",
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
        name="no_json",
        phrasings=("Do not use JSON.", "Answer in prose, not JSON.", "Never reply with JSON."),
        task=QUESTION,
        holds=lambda text: as_json(text) is None,
        holds_by_default=True,
    ),
    Family(
        name="prefix",
        phrasings=(
            "Begin your reply with 'Answer:'.",
            'Your answer must start with "Answer:".',
            "Put 'Answer:' at the beginning of your reply.",
            "Start with the word Answer: and go on.",
            "Format your answer as 'Answer: <value>'.",
        ),
        task=QUESTION,
        holds=lambda text: text == "Answer: Paris",
    ),
    Family(
        name="suffix",
        phrasings=("End with 'Over.'", "Finish your answer with the words 'Over.'", "Append 'Over.' to it."),
        task=QUESTION,
        holds=lambda text: text.endswith("Over."),
    ),
    Family(
        name="signature",
        phrasings=("Sign off with 'The Team'.", "Sign every message as 'The Team'.", "Add the signature 'The Team'."),
        task=QUESTION,
        holds=lambda text: text.endswith("\nThe Team"),
    ),
    Family(
        name="postscript",
        phrasings=("Add a postscript.", "End with a postscript that starts with P.S.", "Include a 'P.S.' at the end."),
        task=QUESTION,
        holds=matches(r"P\.S\."),
    ),
    Family(
        name="date_format",
        phrasings=(
            "Write dates as YYYY-MM-DD.",
            "Dates must be in ISO 8601 format.",
            "When you give a date, use the form '2026-01-31'.",
        ),
        task=RECORD,
        besides="Include the date.",
        holds=matches("2026-03-05"),
    ),
    Family(
        name="date_format",
        phrasings=(
            "Write dates as DD.MM.YYYY.",
            "Dates are written like 31.01.2026.",
            "Use the date format dd.mm.yyyy.",
        ),
        task=RECORD,
        besides="Include the date.",
        holds=matches(r"05\.03\.2026"),
    ),
    Family(
        name="decimals",
        phrasings=("State amounts with two decimals.", "Round to 2 decimal places.", "Give amounts to the cent."),
        task=RECORD,
        besides="Include the amount.",
        holds=matches(r"1234\.50"),
    ),
    Family(
        name="thousands",
        phrasings=("Use thousands separators.", "Separate thousands with commas.", "Group the digits of numbers."),
        task=RECORD,
        besides="Include the amount.",
        holds=matches("1,234.5"),
    ),
    Family(
        name="no_thousands",
        phrasings=(
            "Write numbers without thousands separators.",
            "Do not group digits.",
            "Use no thousands separators.",
        ),
        task=RECORD,
        besides="Include the amount.",
        holds=lacks("1,234"),
        holds_by_default=True,
    ),
    Family(
        name="currency",
        phrasings=("Write amounts in EUR.", "Add the currency code EUR.", "State prices in euros."),
        task=RECORD,
        besides="Include the amount.",
        holds=matches(r"1234\.5 EUR"),
    ),
    Family(
        name="unit",
        phrasings=("Include the unit.", "Always state units.", "The answer must have its unit."),
        task=SUM,
        besides="Calculate the result.",
        holds=matches("11 apples"),
    ),
    Family(
        name="upper_case",
        phrasings=("Write in upper case.", "Use all caps.", "Your answer should be in capital letters."),
        task=QUESTION,
        holds=str.isupper,
    ),
    Family(
        name="lower_case",
        phrasings=("Write in lower case.", "All lowercase letters.", "Do not use capital letters."),
        task=QUESTION,
        holds=str.islower,
    ),
    Family(
        name="title_case",
        phrasings=("Use title case.", "Capitalize every word.", "Each word must start with a capital."),
        task=QUESTION,
        holds=str.istitle,
    ),
    Family(
        name="language",
        phrasings=("Reply in German.", "The answer must be in German.", "Use the German language."),
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
            "Do not write more than six words.",
            "Limit your answer to 6 words.",
            "Keep it under 7 words.",
        ),
        task=RECORD,
        holds=lambda text: word_count(text) <= 6,
    ),
    Family(
        name="min_words",
        phrasings=("Write at least 30 words.", "Use no fewer than 30 words.", "Use a minimum of thirty words."),
        task=RECORD,
        holds=lambda text: word_count(text) >= 30,
    ),
    Family(
        name="exact_words",
        phrasings=("Reply with a single word.", "Answer in one word.", "Use exactly 1 word."),
        task=QUESTION,
        holds=lambda text: text == "Paris",
    ),
    Family(
        name="max_sentences",
        phrasings=("Use at most one sentence.", "Write no more than 1 sentence.", "Keep it to one sentence."),
        task=SUM,
        besides="Show your calculation.",
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
        phrasings=("Use at most 12 characters.", "Stay within 12 characters.", "Do not exceed 12 characters."),
        task=QUESTION,
        holds=lambda text: len(text) <= 12,
    ),
    Family(
        name="exact_bullets",
        phrasings=("Use exactly 3 bullet points.", "Answer in three bullets.", "Give 3 bullet points."),
        task=QUESTION,
        holds=lambda text: [line[:2] for line in text.splitlines()] == ["- "] * 3,
    ),
    Family(
        name="exact_items",
        phrasings=("Write a list of 3 items.", "Name three points.", "Give exactly 3 entries."),
        task=QUESTION,
        holds=lambda text: len(text.splitlines()) == 3,
    ),
    Family(
        name="exact_paragraphs",
        phrasings=("Write two paragraphs.", "Use exactly 2 paragraphs.", "Answer in 2 paragraphs."),
        task=QUESTION,
        holds=lambda text: len(text.split("\n\n")) == 2,
    ),
    Family(
        name="min_placeholders",
        phrasings=(
            "Use at least 3 placeholders such as [name].",
            "Include a minimum of three placeholders.",
            "Your answer must contain at least 3 placeholders.",
        ),
        task=QUESTION,
        holds=lambda text: len(re.findall(r"\[\w+\]", text)) == 3,
    ),
    Family(
        name="bullets",
        phrasings=("Use bullet points.", "Answer as a bulleted list.", "Write the answer as bullets."),
        task=RECORD,
        besides="Include the city.",
        holds=lambda text: all(line.startswith("- ") for line in text.splitlines()) and "Berlin" in text,
    ),
    Family(
        name="numbered",
        phrasings=("Use a numbered list.", "Number the points.", "Give an ordered list."),
        task=RECORD,
        holds=matches(r"^1\. "),
    ),
    Family(
        name="comma_separated",
        phrasings=(
            "Return a comma-separated list.",
            "Separate the values by commas.",
            "Write them separated with commas.",
        ),
        task=RECORD,
        besides="Include the name and the city. Be concise.",
        holds=matches("Ada Long, Berlin$"),
    ),
    Family(
        name="no_list",
        phrasings=("Do not use bullet points.", "Never write lists.", "Answer without bullets."),
        task=RECORD,
        holds=lacks(r"^- "),
        holds_by_default=True,
    ),
    Family(
        name="key_value",
        phrasings=("Write key: value lines.", "Use one field per line.", "Put each field on its own line."),
        task=RECORD,
        besides="Include the city.",
        holds=matches(r"\ncity: Berlin"),
    ),
    Family(
        name="sections",
        phrasings=(
            "Use the sections Summary, Details, Next steps in this order.",
            "Structure the answer in the following order: Summary, Details, Next steps.",
            "Write under the headings Summary, Details and Next steps.",
        ),
        task=QUESTION,
        holds=matches("^Summary: .*\nDetails: .*\nNext steps: "),
    ),
    Family(
        name="choose",
        phrasings=(
            "Choose exactly one of: refund, exchange, reject.",
            "Classify the request as refund, exchange or reject.",
            "The allowed labels are: refund, exchange, reject.",
            "Answer with one of the following labels:\n- exchange\n- refund\n- reject",
            "Decide between 'exchange' and 'refund'.",
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
        name="yes_no",
        phrasings=("Answer yes or no.", "Reply only with 'yes' or 'no'.", "Your answer must be yes/no."),
        task=EVIDENCE,
        holds=lambda text: text == "Yes",
    ),
    Family(
        name="unknown",
        phrasings=(
            "If you do not know the answer, say 'not known'.",
            "Say 'not known' when the answer is not in the documents.",
            "Never guess; reply with 'not known' if there is no evidence.",
        ),
        task=MYSTERY,
        holds=lambda text: text == "not known",
    ),
    Family(
        name="unknown",
        phrasings=("Never guess.", "Do not make up facts.", "Refuse to answer if you are not sure."),
        task=MYSTERY,
        holds=lambda text: text == "unknown",
    ),
    Family(
        name="clarify",
        phrasings=(
            "Ask for the phone number if it is missing.",
            "If the phone number is missing, ask a clarifying question.",
            "When the phone number is absent, ask the user for it.",
        ),
        task="I want a refund.",
        holds=matches(r"phone number\?$"),
    ),
    Family(
        name="cite",
        phrasings=("Cite the source as [1].", "Add citations like [2].", "Give the source in the form [n]."),
        task=EVIDENCE,
        holds=matches(r"310 metres tall \[2\]\."),
    ),
    Family(
        name="cite",
        phrasings=("Cite the source id.", "Add a reference such as [doc-7].", "State the id of your source."),
        task=EVIDENCE,
        holds=matches(r"\[d2\]"),
    ),
    Family(
        name="quote",
        phrasings=(
            "Quote the evidence.",
            "Support it with a direct quotation.",
            "Answer by quoting the sentence you use.",
        ),
        task=EVIDENCE,
        holds=matches('"The Blue Tower is 310 metres tall\\."'),
    ),
    Family(
        name="wrap_quotes",
        phrasings=("Put the answer in double quotes.", "Wrap it in quotation marks.", "Enclose your reply in quotes."),
        task=QUESTION,
        holds=lambda text: text[0] + text[-1] == '""',
    ),
    Family(
        name="wrap_tag",
        phrasings=(
            "Wrap your answer in <final> tags.",
            "Put the answer between <final> and </final>.",
            "Enclose it in an XML tag named final.",
        ),
        task=QUESTION,
        holds=matches("^<final>.*</final>$"),
    ),
    Family(
        name="code_fence",
        phrasings=("Use a code block.", "Put the answer in a code fence.", "Wrap it in triple backticks."),
        task=QUESTION,
        holds=matches("^```\n.*\n```$"),
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
        name="title",
        phrasings=(
            "Give a title in double angular brackets, such as <<title>>.",
            "Start with a title.",
            "Add a short title.",
        ),
        task=QUESTION,
        holds=matches("^<<.+>>\n"),
    ),
    Family(
        name="polite",
        phrasings=("Be polite.", "Thank the customer.", "Use a friendly tone."),
        task=RECORD,
        holds=matches("^Thank you"),
    ),
    Family(
        name="show_steps",
        phrasings=("Think step by step.", "Show your calculation.", "Explain your reasoning."),
        task=SUM,
        holds=matches(r"4 \+ 7 = 11"),
    ),
    Family(
        name="calculate",
        phrasings=("Calculate the result.", "Work out the sum.", "Compute the exact number."),
        task=SUM,
        holds=lambda text: text == "The answer is 11.",
        holds_by_default=True,  # by chance: see the slips
    ),
    Family(
        name="summarise",
        phrasings=("Summarize the request.", "Give a short summary.", "Summarise it in one sentence."),
        task="The shoes came late and the left one was far too small for my foot. The box was wet.",
        holds=lambda text: text == "The shoes came late and the left one was far too small.",
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
        phrasings=("Include the word 'warranty'.", "Use the keyword warranty.", 'Mention "warranty".'),
        task=QUESTION,
        holds=matches("warranty"),
    ),
    Family(
        name="avoid",
        phrasings=("Avoid the word 'refund'.", "Do not mention refund.", "Never use the word refund."),
        task=RECORD,
        holds=lacks("refund"),
    ),
    Family(
        name="avoid",
        phrasings=("Do not mention the city.", "Leave out the city.", "Never reveal the city."),
        task=RECORD,
        besides="Keep all fields.",
        holds=lacks("Berlin"),
    ),
    Family(
        name="no_commas",
        phrasings=("Do not use commas.", "Write without commas.", "Avoid commas."),
        task=RECORD,
        holds=lacks(","),
    ),
    Family(
        name="repeat_request",
        phrasings=("Repeat the question first.", "Restate the request before you answer.", "Echo the question."),
        task=QUESTION,
        holds=lambda text: text.startswith(QUESTION),
    ),
    Family(
        name="highlight",
        phrasings=("Highlight the answer.", "Write the answer in bold.", "Emphasize your answer."),
        task=QUESTION,
        holds=matches(r"^\*\*.*\*\*$"),
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
        "Pass the order id as the query argument.",
        "Set the query argument to the order id.",
        "Call the search tool with the order id as query.",
    ),
}


async def answer(instruction: str, task: str, *, repeat: int = 0) -> str:
    model = SimulatedModel(compliance=1.0, knowledge=KNOWLEDGE)
    messages = (Message("system", instruction or "You are an assistant."), Message("user", task))
    return (await model(ModelRequest(model="simulated", messages=messages), repeat=repeat)).text


def families_in(instruction: str) -> list[str]:
    return [rule.family for rule in understood_rules(instruction)]


def each_phrasing() -> list[tuple[Family, str]]:
    return [(family, phrasing) for family in FAMILIES for phrasing in family.phrasings]


def test_every_family_of_the_lexicon_is_told_in_three_ways() -> None:
    told = {family.name for family in FAMILIES if len(set(family.phrasings)) >= 3}
    told |= {name for name, phrasings in ONLY_UNDERSTOOD.items() if len(set(phrasings)) >= 3}
    bounds = {name for name in told if name.startswith(("min_", "max_", "exact_"))}
    in_lexicon = {family.name for family in (*FORM_FAMILIES, *CONTENT_FAMILIES)}
    assert {name for name in in_lexicon if not name.startswith(("min_", "max_", "exact_"))} == told - bounds
    assert bounds <= in_lexicon
    assert len(told) > 50


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
def test_descriptions_and_questions_are_no_rules(sentence: str) -> None:
    assert understood_rules(sentence) == ()


@pytest.mark.parametrize(
    ("instruction", "rules"),
    [
        ("Include the order id, but do not mention the price.", [("include", ("order id",)), ("avoid", ("price",))]),
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
            [("label_when", ("refund", "money back")), ("choose", ("refund", "reject"))],
        ),
        ("Answer 'reject' if the receipt is missing.", [("label_when", ("reject", "the receipt is missing"))]),
        ("Reply in German. Reply in German.", [("language", ("de",))]),
    ],
)
def test_an_instruction_means_exactly_these_rules(instruction: str, rules: list[tuple[str, tuple[str, ...]]]) -> None:
    assert [(rule.family, rule.parameters) for rule in understood_rules(instruction)] == rules


def test_a_rule_remembers_its_sentence() -> None:
    (rule,) = understood_rules("You are a clerk. Begin your reply with 'Answer:'.")
    assert rule == Rule("prefix", ("Answer:",), "Begin your reply with 'Answer:'.")


def test_a_very_long_sentence_is_data_and_is_not_understood() -> None:
    assert understood_rules("use the word include answer one of all " * 1000) == ()


@pytest.mark.parametrize(
    ("instruction", "rivals"),
    [
        ("Write in upper case. Write in lower case.", {"upper_case", "lower_case"}),
        ("Output only JSON. Begin with 'Answer:'.", {"json_only", "prefix"}),
        ("Use at least 50 words. Use at most 10 words.", {"min_words", "max_words"}),
        ("Answer as bullets. Answer as JSON.", {"bullets", "json"}),
        ("Include the city. Never mention the city.", {"include", "avoid"}),
        ("Call the search tool. Do not use the search tool.", {"call_tool", "no_tool"}),
    ],
)
def test_of_conflicting_families_one_stays_by_chance(instruction: str, rivals: set[str]) -> None:
    survivors = set()
    for seed in range(40):
        kept = {rule.family for rule in without_conflicts(understood_rules(instruction), Random(seed))} & rivals
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
def test_of_two_different_rules_of_one_family_one_stays_by_chance(instruction: str) -> None:
    rules = understood_rules(instruction)
    kept = [without_conflicts(rules, Random(seed)) for seed in range(40)]
    assert {len(one) for one in kept} == {1}
    assert {one[0] for one in kept} == set(rules)


def test_rules_that_agree_all_stay() -> None:
    rules = understood_rules("Reply in German. Use at most 20 words. Include the city. Include the date. Use JSON.")
    assert without_conflicts(rules, Random(0)) == rules
