"""The ledger: what calls cost, by role, model and node.

Only calls that were answered count as calls, tokens, dollars and seconds. Calls that were sent and not answered count
as lost, with the most that they may have cost. An answer from the cache is a hit, and free. Sums do not depend on the
order in which calls end, because dollars and seconds are added as integers, in units of 10^-9.
"""

from __future__ import annotations

import math
import operator
import threading
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import TypeAlias

from promptiter.context import ContextValue
from promptiter.grouping import group_by
from promptiter.llm.messages import Role
from traces import Usage

PARTS = 10**9
"""Parts of a dollar or a second. A float holds nine million dollars in such parts exactly."""

TOOL = "tool:"
"""Prefix of a tool's name in place of a model's name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What some calls cost. Spendings can be added and subtracted.

    `cost_usd` and the tokens are sums of what is known. `cost_usd` is None if calls were made and no price is known.
    `unpriced_calls` and `uncounted_calls` are the numbers of calls whose price or tokens are unknown. `lost_calls` were
    sent and not answered: they timed out, broke off or were cancelled, or the process was killed. They may have been
    billed, and are not among the `calls`. `possible_tokens` and `possible_usd` are the most that lost and uncounted
    calls may have cost besides what is known. `overlong_answers` have `excess_tokens` more than `max_tokens` allows.
    """

    calls: int = 0
    cache_hits: int = 0
    attempts: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_input_tokens: int = 0
    uncounted_calls: int = 0
    cost_usd: float | None = 0.0
    unpriced_calls: int = 0
    seconds: float = 0.0
    lost_calls: int = 0
    possible_tokens: int = 0
    possible_usd: float = 0.0
    overlong_answers: int = 0
    excess_tokens: int = 0

    @classmethod
    def of_lost_call(cls, *, tokens: int = 0, usd: float = 0.0) -> Spending:
        """What an attempt without an answer may have cost at most."""
        return cls(attempts=1, lost_calls=1, possible_tokens=tokens, possible_usd=usd)

    @classmethod
    def of_call(cls, usage: Usage, *, seconds: float = 0.0, attempts: int = 1) -> Spending:
        """The cost of one answered call, with the attempts that were refused."""
        return cls(
            calls=1,
            attempts=attempts,
            input_tokens=usage.input_tokens or 0,
            output_tokens=usage.output_tokens or 0,
            cached_input_tokens=usage.cached_input_tokens or 0,
            uncounted_calls=int(usage.input_tokens is None or usage.output_tokens is None),
            cost_usd=usage.cost_usd,
            unpriced_calls=int(usage.cost_usd is None),
            seconds=seconds,
        )

    def bound_by(self, bound: Spending, *, output_tokens: int) -> Spending:
        """The cost of one call with the most it may have cost where that is unknown, and the excess of its answer."""
        excess = max(0, self.output_tokens - output_tokens)
        possible_tokens = max(0, bound.possible_tokens - self.tokens) if self.uncounted_calls else 0
        possible_usd = bound.possible_usd if self.cost_usd is None else 0.0
        if not excess and not possible_tokens and not possible_usd:
            return self
        return replace(
            self,
            possible_tokens=possible_tokens,
            possible_usd=possible_usd,
            overlong_answers=int(excess > 0),
            excess_tokens=excess,
        )

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    @property
    def retries(self) -> int:
        return self.attempts - self.calls

    def __add__(self, other: Spending) -> Spending:
        return self._with(other, 1)

    def __sub__(self, earlier: Spending) -> Spending:
        return self._with(earlier, -1)

    def _with(self, other: Spending, sign: int) -> Spending:
        total = _Total()
        total.add(self)
        total.add(other, sign)
        return total.as_spending()


class _Total:
    """The sum of spendings, which grows with each that is added. Dollars and seconds are in parts."""

    __slots__ = ("_figures",)

    def __init__(self) -> None:
        self._figures = [0] * len(_FIGURES)

    def add(self, spent: Spending, sign: int = 1) -> None:
        """Add a spending, or subtract it."""
        figures = self._figures
        for at, figure in enumerate(_get_figures(spent)):
            if figure:  # most are 0, and an unknown cost is None
                figures[at] += sign * (figure if at >= _MEASURES else in_parts(figure))

    def as_spending(self) -> Spending:
        known = dict(zip(_FIGURES, self._figures, strict=True))
        cost_usd, seconds, possible_usd = (known.pop(name) / PARTS for name in _IN_PARTS)
        is_unpriced = known["calls"] and known["calls"] == known["unpriced_calls"]
        return Spending(**known, cost_usd=None if is_unpriced else cost_usd, seconds=seconds, possible_usd=possible_usd)


