"""The task of the simulated model, read from its messages: the topic, fields, documents and tool results.

Fields are read from JSON objects, from `key: value` lines, from `(key: value; …)` inside prose, and from
`key: value, …` after a sentence.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from promptiter.llm.messages import Message
from promptiter.offline.model.style import plain_text, strip_openers
from promptiter.small_words import SMALL_WORDS
from traces.model import Json

_TOPIC_KEYS = ("question", "query", "request", "task", "message", "topic", "text", "input", "complaint", "ticket")
_DOCUMENT_KEYS = frozenset(("documents", "document", "evidence", "sources", "passages", "context", "snippets", "docs"))
_SYNONYMS = {
    "number": "id",
    "total": "amount",
    "price": "amount",
    "cost": "amount",
    "town": "city",
    "question": "query",
}
_GENERIC = frozenset(
    ("field", "value", "given", "full", "exact", "original", "same", "relevant", "correct", "input", "user")
)
_DOCUMENT_LINE = re.compile(r"^\s*(?:[-*•]\s*)?\[([\w.:-]+)\]\s*(\S.*)$")
_FIELD_LINE = re.compile(r"^\s*(?:[-*•]\s*)?([^\W\d][\w -]{0,40}?)\s*(?::\s+|\s=\s)(\S.*)$")
_INLINE_FIELDS = re.compile(r"\(([^()\n]*:\s[^()\n]*)\)")
_TRAILING_FIELDS = re.compile(r"(?<=[.?!]) +((?:[^\W\d][\w -]{0,40}: [^,;:\n]+(?:[,;] |$))+)$")
_QUESTION = re.compile(
    r"\?|^\W*(?:who|what|when|where|which|whose|why|how|is|are|was|were|does|do|did|can|could|should)\b", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Document:
    """A piece of evidence: from the task, or from a tool (`id` is then the tool's name)."""

    id: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task; `topic` is the request in the user's words."""

    topic: str
    fields: Mapping[str, Json] = field(default_factory=dict)
    documents: tuple[Document, ...] = ()
    results: tuple[Document, ...] = ()
    called_tools: frozenset[str] = frozenset()

    @property
    def is_question(self) -> bool:
        return _QUESTION.search(self.topic) is not None

    def find(self, phrase: str) -> list[str]:
        """The names of the fields that a phrase means: those that share most words with it, synonyms included."""
        exact = _find_best_names(phrase, self.fields, translate=False)
        return exact or _find_best_names(phrase, self.fields, translate=True)


def read_task(messages: Iterable[Message]) -> Task:
    """The task in all messages but the system's. Later fields replace earlier ones; the topic is the last user's."""
    fields: dict[str, Json] = {}
    documents: list[Document] = []
    results: list[Document] = []
    tool_names: dict[str, str] = {}
    called: set[str] = set()
    topic = ""
    for message in messages:
        tool_names.update({request.id: request.name for request in message.tool_requests})
        if message.role not in ("user", "tool"):
            continue
        read = _MessageReader(message.content)
        if message.role == "user":
            called.clear()
            topic = read.topic
        else:
            tool = tool_names.get(message.tool_request_id or "", "tool")
            called.add(tool)
            results.append(Document(tool, message.content.strip()))
        fields |= read.fields
        documents += read.documents
    return Task(
        topic=topic,
        fields=fields,
        documents=tuple(documents),
        results=tuple(results),
        called_tools=frozenset(called),
    )


@lru_cache(maxsize=4096)
def split_words(text: str) -> tuple[str, ...]:
    """The words of a text except small ones, in lower case and singular; `orderId` and `order_id` are two words."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])|[^\w]|_", " ", text.replace("'s", ""))
    return tuple(_make_singular(word) for word in spaced.lower().split() if word not in SMALL_WORDS)


class _MessageReader:
    """The fields, documents and topic of one message."""

    def __init__(self, content: str) -> None:
        self.fields: dict[str, Json] = {}
        self.documents: list[Document] = []
        rest: list[str] = []
        for line in self._take_json(content).splitlines():
            document = _DOCUMENT_LINE.match(line)
            pair = _FIELD_LINE.match(line)
            if document:
                self.documents.append(Document(document[1], document[2].strip()))
            elif pair and len(pair[1].split()) <= 4 and not _is_prose(pair[1]):
                self._keep(pair[1].strip(), self._take_inline_fields(pair[2].strip()))
            elif line.strip(" `"):
                rest.append(self._take_inline_fields(line.strip()))
        prose = strip_openers(" ".join(" ".join(rest).split()))
        named = next((str(self.fields[key]) for key in _TOPIC_KEYS if isinstance(self.fields.get(key), str)), "")
        self.topic = strip_openers(named) or prose or self._describe_record()

    def _describe_record(self) -> str:
        """The topic of a bare record: its question, its last sentence, its only value, or the names of some fields."""
        values = [plain_text(value) for value in self.fields.values()]
        sentences = [value for value in values if len(value.split()) > 3]
        questions = [value for value in sentences if "?" in value]
        if sentences or len(values) == 1:
            return strip_openers((questions[:1] or sentences[-1:] or values)[0])
        return ", ".join(" ".join(split_words(name)) for name in list(self.fields)[:3])

    def _take_json(self, content: str) -> str:
        """Keep the fields of JSON objects and lists; return the text without them."""
        decoder = json.JSONDecoder()
        rest, position = "", 0
        for start in re.finditer(r"[{\[](?=\s*[\"{}\]])", content):
            if start.start() < position:
                continue
            try:
                value, end = decoder.raw_decode(content, start.start())
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict) or _is_record_list(value):
                rest += content[position : start.start()]
                position = end
                self._keep_record(value if isinstance(value, dict) else {"documents": value})
        return re.sub(r"`{3}\w*", "", rest + content[position:])

    def _take_inline_fields(self, line: str) -> str:
        """Keep the fields in brackets and after a sentence; return the line without them."""
        if trailing := _TRAILING_FIELDS.search(line):
            self._keep_pairs(re.split("[,;] ", trailing[1]))
            line = line[: trailing.start()]
        for group in _INLINE_FIELDS.finditer(line):
            self._keep_pairs(group[1].split(";"))
        return _INLINE_FIELDS.sub("", line).replace(" .", ".")

    def _keep_pairs(self, pairs: Iterable[str]) -> None:
        for pair in pairs:
            key, _, value = pair.partition(": ")
            if value.strip() and len(key.split()) <= 4:
                self._keep(key.strip(), value.strip())

    def _keep_record(self, record: Mapping[str, Json]) -> None:
        """Keep the fields of a record; those of a nested record under both names."""
        waiting: list[tuple[str, Json]] = list(record.items())
        while waiting:
            key, value = waiting.pop(0)
            if isinstance(value, dict):
                waiting = [(f"{key}_{inner}", nested) for inner, nested in value.items()] + waiting
            else:
                self._keep(key, value)

    def _keep(self, key: str, value: Json) -> None:
        if key.lower() in _DOCUMENT_KEYS and not isinstance(value, int | float | bool | None):
            self.documents += _read_documents(value, start=len(self.documents) + 1)
        elif value is not None and value != "":
            self.fields["_".join(key.split())] = value.rstrip(".") if isinstance(value, str) else value


def _read_documents(value: Json, *, start: int) -> Iterator[Document]:
    for number, item in enumerate(value if isinstance(value, list) else [value], start):
        if not isinstance(item, dict):
            yield Document(str(number), plain_text(item))
            continue
        name = next((item[key] for key in ("id", "source", "name", "title") if key in item), number)
        text = next((item[key] for key in ("text", "content", "passage", "snippet") if key in item), item)
        yield Document(plain_text(name), plain_text(text))


def _is_record_list(value: Json) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, dict | str) for item in value)


def _is_prose(key: str) -> bool:
    """Whether the text before a colon is the start of a sentence rather than a name."""
    return len(key.split()) > 2 and bool(re.search(r"\b(?:is|are|was|i|you|we|please|the|this)\b", key, re.IGNORECASE))


def _find_best_names(phrase: str, known: Mapping[str, Json], *, translate: bool) -> list[str]:
    wanted = find_words(phrase, translate=translate)
    scored: list[tuple[float, str]] = []
    for name in known:
        words = find_words(name, translate=translate)
        if words and wanted and (words <= wanted or wanted <= words):
            scored.append((len(words & wanted) / len(words | wanted), name))
    best = max((score for score, _ in scored), default=0.0)
    return [name for score, name in scored if score == best]


@lru_cache(maxsize=4096)
def find_words(text: str, *, translate: bool) -> frozenset[str]:
    """The words by which a phrase and the name of a field are compared, if asked for with one word for synonyms."""
    found = frozenset(split_words(text)) - _GENERIC or frozenset(split_words(text))
    return frozenset(_SYNONYMS.get(word, word) for word in found) if translate else found


def _make_singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")) else word
