"""YAML fields: a value in a YAML file, found by its position, so that comments and formatting stay.

The new value is written in the style of the old one (plain, quoted, folded or literal) if that style can hold it, else
as a literal block or in double quotes. Anchors and tags stay. A style can hold a value if the changed file, parsed
again, differs in this value only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from promptiter.errors import SetupError, nearest
from promptiter.sources.field import is_same, join_path, pick_index, split_path
from promptiter.sources.yaml_styles import Slot, list_styles
from traces.model import Json

_MAX_VALUES = 200_000


@dataclass(frozen=True, slots=True)
class YamlField:
    """A field of a YAML document, such as `agents.planner.prompt`. Positions in a list are numbers."""

    path: str

    @property
    def name(self) -> str:
        return f":{self.path}"

    def read(self, text: str) -> Json:
        return _construct(self._find(_compose(text), text).node)

    def replace(self, text: str, value: Json) -> str:
        tree = _compose(text)
        slot = self._find(tree, text)
        others = _flatten(tree, slot.node)
        shared = False
        for written in list_styles(slot, value):
            changed = text[: slot.start] + written + text[slot.end :]
            try:
                again = _compose(changed)
                found = self._find(again, changed)
                if not is_same(_construct(found.node), value):
                    continue
            except SetupError:
                continue
            if _flatten(again, found.node) == others:
                return changed
            shared = shared or others.count(_HERE) > 1
        if shared or others.count(_HERE) > 1:
            raise SetupError(
                "the value has an anchor, and is used in other places as well; copy it to those places, and remove "
                "the anchor and its aliases"
            )
        raise SetupError("YAML cannot hold this value here; change it by hand")

    def _find(self, tree: Any, text: str) -> Slot:
        import yaml

        names, node, parent_column = split_path(self.path), tree, -1
        is_flow, low = False, 0
        for number, name in enumerate(names):
            where = f" in {join_path(names[:number])}" if number else ""
            is_flow = is_flow or bool(getattr(node, "flow_style", False))
            if isinstance(node, yaml.MappingNode):
                key, child = _find_key(node, name, where)
                parent_column, low = key.start_mark.column, key.end_mark.index
            elif isinstance(node, yaml.SequenceNode):
                at = pick_index(name, len(node.value))
                if at is None:
                    raise SetupError(
                        f"there is no item {name!r}{where}; its {len(node.value)} items are numbered from 0"
                    )
                child, parent_column = node.value[at], node.start_mark.column
                low = node.value[at - 1].end_mark.index if at else node.start_mark.index
            else:
                raise SetupError(f"there is no {name!r}{where}, because that is neither a mapping nor a list")
            if not low <= child.start_mark.index < max(node.end_mark.index, low + 1):
                raise SetupError(
                    f"{name!r}{where} is an alias (*) of a value elsewhere; name that place instead, or replace the "
                    "alias by the value"
                )
            node = child
        return Slot.of(node, text, parent_column=parent_column, is_flow=is_flow)


def list_strings(text: str) -> Iterator[tuple[str, str]]:
    """The path and the value of every string in a YAML document; empty if it is not YAML. Aliases are left out."""
    import yaml

    def walk(node: Any, names: tuple[str, ...]) -> Iterator[tuple[str, str]]:
        if isinstance(node, yaml.ScalarNode):
            if node.tag == _STRING and names and all(names):
                yield join_path(names), node.value
        elif id(node) not in seen:
            seen.add(id(node))
            if isinstance(node, yaml.MappingNode):
                members = [(str(key.value), each) for key, each in node.value if isinstance(key, yaml.ScalarNode)]
            else:
                members = [(str(at), each) for at, each in enumerate(node.value)]
            for name, each in members:
                yield from walk(each, (*names, name))

    seen: set[int] = set()
    try:
        tree = _compose(text)
        found = list(walk(tree, ()))
    except (SetupError, RecursionError):
        return
    for path, value in found:
        try:
            YamlField(path)._find(tree, text)
        except SetupError:  # an alias, or a repeated key
            continue
        yield path, value


_STRING = "tag:yaml.org,2002:str"
_HERE = "\0here"


def _compose(text: str) -> Any:
    """The nodes of the only document of a file, with their positions."""
    import yaml

    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split()) or type(error).__name__
        raise SetupError(f"the file is not valid YAML: {problem}") from error
    if len(documents) != 1 or documents[0] is None:
        raise SetupError(f"the file has {len(documents)} YAML documents, and one is needed; use a file for each")
    return documents[0]


def _find_key(node: Any, name: str, where: str) -> tuple[Any, Any]:
    import yaml

    keys = [str(key.value) for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
    found = [(key, each) for key, each in node.value if isinstance(key, yaml.ScalarNode) and str(key.value) == name]
    if not found:
        merged = "; keys that are merged with << belong to the anchor: name that place" if "<<" in keys else ""
        raise SetupError(f"there is no key {name!r}{where}{nearest(name, keys)}{merged}")
    if len(found) > 1:
        raise SetupError(f"the key {name!r}{where} is there {len(found)} times; remove all but one")
    return found[0]


def _construct(node: Any) -> Json:
    """The value of a node, as `yaml.safe_load` reads it. A scalar with a tag of its own is text."""
    import yaml

    if isinstance(node, yaml.ScalarNode) and not node.tag.startswith("tag:yaml.org,2002:"):
        return str(node.value)
    loader = yaml.SafeLoader("")
    try:
        value = loader.construct_document(node)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise SetupError(f"the value cannot be read: {' '.join(str(error).split())}") from error
    finally:
        loader.dispose()
    if not _is_json(value):
        raise SetupError(f"the value is a {type(value).__name__}; write it in quotes to make it text")
    return value


def _is_json(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(name, str) and _is_json(each) for name, each in value.items())
    if isinstance(value, list):
        return all(map(_is_json, value))
    return value is None or isinstance(value, str | bool | int | float)


def _flatten(tree: Any, here: Any) -> list[Any]:
    """Everything in a document but one node, in order. Aliases are expanded: a shared node is there several times."""
    import yaml

    flat: list[Any] = []

    def walk(node: Any, depth: int) -> None:
        if len(flat) > _MAX_VALUES or depth > 200:
            raise SetupError("the file is too large or too deeply nested; change it by hand")
        if node is here:
            flat.append(_HERE)
        elif isinstance(node, yaml.ScalarNode):
            flat.append((node.tag, node.value, node.style))
        elif isinstance(node, yaml.MappingNode):
            flat.append(("{", node.tag, len(node.value)))
            for key, each in node.value:
                walk(key, depth + 1)
                walk(each, depth + 1)
        else:
            flat.append(("[", node.tag, len(node.value)))
            for each in node.value:
                walk(each, depth + 1)

    walk(tree, 0)
    return flat
