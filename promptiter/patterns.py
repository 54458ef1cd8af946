"""Matches regular expressions of users and requests, and JSON schemas that have some, within a time limit.

`re` holds the interpreter lock while it matches, and a pattern such as `(a+)+b` may never end: it would stop everything
in this process. So another process matches those that may, and ends when it takes too long. Libraries with time limits
exist, but patterns mean something else there.
"""

from __future__ import annotations

import atexit
import json
import math
import os
import re
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from promptiter import json_schemas
from promptiter.json_schemas import TOO_DEEP, SchemaCheckError, SchemaViolation
from promptiter.pattern_process import READY
from promptiter.wording import shorten
from traces.model import Json

TIME_LIMIT_S = 5.0
"""How long one match may take. Those that end at all take milliseconds."""
MAX_STEPS = 1_000_000
"""A search that cannot take more steps is made in this process: that takes some hundredths of a second at most."""
MAX_PROCESSES = 4
"""How many patterns are matched at the same time."""


class PatternError(ValueError):
    """A pattern that is invalid, or takes too long."""


def check_pattern(pattern: str) -> None:
    """Raise PatternError if this is not a regular expression."""
    try:
        re.compile(pattern)
    except (re.error, OverflowError) as error:
        raise PatternError(str(error)) from error
    except RecursionError as error:
        raise PatternError("it is nested too deeply") from error


def search_pattern(pattern: str, text: str, *, ignore_case: bool = False) -> bool:
    """Whether a valid pattern is found in a text, as by `re.search`. PatternError if that takes too long."""
    if _bound_steps(pattern, text) <= MAX_STEPS:
        return re.search(pattern, text, re.IGNORECASE if ignore_case else 0) is not None
    question = {"pattern": pattern, "text": text, "ignore_case": ignore_case}
    found: bool = _processes.ask(question, what=f"the pattern {shorten(pattern)}")
    return found


def list_violations(schema: Mapping[str, Json], value: Json) -> list[SchemaViolation]:
    """Every violation of a JSON schema. SchemaCheckError if the value cannot be checked, or that takes too long."""
    if not _has_patterns(schema):
        return json_schemas.list_violations(schema, value)
    return _ask_about_schema(schema, value, is_best_only=False)


def find_violation(schema: Mapping[str, Json], value: Json) -> SchemaViolation | None:
    """The violation that explains best why a value does not fit, if it does not. SchemaCheckError as above."""
    if not _has_patterns(schema):
        return json_schemas.find_violation(schema, value)
    return next(iter(_ask_about_schema(schema, value, is_best_only=True)), None)


def _bound_steps(pattern: str, text: str) -> float:
    """A bound on the steps of a search.

    It is infinite for patterns with alternatives, counts, repeated groups or references to groups, and verbose ones.
    In all others, a repetition can end at each character at most, so each one multiplies the steps by their number.
    """
    if re.search(r"[|{]|\)[*+?]|\\[1-9]|\(\?P=|\(\?[A-Za-z-]*x", pattern):
        return math.inf
    return (len(text) + 1.0) ** min(1 + sum(map(pattern.count, "*+?")), 100)


def _ask_about_schema(schema: Mapping[str, Json], value: Json, *, is_best_only: bool) -> list[SchemaViolation]:
    question = {"schema": schema, "value": value, "is_best_only": is_best_only}
    try:
        found = _processes.ask(question, what="a pattern of the JSON schema")
    except PatternError as error:
        raise SchemaCheckError(str(error)) from error
    except RecursionError as error:
        raise SchemaCheckError(TOO_DEEP) from error
    return [SchemaViolation(**each) for each in found]


def _has_patterns(schema: Json) -> bool:
    """Whether checks against a schema may match patterns."""
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            if "pattern" in part or "patternProperties" in part:
                return True
            waiting.extend(part.values())
        elif isinstance(part, list | tuple):
            waiting.extend(part)
    return False


class _PatternProcess:
    """A process that matches, one question at a time."""

    def __init__(self) -> None:
        path = [os.path.abspath(folder) for folder in sys.path]  # noqa: PTH100 - Path.absolute keeps `..`
        command = [sys.executable, "-c", _START, json.dumps(path)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        while (line := self._read()) != READY:  # a sitecustomize may print
            if not line:
                self.close()
                raise RuntimeError("the process that matches patterns did not start; its error output says why")

    def ask(self, line: bytes) -> bytes:
        """The answer to a question; nothing if the process has ended."""
        assert self._process.stdin is not None, "it is a pipe"
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
            return self._read()
        except BrokenPipeError:
            return b""

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def close(self) -> None:
        """End the process and wait for it."""
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "it is a pipe"
            with suppress(OSError):
                pipe.close()
        self._process.wait()

    def _read(self) -> bytes:
        assert self._process.stdout is not None, "it is a pipe"
        return self._process.stdout.readline()


class _PatternProcesses:
    """The processes that match. They are started when they are needed, and used again."""

    def __init__(self) -> None:
        self._forget()
        self._is_registered = False

    def ask(self, question: Mapping[str, Json], *, what: str) -> Any:
        """The answer to a question, within a limit of time."""
        line = json.dumps({**question, "limit_s": TIME_LIMIT_S}).encode() + b"\n"
        with self._slots:
            process = self._take()
            answer = b""
            try:
                answer = process.ask(line)
            finally:
                if answer:
                    self._idle.append(process)
                else:
                    process.close()
        if not answer:
            raise PatternError(
                f"{what} takes longer than {TIME_LIMIT_S:g} s; simplify it: repetitions inside repetitions, as in "
                "`(a+)+`, can take forever"
            )
        read = json.loads(answer)
        if "error" in read:
            raise PatternError(read["error"])
        return read["answer"]

    def _take(self) -> _PatternProcess:
        if not self._is_registered:
            self._is_registered = True
            atexit.register(self._close)
            os.register_at_fork(after_in_child=self._forget)
        while True:
            try:
                process = self._idle.pop()
            except IndexError:
                return _PatternProcess()
            if process.is_alive:
                return process
            process.close()

    def _close(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _forget(self) -> None:
        """At first, and in a forked process, whose parent continues to use them."""
        self._idle: list[_PatternProcess] = []
        self._slots = threading.BoundedSemaphore(MAX_PROCESSES)


_START = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from promptiter.pattern_process import main; main()"
_processes = _PatternProcesses()
