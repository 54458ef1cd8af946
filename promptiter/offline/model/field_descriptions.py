"""How the simulated model reads the description of a field of its structured output.

A description is read like an instruction to return what it describes: `The order date, written as YYYY-MM-DD` names a
field of the task and a format, `One of: billing, shipping` the values that are allowed. What it names counts more than
the name of the field that it describes. If it names nothing that the task has, the name of the field counts.
"""

from __future__ import annotations

import re

from promptiter.offline.model.clauses import is_instruction
from promptiter.offline.model.instruction_rules import RuleBook, find_rules
from promptiter.offline.model.task import Task, find_words, split_words
from promptiter.sentences import split_sentences

_GENERIC = frozenset(("name", "value", "text", "number", "string", "kind", "type", "code"))
"""Nouns that say little on their own: the product name is the product."""

_LEAD = (
    r"^\W*(?:(?:this|it)\s+is\s+|(?:use|give|return|write|copy|take|put|fill\s+in|include|contains?|holds?)\s+)?"
    r"(?:(?:always|only|the|an?|its|their|your|exact|full)\s+)*"
)
_NOUN_END = (
    r"\s+(?:of|that|which|who|whose|where|when|in|for|from|as|to|with|on|at|by|is|are|was|given|written|into|if)\b"
)
_NOUN = re.compile(rf"{_LEAD}(?P<noun>[\w' -]+?)(?=(?P<rest>{_NOUN_END}[^.,;:()!?]*)|[.,;:()!?\"]|$)", re.IGNORECASE)
_IT_IS = re.compile(r"^(?:it|this)\s+is\s+", re.IGNORECASE)
_OF = re.compile(r"^\s+of\s+", re.IGNORECASE)


def read_description(description: str) -> RuleBook:
    """The rules of a description: how values are written, and which are allowed."""
    texts = [_IT_IS.sub("", sentence.text) for sentence in split_sentences(description)]
    return RuleBook(find_rules("\n".join(text if is_instruction(text) else f"Return {text}" for text in texts)))


def find_described_field(description: str, task: Task) -> str | None:
    """The name of the field of the task that a description is about: `order_id` for `The id of the order`."""
    found = _NOUN.match(description)
    if found is None:
        return None
    rest = found["rest"] or ""
    nouns, context = list(split_words(found["noun"])), frozenset(split_words(f"{found['noun']} {rest}"))
    while nouns:
        if name := _find_best(nouns[-1], context, task):
            return name
        if nouns.pop() not in _GENERIC:
            return None
    return find_described_field(_OF.sub("", rest), task) if _OF.match(rest) else None


def _find_best(noun: str, context: frozenset[str], task: Task) -> str | None:
    """The field with the noun in its name that shares most words with the description and has fewest others."""
    for translate in (False, True):
        (wanted,) = find_words(noun, translate=translate)
        described = frozenset().union(*(find_words(word, translate=translate) for word in context))
        words = {name: find_words(name, translate=translate) for name in task.fields}
        named = [name for name in task.fields if wanted in words[name]]
        if named:
            return max(named, key=lambda name: (len(words[name] & described), -len(words[name])))
    return None
