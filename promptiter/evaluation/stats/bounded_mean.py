"""Gaffke's test: is the mean of bounded changes, one per case, above a value?

A change may be rare and large, so that a few cases do not show it: if a rewrite gains 0.05 on 95% of all cases and
loses 0.95 on the others, its mean is 0, and 20 cases show no loss in 36% of all samples. A test that takes the seen
changes for all there are, such as a sign-flip test, then finds a gain.

Gaffke (2005) adds the worst possible change to the sample, gives all changes random weights that add up to 1, each
division as likely as any other (Dirichlet), and takes the probability that the weighted mean is at most the value as
the p-value. If changes have two values only, this is the exact binomial test. For -1, 0 and +1 it is the exact sign
test. For other distributions no proof is known, but neither is a counterexample; `benchmarks.bench_final_test` looks
for one, and in our own search of 2 to 4 values over 5 to 12 cases the false-positive rate never exceeded alpha. Tests
with a proof for all distributions (betting, Waudby-Smith and Ramdas 2024) show a gain of 0.2 on 30 cases half as often.

A weighted mean is at most the value if a sum of independent exponential variables, each times (change - value), is at
most 0. Its moment generating function is a product, so the probability is a contour integral through the saddle point,
which the trapezoidal rule finds to 12 digits with about 70 points.
"""

from __future__ import annotations

import cmath
import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, fmean

_STEP = 0.1
_DIGITS = 12
_SMALL = 1e-15
_NEAR = 1e-9
_FACTORS = 32
_NORMAL = NormalDist()
_PRECISION = 2e-5


def compute_p_value(changes: Sequence[float], *, worst: float, mean: float = 0.0) -> float:
    """The p-value of the null hypothesis that the mean of the changes, all at least `worst`, is at most `mean`."""
    counted = Counter(round(change - mean, _DIGITS) for change in (worst, *changes))
    terms = [(value, count) for value, count in sorted(counted.items()) if value]
    if not terms or terms[-1][0] < 0:
        return 1.0
    if terms[0][0] > 0:
        return 0.0
    return _integrate(terms)


def find_lower_bound(changes: Sequence[float], *, worst: float, alpha: float) -> float:
    """The largest mean that the test rejects: the true mean is below it with a probability of at most alpha.

    The normal quantile of the p-value is nearly linear in the mean, so the secant method takes a few steps.
    """
    target, low, high = _NORMAL.inv_cdf(alpha), worst, max(changes)
    at, step = fmean(changes), (worst - high) / 4
    previous: tuple[float, float] | None = None
    while high - low > _PRECISION:
        p_value = compute_p_value(changes, worst=worst, mean=at)
        found = _NORMAL.inv_cdf(min(max(p_value, 1e-300), 1 - 1e-16))
        low, high = (at, high) if p_value <= alpha else (low, at)
        if abs(found - target) < _PRECISION:
            return at
        if previous is not None and found != previous[1]:
            step = (target - found) * (at - previous[0]) / (found - previous[1])
        previous = at, found
        at = at + step if low < at + step < high else (low + high) / 2
    return low


def _integrate(terms: Sequence[tuple[float, int]]) -> float:
    """The probability that the sum of exponential variables times these values is at most 0."""
    centre = _find_saddle_point(terms)
    once, several = [value for value, count in terms if count == 1], [term for term in terms if term[1] > 1]
    height = _log_transform(complex(centre), once, several).real
    curvature = math.fsum(count * (value / (1 - centre * value)) ** 2 for value, count in terms) + centre**-2
    scale = 1 / math.sqrt(curvature)

    def evaluate(at: float) -> float:
        point = complex(centre, scale * math.sinh(at))
        return (cmath.exp(_log_transform(point, once, several) - height) / point).real * scale * math.cosh(at)

    total, value, at = evaluate(0.0) / 2, math.inf, 0.0
    while at < 3 or abs(value) > _SMALL * abs(total):
        at += _STEP
        value = evaluate(at)
        total += value
    return min(1.0, max(0.0, -math.exp(height) * total * _STEP / math.pi))


def _log_transform(point: complex, once: Sequence[float], several: Sequence[tuple[float, int]]) -> complex:
    """The logarithm of the transform, up to a multiple of 2 pi i: the logarithm of a product takes less time."""
    factors = [1 - point * value for value in once]
    products = [math.prod(factors[start : start + _FACTORS]) for start in range(0, len(factors), _FACTORS)]
    return -sum(map(cmath.log, products)) - sum(count * cmath.log(1 - point * value) for value, count in several)


def _find_saddle_point(terms: Sequence[tuple[float, int]]) -> float:
    """Where the integrand is smallest on the real axis, between its poles at 1 / the lowest value and at 0.

    Newton's method, or half of the way where that would leave the interval.
    """
    low, high = 1 / terms[0][0], 0.0
    at = low / 2
    while high - low > _NEAR * -low:
        tilted = [(value / (1 - at * value), count) for value, count in terms]
        slope = math.fsum(count * value for value, count in tilted) - 1 / at
        low, high = (at, high) if slope < 0 else (low, at)
        step = -slope / (math.fsum(count * value**2 for value, count in tilted) + at**-2)
        if abs(step) < _NEAR * -at:
            break
        at = at + step if low < at + step < high else (low + high) / 2
    return at
