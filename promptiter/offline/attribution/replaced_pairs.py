"""Names that a reference and an answer have different words for: `status: open` and `status: closed`.

The word alone may be elsewhere in the answer, so it is followed together with its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

from promptiter.evaluation.score import Finding
from promptiter.offline.attribution.value_search import Value, read_pairs, read_value


def find_replaced_pairs(expected: str, output: str) -> Iterator[tuple[Value, Value, Finding]]:
    """The pair that is expected, the pair that the answer has in its place, and the finding that says so."""
    actual = _read_words_by_name(output)
    for name, word in _read_words_by_name(expected).items():
        one, other = read_value(word), read_value(actual.get(name, word))
        if one.kind == other.kind and one.key != other.key:
            finding = Finding(kind="wrong", where=name, expected=word, actual=other.text)
            yield Value.pair(name, word), Value.pair(name, other.text), finding


def put_back(text: str, wanted: Value, other: Value | None) -> str:
    """A text with the expected value in place of another."""
    if other is None:
        return text
    if wanted.kind != "pair":
        return text.replace(other.text, wanted.text)
    name, _, word = other.text.partition(": ")
    pattern = rf"(?<![\w-])({re.escape(name)}\W{{1,6}}){re.escape(word)}(?!\w)"
    return re.sub(pattern, lambda found: found[1] + wanted.text.partition(": ")[2], text, flags=re.IGNORECASE)


def _read_words_by_name(text: str) -> dict[str, str]:
    """The values of one word by their names, if a name occurs once."""
    pairs = list(read_pairs(text))
    counts = Counter(name for name, _ in pairs)
    return {name: word for name, word in pairs if counts[name] == 1}
