"""What the expected answers of many cases have in common: a start, an end, words, the labels of a field.

What they share counts as format, which the step that writes the answer is responsible for. What is specific to a case
is content, which steps have to carry. With fewer than three other references nothing counts as format.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from promptiter.offline.attribution.value_search import Value, normalize_name, read_value, split_values
from promptiter.offline.text.matching import normalize, read_document
from traces.model import Json

MIN_OTHERS = 3
COMMON_SHARE = 0.8
"""A value in at least this share of the references counts as format."""

MAX_LABELS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The common traits of expected answers. `fields` counts the values of each JSON field; "" is the whole answer."""

    prefix: str = ""
    suffix: str = ""
    common: frozenset[tuple[str, str, str]] = frozenset()
    fields: Mapping[str, Counter[str]] = field(default_factory=dict)

    def is_common(self, name: str, value: Value) -> bool:
        """Whether most references have the value in that field."""
        return (name, *value.key) in self.common

    def labels_for(self, name: str, leaf: Json) -> frozenset[str]:
        """The other values of a field that takes few values again and again; "" is the answer as a whole."""
        seen = self.fields.get(name, Counter())
        is_label = isinstance(leaf, str) and normalize(leaf) in seen and len(seen) <= MAX_LABELS
        is_repeated = seen.total() >= 2 * len(seen) and seen.total() > MIN_OTHERS
        return frozenset(seen) if is_label and is_repeated else frozenset()


NO_REFERENCES = References()


def find_common_traits(expected: Iterable[str | None]) -> References:
    """The common traits of these expected answers: those of the failed case and of its peers."""
    texts = [text.strip() for text in expected if text and text.strip()]
    if len(texts) <= MIN_OTHERS:
        return NO_REFERENCES
    counts: Counter[tuple[str, str, str]] = Counter()
    fields: dict[str, Counter[str]] = {}
    is_json = []
    for text in texts:
        leaves = _read_fields(text)
        is_json.append(leaves is not None)
        if leaves is None:
            leaves = [("", text)]
            counts.update({("", *value.key) for value in split_values(text)})
        else:
            counts.update({(name, *read_value(leaf).key) for name, leaf in leaves})
        for name, leaf in leaves:
            if isinstance(leaf, str) and len(leaf.split()) <= 4:
                fields.setdefault(name, Counter())[normalize(leaf)] += 1
    are_prose = not any(is_json) and len(set(texts)) > 1
    return References(
        prefix=" ".join(_find_shared_start(text.split() for text in texts)) if are_prose else "",
        suffix=" ".join(reversed(_find_shared_start(text.split()[::-1] for text in texts))) if are_prose else "",
        common=frozenset(value for value, count in counts.items() if count >= COMMON_SHARE * len(texts)),
        fields=fields,
    )


def _find_shared_start(texts: Iterable[list[str]]) -> list[str]:
    """The words that all texts begin with; empty if they are all of a text."""
    texts = sorted(texts)
    first, last = texts[0], texts[-1]  # what these two share, all between them share
    count = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:count] if count < len(last) else []


def _read_fields(text: str) -> list[tuple[str, Json]] | None:
    """The plain values of a JSON object by field name; None if the text is not one."""
    document = read_document(text)
    if not isinstance(document, dict):
        return None
    return [(normalize_name(key), leaf) for key, leaf in document.items() if not isinstance(leaf, dict | list)]