_IN_PARTS = ("cost_usd", "seconds", "possible_usd")
_MEASURES = len(_IN_PARTS)
_FIGURES = (*_IN_PARTS, *(field.name for field in fields(Spending) if field.name not in _IN_PARTS))
_get_figures = operator.attrgetter(*_FIGURES)

NOTHING = Spending()
FROM_CACHE = Spending(cache_hits=1)
"""One answer from the cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """What one node spent on one model in one role."""

    role: Role
    model: str
    node_id: str
    spent: Spending


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The ledger at one moment: plain data in a fixed order, for orjson."""

    entries: tuple[LedgerEntry, ...] = ()

    @property
    def total(self) -> Spending:
        return _sum(entry.spent for entry in self.entries)

    @property
    def of_models(self) -> Spending:
        """The cost of model calls, without tool calls. This is what a budget covers."""
        return _sum(entry.spent for entry in self.entries if not entry.model.startswith(TOOL))

    def by_role(self) -> dict[str, Spending]:
        return self._by(lambda entry: entry.role)

    def by_model(self) -> dict[str, Spending]:
        return self._by(lambda entry: entry.model)

    def by_node(self) -> dict[str, Spending]:
        return self._by(lambda entry: entry.node_id)

    def __sub__(self, earlier: LedgerSnapshot) -> LedgerSnapshot:
        """What was spent between an earlier snapshot of the same ledger and this one."""
        before = {_place(entry): entry.spent for entry in earlier.entries}
        spent = {_place(entry): entry.spent - before.get(_place(entry), NOTHING) for entry in self.entries}
        return _snapshot({place: figures for place, figures in spent.items() if figures != NOTHING})

    def __add__(self, other: LedgerSnapshot) -> LedgerSnapshot:
        """The sum of two snapshots."""
        spent = {_place(entry): entry.spent for entry in self.entries}
        for entry in other.entries:
            spent[_place(entry)] = spent.get(_place(entry), NOTHING) + entry.spent
        return _snapshot(spent)

    def _by(self, label: Callable[[LedgerEntry], str]) -> dict[str, Spending]:
        found = group_by(self.entries, label)
        return {name: _sum(entry.spent for entry in found[name]) for name in sorted(found)}


class Ledger:
    """Counts what calls cost, also in the ledger `total` of several ones. Thread-safe."""

    def __init__(self, *, total: Ledger | None = None) -> None:
        self._lock = threading.Lock()
        self._spent: dict[_Place, _Total] = {}
        self._total = total

    def count(self, entry: LedgerEntry) -> None:
        """Count one call, with all its attempts, or one answer from the cache."""
        ledger: Ledger | None = self
        while ledger is not None:
            ledger._add(entry)
            ledger = ledger._total

    def merge(self, snapshot: LedgerSnapshot) -> None:
        """Add what another ledger counted, such as that of a worker process."""
        for entry in snapshot.entries:
            self.count(entry)

    def snapshot(self) -> LedgerSnapshot:
        with self._lock:
            return _snapshot({place: total.as_spending() for place, total in self._spent.items()})

    def _add(self, entry: LedgerEntry) -> None:
        place = _place(entry)
        with self._lock:
            total = self._spent.get(place)
            if total is None:
                total = self._spent[place] = _Total()
            total.add(entry.spent)


_counter: ContextVar[CallCounter | None] = ContextVar("promptiter_call_counter", default=None)
_Place: TypeAlias = tuple[Role, str, str]


def in_parts(figure: float) -> int:
    """Dollars or seconds in whole parts."""
    parts = figure * PARTS
    return round(parts) if math.isfinite(parts) else int(figure) * PARTS


def _place(entry: LedgerEntry) -> _Place:
    return (entry.role, entry.model, entry.node_id)


def _snapshot(spent: dict[_Place, Spending]) -> LedgerSnapshot:
    return LedgerSnapshot(
        tuple(
            LedgerEntry(role=role, model=model, node_id=node_id, spent=figures)
            for (role, model, node_id), figures in sorted(spent.items(), key=lambda pair: pair[0])
        )
    )


def _sum(spendings: Iterable[Spending]) -> Spending:
    total = _Total()
    for spent in spendings:
        total.add(spent)
    return total.as_spending()


@dataclass(slots=True)
class CallCounter:
    """How many calls of one case run were paid, and how many were answered from the cache."""

    paid: int = 0
    cached: int = 0


def count_calls() -> ContextValue[CallCounter]:
    """Count the calls made inside this block, including those of its tasks and threads, and no others."""
    return ContextValue(_counter, CallCounter())


def record_call(*, paid: bool) -> None:
    """Count one call, if a `count_calls` block is active."""
    counter = _counter.get()
    if counter is not None:
        counter.paid += paid
        counter.cached += not paid
