"""Collects the problems of a configuration while it is built, so that all are reported together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from promptiter.config.file import ParsedConfig
from promptiter.errors import RequestError, SetupError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Problems:
    """The problems of one configuration that were found so far."""

    parsed: ParsedConfig
    found: list[str]

    def add(self, problem: str) -> None:
        self.found.append(problem)

    def attempt(self, make: Callable[[], T], *, place: str = "") -> T | None:
        """Return the result of `make`; if it fails, add its error to the problems and return None."""
        try:
            return make()
        except RequestError as error:
            self.found.extend(error.problems)
        except SetupError as error:
            is_placed = not place or str(error).startswith(f"{place}: ")
            self.add(str(error) if is_placed else f"{place}: {error}")
        return None

    def require(self, key: str, *, wanted: str) -> bool:
        """Whether the file has a key. Adds a missing key to the problems."""
        if getattr(self.parsed.config, key):
            return True
        if key not in self.parsed.broken:
            self.add(f"{key}: is missing; {wanted}")
        return False
