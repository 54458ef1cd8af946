"""How a YAML value may be written: the styles of scalars and collections, each as a text that replaces the old one.

A style is only a proposal: YamlField parses the changed file again, and takes the first one that holds the value.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from promptiter.errors import SetupError
from traces.model import Json

_PROPERTIES = re.compile(r"(?:(?:!<[^>]*>|[&!][^\s,\[\]{}]*)\s*)*")
_BLOCK = re.compile(r"[|>]([-+0-9]*)([^\n]*)\n?")
_PLAIN = re.compile(r"[^\W\d_](?:[^\n]*\S)?")
_NOT_PLAIN = re.compile(r":(?:\s|$)|\s#")
_NOT_IN_FLOW = re.compile(r"[,\[\]{}:]")
_GAP = re.compile(r"(?<=\S) (?=\S)")
_MIN_WIDTH = 60
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r", "\0": "\\0"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """The text of a node without its anchor and tag. `parent_column` is the indentation of what holds the node."""

    node: Any
    text: str
    start: int
    end: int
    parent_column: int
    is_flow: bool

    @staticmethod
    def of(node: Any, text: str, *, parent_column: int, is_flow: bool) -> Slot:
        start, end = node.start_mark.index, _find_end(node)
        found = _PROPERTIES.match(text, start, max(start, end))
        start = start if found is None else found.end()
        return Slot(node=node, text=text, start=start, end=end, parent_column=parent_column, is_flow=is_flow)

    @property
    def old(self) -> str:
        return self.text[self.start : self.end]

    @property
    def style(self) -> str | None:
        """`'`, `"`, `|` or `>`; None for a plain scalar or a collection."""
        style = getattr(self.node, "style", None)
        return style if isinstance(style, str) else None


def list_styles(slot: Slot, value: Json) -> Iterator[str]:
    """The ways to write a value, the style of the old one first."""
    space = " " if not slot.old and slot.text[slot.start - 1 : slot.start].strip() else ""
    if isinstance(slot.node.value, list):
        _refuse_comments(slot)
    if isinstance(value, dict | list):
        yield from (f"{space}{each}" for each in _list_collections(slot, value))
    elif isinstance(value, str):
        yield from (f"{space}{each}" for each in _list_texts(slot, value))
    else:
        yield f"{space}{_write_scalar(value)}{_rest_of_block(slot)}"


def _list_texts(slot: Slot, value: str) -> Iterator[str]:
    if slot.style is None and _PLAIN.fullmatch(value) and not _NOT_PLAIN.search(value):
        if not (slot.is_flow and _NOT_IN_FLOW.search(value)):
            yield value
    elif slot.style == "'" and "\n" not in value:
        yield "'" + value.replace("'", "''") + "'"
    elif slot.style == ">":
        yield from _list_blocks(slot, value, ">")
    if slot.style in ("|", ">") or ("\n" in value and slot.style != '"' and not slot.is_flow):
        yield from _list_blocks(slot, value, "|")
    yield _quote(value) + _rest_of_block(slot)


def _rest_of_block(slot: Slot) -> str:
    """What must follow a value that replaces a block: its comment, and the line breaks at its end."""
    found = _BLOCK.match(slot.old) if slot.style in ("|", ">") else None
    if found is None:
        return ""
    end = re.search(r"(?:\n[ \t]*)*\Z", slot.old)
    return found[2] + (end[0] if end else "")


def _quote(value: str) -> str:
    return '"' + "".join(_ESCAPES.get(each) or _escape(each) for each in value) + '"'


def _escape(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _list_blocks(slot: Slot, value: str, style: str) -> Iterator[str]:
    """A literal or folded block: with the header of the old one, or else with what the value needs."""
    content = value.rstrip("\n")
    if not content:
        return
    found = _BLOCK.match(slot.old) if slot.style in ("|", ">") else None
    old_header, comment = (found[1], found[2]) if found else ("", "")
    old_body = slot.old[found.end() :] if found else ""
    indent, newlines = _find_indent(slot, old_body), len(value) - len(content)
    lines = _fold(content, _find_width(old_body, indent)) if style == ">" else content.split("\n")
    if lines is None:
        return
    body = "\n".join(f"{' ' * indent}{line}" if line else "" for line in lines)
    step = str(indent - slot.parent_column) if re.match(r"\n*[ \t]", value) else ""
    chomping = "+" if newlines > 1 else "" if newlines else "-"
    for header in dict.fromkeys((old_header, step + chomping)):
        if found is None:  # the rest of the line follows
            end = "\n" * (newlines - 1) if newlines > 1 else ""
        elif "+" in header:
            end = "\n" * newlines
        else:
            blank = re.search(r"(?:\n[ \t]*)*\Z", old_body)
            end = blank[0] if blank and old_body.strip() else "\n"
        yield f"{style}{header}{comment}\n{body}{end}"


def _find_indent(slot: Slot, old_body: str) -> int:
    """The indentation of the old block. That of its first line may belong to the value."""
    first = next((line for line in old_body.split("\n") if line.strip()), None)
    shown = next((line for line in str(slot.node.value).split("\n") if line.strip()), None)
    if first is None or shown is None:
        return max(slot.parent_column, 0) + 2
    return (len(first) - len(first.lstrip(" "))) - (len(shown) - len(shown.lstrip(" ")))


def _find_width(old_body: str, indent: int) -> int:
    return max([_MIN_WIDTH, *(len(line) - indent for line in old_body.split("\n"))])


def _fold(content: str, width: int) -> list[str] | None:
    """The lines of a folded block, in which a line break within a paragraph means a space."""
    start = len(content) - len(content.lstrip("\n"))
    lines = [""] * start
    for number, part in enumerate(re.split(r"(\n+)", content[start:])):
        if number % 2:
            lines += [""] * len(part)
        elif part[:1] in (" ", "\t"):
            return None
        else:
            lines += fill(part, width)
    return lines


def fill(text: str, width: int) -> list[str]:
    """Break a text at single spaces into lines of at most this width, if its words allow. The spaces are left out."""
    lines: list[str] = []
    for word in _GAP.split(text):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _write_scalar(value: float | bool | None) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        raise SetupError(f"{value} is not a value of JSON or YAML; use a finite number")
    token = json.dumps(value)
    return re.sub(r"^(-?\d+)e", r"\1.0e", token)  # YAML 1.1 reads 1e-05 as text


def _list_collections(slot: Slot, value: Json) -> Iterator[str]:
    import yaml

    is_block = isinstance(slot.node.value, list) and not slot.node.flow_style
    end = _rest_of_block(slot) or ("\n" if is_block and slot.old.endswith("\n") else "")
    if is_block and value:
        dumped = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, width=10_000, default_flow_style=False)
        yield dumped.rstrip("\n").replace("\n", f"\n{' ' * slot.node.start_mark.column}") + end
    yield json.dumps(value, ensure_ascii=False) + end
    yield json.dumps(value) + end


def _refuse_comments(slot: Slot) -> None:
    """Refuse to replace a collection with comments or aliases in it: they would be lost."""
    old, rest = slot.old, slot.text[slot.end : slot.node.end_mark.index]
    for leaf in _list_leaves(slot.node):
        low, high = leaf.start_mark.index - slot.start, leaf.end_mark.index - slot.start
        if not isinstance(leaf.value, list):
            old = old[:low] + "." * (high - low) + old[high:]
    is_cut = any(line.strip() and not line.strip().startswith("#") for line in rest.split("\n"))
    if "#" in old or "*" in old or is_cut:
        raise SetupError("the value has comments or aliases in it, which would be lost; change it by hand")


def _find_end(node: Any) -> int:
    """Where a node ends. The mark of a block collection is behind the comments that follow it."""
    if isinstance(node.value, list) and not node.flow_style:
        return max((each.end_mark.index for each in _list_leaves(node)), default=int(node.end_mark.index))
    return int(node.end_mark.index)


def _list_leaves(node: Any) -> Iterator[Any]:
    """The scalars in a collection, and its flow collections, whose brackets count. Aliases are left out."""
    for each in node.value:
        for child in each if isinstance(each, tuple) else (each,):
            if not node.start_mark.index <= child.start_mark.index < node.end_mark.index:
                continue
            if isinstance(child.value, list):
                yield from _list_leaves(child)
            if not isinstance(child.value, list) or child.flow_style:
                yield child
