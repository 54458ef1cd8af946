"""The tools that the simulated model calls, and their arguments.

It calls a tool if its instruction says so, or if the tool's description says when to use it and the task is of that
kind. A tool that has answered since the user's last message is not called again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from promptiter.llm.messages import ToolRequest, ToolSpec
from promptiter.offline.model.instruction_rules import RuleBook
from promptiter.offline.model.style import plain_text
from promptiter.offline.model.task import Task, split_words
from traces.model import Json

_SAYS_WHEN = re.compile(
    r"\b(?:use|call|invoke)\b.*\b(?:when|whenever|if|to|for|before)\b|\bwhen(?:ever)?\b.*\b(?:asks?|needs?|wants?|questions?)\b",
    re.IGNORECASE | re.DOTALL,
)
_DESCRIPTION_WORDS = frozenset(
    ("use", "call", "tool", "function", "when", "whenever", "user", "customer", "ask", "need", "want", "question")
)


def choose_tools(tools: Sequence[ToolSpec], task: Task, book: RuleBook, *, accepts_invitation: bool) -> list[ToolSpec]:
    """The tools to call next: those of the first rule with a tool that was not called yet.

    Without such a rule, and if no tool was called yet, the model may accept the invitation of a tool's description.
    """
    allowed = [tool for tool in tools if not _is_forbidden(tool, book)]
    for names in book.all("call_tool"):
        found = [tool for name in names if (tool := _find_tool(name, allowed, task)) is not None]
        waiting = [tool for tool in found if tool.name not in task.called_tools]
        if waiting:
            return waiting
    if not accepts_invitation or task.called_tools:
        return []
    inviting = [tool for tool in allowed if _SAYS_WHEN.search(tool.description) and _count_shared_words(tool, task)]
    best = max(inviting, key=lambda tool: _count_shared_words(tool, task), default=None)
    return [] if best is None else [best]


def request_tool(tool: ToolSpec, task: Task, book: RuleBook, *, request_id: str) -> ToolRequest:
    """A call of the tool. Its arguments are fields of the task with the same name, or what rules say."""
    required = set(tool.parameters.get("required", ()))
    sources = {argument.lower(): source for argument, source in book.all("tool_argument")}
    arguments: dict[str, Json] = {}
    for name, schema in tool.parameters.get("properties", {}).items():
        value = _fill_argument(name, schema, task, source=sources.get(name.lower()), is_required=name in required)
        if value is not None:
            arguments[name] = value
    return ToolRequest(request_id, tool.name, arguments)


def _is_forbidden(tool: ToolSpec, book: RuleBook) -> bool:
    return any(not name or _means(name, tool) for name in book.items("no_tool"))


def _find_tool(name: str, tools: Sequence[ToolSpec], task: Task) -> ToolSpec | None:
    """The tool of that name; without a name, the one that fits the task best."""
    if name:
        return next((tool for tool in tools if _means(name, tool)), None)
    return max(tools, key=lambda tool: _count_shared_words(tool, task), default=None)


def _means(name: str, tool: ToolSpec) -> bool:
    words, others = set(split_words(name)), set(split_words(tool.name))
    return name.lower() == tool.name.lower() or (bool(words) and (words <= others or others <= words))


def _count_shared_words(tool: ToolSpec, task: Task) -> int:
    """How many words the tool's name and description share with the task."""
    described = set(split_words(f"{tool.name} {tool.description}")) - _DESCRIPTION_WORDS
    return len(described & set(split_words(f"{task.topic} {' '.join(task.fields)}")))


def _fill_argument(name: str, schema: Mapping[str, Json], task: Task, *, source: str | None, is_required: bool) -> Json:
    options = schema.get("enum")
    if source is not None:
        names = task.find(source)
        return _convert(task.fields[names[0]] if names else source, schema)
    names = task.find(name)
    if names and (not options or task.fields[names[0]] in options):
        return _convert(task.fields[names[0]], schema)
    if options:
        named = next((option for option in options if str(option).lower() in task.topic.lower()), None)
        return named if named is not None else (options[0] if is_required else None)
    return _convert(task.topic, schema) if is_required else None


def _convert(value: Json, schema: Mapping[str, Json]) -> Json:
    """The value in the type that the schema asks for."""
    match schema.get("type", "string"):
        case "integer" | "number" as kind:
            found = re.search(r"-?\d+(?:\.\d+)?", plain_text(value).replace(",", ""))
            number = float(found[0]) if found else 0.0
            return int(number) if kind == "integer" else number
        case "boolean":
            return value if isinstance(value, bool) else plain_text(value).lower() in ("yes", "true", "1")
        case "array":
            return value if isinstance(value, list) else [value]
        case "string":
            return plain_text(value)
        case _:
            return value
