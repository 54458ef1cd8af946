"""What counts as a number in an argument."""

from __future__ import annotations

import math

from promptiter.errors import SetupError


def is_number(value: object, *, least: float = -math.inf) -> bool:
    """Whether a value is a finite number of at least `least`. Booleans are not numbers."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= least


def check_count(value: object, what: str, *, least: int = 1) -> None:
    """Raise SetupError if a value is not a whole number of at least `least`."""
    if not isinstance(value, int) or not is_number(value, least=least):
        raise SetupError(f"{what} is {value!r}; give a whole number of at least {least}")
