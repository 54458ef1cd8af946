"""What the expected answers of many cases have in common: a beginning, an end, words, the labels of a field.

What they share is form, which the step that writes the answer makes; what is a case's own is content, which steps have
to carry. With fewer than three other references nothing is taken for form.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from promptiter.evaluation.metrics.json_match import NotJsonError, parse_json
from promptiter.offline.attribution.value_search import Value, fold, from_plain, parts_of, plain_words
from traces.model import Json

FEWEST = 3
COMMON_SHARE = 0.8
"""What so many of the references hold is form."""

MOST_LABELS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class References:
    """The shared traits of expected answers. `fields` has what each field of JSON answers was, "" the whole answers."""

    prefix: str = ""
    suffix: str = ""
    common: frozenset[tuple[str, str, str]] = frozenset()
    fields: Mapping[str, Counter[str]] = field(default_factory=dict)

    def is_common(self, name: str, value: Value) -> bool:
        """Whether most references hold the value, in that field."""
        return (name, *value.key) in self.common

    def labels_of(self, name: str, leaf: Json) -> frozenset[str]:
        """What else may stand in a field, if it takes few values over and over; "" is the answer as a whole."""
        seen = self.fields.get(name, Counter())
        is_label = isinstance(leaf, str) and fold(leaf) in seen and len(seen) <= MOST_LABELS
        return frozenset(seen) if is_label and seen.total() >= 2 * len(seen) and seen.total() > FEWEST else frozenset()


NO_REFERENCES = References()


def references_of(expected: Iterable[str | None]) -> References:
    """The shared traits of these expected answers, those of the failed case and of its peers."""
    texts = [text.strip() for text in expected if text and text.strip()]
    if len(texts) <= FEWEST:
        return NO_REFERENCES
    held: Counter[tuple[str, str, str]] = Counter()
    fields: dict[str, Counter[str]] = {}
    is_json = []
    for text in texts:
        leaves = _leaves(text)
        is_json.append(leaves is not None)
        if leaves is None:
            leaves = [("", text)]
            held.update({("", *value.key) for value in parts_of(text)})
        else:
            held.update({(name, *from_plain(leaf).key) for name, leaf in leaves})
        for name, leaf in leaves:
            if isinstance(leaf, str) and len(leaf.split()) <= 4:
                fields.setdefault(name, Counter())[fold(leaf)] += 1
    are_prose = not any(is_json) and len(set(texts)) > 1
    return References(
        prefix=" ".join(_shared_beginning(text.split() for text in texts)) if are_prose else "",
        suffix=" ".join(reversed(_shared_beginning(text.split()[::-1] for text in texts))) if are_prose else "",
        common=frozenset(value for value, count in held.items() if count >= COMMON_SHARE * len(texts)),
        fields=fields,
    )


def _shared_beginning(texts: Iterable[list[str]]) -> list[str]:
    """The words that all texts begin with; some text has more than them."""
    texts = sorted(texts)
    first, last = texts[0], texts[-1]  # what these two share, all between them do
    count = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return first[:count] if count < len(last) else []


def _leaves(text: str) -> list[tuple[str, Json]] | None:
    """The fields of a JSON object with their plain values, or None."""
    try:
        document = parse_json(text)
    except NotJsonError:
        return None
    if not isinstance(document, dict):
        return None
    return [(plain_words(key), leaf) for key, leaf in document.items() if not isinstance(leaf, dict | list)]
