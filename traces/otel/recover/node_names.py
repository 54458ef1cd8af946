"""The names of nodes and applications: the same in all runs, whatever values were filled in."""

from __future__ import annotations

import re
from functools import lru_cache

from traces.model import digest
from traces.otel.recover.concepts import MODEL, TOOL_NAME, first
from traces.otel.recover.edges import Texts
from traces.otel.recover.forest import SpanNode
from traces.otel.recover.order import Draft
from traces.otel.recover.surfaces import find_system


def name_node(draft: Draft, texts: Texts) -> str:
    """The node of a step: its name, or for a model call without one, its agent's or the start of its prompt."""
    item = draft.item
    name = item.name
    if name is None and item.span.role == "tool":
        name = str(first(item.span.span.attributes, TOOL_NAME) or item.span.span.name)
    if name is None:
        name = _find_agent_name(item.span)
    if name is None and item.calls:
        system = find_system(texts.conversations, ())
        name = name_prompt(system) if system else str(first(item.span.span.attributes, MODEL) or item.span.span.name)
    return (name or item.span.span.name or "step").replace("#", "-")


def name_prompt(system: str) -> str:
    """The first words of a system prompt, and a digest of it without the values that were filled in.

    Calls whose prompts differ only in such values are executions of one node: a template is filled in more often than
    two prompts are written that differ in nothing else. Of a long prompt, only the start counts.
    """
    return _make_name(system[:_MAX_CHARACTERS])


_MAX_CHARACTERS = 20_000


@lru_cache(maxsize=256)
def _make_name(start: str) -> str:
    masked = " ".join(_WORD.sub(_mask, start).split())
    words = re.findall(r"\w+", _OPENING.sub("", masked.lower()))
    return "-".join(filter(None, ("-".join(words[:5])[:40], digest(masked)[:4])))


_MONTH = "(?:january|february|march|april|may|june|july|august|september|october|november|december)"
_WORD = re.compile(
    rf"""
    (?P<value>
        "[^"\n]{{1,80}}" | “[^“”\n]{{1,80}}” | (?<!\w)'[^'\n]{{1,80}}'(?!\w)  # what is quoted
        | https?://\S+
        | (?:mon|tues|wednes|thurs|fri|satur|sun)day\b
        | {_MONTH}\ (?=[0-9]) | (?<=[0-9]\ ){_MONTH}\b
    )
    | (?:[\w.:/@+-]|(?<=[0-9]),(?=[0-9]))+
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""A value that was filled in, or any other word. No word is looked at twice, so time grows with the text only."""
_NOT_A_WORD = re.compile(r"[0-9]|[^@]@[^@]")
"""What numbers, dates, ids and addresses contain."""


def _mask(word: re.Match[str]) -> str:
    return "*" if word["value"] or _NOT_A_WORD.search(word[0]) else word[0]


_OPENING = re.compile(r"^\W*you(?: are|'re|’re) (?:(?:the|an|a)\b)?")


def name_application(root: SpanNode) -> str:
    """The name of the outermost span, which every export has, without the numbers and ids that it may contain."""
    return _NUMBER.sub("*", root.span.name)


_NUMBER = re.compile(r"[0-9a-fA-F-]*[0-9][0-9a-fA-F-]*")


def _find_agent_name(node: SpanNode) -> str | None:
    """The name of the agent around a model call whose span says it only as `name.run`; a class is no such name."""
    name, _, method = node.agent.span.name.rpartition(".") if node.agent is not None else ("", "", "")
    return name if method == "run" and name[:1].islower() else None
