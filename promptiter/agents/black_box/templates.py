"""Templates of commands and requests: `{input}`, `{prompt:note}`. What is filled in is never read as a template again.

{input}        the message of the case
{history}      the conversation so far, as JSON: [{"role": "user", "content": "..."}, ...]
{state}        the state of the session, as JSON
{prompt:NAME}  the current value of a prompt
{file:NAME}    the path of a private file with this value; for commands only
{base_url}     the address of promptiter's endpoint for model calls
{key}          the key of this run of the case for that endpoint
{{input}}      the text {input} itself
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

from promptiter.agents.base import to_text
from promptiter.errors import SetupError, nearest
from traces.model import Json

_PLACEHOLDER = re.compile(r"\{\{([a-z_]+(?::[^{}\s]+)?)\}\}|\{([a-z_]+)(?::([^{}\s]+))?\}")
PLAIN = ("input", "history", "state", "base_url", "key")
"""The placeholders without a name."""


class Placeholder(NamedTuple):
    """What a part of a template stands for: `prompt` of the surface `note#instruction`."""

    kind: str
    surface_id: str = ""

    def __str__(self) -> str:
        return f"{{{self.kind}:{self.surface_id}}}" if self.surface_id else f"{{{self.kind}}}"


LookUp: TypeAlias = Callable[[Placeholder], Json]
"""The value of a placeholder in one run."""


def parse_template(text: str, ids: Mapping[str, str], *, place: str, kinds: Iterable[str]) -> list[str | Placeholder]:
    """The parts of a template. `ids` has the surface of each name, `kinds` what may be filled in besides PLAIN.

    SetupError if it has an unknown placeholder.
    """
    known = {*kinds}
    parts: list[str | Placeholder] = []
    at = 0
    for match in _PLACEHOLDER.finditer(text):
        literal, kind, name = match.groups()
        parts.append(text[at : match.start()])
        at = match.end()
        if literal is not None:
            parts.append(f"{{{literal}}}")
        elif name is None and kind in PLAIN:
            parts.append(Placeholder(kind))
        elif kind in known and name is not None:
            if name not in ids:
                raise SetupError(f"{place}: there is no prompt {name!r} for {match[0]}{nearest(name, ids)}")
            parts.append(Placeholder(kind, ids[name]))
        else:
            examples = [f"{{{each}}}" for each in PLAIN] + [f"{{{each}:NAME}}" for each in sorted(known)]
            raise SetupError(
                f"{place}: {match[0]} is not a placeholder; known are {', '.join(examples)}; to pass it as it is, "
                f"write {{{match[0]}}}"
            )
    parts.append(text[at:])
    return [each for each in parts if each != ""]


def fill_text(parts: Iterable[str | Placeholder], look_up: LookUp) -> str:
    """The text of a template."""
    return "".join(each if isinstance(each, str) else to_text(look_up(each)) for each in parts)


def fill_json(value: Json, ids: Mapping[str, str], look_up: LookUp) -> Json:
    """A JSON document whose texts are templates. A text that is nothing but a placeholder becomes its value."""
    if isinstance(value, dict):
        return {key: fill_json(each, ids, look_up) for key, each in value.items()}
    if isinstance(value, list):
        return [fill_json(each, ids, look_up) for each in value]
    if not isinstance(value, str):
        return value
    parts = parse_template(value, ids, place="body", kinds=("prompt",))
    if len(parts) == 1 and isinstance(parts[0], Placeholder):
        return look_up(parts[0])
    return fill_text(parts, look_up)


def list_texts(value: Json) -> Iterator[str]:
    """All texts of a JSON document that are templates."""
    if isinstance(value, dict):
        for each in value.values():
            yield from list_texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from list_texts(each)
    elif isinstance(value, str):
        yield value
