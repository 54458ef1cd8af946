"""Which of a test's parameters are in `make test`, and which only in `make long`."""

from __future__ import annotations

from collections.abc import Container, Iterable

import pytest


def take_some(everything: Iterable[object], taken: Container[object] = (0,)) -> list[object]:
    """All parameters of a test: those that are not taken are long."""
    return [each if each in taken else pytest.param(each, marks=pytest.mark.long) for each in everything]
