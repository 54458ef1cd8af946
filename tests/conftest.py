from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.database_servers import find_mariadb, use_server
from traces.files import pause_gc

# Machines are noisy: a slow example is not a failure. The examples are the same every time, in CI and on a laptop.
settings.register_profile(
    "steady", deadline=None, derandomize=True, max_examples=30, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("quick", settings.get_profile("steady"), max_examples=10)  # for `make quick`
settings.load_profile("steady")

SLOW_MODULE = re.compile(r"^pytestmark = .*\bpytest\.mark\.slow\b", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """In `make quick`, leave out modules that are slow as a whole: they import the packages that take seconds."""
    if not config.option.markexpr.startswith("not slow") or collection_path.suffix != ".py":
        return None
    return True if SLOW_MODULE.search(collection_path.read_text(encoding="utf-8")) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect tests with the garbage collector paused: nearly all that is made here stays."""
    with pause_gc(is_last=True):
        return (yield)


@pytest.fixture(scope="session", autouse=True)
def hear_signals() -> Iterator[None]:
    """Python's own handlers, also if the tests were started with a signal ignored (`make test &`, `nohup make test`).

    Child processes inherit an ignored signal. promptiter leaves it ignored, as nohup asks, so tests that press Ctrl-C
    would wait forever.
    """
    interrupted = signal.signal(signal.SIGINT, signal.default_int_handler)
    hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGHUP, hung_up)


@pytest.fixture(scope="session")
def postgresql_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of a real PostgreSQL."""
    with use_server("postgresql", _share(tmp_path_factory) / "postgresql") as url:
        yield url


@pytest.fixture(scope="session")
def mariadb_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A database of a real MariaDB."""
    if find_mariadb() is None:
        pytest.skip("MariaDB is not installed; run: apt-get install mariadb-server")
    with use_server("mariadb", _share(tmp_path_factory) / "mariadb") as url:
        yield url


def _share(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this test run share."""
    own = factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
