"""Truncation: cuts long texts around relevant literals and shares the room of a prompt among its sections.

Sizes are in tokens, estimated without a tokenizer, on the high side. Equal arguments give equal texts in every process.
"""

from __future__ import annotations

import string
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

from promptiter.evaluation.metrics.judge_prompts import quote_whole
from traces.model import escape_surrogates

SHORTEST_SHOWN = 60
"""Minimum room for a longer text: some words and a note. With less room it is left out."""

MOST_WINDOWS, SHORTEST_WINDOW = 6, 20
"""Maximum number of windows between the beginning and the end of a cut text, and their minimum size in tokens."""

PER_MESSAGE = 8
"""Number of tokens that a provider adds to each message."""

_UNIT = 6
"""Weights are sixths of a token, so that they are whole numbers and can be added exactly."""


def approximate_tokens(text: str) -> int:
    """An upper estimate of the number of tokens, for ordinary text and common tokenizers.

    Three ASCII letters or spaces count as one token, and so do two bytes of anything else. English prose has about four
    characters per token, code three, numbers two; Chinese has up to one and a half tokens per character of three bytes.
    Hexadecimal digits and rows of emoji may have up to a third more tokens than estimated.
    """
    return -(-_weigh(text) // _UNIT)


def count_prompt_tokens(texts: Iterable[str]) -> int:
    """The number of tokens of one message per text, together."""
    return sum(approximate_tokens(text) + PER_MESSAGE for text in texts)


def compute_room(rules: str, *, limit: int) -> int:
    """The number of tokens that the rules of a prompt leave for its other message."""
    return limit - _count_with_rules(rules)


@lru_cache(maxsize=64)
def _count_with_rules(rules: str) -> int:
    """The number of tokens of the rules and of another message without text. There are few different rules."""
    return count_prompt_tokens([rules, ""])


def truncate(text: str, limit: int, *, around: Sequence[str] = ()) -> str:
    """Return the text if it has at most `limit` tokens, else its beginning, its end, and windows around the literals.

    Each gap says how many characters are left out. A lone surrogate, which no request can contain, is escaped.
    """
    text = escape_surrogates(text)
    room = limit * _UNIT
    if _weigh(text) <= room:
        return text
    before, gap = _accumulate_weights(text), _weigh(_render_gap(len(text)))
    if room < 2 * gap:
        return _LEFT_OUT if _weigh(_LEFT_OUT) <= room else ""
    most = min(MOST_WINDOWS, room // 2 // (gap + SHORTEST_WINDOW * _UNIT))
    hits = list(_find_literals(text, around))[:most]
    shown = _choose_spans(before, hits, room - gap * (len(hits) + 1))
    return _join_spans(text, _merge_spans(shown, before, closer_than=gap))


def share(limit: int, wanted: Sequence[tuple[int, float]]) -> list[int]:
    """Share `limit` among parts of (size, weight): each gets its full size if that fits, else a share by weight."""
    given = [0] * len(wanted)
    left, weights = max(0, limit), sum(weight for _, weight in wanted)
    for number in sorted(range(len(wanted)), key=lambda number: (wanted[number][0] / wanted[number][1], number)):
        size, weight = wanted[number]
        given[number] = min(size, int(left * weight / weights))
        left, weights = left - given[number], weights - weight
    return given


@dataclass(frozen=True)  # without slots, so that sizes are computed once
class Quote:
    """A text that is shown as data. The name is ours and never part of the data."""

    name: str
    text: str

    def render(self) -> str:
        """Render the quote with its whole text. A lone surrogate, which no request can contain, is escaped."""
        return quote_whole(self.name, escape_surrogates(self.text))

    @cached_property
    def size(self) -> int:
        return approximate_tokens(self.render()) + 1

    @cached_property
    def least(self) -> int:
        """The minimum room for the quote to be shown."""
        return min(self.size, approximate_tokens(quote_whole(self.name, "")) + 1 + SHORTEST_SHOWN)

    def fit(self, limit: int, *, around: Sequence[str] = ()) -> str:
        """Render the quote in at most `limit` tokens. Quoting escapes marks, so a cut text may have to be cut again."""
        if self.size <= limit:
            return self.render()
        room = limit
        while True:
            shown = truncate(self.text, room, around=around)
            block = quote_whole(self.name, shown)
            excess = approximate_tokens(block) + 1 - limit
            if excess <= 0 or not shown:
                return block
            room = min(room, approximate_tokens(shown)) - excess


@dataclass(frozen=True, kw_only=True)  # without slots, so that sizes are computed once
class PromptSection:
    """A title and the quotes below it. A larger `weight` keeps more of it if not everything fits.

    A section that `needs_all` of its quotes, such as an example, is left out unless a part of each of them fits.
    """

    title: str
    quotes: tuple[Quote, ...] = ()
    weight: float = 1
    needs_all: bool = False

    @property
    def whole(self) -> str:
        """The section with its whole texts, joined once: steps of one run share some sections."""
        known: str | None = self.__dict__.get("_whole")
        if known is None:
            shown = "\n".join([self.title, *[quote_whole(quote.name, quote.text) for quote in self.quotes]])
            known = self.__dict__["_whole"] = escape_surrogates(shown)
        return known

    @cached_property
    def size(self) -> int:
        return self._frame + sum(quote.size for quote in self.quotes)

    @cached_property
    def least(self) -> int:
        if self.needs_all:
            return self._frame + sum(quote.least for quote in self.quotes)
        first = self.quotes[0].least if self.quotes else 0
        return min(self.size, self._frame + first + approximate_tokens(_render_more(len(self.quotes))) + 1)

    @cached_property
    def _frame(self) -> int:
        return approximate_tokens(self.title) + 1

    def fit(self, limit: int, *, around: Sequence[str] = ()) -> str:
        """Render the title and as many of the first quotes as can be shown at least in part."""
        if self.size <= limit:
            return self.whole
        kept, note = self.quotes, ""
        room = limit - self._frame
        if sum(quote.least for quote in self.quotes) > room:
            room -= approximate_tokens(_render_more(len(self.quotes))) + 1
            fitting = bisect_right(list(accumulate(quote.least for quote in self.quotes)), room)
            kept, note = self.quotes[:fitting], _render_more(len(self.quotes) - fitting)
        rooms = _share_above_least(room, [(quote.size, quote.least, 1) for quote in kept])
        shown = [quote.fit(room, around=around) for quote, room in zip(kept, rooms, strict=True)]
        return "\n".join([self.title, *shown, *([note] if note else [])])


def compose(sections: Sequence[PromptSection], limit: int, *, around: Sequence[str] = ()) -> str:
    """Render the sections in order, in at most `limit` tokens.

    Long texts are cut around the literals. If there is not enough room for a part of each section, the sections with
    the smallest weights are left out.
    """
    whole = "\n\n".join([section.whole for section in sections])
    if _bound_size(whole, sections) <= limit or sum(section.size for section in sections) <= limit:
        return whole
    kept, room = list(sections), limit
    needed = sum(section.least for section in sections)
    if needed > room:
        room -= approximate_tokens(_render_dropped(len(sections))) + 1
        heaviest_last = sorted(range(len(sections)), key=lambda number: (sections[number].weight, -number))
        dropped_numbers = set()
        for number in heaviest_last:
            if needed <= room:
                break
            needed -= sections[number].least
            dropped_numbers.add(number)
        kept = [section for number, section in enumerate(sections) if number not in dropped_numbers]
    rooms = _share_above_least(room, [(section.size, section.least, section.weight) for section in kept])
    shown = [section.fit(room, around=around) for section, room in zip(kept, rooms, strict=True)]
    if dropped := len(sections) - len(kept):
        shown.append(_render_dropped(dropped))
    return "\n\n".join(shown)


def _bound_size(whole: str, sections: Sequence[PromptSection]) -> int:
    """An upper bound of the size of sections, which most prompts are far below: two bytes are at most one token."""
    length = len(whole) if whole.isascii() else len(whole) * _MOST_BYTES
    return length // 2 + 2 * sum([1 + len(section.quotes) for section in sections])


def _share_above_least(limit: int, wanted: Sequence[tuple[int, int, float]]) -> list[int]:
    """Share `limit` among parts of (size, least, weight): each gets its least, which must fit; the rest by weight."""
    more = share(
        limit - sum(least for _, least, _ in wanted), [(size - least, weight) for size, least, weight in wanted]
    )
    return [least + extra for (_, least, _), extra in zip(wanted, more, strict=True)]


_LEFT_OUT = "[…]"


def _render_gap(characters: int) -> str:
    return f"\n[… {characters:,} characters left out …]\n"


def _render_more(number: int) -> str:
    return f"[… {number:,} more left out …]"


def _render_dropped(number: int) -> str:
    return f"[… sections left out: {number:,} …]"


_MOST_BYTES = 4
"""Maximum number of bytes of a character."""

_LIGHT = (string.ascii_letters + string.whitespace).encode()


def _weigh(text: str) -> int:
    raw = text.encode("utf-8", "surrogatepass")
    return 2 * len(raw) + len(raw.translate(None, _LIGHT))


def _accumulate_weights(text: str) -> list[int]:
    """The weight before each character, and the total at the end."""
    weights = {character: _weigh(character) for character in set(text)}
    return list(accumulate(map(weights.__getitem__, text), initial=0))


def _find_literals(text: str, around: Sequence[str]) -> Iterator[tuple[int, int]]:
    """The first occurrence of each literal."""
    for literal in dict.fromkeys(around):
        if literal and (at := text.find(literal)) >= 0:
            yield at, at + len(literal)


def _choose_spans(before: Sequence[int], hits: Sequence[tuple[int, int]], room: int) -> list[tuple[int, int]]:
    """Choose spans for beginning, windows and end that fit the room; half of it is for windows, if there are any."""
    ends = room // 2 if hits else room
    tail = ends * 2 // 5
    spans = [(0, bisect_right(before, ends - tail) - 1), (bisect_left(before, before[-1] - tail), len(before) - 1)]
    for start, end in hits:
        middle, half = (before[start] + before[end]) // 2, room // 2 // len(hits) // 2
        spans.append((bisect_left(before, middle - half), bisect_right(before, middle + half) - 1))
    return sorted(spans)


def _merge_spans(spans: Sequence[tuple[int, int]], before: Sequence[int], *, closer_than: int) -> list[tuple[int, int]]:
    """Merge overlapping spans, and spans whose gap is not longer than the note about it would be."""
    merged = [spans[0]]
    for start, end in spans[1:]:
        last_start, last_end = merged[-1]
        if before[start] - before[min(start, last_end)] <= closer_than:
            merged[-1] = (last_start, max(last_end, end))
        else:
            merged.append((start, end))
    return merged


def _join_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    parts, shown_to = [], 0
    for start, end in spans:
        if start > shown_to:
            parts.append(_render_gap(start - shown_to))
        parts.append(text[start:end])
        shown_to = end
    return "".join(parts)
