"""Selection of few-shot examples from a pool: which ones, and in which order.

`coverage` takes those that are nearest to inputs that fail, each counted once (greedy facility location): an example
with the answer that an input needs is near it, and the more words they share, the nearer. `diversity` takes examples
that differ from each other, `length` the shortest, `random` any. The most useful example is the last one, next to the
input, where models weigh it most.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

MAX_COMPARED = 200
"""Maximum number of exchanges and of inputs that are compared with each other, so that it takes a second at most."""

MAX_VARIANTS = 200
"""Maximum number of selections that are drawn to find a new one."""

Vector: TypeAlias = Mapping[str, float]


class ExampleSelector:
    """Selects examples of one node. `inputs` are what they should help with; `weights` of cases are added to theirs."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        inputs: Sequence[KnownInput] = (),
        *,
        strategy: SelectionStrategy = "coverage",
        weights: Mapping[str, float] | None = None,
    ) -> None:
        self._strategy = strategy
        self._exchanges = exchanges[:MAX_COMPARED]
        failing_first = sorted(inputs, key=lambda each: each.passed)[:MAX_COMPARED]
        more = weights or {}
        self._weights: list[float] = []
        self._near: list[list[float]] = [[] for _ in self._exchanges]
        if strategy == "coverage":
            self._weights = [
                (PASSING_WEIGHT if each.passed else 1.0) + more.get(each.case_id, 0.0) for each in failing_first
            ]
            self._near = self._compare_with(failing_first)
        elif strategy == "diversity":
            self._weights = [1.0] * len(self._exchanges)
            self._near = self._compare_with(
                [KnownInput(case_id="", input=each.input, passed=True, wanted=each.output) for each in self._exchanges]
            )

    def iterate(self, most: int, *, rng: Random) -> Iterator[tuple[Exchange, ...]]:
        """Distinct selections of at most this number of examples, the best guess first; then others by chance."""
        seen: set[tuple[Exchange, ...]] = set()
        for chosen in self._iterate_all(min(most, len(self._exchanges)), rng):
            if chosen and chosen not in seen:
                seen.add(chosen)
                yield chosen

    def _iterate_all(self, most: int, rng: Random) -> Iterator[tuple[Exchange, ...]]:
        if not most:
            return
        if self._strategy == "random":
            for _ in range(MAX_VARIANTS):
                yield tuple(rng.sample(self._exchanges, rng.randint(1, most)))
            return
        first = self._select(most)
        yield first
        yield first[len(first) // 2 :]  # the better half
        for _ in range(MAX_VARIANTS):
            varied = self._select(most, rng=rng)
            yield varied
            yield tuple(rng.sample(varied, len(varied)))

    def _select(self, most: int, *, rng: Random | None = None) -> tuple[Exchange, ...]:
        """Take one example after the other: the best or, with `rng`, one of the best. The first one comes last."""
        chosen: list[int] = []
        nearest = [0.0] * len(self._weights)
        left = list(range(len(self._exchanges)))
        while left and len(chosen) < most:
            ratings = {at: self._rate(at, nearest) for at in left}
            ranked = sorted(left, key=lambda at: (-ratings[at], len(self._exchanges[at]), at))
            taken = ranked[0] if rng is None else rng.choice(ranked[:NEAR_BEST])
            chosen.append(taken)
            left.remove(taken)
            nearest = list(map(max, nearest, self._near[taken]))
        return tuple(self._exchanges[at] for at in reversed(chosen))

    def _rate(self, at: int, nearest: Sequence[float]) -> float:
        """How good an example is, given how near those that are chosen are to each input."""
        length = min(1.0, len(self._exchanges[at]) / MAX_CHARACTERS)
        if self._strategy == "length":
            return -length
        if self._strategy == "diversity":  # the inputs are those of the exchanges
            return -nearest[at]
        gains = zip(self._weights, self._near[at], nearest, strict=True)
        return (1 - LENGTH_WEIGHT * length) * sum(weight * max(0.0, new - old) for weight, new, old in gains)

    def _compare_with(self, inputs: Sequence[KnownInput]) -> list[list[float]]:
        """How near each exchange is to each input."""
        vectors = _build_vectors([*(each.input for each in self._exchanges), *(each.input for each in inputs)])
        theirs = vectors[len(self._exchanges) :]
        return [
            [
                0.0
                if each.case_id == exchange.case_id  # an example always covers its own case
                else _compare(mine, vector) + _is_same_answer(exchange.output, each.wanted)
                for vector, each in zip(theirs, inputs, strict=True)
            ]
            for mine, exchange in zip(vectors, self._exchanges, strict=False)
        ]


def _build_vectors(texts: Sequence[str]) -> list[Vector]:
    """Texts as vectors of length 1 of their words, in which rare words weigh more (TF-IDF)."""
    counts = [Counter(split_words(text)) for text in texts]
    holders = Counter(word for each in counts for word in each)
    return [
        _scale({word: count * math.log(1 + len(texts) / holders[word]) for word, count in each.items()})
        for each in counts
    ]


def _scale(vector: Vector) -> Vector:
    length = math.sqrt(sum(weight * weight for weight in vector.values()))
    return {word: weight / length for word, weight in vector.items()}


def _compare(one: Vector, other: Vector) -> float:
    """The cosine of two vectors of length 1."""
    if len(other) < len(one):
        one, other = other, one
    return sum(weight * other.get(word, 0.0) for word, weight in one.items())


def _is_same_answer(one: str, other: str | None) -> bool:
    return other is not None and " ".join(one.casefold().split()) == " ".join(other.casefold().split())
