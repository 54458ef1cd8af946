"""The sentences that ask for each predicate: what the rule-based optimizer writes into a prompt.

Each family has three phrasings in plain English, the most natural first and a short one last; after a rejection the
next one is tried. They are written for any model. Nothing here depends on the lexicon of the simulated model, and a
test enforces that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from promptiter.offline.text.dates import write_example_date


def phrase_rule(family: str, parameters: Sequence[str] = ()) -> tuple[str, ...]:
    """The sentences that ask for a predicate of that family, the most natural first."""
    slots = _fill_slots(family, parameters)
    return tuple(template.format_map(slots) for template in PHRASINGS[family])


def describe_field(family: str, parameters: Sequence[str] = ()) -> tuple[str, ...]:
    """The sentences of the description of an output field that say what the predicate asks for."""
    slots = _fill_slots(family, parameters)
    return tuple(template.format_map(slots) for template in DESCRIPTIONS[family])


def join_list(items: Sequence[str], *, conjunction: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {conjunction} {items[-1]}"


def with_article(name: str) -> str:
    """`the order id`."""
    return f"the {name}"


PHRASINGS: Mapping[str, tuple[str, ...]] = {
    "field_carried": (
        "Always include {fields} from the input in your output.",
        "Your output must contain {fields} that the input gives.",
        "Keep {fields}.",
    ),
    "all_fields_carried": (
        "Include every field of the input in your output, with its value.",
        "Pass on all fields that you are given; do not drop any.",
        "Do not leave out any information from the input.",
    ),
    "verbatim": (
        "Copy values exactly as they are written in the input.",
        "Do not reformat dates, numbers or names: repeat them verbatim.",
        "Do not rephrase or reformat what you copy.",
    ),
    "enumeration": (
        "Answer with exactly one of these labels: {labels}.",
        "Choose one of {either}.",
        "Classify the input as {either}.",
    ),
    "label_cue": (
        'Answer "{label}" when the input mentions "{cue}".',
        "If the input mentions {cue}, the label is {label}.",
        "Use {label} for inputs about {cue}.",
    ),
    "cite": (
        "Cite the source of your answer by its id in square brackets.",
        "After each fact, give the id of the document it comes from in brackets.",
        "Every answer must cite its source in brackets.",
    ),
    "value_only": (
        "Give only the answer itself, with no other text.",
        "Reply with the value only, without a sentence around it.",
        "Answer with the bare value.",
    ),
    "field_only": (
        "Answer only with {field} from the input.",
        "Give only {field}, with no other text.",
        "Reply with {field} alone.",
    ),
    "keyword": (
        'Mention the word "{word}" in your answer.',
        'Your answer must contain the word "{word}".',
        'Include the word "{word}".',
    ),
    "call_tool": (
        "Call the {tool} tool before you answer.",
        "Always use the {tool} tool; do not answer from memory.",
        "Use the {tool} tool for every request.",
    ),
    "call_tool_when": (
        "Call the {tool} tool when {condition}.",
        "If {condition}, use the {tool} tool before you answer.",
        "When {condition}, you must call {tool}.",
    ),
    "no_tool": (
        "Do not call the {tool} tool.",
        "Never use the {tool} tool.",
        "Leave the {tool} tool alone.",
    ),
    "tool_order": (
        "First call {first}, then {then}.",
        "Call the tools in this order: {order}.",
        "Start with the {first} tool, then call {then}.",
    ),
    "argument_source": (
        "When you call {tool}, set {argument} to {field} from the input.",
        "Pass {field} as the argument {argument} of {tool}.",
        "Use {field} as the {argument} when you call {tool}.",
    ),
    "use_tool": (
        "Use this tool before you answer any request.",
        "Call this tool first for every question; do not answer from memory.",
        "Always call this tool before answering.",
    ),
    "use_tool_when": (
        "Use this tool when {condition}.",
        "Call this tool whenever {condition}.",
        "Use this tool first if {condition}.",
    ),
    "rubric": (
        "Make sure that the following holds: {text}",
        "Your output must meet this requirement: {text}",
        "It is required that: {text}",
    ),
    "json_object": (
        "Answer with a JSON object.",
        "Format your output as valid JSON.",
        "Write the answer in JSON.",
    ),
    "json_keys": (
        "Return a JSON object with exactly the {word} {keys}, in this order.",
        "Answer in JSON with these keys: {bare}.",
        "Respond with JSON containing the fields {keys}.",
    ),
    "json_only": (
        "Output only the JSON, with no text before or after it and no code fence.",
        "Do not add any explanation or Markdown around the JSON.",
        "The reply must be the JSON object alone.",
    ),
    "prefix": (
        'Begin your answer with "{text}".',
        'Start every reply with the words "{text}".',
        'Every answer opens with "{text}".',
    ),
    "suffix": (
        'End your answer with "{text}".',
        'Finish every reply with the words "{text}".',
        'Close each answer with "{text}".',
    ),
    "max_length": (
        "Answer in at most {length}.",
        "Use no more than {length}.",
        "Limit your answer to {length}.",
    ),
    "min_length": (
        "Write at least {length}.",
        "Your answer must have at least {length}.",
        "Use no fewer than {length}.",
    ),
    "date_format": (
        "Write all dates as {format}.",
        "Use the date format {format}.",
        "Convert dates to {format}.",
    ),
    "decimals": (
        "Write amounts with exactly {places}.",
        "Round numbers to {places}.",
        "Numbers must have {places}.",
    ),
    "whole_numbers": (
        "Round numbers to whole numbers.",
        "Write numbers without decimals.",
        "Give amounts as integers, with 0 decimal places.",
    ),
    "upper_case": (
        "Write your answer in upper case.",
        "Use capital letters only.",
        "Answer in ALL CAPS.",
    ),
    "language": (
        "Answer in {language}.",
        "Write your output in {language}.",
        "Use {language} only.",
    ),
}
"""The templates by family of predicates."""

DESCRIPTIONS: Mapping[str, tuple[str, ...]] = {
    "source": ("The {field} from the input.", "The {field}."),
    "enumeration": ("One of: {labels}.",),
    "label_cue": ('It is "{label}" if the input mentions "{cue}".',),
    "date_format": ("Written as {format}.",),
    "decimals": ("With {places}.",),
    "whole_numbers": ("Rounded to a whole number.",),
    "upper_case": ("In upper case.",),
    "language": ("In {language}.",),
    "verbatim": ("Exactly as written in the input.",),
}
"""The templates for the description of an output field: they describe its values and do not instruct."""


def _fill_slots(family: str, parameters: Sequence[str]) -> dict[str, str]:
    """The slots of a family's templates."""
    match family, parameters:
        case "field_carried", names:
            return {"fields": join_list([with_article(name) for name in names])}
        case "field_only", (name,):
            return {"field": with_article(name)}
        case "source", (name,):
            return {"field": f'value of "{name}"' if _PARTICIPLE.search(name) else name}
        case "json_keys", keys:
            quoted = join_list([f'"{key}"' for key in keys])
            return {"keys": quoted, "bare": ", ".join(keys), "word": "key" if len(keys) == 1 else "keys"}
        case "enumeration", labels:
            return {"labels": ", ".join(labels), "either": join_list(labels, conjunction="or")}
        case "max_length" | "min_length", (count, unit):
            return {"length": f"one {unit.removesuffix('s')}" if count == "1" else f"{count} {unit}"}
        case "decimals", ("1",):
            return {"places": "one decimal place", "digits": "one digit", "decimals": "one decimal"}
        case "decimals", (count,):
            return {"places": f"{count} decimal places", "digits": f"{count} digits", "decimals": f"{count} decimals"}
        case "date_format", (name,):
            return {"format": name, "example": write_example_date(name)}
        case "tool_order", (first, *others):
            then = ", then ".join(others)
            return {"order": ", ".join(parameters), "first": first, "then": then}
        case "argument_source", (tool, argument, name):
            return {"tool": tool, "argument": argument, "field": with_article(name)}
        case _:
            return dict(zip(_SLOT_NAMES.get(family, ()), parameters, strict=True))


_PARTICIPLE = re.compile(r"(?:ed|\b(?:bought|built|due|held|lost|made|paid|sent|sold))$")
"""The end of a name that is not a noun, such as `bought` or `date added`."""

_SLOT_NAMES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("prefix", "suffix", "rubric"), ("text",)),
    **dict.fromkeys(("call_tool", "no_tool"), ("tool",)),
    "call_tool_when": ("tool", "condition"),
    "use_tool_when": ("condition",),
    "keyword": ("word",),
    "label_cue": ("label", "cue"),
    "language": ("language",),
}
"""The names of the slots that parameters fill as they are."""
