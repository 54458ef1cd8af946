"""The distribution of a sum of independent whole numbers, held in one long integer.

The number of ways to each sum is written into a slot of bits, the slots side by side. The product of two such integers
then has in each slot the ways to a sum of both: Python multiplies long integers fast, so a thousand distributions are
added up in a fraction of a second.

The ways of a few distributions fit into narrow slots. In wide ones, ways are counted in units of a power of two, so
that about 13 digits are kept. They are rounded down, and what rounding lost counts as *at least the bound*: a
probability is never too low, and it is exact if nothing had to be rounded.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

_NARROW_BYTES, _SLOT_BYTES = 8, 12
_NARROW, _SLOT = 8 * _NARROW_BYTES, 8 * _SLOT_BYTES
_PRECISION = 46
"""The bits that are kept of the ways in all wide slots together. The product of two of them fits into a slot."""


@dataclass(frozen=True, slots=True)
class SumDistribution:
    """The ways to each sum from `lowest` upwards, one slot of `counts` each, in units of 2 ** `shift`.

    `ways` is the exact number of all ways. The slots are narrow if it fits into one of them.
    """

    counts: int
    lowest: int
    ways: int
    shift: int = 0

    @classmethod
    def of_choices(cls, values: Sequence[int], chosen: int) -> SumDistribution:
        """The sum of a number of these values, each choice of them as likely as any other."""
        ways, least = math.comb(len(values), chosen), min(values)
        slot = max(_NARROW, ways.bit_length())
        reached = [1] + [0] * chosen  # by the number of values chosen so far
        for seen, value in enumerate(values, start=1):
            shift = slot * (value - least)
            for number in range(min(seen, chosen), max(0, chosen - len(values) + seen - 1), -1):
                reached[number] += reached[number - 1] << shift
        return cls(reached[chosen], chosen * least, ways)._fit_into_slots(slot)

    def __add__(self, other: SumDistribution) -> SumDistribution:
        """The distribution of the sum of both."""
        ways = self.ways * other.ways
        first, second = (self, other) if _is_narrow(ways) else (self._widen(), other._widen())
        together = SumDistribution(
            counts=first.counts * second.counts,
            lowest=first.lowest + second.lowest,
            ways=ways,
            shift=first.shift + second.shift,
        )
        return together if _is_narrow(ways) else together._round_down()

    def compute_probability(self, other: SumDistribution, *, at_least: int) -> float:
        """The probability that the sum of both is at least a bound, without adding them up."""
        up_to = [0, *accumulate(other._list_counts())]
        room = at_least - self.lowest - other.lowest
        mine = self._list_counts()[: max(room, 0)]
        below = sum(count * up_to[min(room - index, len(up_to) - 1)] for index, count in enumerate(mine))
        ways = self.ways * other.ways
        return (ways - (below << (self.shift + other.shift))) / ways

    def _widen(self) -> SumDistribution:
        """The same in wide slots."""
        if not _is_narrow(self.ways):
            return self
        slots = _count_slots(self.counts, _NARROW)
        packed, wide = self.counts.to_bytes(_NARROW_BYTES * slots, "little"), bytearray(_SLOT_BYTES * slots)
        for place in range(_NARROW_BYTES):
            wide[place::_SLOT_BYTES] = packed[place::_NARROW_BYTES]
        return replace(self, counts=int.from_bytes(wide, "little"))._round_down()

    def _round_down(self) -> SumDistribution:
        excess = (self.ways >> self.shift).bit_length() - _PRECISION
        if excess <= 0:
            return self
        kept = ((1 << (_SLOT - excess)) - 1).to_bytes(_SLOT_BYTES, "little")
        counts = (self.counts >> excess) & int.from_bytes(kept * _count_slots(self.counts), "little")
        empty = ((counts & -counts).bit_length() - 1) // _SLOT  # slots at the low end; those at the high end are gone
        return SumDistribution(counts >> (empty * _SLOT), self.lowest + empty, self.ways, self.shift + excess)

    def _fit_into_slots(self, width: int) -> SumDistribution:
        """The same in wide slots, from wider ones that hold the ways of very many repeats."""
        if _is_narrow(self.ways):
            return self
        excess = self.ways.bit_length() - _PRECISION
        slots = range(0, self.counts.bit_length(), width)
        counts = ((self.counts >> (at + excess)) & ((1 << (width - excess)) - 1) for at in slots)
        packed = b"".join(count.to_bytes(_SLOT_BYTES, "little") for count in counts)
        return replace(self, counts=int.from_bytes(packed, "little"), shift=excess)

    def _list_counts(self) -> list[int]:
        # The counts in wide slots are below 2 ** 64, too.
        width, layout = (_NARROW, "<Q") if _is_narrow(self.ways) else (_SLOT, "<Q4x")
        packed = self.counts.to_bytes(width // 8 * _count_slots(self.counts, width), "little")
        return [count for (count,) in struct.iter_unpack(layout, packed)]


def compute_tail(parts: Sequence[SumDistribution], *, at_least: int) -> float:
    """The probability that the sum of these independent parts is at least a bound."""
    certain = SumDistribution(counts=1, lowest=0, ways=1)
    middle = len(parts) // 2
    return _add_up(parts[:middle], certain).compute_probability(_add_up(parts[middle:], certain), at_least=at_least)


def _add_up(parts: Sequence[SumDistribution], certain: SumDistribution) -> SumDistribution:
    """Add in pairs, so that numbers of about the same length are multiplied."""
    parts = list(parts) or [certain]
    while len(parts) > 1:
        odd = parts[-1:] if len(parts) % 2 else []
        parts = [first + second for first, second in zip(parts[::2], parts[1::2], strict=False)] + odd
    return parts[0]


def _is_narrow(ways: int) -> bool:
    return ways.bit_length() <= _NARROW


def _count_slots(counts: int, width: int = _SLOT) -> int:
    return -(-counts.bit_length() // width)
