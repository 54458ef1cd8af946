"""What counts as a number in an argument."""

from __future__ import annotations

import math


def is_number(value: object, *, least: float = -math.inf) -> bool:
    """Whether a value is a finite number of at least `least`. Booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= least
