"""What models put around a new value: remarks, code fences, quotes and the data marks of the prompt.

A wrapper around the whole value is stripped. What shows that the value is not complete, or was copied from the prompt
along with its marks, is refused, so that the model is asked again. What the current value has itself is kept.
"""

from __future__ import annotations

import re

from promptiter.backprop.llm.rendering import render_value
from promptiter.llm.redaction import map_texts
from promptiter.structure import TEXT_TYPES, Surface
from traces.model import Json

SHOWN = 60
"""Characters of a refused mark that its problem shows."""


def unwrap_value(value: Json, surface: Surface) -> Json:
    """Return a proposed value without its wrappers. Raises ValueError if it is not complete or has data marks."""
    current = render_value(surface.value)
    if isinstance(value, str) and surface.type in TEXT_TYPES:
        value = _check_end(_strip_wrappers(value, current), current)
    return map_texts(value, lambda text: unwrap_passage(text, surface))


def unwrap_passage(text: str, surface: Surface) -> str:
    """Return a text of a proposed value with its marks unescaped. Raises ValueError if it has marks of the prompt."""
    current = render_value(surface.value)
    for marks, what in ((_DATA_MARK, "marks of the data in the prompt"), (_GAP, "a note in place of a passage")):
        if (found := marks.search(text)) and not marks.search(current):
            raise ValueError(f"the value has {what}, {found[0][-SHOWN:]!r}; give the bare and complete text")
    return unescape_marks(text, surface)


def unescape_marks(text: str, surface: Surface) -> str:
    """Restore the data marks that the prompt escaped, because models copy the escaped form."""
    return text if _ESCAPED_MARK.search(render_value(surface.value)) else _ESCAPED_MARK.sub("<", text)


def _strip_wrappers(value: str, current: str) -> str:
    """Strip wrappers until none is left. A wrapper that the current value has, too, belongs to it."""
    current = current.strip()
    while True:
        for wrapper in _WRAPPERS:
            found = wrapper.match(value.strip())
            if found is not None and not wrapper.match(current) and found["value"].strip():
                break
        else:
            return value
        value = found["value"].strip()


def _check_end(value: str, current: str) -> str:
    last = _LAST_WORD.search(value.rstrip())
    if last is not None and last[0].lower() in _NEVER_LAST and not current.rstrip().lower().endswith(last[0].lower()):
        raise ValueError(f"the value ends in the middle of a sentence, with {last[0]!r}; give the complete value")
    return value


_DATA_MARK = re.compile(r"<data\s+name\s*=[^<>]*>|(?<!.)(?:(?!<data).)*</data>", re.IGNORECASE | re.DOTALL)
_ESCAPED_MARK = re.compile(r"&lt;(?=\s*/?\s*data\b)", re.IGNORECASE)
_GAP = re.compile(
    r"\[… [^\[\]]*left out[^\[\]]* …\]|\[\W{0,5}(?:the\s+)?rest\s+(?:is\s+|stays\s+)?unchanged\W{0,5}\]"
    r"|^[ \t]*+[^\w\n]{0,5}(?:\.\.\.|[…\[(<*])[^\w\n]{0,5}(?:the\s+)?(?:rest|remainder)\s+(?:of\s+[^.\n]{1,60}\s+)?"
    r"(?:is\s+|stays?\s+|remains?\s+)?(?:the\s+)?"
    r"(?:unchanged|same|as\s+before|as\s+is|omitted)\b[^\n]{0,20}$",
    re.IGNORECASE | re.MULTILINE,
)
"""A note of the prompt, or of the model, that something is left out."""

_NEW = r"(?:improved|updated|new|revised|rewritten|corrected|better|optimi[sz]ed|edited|refined|modified|fixed|final)"
_TITLE = r"(?:instructions?|prompt|value|version|description|surface)"
_THING = rf"(?:{_TITLE}|text|skill|template|file|document)"
_CHANGE = r"(?:updated|revised|rewritten|rewrote|changed|added|kept|edited|removed|improved|refined|made)"
_CHANGED = rf"I(?:['’]ve|\s+have)?\s+{_CHANGE}\b"
_GREETING = r"(?:sure|certainly|of course|okay|ok|absolutely|understood|great|got it)"
_RULE = r"(?:---+[ \t]*\n\s*)?"
_LEAD = (
    rf"[*_#>\s]*(?:{_GREETING}\b[^\n:]{{0,60}}?[.,!:]?\s+)?(?:"
    r"(?:(?:here(?:['’]s|\s+is)|this\s+is|below\s+is)\s+)?(?:(?:the|my|your|an?)\s+)?(?:(?:complete|full)\s+)?"
    rf"{_NEW}\s+(?:(?:[\w'’#.-]+\s+){{0,3}}?{_THING}\b[^\n:]{{0,60}}?[*_]*:[*_]*+|{_TITLE}[*_]*\n)"
    r"|here\s+you\s+go[:.!]|here(?:['’]s|\s+is)\s+what\s+I\b[^\n:]{0,60}:"
    rf"|{_CHANGED}[^\n]*\b{_THING}\b[^\n]*\n(?=\s*\n)"
    rf")\s*+{_RULE}(?!\{{)"
)
_CLOSING = (
    r"(?:please\s+)?let\s+me\s+know\b|feel\s+free\s+to\b|(?:I\s+)?hope\s+(?:this|that|it)\b|would\s+you\s+like\s+me\b"
    rf"|(?:note:\s+)?{_CHANGED}|this\s+(?:change|edit|update|revision|wording|version|{_NEW}\s+{_THING})\b"
)
_FENCED = r"(?P<fence>```|~~~)[\w-]*[ \t]*\n(?P<value>(?:(?!^(?:```|~~~)).)*)(?P=fence)"
_WRAPPERS = tuple(
    re.compile(pattern, re.DOTALL | re.IGNORECASE | re.MULTILINE)
    for pattern in (
        r"<data\b[^<>]*>(?P<value>.*)</data>\Z",
        rf"<(?P<tag>(?:[a-z]{{1,20}}[ _-]){{0,3}}{_THING})>(?P<value>(?:(?!</?(?P=tag)>).)*)</(?P=tag)>\Z",
        rf"{_LEAD}{_FENCED}(?:(?!```|~~~).)*\Z",
        rf"{_FENCED}\Z",
        rf"{_LEAD}(?P<value>.+)\Z",
        rf"{_GREETING}[.,!:]\s+(?P<value>.+)\Z",
        r"(?:value|instruction|prompt):[ \t]+(?P<value>(?!\{).+)\Z",
        r"---+[ \t]*\n(?P<value>.+)\n---+\Z",
        rf"(?P<value>.*[^\s:-])[ \t]*\n[ \t]*\n\s*{_RULE}[(*_>]{{0,3}}(?:{_CLOSING})(?:(?!\n[ \t]*\n).)*\Z",
        r'["“](?P<value>[^"“”]+)["”]\Z',
        r"(?P<quote>['`])(?P<value>[^'`]+)(?P=quote)\Z",
    )
)
"""What may be around a whole value: marks, tags, remarks before and after it, code fences, rules and quotes."""

_LAST_WORD = re.compile(r"(?:\b[^\W\d_]+|,)\Z")
_NEVER_LAST = frozenset((",", "a", "an", "and", "because", "if", "or", "the", "which"))
"""No finished sentence ends in these."""
