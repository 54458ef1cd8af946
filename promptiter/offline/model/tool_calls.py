"""Which tools the simulated model wants called, and with what arguments.

It calls a tool when its instruction says so, or when a tool's description says when to use it and the task is of that
kind. A tool that has answered since the user last spoke is not called again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from promptiter.llm.messages import ToolRequest, ToolSpec
from promptiter.offline.model.instruction_rules import RuleBook
from promptiter.offline.model.task import Task, words
from promptiter.offline.model.values import plain_text
from traces.model import Json

_SAYS_WHEN = re.compile(
    r"\b(?:use|call|invoke)\b.*\b(?:when|whenever|if|to|for|before)\b|\bwhen(?:ever)?\b.*\b(?:asks?|needs?|wants?|questions?)\b",
    re.IGNORECASE | re.DOTALL,
)
_DESCRIPTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        "use call invoke tool function when whenever user customer ask need want question return get find "
        "look answer request",
    )
)


def wanted_tools(tools: Sequence[ToolSpec], task: Task, book: RuleBook) -> list[ToolSpec]:
    """The tools that the instruction tells to call next: those of its first rule that has one left to call."""
    allowed = _allowed(tools, book)
    for names in book.all("call_tool"):
        found = [tool for name in names if (tool := _by_name(name, allowed, task)) is not None]
        waiting = [tool for tool in found if tool.name not in task.called_tools]
        if waiting:
            return waiting
    return []


def inviting_tool(tools: Sequence[ToolSpec], task: Task, book: RuleBook) -> ToolSpec | None:
    """The tool whose own description fits the task best, if it says when to use it."""
    waiting = [tool for tool in _allowed(tools, book) if tool.name not in task.called_tools]
    inviting = [tool for tool in waiting if _SAYS_WHEN.search(tool.description) and _fit(tool, task)]
    return max(inviting, key=lambda tool: _fit(tool, task), default=None)


def tool_request(tool: ToolSpec, task: Task, book: RuleBook, *, request_id: str) -> ToolRequest:
    """A call of the tool, its arguments filled from the fields of the task by name, or as the instruction says."""
    schema = tool.parameters
    required = set(schema.get("required", ()))
    told = {argument.lower(): source for argument, source in book.all("tool_argument")}
    arguments: dict[str, Json] = {}
    for name, part in schema.get("properties", {}).items():
        value = _argument(name, part, task, source=told.get(name.lower()), is_required=name in required)
        if value is not None:
            arguments[name] = value
    return ToolRequest(request_id, tool.name, arguments)


def _allowed(tools: Sequence[ToolSpec], book: RuleBook) -> list[ToolSpec]:
    forbidden = book.items("no_tool")
    return [tool for tool in tools if not any(not name or _means(name, tool) for name in forbidden)]


def _by_name(name: str, tools: Sequence[ToolSpec], task: Task) -> ToolSpec | None:
    """The tool of that name; without a name, the one that fits the task best."""
    if name:
        return next((tool for tool in tools if _means(name, tool)), None)
    return max(tools, key=lambda tool: _fit(tool, task), default=None)


def _means(name: str, tool: ToolSpec) -> bool:
    said, called = set(words(name)), set(words(tool.name))
    return name.lower() == tool.name.lower() or (bool(said) and (said <= called or called <= said))


def _fit(tool: ToolSpec, task: Task) -> int:
    """How many words the tool's description shares with the task."""
    described = set(words(f"{tool.name} {tool.description}")) - _DESCRIPTION_WORDS
    asked = set(words(f"{task.topic} {' '.join(task.fields)}"))
    return len(described & asked)


def _argument(name: str, schema: Mapping[str, Json], task: Task, *, source: str | None, is_required: bool) -> Json:
    options = schema.get("enum")
    if source is not None:
        names = task.find(source)
        return _typed(task.all_fields[names[0]] if names else source, schema)
    names = task.find(name)
    if names and (not options or task.all_fields[names[0]] in options):
        return _typed(task.all_fields[names[0]], schema)
    if options:
        named = next((option for option in options if str(option).lower() in task.topic.lower()), None)
        return named if named is not None else (options[0] if is_required else None)
    return _typed(task.topic, schema) if is_required else None


def _typed(value: Json, schema: Mapping[str, Json]) -> Json:
    kind = schema.get("type", "string")
    if kind in ("integer", "number"):
        found = re.search(r"-?\d+(?:\.\d+)?", plain_text(value).replace(",", ""))
        number = float(found[0]) if found else 0.0
        return int(number) if kind == "integer" else number
    if kind == "boolean":
        return value if isinstance(value, bool) else plain_text(value).lower() in ("yes", "true", "1")
    if kind == "array":
        return value if isinstance(value, list) else [value]
    return plain_text(value) if kind == "string" else value
