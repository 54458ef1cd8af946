"""A tool call while it is being recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, MutableMapping
from types import TracebackType
from typing import Any

from traces.model import Failure, Json, ToolCall
from traces.snapshots import describe_value, to_bounded_json


class OpenToolCall:
    """A tool call while it is running: set `result`. Its step lists it from its start on, in `calls`.

    Without `blobs`, nothing is recorded.
    """

    def __init__(
        self,
        name: str,
        arguments: Any,
        call_id: str | None,
        *,
        calls: list[OpenToolCall],
        clock: Callable[[], int],
        blobs: MutableMapping[str, bytes] | None,
    ) -> None:
        self.name = name
        self.call_id = call_id
        self.result: Any = None
        self._calls = calls
        self._clock = clock
        self._blobs = blobs
        self._arguments = None if blobs is None else to_bounded_json(arguments, blobs)
        self._result: Json = None
        self._error: Failure | None = None
        self._start_ns: int | None = None
        self._end_ns: int | None = None

    def __enter__(self) -> OpenToolCall:
        if self._blobs is not None:
            self._start_ns = self._clock()
            self._calls.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._blobs is None:
            return
        self._error = None if error is None else to_failure(error)
        self._end_ns = self._clock()
        self._result = to_bounded_json(self.result, self._blobs)

    def freeze(self) -> ToolCall:
        return ToolCall(
            name=self.name,
            id=self.call_id,
            arguments=self._arguments,
            result=self._result,
            error=self._error,
            start_ns=self._start_ns,
            end_ns=self._end_ns,
        )


def to_failure(error: BaseException) -> Failure:
    """An exception as the failure of a step or a tool call."""
    if isinstance(error, asyncio.CancelledError):
        return Failure("cancelled", describe_value(error))
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return Failure(name, describe_value(error))
