"""A context variable that has a value in a block."""

from __future__ import annotations

from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ContextValue(Generic[T]):
    """Sets a context variable in a block, including its tasks and threads: `with ContextValue(variable, value):`.

    A case run enters several of them; generators would cost more than what they enclose.
    """

    __slots__ = ("_token", "_value", "_variable")

    def __init__(self, variable: ContextVar[Any], value: T) -> None:
        self._variable = variable
        self._value = value
        self._token: Token[Any] | None = None

    def __enter__(self) -> T:
        self._token = self._variable.set(self._value)
        return self._value

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            self._variable.reset(self._token)
