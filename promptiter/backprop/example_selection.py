"""Selection of few-shot examples from a pool: which ones, and in which order.

`coverage` takes those that are nearest to inputs that fail, each counted once (greedy facility location): an example
with the answer that an input needs is near it, and the more words they share, the nearer. `diversity` takes examples
that differ from each other, `length` the shortest, `random` any. The most useful example is the last one, next to the
input: models weigh it most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Literal, TypeAlias

from promptiter.backprop.case_values import split_words
from promptiter.backprop.example_pool import MAX_CHARACTERS, Exchange, KnownInput

SelectionStrategy: TypeAlias = Literal["coverage", "diversity", "length", "random"]

PASSING_WEIGHT = 0.25
"""The weight of an input that passes without examples, relative to one that fails: examples must not break it."""

LENGTH_WEIGHT = 0.2
"""The share of its gain that an example of the maximum length loses."""

NEAR_BEST = 3
"""A selection that is varied takes one of this number of best examples at each step."""

MAX_VARIANTS = 200
"""Maximum number of selections that are drawn to find a new one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleSelector:
    """Selects examples of one node. `inputs` are what they should help with, `weights` of cases are added to theirs."""

    exchanges: Sequence[Exchange]
    inputs: Sequence[KnownInput] = ()
    strategy: SelectionStrategy = "coverage"
    weights: Mapping[str, float] = field(default_factory=dict)

    def iterate(self, most: int, *, rng: Random) -> Iterator[tuple[Exchange, ...]]:
        """Distinct selections of at most this number of examples, the best guess first; then others by chance."""
        seen: set[tuple[Exchange, ...]] = set()
        for chosen in self._iterate_all(min(most, len(self.exchanges)), rng):
            if chosen and chosen not in seen:
                seen.add(chosen)
                yield chosen

    def _iterate_all(self, most: int, rng: Random) -> Iterator[tuple[Exchange, ...]]:
        if self.strategy == "random":
            for _ in range(MAX_VARIANTS):
                yield tuple(rng.sample(list(self.exchanges), rng.randint(min(1, most), most)))
            return
        first = self._select(most)
        yield first
        yield first[len(first) // 2 :]  # the better half
        for _ in range(MAX_VARIANTS):
            varied = self._select(most, rng=rng)
            yield varied
            yield tuple(rng.sample(varied, len(varied)))

    def _select(self, most: int, *, rng: Random | None = None) -> tuple[Exchange, ...]:
        """Take one example after the other, the best or, with `rng`, one of the best; the first one comes last."""
        vectors = _Vectors.of([each.input for each in (*self.exchanges, *self.inputs)])
        rate = self._build_rating(vectors)
        chosen: list[int] = []
        left = list(range(len(self.exchanges)))
        while left and len(chosen) < most:
            ranked = sorted(left, key=lambda at: (-rate(at, chosen), len(self.exchanges[at]), at))
            taken = ranked[0] if rng is None else rng.choice(ranked[:NEAR_BEST])
            chosen.append(taken)
            left.remove(taken)
        return tuple(self.exchanges[at] for at in reversed(chosen))

    def _build_rating(self, vectors: _Vectors) -> _Rating:
        exchanges = self.exchanges
        if self.strategy == "length":
            return lambda at, _: -float(len(exchanges[at]))
        alike = [[self._compare(one, other, vectors) for other in range(len(exchanges))] for one in range(len(exchanges))]
        if self.strategy == "diversity":
            return lambda at, chosen: -max((alike[at][other] for other in chosen), default=0.0)
        return self._build_coverage(vectors)

    def _build_coverage(self, vectors: _Vectors) -> _Rating:
        """The gain in coverage: for each input, how much nearer this example is than the nearest one so far."""
        first = len(self.exchanges)
        weights = [
            (PASSING_WEIGHT if each.passed else 1.0) + self.weights.get(each.case_id, 0.0) for each in self.inputs
        ]
        near = [
            [
                0.0
                if each.case_id == exchange.case_id  # an example always covers its own case
                else vectors.compare(at, first + number) + _is_same_answer(exchange.output, each.wanted)
                for number, each in enumerate(self.inputs)
            ]
            for at, exchange in enumerate(self.exchanges)
        ]

        def rate(at: int, chosen: Sequence[int]) -> float:
            gain = sum(
                weight * max(0.0, near[at][number] - max((near[other][number] for other in chosen), default=0.0))
                for number, weight in enumerate(weights)
            )
            return gain * (1 - LENGTH_WEIGHT * min(1.0, len(self.exchanges[at]) / MAX_CHARACTERS))

        return rate

    def _compare(self, one: int, other: int, vectors: _Vectors) -> float:
        same = _is_same_answer(self.exchanges[one].output, self.exchanges[other].output)
        return vectors.compare(one, other) + same


_Rating: TypeAlias = Callable[[int, Sequence[int]], float]
"""Rates an example, by number, given those that are chosen."""


@dataclass(frozen=True, slots=True)
class _Vectors:
    """Texts as vectors of their words, rare words first (TF-IDF), of length 1."""

    words: Sequence[Mapping[str, float]]

    @classmethod
    def of(cls, texts: Sequence[str]) -> _Vectors:
        counts = [Counter(split_words(text)) for text in texts]
        holders = Counter(word for each in counts for word in each)
        return cls([_scale({word: n * math.log(1 + len(texts) / holders[word]) for word, n in each.items()}) for each in counts])

    def compare(self, one: int, other: int) -> float:
        """The cosine of two texts."""
        first, second = self.words[one], self.words[other]
        if len(second) < len(first):
            first, second = second, first
        return sum(weight * second.get(word, 0.0) for word, weight in first.items())


def _scale(vector: Mapping[str, float]) -> dict[str, float]:
    length = math.sqrt(sum(weight * weight for weight in vector.values()))
    return {word: weight / length for word, weight in vector.items()}


def _is_same_answer(one: str, other: str | None) -> bool:
    return other is not None and " ".join(one.casefold().split()) == " ".join(other.casefold().split())
