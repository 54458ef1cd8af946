"""Executors: the contract holds for all of them."""

from __future__ import annotations

import pytest

from promptiter.evaluation.executor import Executor, LocalExecutor, ThreadExecutor
from promptiter.testing.executor_contract import ExecutorContract

pytestmark = pytest.mark.slow


class TestLocalExecutor(ExecutorContract):
    def make_executor(self) -> Executor:
        return LocalExecutor(concurrency=3)


class TestThreadExecutor(ExecutorContract):
    def make_executor(self) -> Executor:
        return ThreadExecutor(threads=3)
